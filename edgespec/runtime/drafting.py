"""The drafters of a model: find and load the draft model or head, and choose which drafters draft, and how."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.core.features import MOST_EMBEDDINGS, TRIMMED_ROWS
from edgespec.core.policy.measured import MeasuredPolicy
from edgespec.core.policy.policy import DraftPolicy, FixedPolicy
from edgespec.core.sampling import FloatRow
from edgespec.drafters.assistant import AssistantDrafter
from edgespec.drafters.base import Drafter
from edgespec.drafters.block import BlockDrafter
from edgespec.drafters.chained import ChainedDrafter
from edgespec.drafters.head import HeadDrafter
from edgespec.drafters.hydra import HydraDrafter, MedusaDrafter, Network
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.overlap import OverlappedDrafter
from edgespec.drafters.parallel import ParallelDrafter
from edgespec.drafters.successors import Successors
from edgespec.drafters.translation import LEAST_OVERLAP, Translation
from edgespec.engine.calibrate import CostModelCache
from edgespec.engine.engine import Engine
from edgespec.engine.sequence import Drafting
from edgespec.errors import ModelFileError, PairError, UsageError
from edgespec.events import Progress
from edgespec.files.paths import file_facts
from edgespec.gguf_file.head_check import (
    BLOCK_DRAFTERS,
    is_head,
    kind_of_head,
    mtp_mismatch,
    norm_epsilon,
    output_of_block,
    read_ids,
)
from edgespec.gguf_file.header import Header, read_header
from edgespec.gguf_file.model_check import check_model
from edgespec.gguf_file.weights import read_rows
from edgespec.llama.block_context import BlockContext
from edgespec.llama.context import Context
from edgespec.llama.eagle_context import EagleContext
from edgespec.llama.graph import Processor
from edgespec.llama.head_context import HeadContext
from edgespec.llama.head_weights import HeadWeights
from edgespec.llama.model import Model
from edgespec.llama.parallel_context import ParallelContext
from edgespec.llama.product import Product
from edgespec.llama.trimmed_output import TrimmedOutput
from edgespec.models.memory.estimate import Plan
from edgespec.models.names.spec import resolve
from edgespec.models.pair.check import overlap_of, vocabulary_difference
from edgespec.runtime.near_draft import near_draft
from edgespec.settings import AUTO_DRAFT, DRAFT_N_MAX, HEADS, MODEL_DRAFTERS, MTP, LoadSettings, Request, fixed_length
from edgespec.validation import check_load_settings

LARGE = 2**24  # numbers of a matrix from which several threads pay off
WEAK = 0.6  # acceptance of the first token; only weaker EAGLE heads are helped by the table of successors


def find_draft(
    settings: LoadSettings, header: Header, default: Path | None, progress: Progress, note: Callable[[str], None]
) -> Path | None:
    """Return the file of the draft, or None; `default` is the target's default draft. Self-drafts are made here.

    The draft that "auto" chose is reported to `note`. Raises UsageError, ModelNotFoundError, ModelFileError.
    """
    if settings.draft_n_max > 0 and settings.self_draft is not None:
        from edgespec.models.pair.self_draft import self_draft

        return self_draft(resolve(settings.model).path, settings.self_draft, lambda done: progress("making", done))
    if not settings.uses_draft:
        return None
    if settings.draft_model not in (None, AUTO_DRAFT):
        return resolve(settings.draft_model).path
    near = near_draft(settings, header, note, only_heads=default is not None)
    is_better = near is not None and bool(near.found.kind) and settings.spec_type == "auto"  # than a draft model
    if default is not None and not is_better and _can_be(settings, read_header(default)):
        return default
    if near is not None:
        if not near.is_bundled:
            note(f"{near.what}: found near {header.path.name}, {near.found.why}")
        return near.path
    return _best_draft(settings, header, note) if settings.draft_model else None


def _can_be(settings: LoadSettings, draft: Header | None) -> bool:
    """True if one of the requested drafters can use this file."""
    return draft is not None and ("draft" in settings.drafters or kind_of_head(draft) in settings.drafters)


def _best_draft(settings: LoadSettings, header: Header, note: Callable[[str], None]) -> Path | None:
    """Return the best draft on this machine for the target, if there is one."""
    from edgespec.models.names.local import local_models
    from edgespec.models.pair.suggest import best, suggestions

    found = best(suggestions(header, (model for model in local_models() if _can_be(settings, model.header))))
    if found is None:
        note(f"no model here can draft for {header.path.name}: 'edgespec pair suggest' shows why")
        return None
    note(f"draft model {found.spec}: {found.why}")
    return resolve(found.spec).path


def drafters_here(settings: LoadSettings) -> set[str]:
    """Return the drafters with weights that can be loaded: "draft" or the kind of the head, and "mtp" if the target has
    an MTP block. Raises ModelNotFoundError, ModelFileError."""
    found = resolve(settings.model)
    here = set() if mtp_mismatch(read_header(found.path)) else {MTP}
    if settings.draft_model == AUTO_DRAFT:
        return here | {"draft"}
    draft = resolve(settings.draft_model).path if settings.draft_model else found.default_draft
    if draft is None and (near := near_draft(settings, check_model(found.path), lambda text: None, untried=True)):
        draft = near.path
    return here | {kind_of_head(read_header(draft)) or "draft"} if draft else here


def drafters_with(settings: LoadSettings, target: Header, draft: Header | None) -> list[str]:
    """Return the drafters to load for this target and draft, in the order in which they are asked.

    A head replaces a draft model. Raises PairError if a head or the MTP block was requested by name and is missing.
    """
    names = [name for name in settings.drafters if draft is not None or name not in MODEL_DRAFTERS]
    if MTP in names and (why := mtp_mismatch(target)):
        if settings.spec_type != "auto":
            raise PairError(f"{target.path.name} cannot draft by --spec-type mtp", why=why, hint="leave mtp out")
        names.remove(MTP)
    if draft is None:
        return names
    kind = kind_of_head(draft) or "draft"
    wanted = [name for name in names if name in (*HEADS, "draft")]
    if wanted and not {kind, "draft"} & {*wanted}:
        what = "a draft model, not a draft head" if kind == "draft" else f"a head of the kind {kind}"
        raise PairError(f"{draft.path.name} is {what}", hint=f"--spec-type {kind} drafts with it")
    return [*dict.fromkeys(kind if name in wanted else name for name in names)]


def no_draft_model(settings: LoadSettings, header: Header, missing: str) -> UsageError:
    """Return the error for a draft model or head that was requested but is missing."""
    what, named, get_one = "a draft model", "MODEL", "'edgespec pair suggest' lists what would fit"
    if "draft" not in settings.drafters:
        what, named = "a draft head", "HEAD.gguf"
        kind = next(name for name in settings.drafters if name in HEADS)
        model = shlex.quote(settings.model)
        get_one = f"'edgespec draft train {model} --kind {kind} -o HEAD.gguf' trains one"
        if kind == "peagle":
            get_one = f"'edgespec draft convert OWNER/NAME {model} -o HEAD.gguf' converts a published one"
        if kind == "assistant":
            get_one = f"'edgespec pull {model}' downloads that of a Gemma 4"
    elif missing:
        get_one = f"'edgespec pull {missing}' downloads one"
    return UsageError(
        f"--spec-type {settings.spec_type} needs {what}",
        why=f"there is none for {header.path.name}",
        hint=f"name one (-md {named}); {get_one}; --spec-type {settings.without_draft} goes without",
    )


def translation_of(target: Model, draft: Model, note: Callable[[str], None]) -> Translation | None:
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
            hint="use a draft of the same model family, or none (--spec-type none)",
        )
    note(f"{name} has a different vocabulary: it drafts only the tokens that both have ({overlap})")
    return translation


def model_drafter(
    settings: LoadSettings,
    target: Context,
    draft: Model,
    plan: Plan,
    leaves: int,
    successors: Successors,
    note: Callable[[str], None],
    written: Callable[[], NDArray[np.int64]],
) -> tuple[ModelDrafter | AssistantDrafter, Context | EagleContext]:
    """Open a context for a draft model, a head, or the MTP block (`draft` is the target's model); return both.

    `written` returns how often the target wrote each token, int64[V].

    Raises PairError, UsageError, OutOfMemoryError.
    """
    width = leaves if plan.branches else 1
    threads: dict[str, Any] = {
        "threads": settings.threads_draft or settings.threads,
        "threads_batch": settings.threads_batch_draft or settings.threads_batch,
    }
    if draft is target.model or is_head(draft.header):
        kind = MTP if draft is target.model else kind_of_head(draft.header)
        accepted = draft.header.numbers("edgespec.head.acceptance")  # in heads made by 'draft train'
        is_weak = kind != MTP and bool(len(accepted)) and accepted[0] < WEAK
        blended = successors if is_weak else None  # successors in other texts would make a good head worse
        if kind in BLOCK_DRAFTERS:
            blocks = BlockContext(draft, target, **threads, **plan.context)
            return BlockDrafter(blocks, width, kind, blended), blocks
        if kind == "assistant":
            reader = HeadContext(draft, target, **threads, **plan.context)
            return AssistantDrafter(reader, leaves), reader
        if kind == MTP:
            output = trimmed_output(target, written)
            block = HeadContext(draft, target, output=output, blocks=plan.blocks, **threads, **plan.context)
            if block.blocks > 1:
                return ChainedDrafter(block, width, kind), block
            return HeadDrafter(block, width, kind, blended), block
        context = head_context(draft, target, threads | plan.context)
        return HeadDrafter(context, width, kind, blended), context
    translation = translation_of(target.model, draft, note)
    if not draft.can_roll_back:
        raise PairError(
            f"{draft.path.name} cannot draft",
            why=f"the state of a {draft.header.architecture} model cannot be rolled back",
            hint="use a draft with attention, or none (--spec-type none)",
        )
    if draft.n_params > target.model.n_params:
        note("the draft model is larger than the target: it will slow decoding down")
    name, own = "self" if settings.self_draft else "draft", Context(draft, **threads, **plan.context)
    if overlaps(settings, target, own, leaves, note):
        return OverlappedDrafter(own, name, translation), own
    return ModelDrafter(own, width, name, translation), own


def parallel_drafter(
    settings: LoadSettings, target: Context, plan: Plan, leaves: int, note: Callable[[str], None]
) -> tuple[ParallelDrafter, ParallelContext]:
    """Return the drafter of a P-EAGLE head, and its context, which is on the CPU. Raises UsageError, ModelFileError,
    OutOfMemoryError."""
    weights = HeadWeights(plan.header, target.model)
    if settings.cache_type_k_draft or settings.cache_type_v_draft:
        note("the KV cache of a P-EAGLE head is always f16")
    how = plan.context | {"cache_type_k": "f16", "cache_type_v": "f16"}
    context = ParallelContext(weights, target, threads=settings.threads_draft or settings.threads, **how)
    return ParallelDrafter(context, leaves if plan.branches else 1, kind_of_head(plan.header), None), context


def trimmed_output(target: Context, written: Callable[[], NDArray[np.int64]]) -> TrimmedOutput | None:
    """Return the output of the target's MTP block for the tokens that it writes, if that is much smaller than the whole
    one and on the CPU."""
    model, name = target.model, output_of_block(target.model.header)
    if not name or model.n_vocab < 2 * TRIMMED_ROWS or model.is_offloaded:
        return None
    return TrimmedOutput(model.header, name, written(), Processor(target.threads))


def head_context(draft: Model, target: Context, settings: Mapping[str, Any]) -> EagleContext | HeadContext:
    """Return a decoding context for a head: without llama.cpp's work where possible."""
    with suppress(UsageError):
        return EagleContext(draft, target, **settings)
    return HeadContext(draft, target, **settings)


def overlaps(settings: LoadSettings, target: Context, draft: Context, leaves: int, note: Callable[[str], None]) -> bool:
    """True if the draft model continues to draft while the target verifies; notes why not, if it was requested."""
    shared = target.model.devices & draft.model.devices
    why_not = ""
    if leaves > 1:
        why_not = "only chains can be drafted ahead, not trees (--spec-tree)"
    if settings.overlap == "on" and why_not:
        note(f"drafting is not overlapped: {why_not}")
    elif settings.overlap == "on" and shared:
        note(f"target and draft share {' and '.join(sorted(shared))}: overlapping them usually costs speed")
    return not why_not and (settings.overlap == "on" or (settings.overlap == "auto" and not shared))


def network_drafter(head: Header, target: Model, width: int, successors: Successors, threads: int = 1) -> HydraDrafter:
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
                hint="load the model with --spec-draft-n-max",
                field="spec_draft_n_max",
            )
        missing = [name for name in wanted.drafters if name not in self._known_as]
        if wanted.self_draft is not None and wanted.self_draft != self._loaded.self_draft:
            missing = [wanted.spelling("self")]
        if changes.get("spec_type", "auto") != "auto" and missing:
            raise UsageError(
                f"drafter {missing[0]} is not loaded",
                why=f"loaded: {', '.join(map(self._loaded.spelling, self._drafters)) or 'no drafter'}",
                hint="load the model with it (--spec-type, -md)",
                field="spec_type",
            )
        if "spec_tree" in changes and wanted.spec_tree > self._leaves:
            raise UsageError(f"trees of {wanted.spec_tree} leaves do not fit", hint="load the model with --spec-tree")
        return wanted

    def use(self, settings: LoadSettings) -> None:
        """Use these settings, which `changed` returned, from now on."""
        drafting = self._drafting(settings)
        if isinstance(drafting.pace, MeasuredPolicy):
            drafting.pace.longest = drafting.n_max
        n_max, most = settings.draft_n_max, self._engine.scheduler.most_rows
        if drafting.drafters and n_max >= most and n_max > DRAFT_N_MAX:
            why = "wider passes round differently on this machine"
            self._note(f"drafts are at most {most - 1} tokens: {why} (--fast allows them)")
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
            what = error.what.replace("--spec-draft-n-max", "draft_n_max")
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
