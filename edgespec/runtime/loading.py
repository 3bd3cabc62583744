"""From settings to an engine: models, contexts and drafters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.datastore.answer_store import AnswerStore
from edgespec.datastore.corpus import Corpus, check_fits, find
from edgespec.datastore.successor_store import SuccessorStore
from edgespec.dialects.templates import dialect_of
from edgespec.drafters.base import Drafter
from edgespec.drafters.registry import REGISTRY, Parts, made
from edgespec.drafters.successors import Successors
from edgespec.engine.calibrate import CostModelCache, warm_up
from edgespec.engine.engine import Engine
from edgespec.errors import EdgespecError, ModelFileError, OutOfMemoryError, UsageError
from edgespec.events import Progress
from edgespec.files.paths import models_dir
from edgespec.gguf_file.adapters import check_adapter, parse_adapters
from edgespec.gguf_file.chat_templates import chat_templates
from edgespec.gguf_file.head_check import (
    NETWORKS,
    PEAGLE,
    check_draft_file,
    check_head_fits,
    is_head,
    kind_of_head,
)
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model, vocabulary_note
from edgespec.llama import rpc
from edgespec.llama.adapters import Adapters
from edgespec.llama.breakers import BreakerFinder
from edgespec.llama.context import Context
from edgespec.llama.eagle_context import EagleContext
from edgespec.llama.grammar import Grammars
from edgespec.llama.kernels import have_exact_kernels
from edgespec.llama.model import Model
from edgespec.llama.rendering import renderer
from edgespec.llama.template import ChatTemplate
from edgespec.llama.workers import RemoteDevice, parse_addresses
from edgespec.models.memory.estimate import Plan
from edgespec.models.names.source import HEADS as BUNDLED_HEADS
from edgespec.models.names.source import is_path
from edgespec.models.names.spec import resolve
from edgespec.runtime.drafting import (
    LoadedDrafters,
    drafters_with,
    find_draft,
    model_drafter,
    network_drafter,
    no_draft_model,
    parallel_drafter,
)
from edgespec.runtime.fitting import cache_bytes, open_model
from edgespec.runtime.guarantee import Guarantee
from edgespec.runtime.near_draft import remember
from edgespec.runtime.planning import Planner
from edgespec.runtime.template_dialect import TemplateDialects
from edgespec.runtime.vision import Vision, projector_file
from edgespec.settings import (
    HEADS,
    MTP,
    LoadSettings,
)


class ModelSession(Closable):
    """A target, its draft if it has one, their contexts and the engine over them.

    `note` receives messages for the user. Raises ModelNotFoundError, ModelFileError, PairError, OutOfMemoryError,
    UsageError.
    """

    model: Model
    adapters: Adapters
    draft: Model | None = None
    draft_header: Header | None = None  # also of a head, which is not a model
    answers: AnswerStore | None = None
    learned: SuccessorStore | None = None
    successors: Successors | None = None  # of recycling and heads
    context: Context
    guarantee: Guarantee
    engine: Engine
    tuning: CostModelCache
    drafting: LoadedDrafters
    template: ChatTemplate
    vision: Vision
    grammars: Grammars
    breakers: BreakerFinder

    def __init__(self, settings: LoadSettings, progress: Progress, note: Callable[[str], None]) -> None:
        self._settings, self._progress, self._note = settings, progress, note
        self.n_max = settings.draft_n_max
        self._models: list[Model] = []
        self.contexts: list[Context | EagleContext] = []
        self.drafters: dict[str, Drafter] = {}
        self._watched: CancelFlag | None = None
        self._is_found = False
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free caches and models; safe to call twice."""
        if hasattr(self, "grammars"):  # not if loading failed before
            self.grammars.close()
        if hasattr(self, "vision"):
            self.vision.close()
        for drafter in self.drafters.values():
            drafter.close()
        for opened in (self.contexts, self._models):
            while opened:
                opened.pop().close()

    def save(self, *, now: bool = True) -> None:
        """Save what was measured and learned; unless `now`, at most once a minute, and neither answers, of which the
        store itself saves many at once, nor the result of a draft."""
        self.tuning.save(now=now)
        if self.learned is not None:
            self.learned.save(now=now)
        if now and self.draft_header is not None:
            steps = self.tuning.steps_without_gain(kind_of_head(self.draft_header) or "draft")
            if steps is not None and not self.adapters:  # with adapters, drafts gain less
                remember(self._settings, self.model.path, self.draft_header.path, steps)
        if now and self.answers is not None:
            self.answers.save()

    def watch(self, cancel: CancelFlag | None) -> None:
        """Let `cancel` stop passes of all models."""
        if cancel is not self._watched:
            self._watched = cancel
            for context in self.contexts:
                context.watch(cancel)

    def _load(self) -> None:
        settings, progress, note = self._settings, self._progress, self._note
        found = resolve(settings.model)
        header = check_model(found.path)
        templates = chat_templates(header, settings.chat_template, settings.chat_template_file)
        projector = projector_file(settings.mmproj, header, note)
        adapters = parse_adapters(settings.lora)
        adapter_headers = tuple(check_adapter(adapter.path, header) for adapter in adapters)
        workers = rpc.offers(parse_addresses(settings.rpc)) if settings.rpc else []
        planner = Planner(settings, header, adapter_headers, projector, workers, note)
        draft_path = find_draft(settings, header, found.default_draft, progress, note)
        if draft_path is None and settings.uses_draft and settings.spec_type != "auto":
            raise no_draft_model(settings, header, found.missing_draft)
        is_named = settings.draft_model or settings.spec_type != "auto" or draft_path == found.default_draft
        self._is_found = draft_path is not None and not is_named
        # Check both headers first: an error in the draft should not appear only after the target is loaded.
        draft_header = check_draft_file(draft_path) if draft_path else None
        if draft_header is not None and is_head(draft_header):
            check_head_fits(header, draft_header)

        def planned() -> tuple[list[str], Plan]:
            names = drafters_with(settings, header, draft_header) if self.n_max > 0 else []
            return names, planner.plan(draft_header, names, must_fit=self._is_found)

        try:
            names, plan = planned()
        except OutOfMemoryError as error:
            if not self._is_found or draft_header is None:
                raise
            note(f"{draft_header.path.name} is not used: {error.why or error.what}")
            self._is_found, draft_header = False, None
            names, plan = planned()
        self._settings = settings = planner.settings
        drafts = bool(names)
        renderer().start()  # while the weights load, as the next one
        threading.Thread(target=dialect_of, args=(templates.default,), name="dialect", daemon=True).start()
        self.model = self._open_model(plan, workers)
        self.adapters = Adapters(self.model, adapters, adapter_headers)
        self.grammars, self.breakers = Grammars(self.model), BreakerFinder(self.model)
        corpus = self._open_corpus()
        leaves = planner.leaves(names) if self.model.can_roll_back else 1
        plan = planner.with_branches(plan, leaves)
        if plan.n_ctx > self.model.n_ctx_train:
            note(f"the model was trained for a context of {self.model.n_ctx_train} tokens, not {plan.n_ctx}")
        if told := vocabulary_note(header):
            note(told)
        how = plan.context | {"threads": settings.threads, "threads_batch": settings.threads_batch}
        self.context = Context(self.model, adapters=self.adapters, **how)
        self.contexts.append(self.context)
        self.context.adapters = self.adapters.every  # an answer may use any of them
        name = self.model.path.name if is_path(settings.model) else settings.model
        self.vision = Vision(projector, self.context, name, named=settings.mmproj is not None)
        see, styles = self.vision.see, TemplateDialects(self.model)
        self.template = ChatTemplate(self.model, templates.default, see, templates.tool_use, styles.of)
        self.guarantee = Guarantee(self.context, settings, self._progress, drafts=drafts)
        self.context.adapters = self.adapters.default
        why_not = self._why_plain() if drafts else ""
        if why_not:
            if draft_header is not None or corpus is not None or settings.spec_type != "auto":
                self._note(f"decoding without speculation: {why_not}")
            names, draft_header = [], None
        self._say_what_is_left_out(names, drafts=drafts and not why_not)
        if self.guarantee.warning and (names or not have_exact_kernels()):
            note(self.guarantee.warning)
        if found.missing_draft and settings.uses_draft and draft_path is None and not self._why_plain():
            self._note(f"running without its draft model; download it with 'edgespec pull {found.missing_draft}'")
        self.draft_header = draft_header
        for drafter in self._make_drafters(names, plan, leaves, corpus):
            self.drafters[drafter.name] = drafter
        self.engine = Engine(
            self.context,
            least_width=self.guarantee.least_width,
            most_rows=self.guarantee.most_rows,
            cache_bytes=cache_bytes(settings.cache_ram, self._models, self._note),
            warn=self._note,
            watch=self.watch,
        )
        least_width = max(1, self.guarantee.least_width)
        compiles = any(context.model.is_offloaded for context in self.contexts)
        drafters = self.drafters.values()
        self.tuning = CostModelCache(self.context, drafters, least_width, compiles=compiles)
        if self.drafters and settings.pace == "auto":
            for context in self.contexts:
                if context.model.is_offloaded:
                    warm_up(context)
            widest = min(1 + self.n_max, self.engine.scheduler.most_rows)
            with self.context.all_threads():
                self.tuning.measure(self.context, widest, lambda done: self._progress("costs", done))
        self.drafting = LoadedDrafters(settings, self.drafters, self.engine, self.tuning, leaves, note)

    def _open_corpus(self) -> Corpus | None:
        """Return the corpus to draft from, if any. Raises UsageError."""
        settings = self._settings
        if "corpus" not in settings.drafters or self.n_max == 0:
            return None
        if settings.corpus is None:
            raise UsageError("no corpus was given", hint="name one with --corpus")
        corpus = Corpus(find(settings.corpus))
        check_fits(corpus, self.model)
        return corpus

    # --- the target -----------------------------------------------------------------------------------------------

    def _say_what_is_left_out(self, names: Sequence[str], *, drafts: bool) -> None:
        settings = self._settings
        if settings.draft_model and not ({"draft", *HEADS} & {*names}) and (not settings.uses_draft or not drafts):
            self._note(f"draft model {settings.draft_model} is not used: --spec-type or --spec-draft-n-max excludes it")
        if settings.corpus and "corpus" not in settings.drafters:
            self._note(f"corpus {settings.corpus} is not used: --spec-type excludes it")
        only_chains = not any(REGISTRY[name].drafts_trees for name in names)
        if settings.spec_tree > 1 and drafts and (only_chains or not self.context.free_branches):
            why = f"{settings.sequences} sequences leave no room for branches"
            if only_chains:
                why = f"{' and '.join(names)} cannot draft trees"
            elif not self.model.can_roll_back:
                why = f"the state of a {self.model.header.architecture} model does not support branches"
            self._note(f"drafting chains only: {why}")
        if settings.overlap == "on" and not {"draft", "self"} & {*names}:
            self._note("drafting is not overlapped: only a draft model can draft ahead")

    def _why_plain(self) -> str:
        """Return why this target cannot use drafts; empty if it can."""
        if not self.context.rollback:
            return f"the state of a {self.model.header.architecture} model cannot be rolled back"
        if self._settings.strict and self.guarantee.rounding != 0.0:
            return "no pass width was found at which logits are independent of the batch (--strict)"
        return ""

    # --- the draft ------------------------------------------------------------------------------------------------

    def _make_drafters(self, names: Sequence[str], plan: Plan, leaves: int, corpus: Corpus | None) -> Iterator[Drafter]:
        """Yield the drafters in the order in which they are asked."""
        if "suffix" in names and self._settings.store:
            self.answers = self._stored_answers()
        successors = self._open_successors(is_used=not {"recycling", *HEADS}.isdisjoint(names))
        parts = Parts(successors, self.answers, None if corpus is None else corpus.index)
        for name in names:
            try:
                drafter = made(name, parts)
            except UsageError as error:
                if self._settings.spec_type != "auto":
                    raise
                self._note(error.line)
            else:
                yield from [] if drafter is None else [drafter]
        if self.draft_header is not None and self.draft_header.architecture in NETWORKS:
            threads = self._settings.threads_draft or self.context.threads
            yield network_drafter(self.draft_header, self.model, leaves, successors, threads)
        elif self.draft_header is not None and plan.draft is not None:
            drafter = self._open_draft(plan.draft, leaves, successors)
            if drafter is not None:
                yield drafter
        if MTP in names:
            yield self._make_model_drafter(self.model, plan.of_block, leaves, successors)

    def _stored_answers(self) -> AnswerStore:
        return AnswerStore(self.model.vocabulary_id + self.adapters.mark, self.model.path.name, self._note)

    def _open_successors(self, *, is_used: bool) -> Successors:
        """Return the table of successors; if a drafter uses it, with the rows of bundled and saved tables."""
        self.successors = successors = Successors(self.model.n_vocab)
        folders = (BUNDLED_HEADS, models_dir(), self.model.path.parent)
        if is_used:
            with suppress(ModelFileError):  # weights that cannot be read have no print
                saves = self._settings.store and not self.adapters  # the tables are those of the model alone
                self.learned = SuccessorStore(self.model.header, successors, folders, saves=saves)
        return successors

    def _open_draft(self, plan: Plan, leaves: int, successors: Successors) -> Drafter | None:
        """Return the drafter of a draft model or head. None, with a note, if nobody asked for this draft and it cannot
        be loaded."""
        n_models = len(self._models)
        try:
            if plan.header.architecture == PEAGLE:  # llama.cpp cannot load it
                parallel, context = parallel_drafter(self._settings, self.context, plan, leaves, self._note)
                self.contexts.append(context)
                return parallel
            self.draft = self._open_model(plan)
            return self._make_model_drafter(self.draft, plan, leaves, successors)
        except EdgespecError as error:
            if not self._is_found:
                raise
            self._note(f"{plan.header.path.name} is not used: {error.why or error.what}")
            while len(self._models) > n_models:
                self._models.pop().close()
            self.draft = self.draft_header = None
            return None

    def _make_model_drafter(self, draft: Model, plan: Plan, leaves: int, successors: Successors) -> Drafter:
        drafter, context = model_drafter(
            self._settings, self.context, draft, plan, leaves, successors, self._note, self._written
        )
        self.contexts.append(context)
        return drafter

    def _written(self) -> NDArray[np.int64]:
        """Return how often each token is in the stored answers."""
        answers = self.answers
        if answers is None and self._settings.store:  # without `suffix`, which also adds to them
            answers = self._stored_answers()
        n_vocab = self.model.n_vocab
        return np.zeros(n_vocab, np.int64) if answers is None else answers.counts(n_vocab)

    # --- both -----------------------------------------------------------------------------------------------------

    def _open_model(self, plan: Plan, workers: Sequence[RemoteDevice] = ()) -> Model:
        model = open_model(plan, self._note, lambda done: self._progress("loading", done), workers)
        self._models.append(model)
        return model
