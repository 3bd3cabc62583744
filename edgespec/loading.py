"""From settings to an engine: which models are opened, in what contexts, and who drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.answer_store import AnswerStore
from edgespec.calibrate import Tuning
from edgespec.closable import Closable
from edgespec.core.pace import FixedPace, Pace
from edgespec.corpus import Corpus, check_fits, find
from edgespec.drafters.base import Drafter
from edgespec.drafters.corpus import CorpusDrafter
from edgespec.drafters.grammar import GrammarDrafter
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.recycling import RecyclingDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.drafters.translation import LEAST_OVERLAP, Translation
from edgespec.engine import Engine
from edgespec.errors import OutOfMemoryError, PairError, UsageError
from edgespec.events import Progress
from edgespec.figures import percent, size_of
from edgespec.header import Header
from edgespec.llama.context import Context, available_memory_bytes, cache_bytes
from edgespec.llama.grammar import Grammars
from edgespec.llama.library import free_gpu_bytes, supports_gpu
from edgespec.llama.model import Model
from edgespec.llama.template import ChatTemplate
from edgespec.llama.trial import extra_buffers_work
from edgespec.model_check import check_model
from edgespec.models.local import local_models
from edgespec.models.memory import Plan, estimate, largest_context, what_would_fit
from edgespec.models.pair import vocabulary_difference
from edgespec.models.self_draft import self_draft
from edgespec.models.spec import resolve
from edgespec.models.suggest import best, suggestions
from edgespec.rounding import Widths, measured_widths
from edgespec.settings import (
    AUTO_DRAFT,
    MAX_LEAVES,
    MAX_SEQUENCES,
    MAX_STRICT_DRAFT,
    LoadSettings,
    Offload,
    fixed_length,
)

# A model may have been trained for more context than most answers need or most machines can hold.
DEFAULT_CTX_SIZE = 8192
# Wider passes cost as much more as they do: see what `calibrate` assumes. Each sequence takes its own context's memory.
MOST_SEQUENCES, MEMORY_SHARE = 16, 0.5
CHAINS = {"lookup", "grammar"}  # drafters that guess no trees


class Loaded(Closable):
    """A target, its draft if it has one, their contexts and the engine over them. `note` hears what users should know.

    Raises ModelNotFoundError, ModelFileError, PairError, OutOfMemoryError, UsageError.
    """

    model: Model
    draft: Model | None = None
    answers: AnswerStore | None = None
    context: Context
    engine: Engine
    tuning: Tuning
    drafters: dict[str, Drafter]
    leaves: int
    n_max: int
    template: ChatTemplate
    grammars: Grammars

    def __init__(self, settings: LoadSettings, progress: Progress, note: Callable[[str], None]) -> None:
        self._settings, self._progress, self._note = settings, progress, note
        self._n_max = settings.draft_n_max
        self._models: list[Model] = []
        self.contexts: list[Context] = []
        self._widths: Widths | None = None
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free caches and models; safe to call twice."""
        for opened in (self.contexts, self._models):
            while opened:
                opened.pop().close()

    @property
    def self_draft(self) -> str | None:
        """What kind of draft of itself the target has, if any."""
        return self._settings.self_draft

    @property
    def rounding(self) -> float | None:
        """By how much a logit may depend on how drafts are decoded; None where that is unknown, or cannot matter."""
        return None if self._widths is None or self._settings.strict else self._widths.max_difference

    def _load(self) -> None:
        settings = self._settings
        found = resolve(settings.model)
        header = check_model(found.path)
        draft_path = self._draft_path(header, found.default_draft)
        # Both headers first: whatever is wrong with the draft should not take loading the target to find out.
        draft_header = check_model(draft_path) if draft_path else None
        settings = self._settings = self._fitting(header, draft_header)
        self.model = self._open_model(header, settings.gpu_layers)
        if settings.sequences == 0:
            self._settings = settings = replace(settings, sequences=self._how_many(draft_header))
        self.template = ChatTemplate(self.model)
        self.grammars = Grammars(self.model)
        corpus = self._open_corpus()
        names = [
            name for name in settings.drafters if self._n_max > 0 and (name not in ("draft", "self") or draft_header)
        ]
        drafts = bool(names)
        self.leaves = leaves = settings.spec_tree if self.model.can_roll_back and set(names) - CHAINS else 1
        self.context = self._open_target_context(leaves, drafts=drafts)
        self._measure_widths(drafts=drafts)
        why_not = self._why_plain() if drafts else ""
        if why_not:
            if draft_header is not None or corpus is not None or settings.spec_type != "auto":  # somebody was named
                self._note(f"decoding plainly: {why_not}")
            names, draft_header = [], None
        self._say_what_is_left_out(names, drafts=drafts and not why_not)
        drafters: list[Drafter] = []
        if "grammar" in names:
            drafters.append(GrammarDrafter())
        if "lookup" in names:
            drafters.append(LookupDrafter())
        if "suffix" in names:
            if settings.store:
                self.answers = AnswerStore(self.model.vocabulary_id, self.model.path.name, self._note)
            drafters.append(SuffixDrafter(self.answers))
        if "recycling" in names:
            drafters.append(RecyclingDrafter(self.model.n_vocab))
        if corpus is not None and "corpus" in names:
            drafters.append(CorpusDrafter(corpus.index))
        if draft_header is not None:
            self.draft = self._open_model(draft_header, settings.gpu_layers_draft)
            drafters.append(self._make_drafter(self.draft, leaves))
        for model in self._models:
            for text in model.notes:
                self._note(text)
        self.engine = Engine(
            self.context,
            least_width=(self._widths.exact_from if self._widths and settings.strict else None) or 1,
            warn=self._note,
        )
        self.drafters = {drafter.name: drafter for drafter in drafters}
        self.tuning = Tuning(self.context, drafters, self.engine.least_width, self._note)
        self.n_max = self._n_max
        self.draft_with(list(self.drafters), settings.pace, self.n_max, leaves)

    def draft_with(self, names: Sequence[str], pace: str, n_max: int, leaves: int) -> None:
        """Let these of the loaded drafters guess from now on, at that pace, so many tokens and leaves at most."""
        names = [name for name in self.drafters if name in names]
        self.engine.draft_n_max = min(n_max, self.context.rollback) if names else 0
        self.engine.drafters = [self.drafters[name] for name in names]
        self.engine.pace, self.engine.tree_width = self._pace(names, pace, leaves), leaves

    def _pace(self, names: Sequence[str], pace: str, leaves: int) -> Pace:
        return self.tuning.pace(names, leaves) if pace == "auto" else FixedPace(fixed_length(pace) or 0)

    def _open_corpus(self) -> Corpus | None:
        """What is to be looked into, if anything is. Raises UsageError."""
        settings = self._settings
        if "corpus" not in settings.drafters or self._n_max == 0:
            return None
        if settings.corpus is None:
            raise UsageError("there is no corpus to look into", hint="name one (--corpus)")
        corpus = Corpus(find(settings.corpus))
        check_fits(corpus, self.model)
        return corpus

    # --- the target -----------------------------------------------------------------------------------------------

    def _draft_path(self, header: Header, default: Path | None) -> Path | None:
        settings = self._settings
        if self._n_max > 0 and settings.self_draft is not None:
            return self_draft(
                resolve(settings.model).path, settings.self_draft, lambda done: self._progress("making", done)
            )
        if "draft" not in settings.drafters or self._n_max == 0:
            return None
        if settings.draft_model == AUTO_DRAFT:
            return default or self._best_draft(header)
        return resolve(settings.draft_model).path if settings.draft_model else default

    def _best_draft(self, header: Header) -> Path | None:
        """The best draft of this machine for the target, if there is one."""
        found = best(suggestions(header, local_models()))
        if found is None:
            self._note(f"no model here is a draft for {header.path.name}: 'edgespec pair suggest' says why")
            return None
        self._note(f"drafting with {found.spec}, {found.why}")
        return resolve(found.spec).path

    def _say_what_is_left_out(self, names: Sequence[str], *, drafts: bool) -> None:
        settings = self._settings
        if settings.draft_model and "draft" not in names and ("draft" not in settings.drafters or not drafts):
            self._note(f"{settings.draft_model} does not draft here: --spec-type or --spec-draft-n-max leaves it out")
        if settings.corpus and "corpus" not in settings.drafters:
            self._note(f"{settings.corpus} is not looked into: --spec-type leaves the corpus out")
        if settings.spec_tree > 1 and drafts and {*names} <= CHAINS:
            self._note(f"drafting chains: {' and '.join(names)} guess no trees")
        elif settings.spec_tree > 1 and drafts and not self.model.can_roll_back:
            self._note(f"drafting chains: the memory of a {self.model.architecture} model has no branches")
        elif settings.spec_tree > 1 and drafts and not self.context.free_branches:
            self._note(f"drafting chains: {settings.sequences} sequences leave no room for branches")

    def _fitting(self, header: Header, draft: Header | None) -> LoadSettings:
        """The settings with a context that fits into memory, where none is asked for.

        Weights do not count: they are mapped, and too many of them make it slow. GPUs' drivers refuse by themselves.
        Raises OutOfMemoryError with what would fit.
        """
        settings = self._settings
        if supports_gpu() and settings.gpu_layers != 0:
            return settings
        trained = header.number("context_length") or DEFAULT_CTX_SIZE
        n_ctx = settings.ctx_size or min(trained, DEFAULT_CTX_SIZE)
        plan = self._memory_plan(header, draft, n_ctx)
        needed, free = estimate(plan), available_memory_bytes()
        mapped = needed.weights + (needed.draft.weights if needed.draft else 0)
        if needed.ram - mapped <= free:
            if mapped > free:
                self._note(
                    f"the weights take {size_of(mapped)}, and {size_of(free)} of memory are free: they will be "
                    "read from the disk again and again, which is very slow"
                )
            return settings
        fitting = largest_context(plan, free + mapped)
        if not settings.ctx_size and fitting:
            self._note(f"a context of {n_ctx} tokens does not fit into memory, so it is {fitting}")
            return replace(settings, ctx_size=fitting)
        beside = f"it needs {size_of(needed.ram - mapped)} beside the weights"
        raise OutOfMemoryError(
            f"a context of {n_ctx * plan.sequences} tokens does not fit",
            why=f"{beside}, {size_of(free)} of memory are free",
            hint="; ".join(what_would_fit(plan, free + mapped)) or f"about {fitting} tokens fit (-c)",
        )

    def _memory_plan(self, header: Header, draft: Header | None, n_ctx: int) -> Plan:
        settings = self._settings
        sequences = settings.sequences or 1
        width = self._widest if self._n_max and settings.drafters else 1
        own = Plan(
            header,
            n_ctx=n_ctx,
            sequences=sequences,
            max_outputs=width * sequences,
            cache_type_k=settings.cache_type_k,
            cache_type_v=settings.cache_type_v,
            flash_attention="off" if settings.strict else settings.flash_attention,
            scratch=width if settings.strict else 0,
            rollback=width - 1,
        )
        if draft is None:
            return own
        return replace(
            own,
            draft=Plan(
                draft,
                n_ctx=settings.ctx_size_draft or n_ctx,
                sequences=sequences,
                max_outputs=settings.spec_tree * sequences,
                cache_type_k=settings.cache_type_k_draft or settings.cache_type_k,
                cache_type_v=settings.cache_type_v_draft or settings.cache_type_v,
                flash_attention=settings.flash_attention,
            ),
        )

    def _how_many(self, draft: Header | None) -> int:
        """How many answers to make at a time: as many as a pass has room for, and the memory."""
        settings = self._settings
        if settings.strict:
            return 1
        n_bytes = cache_bytes(self.model, self._n_ctx, settings.cache_type_k, settings.cache_type_v)
        if draft is not None:
            n_bytes += 2 * self._n_ctx * sum(draft.kv_values_per_token)
        free = free_gpu_bytes() if self.model.is_offloaded else available_memory_bytes()
        return max(1, min(MOST_SEQUENCES, int(MEMORY_SHARE * free / max(1.0, n_bytes))))

    @property
    def sequences(self) -> int:
        """How many answers are made at a time."""
        return self._settings.sequences

    @property
    def _n_ctx(self) -> int:
        """Tokens of the context of one answer."""
        return self._settings.ctx_size or min(self.model.n_ctx_train, DEFAULT_CTX_SIZE)

    def _open_target_context(self, leaves: int, *, drafts: bool) -> Context:
        settings, model = self._settings, self.model
        n_ctx = self._n_ctx
        if n_ctx > model.n_ctx_train:
            self._note(f"the model was trained for {model.n_ctx_train} tokens of context, not for {n_ctx}")
        width = self._widest if drafts or settings.strict else 1
        return self._open_context(
            model,
            n_ctx=n_ctx,
            max_outputs=width * settings.sequences,
            threads=settings.threads,
            threads_batch=settings.threads_batch,
            cache_type_k=settings.cache_type_k,
            cache_type_v=settings.cache_type_v,
            flash_attention="off" if settings.strict else settings.flash_attention,
            branches=self._branches(leaves),
            scratch=width if settings.strict else 0,
            rollback=width - 1,
        )

    @property
    def _widest(self) -> int:
        """Tokens of the widest pass. Strict ones are padded to a power of two at most, which fills kernels' tiles."""
        return 1 << self._n_max.bit_length() if self._settings.strict else 1 + self._n_max

    def _measure_widths(self, *, drafts: bool) -> None:
        """Find out which widths of the target's passes round alike, if anyone wants to know."""
        settings = self._settings
        if self._n_max and (settings.strict or (settings.measure_rounding and drafts)):
            self._widths = measured_widths(
                self.context, min(self._widest, 1 + MAX_STRICT_DRAFT), lambda done: self._progress("rounding", done)
            )

    def _why_plain(self) -> str:
        """Why this target cannot have drafts; empty if it can."""
        if not self.context.rollback:
            return f"the memory of a {self.model.architecture} model cannot be rolled back"
        if self._settings.strict and (self._widths is None or self._widths.exact_from is None):
            return "that a token's logits do not depend on its batch cannot be shown (strict)"
        return ""

    # --- the draft ------------------------------------------------------------------------------------------------

    def _make_drafter(self, draft: Model, leaves: int) -> ModelDrafter:
        settings = self._settings
        translation = self._translation(draft)
        if not draft.can_roll_back:
            raise PairError(
                f"{draft.path.name} cannot draft",
                why=f"the memory of a {draft.architecture} model cannot be rolled back",
                hint="use a draft with attention, or none (--spec-type none)",
            )
        if draft.n_params > self.model.n_params:
            self._note("the draft model is larger than the target: it will slow it down")
        branches = self._branches(leaves)
        context = self._open_context(
            draft,
            n_ctx=settings.ctx_size_draft or self.context.n_ctx,
            max_outputs=leaves * settings.sequences,
            threads=settings.threads_draft or settings.threads,
            threads_batch=settings.threads_batch_draft or settings.threads_batch,
            cache_type_k=settings.cache_type_k_draft or settings.cache_type_k,
            cache_type_v=settings.cache_type_v_draft or settings.cache_type_v,
            flash_attention=settings.flash_attention,
            branches=branches + settings.sequences if branches else 0,
        )
        return ModelDrafter(
            context,
            width=leaves if branches else 1,
            name="self" if settings.self_draft else "draft",
            translation=translation,
        )

    def _translation(self, draft: Model) -> Translation | None:
        """How to guess with another vocabulary, if it is another one. Raises PairError where too little is shared."""
        reason = vocabulary_difference(self.model.header, draft.header)
        if not reason:
            return None
        translation = Translation.between(self.model, draft)
        if translation.overlap < LEAST_OVERLAP:
            raise PairError(
                f"{draft.path.name} cannot draft for {self.model.path.name}",
                why=reason,
                hint="use a draft of the same model family, or none (--spec-type none)",
            )
        shared = percent(translation.overlap)
        self._note(
            f"{draft.path.name} has another vocabulary: it guesses the {shared} of the target's tokens it shares"
        )
        return translation

    # --- both -----------------------------------------------------------------------------------------------------

    def _branches(self, leaves: int) -> int:
        """Sequence ids for trees of that many leaves, from a pool that all sequences share."""
        wanted = (leaves - 1) * self._settings.sequences
        return max(0, min(wanted, MAX_LEAVES - 1, MAX_SEQUENCES - 2 * self._settings.sequences))

    def _open_context(self, model: Model, **settings: Any) -> Context:
        context = Context(model, sequences=self._settings.sequences, **settings)
        self.contexts.append(context)
        return context

    def _open_model(self, header: Header, gpu_layers: Offload) -> Model:
        model = open_model(header, gpu_layers, self._note, lambda done: self._progress("loading", done))
        self._models.append(model)
        return model


def open_model(
    header: Header, gpu_layers: Offload, note: Callable[[str], None], progress: Callable[[float], None]
) -> Model:
    """Load weights in the way that works with this build. Raises ModelFileError, OutOfMemoryError."""
    extra_buffers = extra_buffers_work(header.path, note, gpu_layers=gpu_layers)
    return Model(header, gpu_layers=gpu_layers, use_extra_bufts=extra_buffers, progress=progress)
