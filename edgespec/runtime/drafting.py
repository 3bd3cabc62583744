"""The drafters of a model: opening those that were planned, and choosing which of them draft, and how."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.core.features import MOST_EMBEDDINGS, TRIMMED_ROWS
from edgespec.core.policy.measured import MeasuredPolicy
from edgespec.core.policy.policy import DraftPolicy, FixedPolicy
from edgespec.core.sampling import FloatRow
from edgespec.datastore.answer_store import AnswerStore
from edgespec.datastore.corpus import Corpus
from edgespec.datastore.successor_store import SuccessorStore
from edgespec.drafters.assistant import AssistantDrafter
from edgespec.drafters.base import Drafter
from edgespec.drafters.block import BlockDrafter
from edgespec.drafters.chained import ChainedDrafter
from edgespec.drafters.head import HeadDrafter
from edgespec.drafters.hydra import HydraDrafter, MedusaDrafter, Network
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.overlap import OverlappedDrafter
from edgespec.drafters.parallel import ParallelDrafter
from edgespec.drafters.registry import Parts, made
from edgespec.drafters.successors import Successors
from edgespec.drafters.translation import LEAST_OVERLAP, Translation
from edgespec.engine.calibrate import CostModelCache
from edgespec.engine.engine import Engine
from edgespec.engine.sequence import Drafting
from edgespec.errors import EdgespecError, ModelFileError, PairError, UsageError
from edgespec.events import Progress
from edgespec.files.paths import file_facts, models_dir
from edgespec.gguf_file.head_check import (
    BLOCK_DRAFTERS,
    NETWORKS,
    PEAGLE,
    is_head,
    kind_of_head,
    norm_epsilon,
    output_of_block,
    read_ids,
)
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import read_rows
from edgespec.llama.adapters import Adapters
from edgespec.llama.block_context import BlockContext
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.eagle_context import EagleContext, ParallelContext
from edgespec.llama.eagle_graph import HeadWeights
from edgespec.llama.graph import Processor, Product
from edgespec.llama.head_context import HeadContext, TrimmedOutput
from edgespec.llama.model import LlamaModel
from edgespec.models.memory.estimate import MemoryPlan
from edgespec.models.names.source import HEADS as BUNDLED_HEADS
from edgespec.models.pair.check import overlap_of, vocabulary_difference
from edgespec.runtime.planning import LoadPlan, open_model
from edgespec.settings import DRAFT_N_MAX, HEADS, MTP, LoadSettings, Request, fixed_length
from edgespec.validation import check_load_settings

LARGE = 2**24  # numbers of a matrix from which several threads pay off
WEAK = 0.6  # acceptance of the first token; only weaker EAGLE heads are helped by the table of successors

WithContext = tuple[Drafter, Context | EagleContext]
"""A drafter, and the context in which it decodes."""


@dataclass(frozen=True, slots=True)
class OpenDrafters:
    """The drafters of a model.

    Attributes:
        by_name: In the order in which they are asked.
        contexts: The contexts of draft models and heads.
        model: The draft model or head, if llama.cpp has loaded one.
        header: The header of the file that drafts, which may be a head that is not a model.
        answers: The stored answers that the suffix drafter reads.
        successors: The table of recycling and of heads.
        learned: The store that saves this table.
    """

    by_name: Mapping[str, Drafter]
    contexts: tuple[Context | EagleContext, ...]
    model: LlamaModel | None
    header: Header | None
    answers: AnswerStore | None
    successors: Successors
    learned: SuccessorStore | None


def open_drafters(
    plan: LoadPlan,
    target: Context,
    adapters: Adapters,
    corpus: Corpus | None,
    stack: ExitStack,
    progress: Progress,
    note: Callable[[str], None],
) -> OpenDrafters:
    """Open the drafters of a plan, whose trees have at most `plan.leaves` leaves; `stack` closes them.

    Raises ModelFileError, PairError, UsageError, OutOfMemoryError.
    """
    settings, names, model = plan.settings, plan.drafters, target.model
    answers = _stored_answers(model, adapters, note) if "suffix" in names and settings.store else None
    successors, learned = Successors(model.n_vocab), None
    if not {"recycling", *HEADS}.isdisjoint(names):
        learned = _learned_successors(successors, model, settings, adapters)
    by_name, contexts, draft_model = dict[str, Drafter](), list[Context | EagleContext](), None

    def add(drafter: Drafter, context: Context | EagleContext | None = None) -> None:
        stack.callback(drafter.close)
        by_name[drafter.name] = drafter
        if context is not None:
            contexts.append(context)

    parts = Parts(successors, answers, corpus.index if corpus else None)
    for name in names:
        try:
            drafter = made(name, parts)
        except UsageError as error:
            if settings.spec_type != "auto":
                raise
            note(error.line)
        else:
            if drafter is not None:
                add(drafter)
    opener = _Opener(settings, target, successors, plan.leaves, note, stack, lambda done: progress("loading", done))
    draft = plan.target.draft
    header = draft.header if draft else None
    if draft is not None and draft.header.architecture in NETWORKS:
        threads = settings.threads_draft or target.threads
        add(network_drafter(draft.header, model, plan.leaves, successors, threads))
    elif draft is not None:
        try:
            draft_model, opened = opener.draft(draft)
        except EdgespecError as error:
            if not plan.is_draft_optional:
                raise
            note(f"{draft.header.path.name} is not used: {error.why or error.what}")
            header = None
        else:
            add(*opened)
    if MTP in names:
        add(*opener.block(plan.target.of_block, lambda: token_counts(settings, model, adapters, answers, note)))
    return OpenDrafters(by_name, (*contexts,), draft_model, header, answers, successors, learned)


def _stored_answers(model: LlamaModel, adapters: Adapters, note: Callable[[str], None]) -> AnswerStore:
    return AnswerStore(model.vocabulary_id + adapters.mark, model.path.name, note)


def _learned_successors(
    successors: Successors, model: LlamaModel, settings: LoadSettings, adapters: Adapters
) -> SuccessorStore | None:
    """Fill the table with the rows of bundled and saved tables. Returns the store that saves it; None if the weights
    cannot be read, because tables are found by a print of the weights."""
    folders = (BUNDLED_HEADS, models_dir(), model.path.parent)
    saves = settings.store and not adapters  # the tables are those of the model alone
    with suppress(ModelFileError):
        return SuccessorStore(model.header, successors, folders, saves=saves)
    return None


def token_counts(
    settings: LoadSettings,
    model: LlamaModel,
    adapters: Adapters,
    answers: AnswerStore | None,
    note: Callable[[str], None],
) -> NDArray[np.int64]:
    """Return how often each token is in the stored answers, int64[V]. `answers` is None without the suffix drafter,
    which also adds to them."""
    if answers is None and settings.store:
        answers = _stored_answers(model, adapters, note)
    return np.zeros(model.n_vocab, np.int64) if answers is None else answers.counts(model.n_vocab)


# --- draft models and heads -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Opener:
    """Opens draft models and heads for a target; `stack` closes them."""

    settings: LoadSettings
    target: Context
    successors: Successors
    leaves: int
    note: Callable[[str], None]
    stack: ExitStack
    progress: Callable[[float], None]

    def draft(self, plan: MemoryPlan) -> tuple[LlamaModel | None, WithContext]:
        """Open a draft model or a head. Nothing stays open after an error."""
        with ExitStack() as opened:
            model = None
            if plan.header.architecture == PEAGLE:  # llama.cpp cannot load it
                drafter = self._parallel(plan)
            else:
                model = opened.enter_context(open_model(plan, self.note, self.progress))
                drafter = self._head(model, plan) if is_head(model.header) else self._model(model, plan)
            opened.enter_context(drafter[1])
            self.stack.push(opened.pop_all())
        return model, drafter

    def block(self, plan: MemoryPlan, written: Callable[[], NDArray[np.int64]]) -> WithContext:
        """Open a context for the target's MTP block. `written` returns how often the target wrote each token."""
        settings = self.settings
        plan = replace(
            plan,
            threads=settings.threads_draft or settings.threads,
            threads_batch=settings.threads_batch_draft or settings.threads_batch,
        )
        output = trimmed_output(self.target, written)
        context = HeadContext(self.target.model, self.target, plan, output=output, blocks=plan.blocks)
        self.stack.enter_context(context)
        if context.blocks > 1:
            return ChainedDrafter(context, self._width(plan), MTP), context
        return HeadDrafter(context, self._width(plan), MTP, None), context

    def _width(self, plan: MemoryPlan) -> int:
        return self.leaves if plan.branches else 1

    def _parallel(self, plan: MemoryPlan) -> WithContext:
        """Open a P-EAGLE head, whose context is on the CPU."""
        weights = HeadWeights(plan.header, self.target.model)
        if self.settings.cache_type_k_draft or self.settings.cache_type_v_draft:
            self.note("the KV cache of a P-EAGLE head is always f16")
        context = ParallelContext(weights, self.target, replace(plan, cache_type_k="f16", cache_type_v="f16"))
        return ParallelDrafter(context, self._width(plan), kind_of_head(plan.header), None), context

    def _head(self, model: LlamaModel, plan: MemoryPlan) -> WithContext:
        kind, width = kind_of_head(model.header), self._width(plan)
        accepted = model.header.numbers("edgespec.head.acceptance")  # in heads made by 'draft train'
        is_weak = bool(len(accepted)) and accepted[0] < WEAK
        successors = self.successors if is_weak else None  # in other texts they would make a good head worse
        if kind in BLOCK_DRAFTERS:
            blocks = BlockContext(model, self.target, plan)
            return BlockDrafter(blocks, width, kind, successors), blocks
        if kind == "assistant":
            reader = HeadContext(model, self.target, plan)
            return AssistantDrafter(reader, self.leaves), reader
        context = head_context(model, self.target, plan)
        return HeadDrafter(context, width, kind, successors), context

    def _model(self, draft: LlamaModel, plan: MemoryPlan) -> WithContext:
        settings, target, note = self.settings, self.target, self.note
        translation = translation_of(target.model, draft, note)
        if not draft.can_roll_back:
            raise PairError(
                f"{draft.path.name} cannot draft",
                why=f"the state of a {draft.header.architecture} model cannot be rolled back",
                hint="use a draft with attention, or none (`spec_type=none`)",
            )
        if draft.n_params > target.model.n_params:
            note("the draft model is larger than the target: it will slow decoding down")
        name, context = "self" if settings.self_draft else "draft", Context(draft, plan)
        if overlaps(settings, target, context, self.leaves, note):
            return OverlappedDrafter(context, name, translation), context
        return ModelDrafter(context, self._width(plan), name, translation), context


def translation_of(target: LlamaModel, draft: LlamaModel, note: Callable[[str], None]) -> Translation | None:
    """Return the translation between vocabularies; None if they are equal. Raises PairError if too few tokens match."""
    reason = vocabulary_difference(target.header, draft.header)
    if not reason:
        return None
    translation = Translation.between(target, draft)
    overlap, name = overlap_of(translation.overlap), draft.path.name
    if translation.overlap < LEAST_OVERLAP:
        raise PairError(
            f"{name} cannot draft for {target.path.name}",
            why=f"{overlap}; {reason}",
            hint="use a draft of the same model family, or none (`spec_type=none`)",
        )
    note(f"{name} has a different vocabulary: it drafts only the tokens that both have ({overlap})")
    return translation


def trimmed_output(target: Context, written: Callable[[], NDArray[np.int64]]) -> TrimmedOutput | None:
    """Return the output of the target's MTP block for the tokens that it writes, if that is much smaller than the whole
    one and on the CPU."""
    model, name = target.model, output_of_block(target.model.header)
    if not name or model.n_vocab < 2 * TRIMMED_ROWS or model.is_offloaded:
        return None
    return TrimmedOutput(model.header, name, written(), Processor(target.threads))


def head_context(draft: LlamaModel, target: Context, params: ContextParams) -> EagleContext | HeadContext:
    """Return a decoding context for a head: without llama.cpp's work where possible."""
    with suppress(UsageError):
        return EagleContext(draft, target, params)
    return HeadContext(draft, target, params)


def overlaps(settings: LoadSettings, target: Context, draft: Context, leaves: int, note: Callable[[str], None]) -> bool:
    """True if the draft model continues to draft while the target verifies; notes why not, if it was requested."""
    shared = target.model.devices & draft.model.devices
    why_not = ""
    if leaves > 1:
        why_not = "only chains can be drafted ahead, not trees (`spec_tree`)"
    if settings.overlap == "on" and why_not:
        note(f"drafting is not overlapped: {why_not}")
    elif settings.overlap == "on" and shared:
        note(f"target and draft share {' and '.join(sorted(shared))}: overlapping them usually costs speed")
    return not why_not and (settings.overlap == "on" or (settings.overlap == "auto" and not shared))


def network_drafter(
    head: Header, target: LlamaModel, width: int, successors: Successors, threads: int = 1
) -> HydraDrafter:
    """Return the drafter of a Hydra or Medusa head, which is read into memory. Raises ModelFileError."""

    def values(name: str) -> FloatRow:
        found = read_rows(head, name)
        if not np.isfinite(found).all():
            raise ModelFileError(
                f"{head.path} cannot be used as a draft head", why=f"{name} has values that are not numbers"
            )
        return found

    def product(name: str) -> Product:
        matrix = values(f"{name}.weight")
        return Product.of(matrix, processor(threads if matrix.size > LARGE else 1))

    processor = cache(Processor)
    count = head.number("block_count")
    network = Network(
        [product(f"head.{k}.up") for k in range(count)],
        [product(f"head.{k}.down") for k in range(count)],
        product("output"),
        read_ids(head),
        values("embd_norm.weight") if "embd_norm.weight" in head.tensors else np.empty(0, np.float32),
        norm_epsilon(head),
    )
    embedding = lru_cache(MOST_EMBEDDINGS)(lambda token: read_rows(target.header, "token_embd.weight", [token])[0])
    drafter = HydraDrafter if kind_of_head(head) == "hydra" else MedusaDrafter
    fingerprint = dict(zip(("file", "size", "mtime"), file_facts(head.path), strict=True))
    return drafter(network, embedding, successors, target.n_vocab, width, fingerprint)


# --- choosing ---------------------------------------------------------------------------------------------------------


class LoadedDrafters:
    """The drafters of a model by their names, in the order in which they are asked.

    Attributes:
        settings: how they draft now. Trees have at most the number of leaves that was loaded.
    """

    def __init__(
        self,
        settings: LoadSettings,
        drafters: Mapping[str, Drafter],
        engine: Engine,
        tuning: CostModelCache,
        leaves: int,
        note: Callable[[str], None],
    ) -> None:
        self._drafters, self._engine, self._tuning, self._note = drafters, engine, tuning, note
        self.settings = self._loaded = settings
        self._leaves = leaves
        self.use(settings)

    @property
    def _known_as(self) -> set[str]:
        """The names of the loaded drafters; "draft" also means a draft head."""
        return {*self._drafters} | ({"draft"} if not self._drafters.keys().isdisjoint(HEADS) else set())

    def changed(self, changes: Mapping[str, Any]) -> LoadSettings:
        """Return the settings with some changes. Raises UsageError if they exceed what is loaded."""
        wanted = replace(self.settings, **{"spec_draft_n_max": self.settings.draft_n_max, **changes})
        check_load_settings(wanted)
        if wanted.draft_n_max > self._loaded.draft_n_max:
            raise UsageError(
                f"drafts of {wanted.draft_n_max} tokens do not fit",
                hint="load the model with `spec_draft_n_max`",
                field="spec_draft_n_max",
            )
        missing = [name for name in wanted.drafters if name not in self._known_as]
        if wanted.self_draft is not None and wanted.self_draft != self._loaded.self_draft:
            missing = [wanted.spelling("self")]
        if changes.get("spec_type", "auto") != "auto" and missing:
            raise UsageError(
                f"drafter {missing[0]} is not loaded",
                why=f"loaded: {', '.join(map(self._loaded.spelling, self._drafters)) or 'no drafter'}",
                hint="load the model with it (`spec_type`, `draft_model`)",
                field="spec_type",
            )
        if "spec_tree" in changes and wanted.spec_tree > self._leaves:
            raise UsageError(f"trees of {wanted.spec_tree} leaves do not fit", hint="load the model with `spec_tree`")
        return wanted

    def use(self, settings: LoadSettings) -> None:
        """Use these settings, which `changed` returned, from now on."""
        drafting = self._drafting(settings)
        if isinstance(drafting.pace, MeasuredPolicy):
            drafting.pace.longest = drafting.n_max
        n_max, most = settings.draft_n_max, self._engine.scheduler.most_rows
        if drafting.drafters and n_max >= most and n_max > DRAFT_N_MAX:
            why = "wider passes round differently on this machine"
            self._note(f"drafts are at most {most - 1} tokens: {why} (`exact=False` allows them)")
        self.settings = settings
        leaves = min(settings.spec_tree, self._leaves)
        self._engine.speculator.use(drafting.drafters, drafting.n_max, drafting.pace, leaves)

    def of(self, request: Request) -> Drafting | None:
        """Return how to draft for a request; None: as for all answers. Raises UsageError."""
        asked = {"spec_type": request.spec_type, "pace": request.pace, "spec_draft_n_max": request.draft_n_max}
        changes = {name: value for name, value in asked.items() if value is not None}
        if not changes:
            return None
        try:
            return self._drafting(self.changed(changes))
        except UsageError as error:  # in the words of the request
            error.field = "draft_n_max" if error.field == "spec_draft_n_max" else error.field
            what = re.sub(r"`spec_draft_n_max=(\d+)`", r"draft_n_max \1", error.what)
            raise error.reworded(what=what if what.startswith(error.field) else f"{error.field}: {what}") from None

    def _drafting(self, settings: LoadSettings) -> Drafting:
        wanted = settings.drafters
        names = [name for name in self._drafters if name in wanted or (name in HEADS and "draft" in wanted)]
        most = min(self._engine.context.rollback, self._engine.scheduler.most_rows - 1) if names else 0
        n_max, pace = min(settings.draft_n_max, most), self._pace(names, settings)
        return Drafting(tuple(self._drafters[name] for name in names), n_max, pace)

    def _pace(self, names: list[str], settings: LoadSettings) -> DraftPolicy:
        if settings.pace != "auto" or not names:
            return FixedPolicy(fixed_length(settings.pace) or 0)
        measured = self._tuning.pace(names, min(settings.spec_tree, self._leaves))
        measured.longest = measured.longest or min(self._loaded.draft_n_max, self._engine.scheduler.most_rows - 1)
        return measured
