"""From settings to an engine: find the files, plan, open the target, measure what it guarantees, open the drafters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.datastore.corpus import Corpus, check_fits, find
from edgespec.dialects.templates import dialect_of
from edgespec.drafters.base import Drafter
from edgespec.drafters.registry import REGISTRY
from edgespec.engine.calibrate import CostModelCache, warm_up
from edgespec.engine.engine import Engine
from edgespec.errors import UsageError
from edgespec.events import Progress
from edgespec.gguf_file.head_check import kind_of_head
from edgespec.gguf_file.model_check import vocabulary_note
from edgespec.llama.adapters import Adapters
from edgespec.llama.breakers import BreakerFinder
from edgespec.llama.context import Context
from edgespec.llama.eagle_context import EagleContext
from edgespec.llama.grammar import Grammars
from edgespec.llama.kernels import have_exact_kernels
from edgespec.llama.model import LlamaModel, described
from edgespec.llama.rendering import renderer
from edgespec.llama.template import ChatTemplate
from edgespec.models.names.source import is_path
from edgespec.runtime.drafting import LoadedDrafters, OpenDrafters, open_drafters
from edgespec.runtime.guarantee import Guarantee
from edgespec.runtime.model_files import ModelFiles, find_files, remember
from edgespec.runtime.planning import LoadPlan, cache_bytes, open_model, plan_loading, with_branches
from edgespec.runtime.template_dialect import TemplateDialects
from edgespec.runtime.vision import Vision
from edgespec.settings import HEADS, LoadSettings

Note = Callable[[str], None]
"""Receives messages for the user."""

AnyContext = Context | EagleContext


class Watch:
    """Lets one cancel flag at a time stop the passes of all contexts."""

    def __init__(self, contexts: Sequence[AnyContext]) -> None:
        self._contexts = contexts
        self._watched: CancelFlag | None = None

    def __call__(self, cancel: CancelFlag | None) -> None:
        if cancel is not self._watched:
            self._watched = cancel
            for context in self._contexts:
                context.watch(cancel)


@dataclass(frozen=True, slots=True)
class Target:
    """A target with its context, and what belongs to it."""

    model: LlamaModel
    context: Context
    adapters: Adapters
    grammars: Grammars
    breakers: BreakerFinder
    template: ChatTemplate
    vision: Vision
    corpus: Corpus | None


@dataclass(frozen=True)
class ModelSession(Closable):
    """A target, its drafters and the engine over them.

    Attributes:
        settings: Those that were given, with the number of sequences that was chosen.
        drafting: Which of the drafters draft, and how.
        watch: Lets a flag stop passes of all models.
    """

    settings: LoadSettings
    target: Target
    guarantee: Guarantee
    drafters: OpenDrafters
    watch: Watch
    engine: Engine
    tuning: CostModelCache
    drafting: LoadedDrafters
    _opened: ExitStack

    def close(self) -> None:
        """Free caches and models; safe to call twice."""
        self._opened.close()

    def save(self, *, now: bool = True) -> None:
        """Save what was measured and learned: at once if `now`, otherwise at most once a minute.

        Two things are saved only `now`: answers, because their store saves many at once by itself, and whether a draft
        gained time.
        """
        target, drafters = self.target, self.drafters
        self.tuning.save(now=now)
        if drafters.learned is not None:
            drafters.learned.save(now=now)
        if now and drafters.header is not None:
            steps = self.tuning.steps_without_gain(kind_of_head(drafters.header) or "draft")
            if steps is not None and not target.adapters:  # with adapters, drafts gain less
                remember(self.settings, target.model.path, drafters.header.path, steps)
        if now and drafters.answers is not None:
            drafters.answers.save()


def open_session(settings: LoadSettings, progress: Progress, note: Note) -> ModelSession:
    """Load a target, its draft if it has one, and make an engine for them.

    Raises ModelNotFoundError, ModelFileError, PairError, OutOfMemoryError, UsageError.
    """
    files = find_files(settings, progress, note)
    plan = plan_loading(settings, files, note)
    with ExitStack() as stack:
        target, plan = _open_target(files, plan, stack, progress, note)
        settings, context, adapters = plan.settings, target.context, target.adapters
        context.adapters = adapters.every  # an answer may use any of them
        guarantee = Guarantee(context, settings, progress, drafts=bool(plan.drafters))
        context.adapters = adapters.default
        plan = _usable(plan, files, target, guarantee, note)
        drafters = open_drafters(plan, context, adapters, target.corpus, stack, progress, note)
        contexts = [context, *drafters.contexts]
        watch = Watch(contexts)
        models = [target.model] if drafters.model is None else [target.model, drafters.model]
        engine = Engine(
            context,
            least_width=guarantee.least_width,
            most_rows=guarantee.most_rows,
            cache_bytes=cache_bytes(settings.cache_ram, models, note),
            warn=note,
            watch=watch,
        )
        tuning = _measured(settings, engine, contexts, drafters.by_name, progress)
        drafting = LoadedDrafters(settings, drafters.by_name, engine, tuning, plan.leaves, note)
        return ModelSession(
            settings, target, guarantee, drafters, watch, engine, tuning, drafting, _opened=stack.pop_all()
        )


def _open_target(
    files: ModelFiles, plan: LoadPlan, stack: ExitStack, progress: Progress, note: Note
) -> tuple[Target, LoadPlan]:
    """Open the target. Return the plan without branches if its memory cannot have them."""
    settings, header, templates = plan.settings, files.target, files.templates
    renderer().start()  # while the weights load, as the next one
    threading.Thread(target=dialect_of, args=(templates.default,), name="dialect", daemon=True).start()
    model = stack.enter_context(open_model(plan.target, note, lambda done: progress("loading", done), files.workers))
    adapters = Adapters(model, files.adapters)
    grammars = stack.enter_context(Grammars(model))
    corpus = _open_corpus(settings, model)
    leaves = plan.leaves if model.can_roll_back else 1
    plan = replace(plan, leaves=leaves, target=with_branches(plan.target, leaves))
    if plan.target.n_ctx > model.n_ctx_train:
        note(f"the model was trained for a context of {model.n_ctx_train} tokens, not {plan.target.n_ctx}")
    if text := vocabulary_note(header):
        note(text)
    context = stack.enter_context(Context(model, plan.target, adapters=adapters))
    name = model.path.name if is_path(settings.model) else settings.model
    vision = stack.enter_context(Vision(files.projector, context, name, named=settings.mmproj is not None))
    template = ChatTemplate(model, templates.default, vision.see, templates.tool_use, TemplateDialects(model).of)
    return Target(model, context, adapters, grammars, BreakerFinder(model), template, vision, corpus), plan


def _open_corpus(settings: LoadSettings, model: LlamaModel) -> Corpus | None:
    """Return the corpus to draft from, if any. Raises UsageError."""
    if "corpus" not in settings.drafters or settings.draft_n_max == 0:
        return None
    if settings.corpus is None:
        raise UsageError("no corpus was given", hint="name one with `corpus`")
    corpus = Corpus(find(settings.corpus))
    check_fits(corpus, model)
    return corpus


def _usable(plan: LoadPlan, files: ModelFiles, target: Target, guarantee: Guarantee, note: Note) -> LoadPlan:
    """Return the plan with the drafters that this target can use; a note says which settings have no effect, and
    why."""
    settings, why_plain = plan.settings, _why_plain(plan.settings, target.context, guarantee)
    if plan.drafters and why_plain:
        if plan.target.draft is not None or target.corpus is not None or settings.spec_type != "auto":
            note(f"decoding without speculation: {why_plain}")
        plan = replace(plan, drafters=[], target=replace(plan.target, draft=None))
    else:
        for text in _left_out(plan, target):
            note(text)
    if guarantee.warning and (plan.drafters or not have_exact_kernels()):
        note(guarantee.warning)
    if files.missing_draft and settings.uses_draft and files.draft is None and not why_plain:
        note(f"running without its draft model; download it with 'edgespec pull {files.missing_draft}'")
    return plan


def _why_plain(settings: LoadSettings, context: Context, guarantee: Guarantee) -> str:
    """Return why this target cannot use drafts; empty if it can."""
    if not context.rollback:
        return f"the state of a {context.model.header.architecture} model cannot be rolled back"
    if settings.strict and guarantee.rounding != 0.0:
        return "no pass width was found at which logits are independent of the batch (`strict`)"
    return ""


def _left_out(plan: LoadPlan, target: Target) -> list[str]:
    """Return notes about settings that have no effect."""
    settings, names, notes = plan.settings, {*plan.drafters}, list[str]()
    if settings.draft_model and not ({"draft", *HEADS} & names) and not (settings.uses_draft and names):
        notes.append(f"draft model {settings.draft_model} is not used: `spec_type` or `spec_draft_n_max` excludes it")
    if settings.corpus and "corpus" not in settings.drafters:
        notes.append(f"corpus {settings.corpus} is not used: `spec_type` excludes it")
    if settings.spec_tree > 1 and names and (why := _why_chains(plan, target)):
        notes.append(f"drafting chains only: {why}")
    if settings.overlap == "on" and not {"draft", "self"} & names:
        notes.append("drafting is not overlapped: only a draft model can draft ahead")
    return notes


def _why_chains(plan: LoadPlan, target: Target) -> str:
    """Return why no trees are drafted; empty if they are."""
    if not any(REGISTRY[name].drafts_trees for name in plan.drafters):
        return f"{' and '.join(plan.drafters)} cannot draft trees"
    if target.context.free_branches:
        return ""
    if not target.model.can_roll_back:
        return f"the state of a {target.model.header.architecture} model does not support branches"
    return f"{plan.settings.sequences} sequences leave no room for branches"


def _measured(
    settings: LoadSettings,
    engine: Engine,
    contexts: Sequence[AnyContext],
    drafters: Mapping[str, Drafter],
    progress: Progress,
) -> CostModelCache:
    """Return the costs of passes; they are measured if the draft length depends on them."""
    target, least_width = engine.context, max(1, engine.runner.least_width)
    on_device = [context for context in contexts if context.model.is_offloaded]
    tuning = CostModelCache(target, drafters.values(), least_width, compiles=bool(on_device))
    if drafters and settings.pace == "auto":
        for context in on_device:
            warm_up(context)
        widest = min(1 + settings.draft_n_max, engine.scheduler.most_rows)
        with target.all_threads():
            tuning.measure(target, widest, lambda done: progress("costs", done))
    return tuning


def about_model(model: LlamaModel) -> dict[str, Any]:
    """Return what a loaded model is and where its layers are, as fields of `ModelInfo`."""
    return {
        "model": str(model.path),
        "description": described(model.header),
        "vocabulary": model.vocabulary_id,
        "offloaded": model.gpu_layers > 0,
        "gpu_layers": model.gpu_layers,
        "devices": tuple(model.gpus),
        "workers": {device.address: layers for device, layers in model.remote},
    }
