"""The Python interface: `edgespec.load` and a target model with its drafters in this process."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, ParamSpec, Unpack

from edgespec.cancel import CancelFlag
from edgespec.core.policy.measured import MeasuredPolicy
from edgespec.core.policy.policy import PolicyVerdict
from edgespec.core.stats import Stats
from edgespec.dialects.grammar import bare_schema
from edgespec.drafters.assistant import AssistantDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.engine.sequence import mode_of
from edgespec.errors import EdgespecError, UsageError, did_you_mean
from edgespec.events import Progress
from edgespec.llm.info import ModelInfo
from edgespec.llm.model import DraftingOptions, Model, drafting_changes
from edgespec.llm.notes import Notes
from edgespec.models.names.spec import own_settings
from edgespec.runtime.answering import Answering, Compiled, Prepared, attempted
from edgespec.runtime.kept_states import KeptStates
from edgespec.runtime.loading import about_model, open_session
from edgespec.runtime.prompts import Prompts, called_tools, request_notes
from edgespec.settings import Inputs, LoadSettings, Message, Request
from edgespec.validation import check_load_settings, check_request, check_rule

MOST_NOTES = 100
LONG = 2**15  # characters of a prompt that other answers do not wait for
MEASURED_DEPTH = 128  # tokens in the KV cache when passes are measured

Work = Literal["compiling", "reading", "rendering"]
P = ParamSpec("P")


class Runtime(Model):
    """A target model and its drafters, loaded in this process.

    `progress` is called with "loading", "making", "rounding", "costs" or "prompt" and the fraction that is done, 0 to
    1. Raises ModelNotFoundError, ModelFileError, PairError, OutOfMemoryError, UsageError.
    """

    def __init__(self, settings: LoadSettings, progress: Progress | None = None) -> None:
        check_load_settings(settings)
        self._progress = progress or (lambda what, done: None)
        self.notes = Notes()
        self._loaded = loaded = open_session(settings, self._progress, self.notes.add)
        target, drafters = loaded.target, loaded.drafters
        self.model, self.context, self.engine = target.model, target.context, loaded.engine
        self.draft, self.draft_header, self.grammars = drafters.model, drafters.header, target.grammars
        self.prompts = Prompts(target.model, target.template, target.context.n_ctx, self._note_request)
        self.loop = Answering(loaded, self.prompts, self.notes.add, self._progress)
        self.kept_states = KeptStates(loaded.engine)
        self.own_settings = own_settings(settings.model)

    def draft_with(self, **changes: Unpack[DraftingOptions]) -> None:
        drafting = self._loaded.drafting
        wanted = drafting.changed(drafting_changes(changes))
        with self.loop.alone():
            drafting.use(wanted)

    @property
    def settings(self) -> LoadSettings:
        """The settings that the model was loaded with, with the changes of `draft_with`."""
        return self._loaded.drafting.settings

    @property
    def stats(self) -> Stats:
        """The statistics of the answer that was started last; `Completion.stats` has those of any answer."""
        return self.loop.stats

    def _note_request(self, text: str) -> None:
        """Add a message about a request, of which a server receives any number."""
        if len(self.notes) < MOST_NOTES:
            self.notes.add(text)

    def close(self) -> None:
        """End the current answers, and free models and caches; safe to call twice. Raises UsageError when called from
        within one of their steps."""
        self.loop.shut()
        with self.loop.alone() as is_alone:
            if not is_alone:
                raise UsageError("a model cannot be closed in the middle of a step")
            try:
                self._loaded.save()
            finally:
                self._loaded.close()

    # --- answering ------------------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        target, context, guarantee = self._loaded.target, self.context, self._loaded.guarantee
        template, vision = target.template, target.vision
        return ModelInfo(
            **about_model(self.model),
            draft_model=str(self.draft_header.path) if self.draft_header else None,
            projector=str(vision.path) if vision.path else None,
            has_chat_template=template.text is not None,
            ctx_size=context.n_ctx,
            sequences=context.sequences,
            threads=context.threads,
            threads_batch=context.threads_batch,
            drafters=tuple(drafter.name for drafter in self.engine.speculator.drafters),
            adapters=target.adapters.describe(),
            pace=self.settings.pace,
            strict=self.settings.strict,
            fast=not self.settings.exact,
            exact=context.exact,
            rounding=guarantee.rounding,
            width_class=guarantee.width_class,
            measured_depth=guarantee.classes.depth if guarantee.classes else None,
            made_exact_by=guarantee.way_out,
            opens_thinking=template.opens_thinking,
            drops_thinking=template.drops_thinking,
            keeps_answers=template.keeps_answers,
            switches_thinking=bool(self.prompts.dialect(Request()).dialect.switch),
        )

    def call(self, name: str, *args: object, **keywords: object) -> Any:
        return attrgetter(name)(self)(*args, **keywords)

    def pace_verdicts(self, request: Request) -> list[PolicyVerdict]:
        own = self._loaded.drafting.of(request)
        pace = self.engine.speculator.pace if own is None else own.pace
        return pace.verdicts(self._mode(request)) if isinstance(pace, MeasuredPolicy) else []

    def forget(self) -> None:
        with self.loop.alone():
            self.engine.slots.forget()
            for drafter in self._draft_models():
                drafter.forget()
            self._loaded.drafters.successors.forget()

    def keep_state(
        self, messages: Sequence[Message], file: Path, most_bytes: int, within_s: float = 60.0, template: str = ""
    ) -> int:
        with self.loop.alone():
            return self.kept_states.keep(self.prompts.tokens_of(messages, template), file, most_bytes, within_s)

    def recall_state(self, messages: Sequence[Message], file: Path, template: str = "") -> int:
        with self.loop.alone():
            return self.kept_states.recall(self.prompts.tokens_of(messages, template), file)

    def _draft_models(self) -> list[ModelDrafter | AssistantDrafter]:
        kinds = ModelDrafter | AssistantDrafter
        return [drafter for drafter in self.engine.speculator.drafters if isinstance(drafter, kinds)]

    def measure_costs(
        self, widths: Sequence[int], repeat: int = 5, cancel: CancelFlag | None = None
    ) -> dict[str, dict[str, float]]:
        """Measure the seconds of passes, and pass them to the draft-length policy.

        Returns those of the target by width, and for each draft model those of a pass over one token ("step"). Raises
        CancelledError when `cancel` is set.
        """
        depth = min(MEASURED_DEPTH, self.context.n_ctx // 2)
        with self.loop.alone():
            if self.engine.scheduler.active:
                raise UsageError("this model is already generating", hint="finish or close the other answers first")
            self.engine.slots.forget()
            self.context.adapters = self.context.default_adapters
            self._loaded.watch(cancel)
            try:
                with self.context.all_threads():
                    return self._loaded.tuning.measured_now(
                        self.context, self._draft_models(), widths, depth, repeat, partial(self._progress, "costs")
                    )
            finally:
                self._loaded.watch(None)

    def batch(
        self,
        rows: Iterable[Mapping[str, object] | None],
        *,
        chat: bool | None = None,
        **options: Any,
    ) -> Generator[dict[str, Any], None, None]:
        """Answer rows in the format of `edgespec batch`, and yield results as they finish.

        Up to `sequences` answers are decoded together. None in `rows` means that no row is ready yet. `chat` sends
        prompts as user messages; None: if the model has a chat template. `options` are defaults of the rows, by the
        names that rows use (docs/batch.md), and the keywords `seed`, `n`, `ordered`, `timings` and `cancel` of
        `batch.answer_rows`. Raises UsageError for invalid options.
        """
        from edgespec.batch import answer_rows

        return answer_rows(
            self,
            rows,
            model=self.model.path.name,
            token_bytes=lambda token: self.model.token_bytes(token, special=True),
            chat=self.info.has_chat_template if chat is None else chat,
            **{**self.own_settings, **options},
        )

    @property
    def room(self) -> int:
        return self.context.sequences

    def prepared(self, request: Request | Inputs, cancel: CancelFlag | None = None) -> Prepared | EdgespecError:
        """Return a request with its prompt and its constraint, or the error with which it is refused.

        Compiling a new constraint takes up to seconds; `cancel` ends that.
        """
        if isinstance(request, Inputs):
            return UsageError(f"{self.model.path.name} makes no vectors", why="it is not an embedding model")

        def checked() -> Prepared:
            asked = self.prompts.constrained(request)
            compiled = self._compiled(asked, cancel) or self._compiled_calls(asked, cancel)
            for note in request_notes(asked):
                self._note_request(note)
            return asked, self.prompts.of(asked), compiled

        return attempted(checked)

    def waits_for(self, request: Request | Inputs) -> Work | None:
        """Return the work by which a request becomes ready, if answers must not wait for it."""
        if isinstance(request, Inputs):
            return None
        if (
            '"tools"' in request.template
            or self.grammars.must_compile(request)
            or self._loaded.target.breakers.must_search(request.sampling)
        ):
            return "compiling"
        if self.prompts.effort(request) > LONG:
            return "reading"
        return "rendering" if request.messages else None

    def check_settings(self, request: Request, cancel: CancelFlag | None = None) -> None:
        self._compiled(self.prompts.constrained(request), cancel)

    def _compiled(self, request: Request, cancel: CancelFlag | None) -> Compiled | None:
        """Check the settings of a request, and return its compiled constraint if it has one. Raises UsageError."""
        check_request(request, self.model.n_vocab)
        check_rule(self.settings, request.verify)
        self._loaded.drafting.of(request)
        self._loaded.target.adapters.chosen(request.lora)
        self._loaded.target.breakers.of(request.sampling)
        if request.constraint is None:
            return None
        try:
            return *request.constraint, self.grammars.matcher(*request.constraint, cancel)
        except UsageError:
            if request.must_call:  # the error of the schema alone names the tool and the place
                self.grammars.matcher("json_schema", bare_schema(called_tools(request)), cancel)
            raise

    def _compiled_calls(self, request: Request, cancel: CancelFlag | None) -> Compiled | None:
        """Return the compiled grammar of the calls of an answer that need not have any; None if there is none."""
        if not (grammar := self.prompts.call_grammar(request)):
            return None
        try:
            return "grammar", grammar, self.grammars.matcher("grammar", grammar, cancel)
        except UsageError as error:
            self._note_request(f"calls need not fit the schemas of their tools: {error}")
            return None

    def _mode(self, request: Request) -> str:
        adapters, is_constrained = self._loaded.target.adapters.chosen(request.lora), request.constraint is not None
        return mode_of(request.verify, request.sampling, is_constrained=is_constrained, adapters=adapters)


def _takes_settings(settings: Callable[P, LoadSettings]) -> Callable[[Callable[..., Runtime]], Callable[P, Runtime]]:
    """Return a decorator that gives a function the parameters of the settings, for type checkers and `help`."""

    def decorate(function: Callable[..., Runtime]) -> Callable[P, Runtime]:
        vars(function)["__signature__"] = inspect.signature(settings).replace(return_annotation="Runtime")
        return function

    return decorate


@_takes_settings(LoadSettings)
def load(*args: Any, **settings: Any) -> Runtime:
    """Load a target model (`"demo"`, another name or a path); `LoadSettings` describes the other settings.

    The bounds that make CPU kernels exact are global, and set at every forward pass. So models with different settings
    or types of weights can be loaded in one process, but must not generate in two threads at the same time; use
    separate processes (`Worker`) for that. Raises ModelNotFoundError, ModelFileError, PairError, OutOfMemoryError,
    UsageError.
    """
    known = LoadSettings.__dataclass_fields__
    if unknown := [name for name in settings if name not in known]:
        hint = did_you_mean(unknown[0], known) or "the settings are the fields of edgespec.LoadSettings"
        raise UsageError(f"unknown setting {unknown[0]}", hint=hint, field=unknown[0])
    named = {name: _text(value) for name, value in settings.items()}
    return Runtime(LoadSettings(*map(_text, args), **named))


def _text(value: object) -> Any:
    """Return a path as text, other values unchanged."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value
