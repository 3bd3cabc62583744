"""The Python API: a target model with its drafters that answers requests as streams of tokens."""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any, TypeVar, Unpack

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.choose import Chooser, ReferenceChooser
from edgespec.core.policy.auto_pace import AutoPace, PaceVerdict
from edgespec.core.policy.auto_plan import pass_widths
from edgespec.core.prefix import common_prefix
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.core.verify import VerifyRule
from edgespec.drafters.model import ModelDrafter
from edgespec.engine.calibrate import measure_passes
from edgespec.engine.sequence import Sequence as EngineSequence
from edgespec.engine.sequence import StepOutput, kind_of
from edgespec.engine.trace import Recorder
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import Completion, Progress, TokenEvent
from edgespec.llama.model import Model
from edgespec.llama.template import tokenize_leniently
from edgespec.runtime.answer_thread import AnswerThread
from edgespec.runtime.loading import Loaded
from edgespec.runtime.options import AnswerOptions
from edgespec.settings import (
    LoadSettings,
    Message,
    Request,
    bias_pairs,
    check_load_settings,
    check_request,
    check_rule,
    drafting_changes,
    schema_text,
)
from edgespec.text.textstream import TextStream

LONGEST_TOKEN = 512  # characters; there are vocabularies with 128 blanks in one
IDLE_S = 0.005  # between looking for further requests
MEASURED_DEPTH, READ = 128, 32  # tokens behind which passes are measured, and those of one that reads a prompt

log = logging.getLogger(__name__)

Made = TypeVar("Made")
Messages = Sequence[Message | dict[str, Any]]
Answer = Generator[TokenEvent, None, None]
AsyncAnswer = AsyncGenerator[TokenEvent, None]
Answers = Generator[tuple[int, TokenEvent], None, None]
Stream = Generator[tuple[int, TokenEvent | EdgespecError], None, None]


class Runtime(Closable):
    """A loaded target, with its draft model if it has one. `notes` are messages for the user about how it runs,
    `stats` those of the answer that was begun last (each answer has its own: `Completion.stats`, and `stats` of its
    last event).

    `progress` is called with "loading", "making", "rounding", "costs" or "prompt" and the part that is done, 0 to 1.
    Raises ModelNotFoundError, ModelFileError, PairError, OutOfMemoryError, UsageError.
    """

    def __init__(self, settings: LoadSettings, progress: Progress | None = None) -> None:
        check_load_settings(settings)
        self.settings = settings
        self._progress = progress or (lambda what, done: None)
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self.notes: list[str] = []
        self.stats = Stats()
        self._thread = AnswerThread()
        self._cached: list[int] = []
        self._turns = [(0, 0)]
        self._loaded = loaded = Loaded(settings, self._progress, self.note)
        self.settings = replace(settings, sequences=loaded.sequences)
        self.model, self.draft, self.context, self.engine = loaded.model, loaded.draft, loaded.context, loaded.engine

    def draft_with(
        self,
        *,
        spec_type: str | None = None,
        pace: str | None = None,
        spec_draft_n_max: int | None = None,
        spec_tree: int | None = None,
        n_max: int | None = None,
        tree: int | None = None,
    ) -> None:
        """Change drafters, draft length or tree width from the next answer on; None keeps a setting.

        The keywords are fields of LoadSettings; `n_max` and `tree` are old names of the last two. Raises UsageError for
        a drafter that is not loaded, and for lengths or trees beyond those it was loaded for.
        """
        given = drafting_changes(
            spec_type=spec_type,
            pace=pace,
            spec_draft_n_max=spec_draft_n_max,
            spec_tree=spec_tree,
            n_max=n_max,
            tree=tree,
        )
        wanted = replace(self.settings, **({"spec_draft_n_max": self.settings.draft_n_max} | given))
        check_load_settings(wanted)
        if wanted.draft_n_max > self._loaded.n_max:
            raise UsageError(
                f"drafts of {wanted.draft_n_max} tokens do not fit", hint="load the model with --spec-draft-n-max"
            )
        missing = [name for name in wanted.drafters if name not in self._loaded.drafters]
        if wanted.self_draft is not None and wanted.self_draft != self._loaded.self_draft:
            missing = [wanted.spelling("self")]
        if spec_type not in (None, "auto") and missing:
            raise UsageError(f"drafter {missing[0]} is not loaded", hint="load the model with it (--spec-type, -md)")
        if wanted.spec_tree > self._loaded.leaves:
            raise UsageError(f"trees of {wanted.spec_tree} leaves do not fit", hint="load the model with --spec-tree")
        self.settings = wanted
        self._loaded.draft_with(wanted.drafters, wanted.pace, wanted.draft_n_max, wanted.spec_tree)

    def note(self, text: str) -> None:
        """Add a message for the user."""
        if text not in self.notes:
            self.notes.append(text)

    def close(self) -> None:
        """End the current answer, and free models and caches; safe to call twice."""
        self._thread.close()
        for stream in list(self._streams):
            stream.close()
        self._loaded.tuning.save()
        if self._loaded.answers is not None:
            self._loaded.answers.save()
        self._loaded.close()

    # --- answering ------------------------------------------------------------------------------------------------

    @property
    def has_chat_template(self) -> bool:
        return self.model.chat_template is not None

    def describe(self) -> dict[str, Any]:
        """What is loaded, as plain data."""
        return {
            "model": str(self.model.path),
            "description": self.model.description,
            "draft_model": str(self.draft.path) if self.draft else None,
            "ctx_size": self.context.n_ctx,
            "sequences": self.context.sequences,
            "threads": self.context.threads,
            "threads_batch": self.context.threads_batch,
            "drafters": [drafter.name for drafter in self.engine.speculator.drafters],
            "pace": self.settings.pace,
            "strict": self.settings.strict,
            "fast": not self.settings.exact,
            "exact": self.context.exact,
            "rounding": self.rounding,
            "vocabulary": self.model.vocabulary_id,
            "offloaded": self.model.is_offloaded,
            "gpu_layers": self.model.gpu_layers,
            "opens_thinking": self._loaded.template.opens_thinking,
            "drops_thinking": self._loaded.template.drops_thinking,
        }

    def pace_verdicts(self, request: Request) -> list[PaceVerdict]:
        """Why drafters are active or backed off on requests like this one; empty without an automatic draft length."""
        pace = self.engine.speculator.pace
        if isinstance(pace, Recorder):
            pace = pace.pace
        return pace.verdicts(_kind(request)) if isinstance(pace, AutoPace) else []

    def forget(self) -> None:
        """Clear the KV caches, so that the next answer starts from nothing."""
        self._cached = []
        for drafter in self._draft_models():
            drafter.forget()

    def _draft_models(self) -> list[ModelDrafter]:
        return [drafter for drafter in self.engine.speculator.drafters if isinstance(drafter, ModelDrafter)]

    @contextmanager
    def recording(self, file: Path, request: Request) -> Iterator[Recorder]:
        """Trace answers to requests like this one into `file`. At every token where the policy drafts nothing, a draft
        is made but not verified. Measures passes first. Raises UsageError, EdgespecError."""
        engine, n_max = self.engine, self.engine.speculator.n_max
        if not engine.speculator.drafters:
            raise UsageError("a trace needs a drafter", hint="pass a draft model (-md), or --spec-type lookup")
        if engine.speculator.tree_width > 1 or self.settings.sequences > 1:
            raise UsageError("a trace records chains of one answer", hint="leave out --spec-tree")
        header = {
            "kind": _kind(request),
            "temperature": request.sampling.temperature,
            "seed": request.seed,
            "n_max": n_max,
            "pace": self.settings.pace,
            "model": self.model.path.name,
            "draft_model": self.draft.path.name if self.draft else None,
            "threads": self.context.threads,
            "costs": self.measure_costs(pass_widths(n_max)),
        }
        pace, models = engine.speculator.pace, self._draft_models()
        try:
            with closing(Recorder(pace, file, header)) as recorder:
                engine.speculator.pace = recorder
                for model in models:
                    model.tells_certainty = True
                yield recorder
        finally:
            engine.speculator.pace = pace
            for model in models:
                model.tells_certainty = False

    def measure_costs(
        self, widths: Sequence[int], repeat: int = 5, cancel: CancelFlag | None = None
    ) -> dict[str, dict[str, float]]:
        """Seconds of the target's passes by width, and of each draft model's: a pass over one token ("step"), and each
        token of prefill ("read"). The draft-length policy learns them too. Raises CancelledError when `cancel` is
        set."""
        costs, depth = self._loaded.tuning.costs, min(MEASURED_DEPTH, self.context.n_ctx // 2)

        def tell(done: float) -> None:
            self._progress("costs", done)

        step, read = dict[str, float](), dict[str, float]()
        self._cached = []
        self._watch(cancel)
        try:
            target = measure_passes(self.context, widths, depth=depth, repeat=repeat, progress=tell)
            for width, seconds in target.items():
                costs.observe_target(width, seconds, depth)
            for drafter in self._draft_models():
                try:
                    passes = measure_passes(drafter.context, [1, READ], depth=depth, repeat=2 * repeat, rows=False)
                finally:
                    drafter.forget()
                step[drafter.name], read[drafter.name] = passes[1], passes[READ] / READ
                costs.observe_step(drafter.name, passes[1], depth)
                costs.observe_read(drafter.name, READ, passes[READ], depth)
        finally:
            self._watch(None)
        return {"target": {str(width): seconds for width, seconds in target.items()}, "step": step, "read": read}

    @property
    def rounding(self) -> float | None:
        """By how much a logit may depend on the width of a pass, if that was measured."""
        return self._loaded.rounding

    def token_text(self, token: int) -> str:
        """The text of one token id; a part of a character shows as U+FFFD."""
        return self.model.token_bytes(token, special=True).decode("utf-8", "replace")

    def generate(self, prompt: str, *, cancel: CancelFlag | None = None, **options: Unpack[AnswerOptions]) -> Answer:
        """Complete `prompt` verbatim. Keywords are the fields of `Request` and `SamplingSettings`.

        The last event is no token (`is_last`). A set `cancel` ends the answer there, with the text so far. Raises
        UsageError at once, GenerationError in the middle of the answer.
        """
        return self.answer(_request(options, prompt=prompt), cancel)

    def chat(self, messages: Messages, *, cancel: CancelFlag | None = None, **options: Unpack[AnswerOptions]) -> Answer:
        """Answer the last of `messages` through the model's chat template; the rest as in `generate`."""
        return self.answer(_request(options, messages=_turns(messages)), cancel)

    def complete(
        self, prompt: str | Messages, *, cancel: CancelFlag | None = None, **options: Unpack[AnswerOptions]
    ) -> Completion:
        """The whole answer at once: to a text as `generate` completes it, to messages as `chat` answers them."""
        return Completion.of(self.answer(_asked(prompt, options), cancel))

    def agenerate(self, prompt: str, **options: Unpack[AnswerOptions]) -> AsyncAnswer:
        """`generate` for asyncio: `async for token in llm.agenerate(...)`. The answer is generated in a thread.

        Answers asked for at the same time wait for each other. Closing the generator or cancelling the task ends the
        answer, within a forward pass. Errors are raised by the first step; UsageError for unknown keywords at once.
        """
        return self._thread.stream(partial(self.answer, _request(options, prompt=prompt)))

    def achat(self, messages: Messages, **options: Unpack[AnswerOptions]) -> AsyncAnswer:
        """`chat` for asyncio, as `agenerate`."""
        return self._thread.stream(partial(self.answer, _request(options, messages=_turns(messages))))

    async def acomplete(self, prompt: str | Messages, **options: Unpack[AnswerOptions]) -> Completion:
        """`complete` for asyncio, as `agenerate`."""
        async with aclosing(self._thread.stream(partial(self.answer, _asked(prompt, options)))) as events:
            return Completion.of([event async for event in events])

    def batch(
        self,
        rows: Iterable[dict[str, Any]],
        *,
        chat: bool | None = None,
        seed: int = 0,
        cancel: CancelFlag | None = None,
        **settings: Any,
    ) -> Generator[dict[str, Any], None, None]:
        """The results of rows as they finish, in the format of `edgespec batch` (`batch.answer_rows`).

        Up to `sequences` answers are decoded together. `chat` says whether prompts are user messages; None means if the
        model has a template. Keywords are `answer_rows`' and fields of `Request` and `SamplingSettings`.
        """
        from edgespec.batch import answer_rows

        return answer_rows(
            self,
            rows,
            model=self.model.path.name,
            token_bytes=lambda token: self.model.token_bytes(token, special=True),
            chat=self.has_chat_template if chat is None else chat,
            seed=seed,
            cancel=cancel,
            **settings,
        )

    def answer(self, request: Request, cancel: CancelFlag | None = None) -> Answer:
        """The events of one answer, the last one with its finish reason. The request is checked before the first one.

        Raises UsageError for a prompt that is empty or longer than the context.
        """
        return _without_index(self.answers([request], cancel))

    def answers(self, requests: Sequence[Request], cancel: CancelFlag | None = None) -> Answers:
        """Several answers at once, each event with the index of its request.

        Up to `sequences` of them are decoded together; a finished one makes room for the next.
        """
        jobs = [self._checked(request) for request in requests]
        return self._raising(self._open(iter(jobs), cancel or CancelFlag(), self._tell_progress))

    def stream(self, requests: Iterable[Request | None], cancel: CancelFlag | None = None) -> Stream:
        """As `answers`, for requests that are taken when there is room for them, until `cancel` is set; None means that
        there is none right now. An error in place of an event is the reason why a request fails; the others
        continue."""
        cancel = cancel or CancelFlag()
        return self._open(self._arriving(requests, cancel), cancel, lambda answers: None)

    def _arriving(self, requests: Iterable[Request | None], cancel: CancelFlag) -> Iterator[_Job | None]:
        for request in requests:
            if cancel.is_set():
                return
            yield None if request is None else _attempted(partial(self._checked, request))

    def check_settings(self, request: Request) -> None:
        """Refuse settings that this model does not support, whatever the prompt. Raises UsageError."""
        check_request(request, self.model.n_vocab)
        check_rule(self.settings, request.verify)
        if request.constraint is not None:
            self._loaded.grammars.check(*request.constraint)

    def _checked(self, request: Request) -> tuple[Request, _Prompt]:
        """A request with its prompt. Raises UsageError."""
        self.check_settings(request)
        self._note_limits(request.verify)
        return request, self._prompt(request)

    def _open(self, jobs: Iterator[_Job | None], cancel: CancelFlag, tell: Callable[..., None]) -> Stream:
        stream = self._run(jobs, cancel, tell)
        self._streams.add(stream)
        return stream

    def _raising(self, stream: Stream) -> Answers:
        """One answer that fails ends the others."""
        with closing(stream):
            for index, event in stream:
                if isinstance(event, EdgespecError):
                    yield index, TokenEvent(-1, "", finish_reason="error", stats=self.stats)
                    raise event
                yield index, event

    def count(self, messages: Sequence[Message]) -> int:
        """The number of prompt tokens of these messages, however many the context holds."""
        return len(self._tokenize(Request(messages=tuple(messages), lenient=True)).tokens)

    def tokenize(self, request: Request) -> list[int]:
        """The prompt of a request as ids. Raises UsageError."""
        return self._prompt(request).tokens

    def _prompt(self, request: Request) -> _Prompt:
        said = [request.prompt, *(message.content for message in request.messages)]
        n_characters = sum(map(len, said))
        if n_characters > LONGEST_TOKEN * self.context.n_ctx:  # which would take long to find out by tokens
            raise UsageError(
                f"the prompt has {n_characters:,} characters, more than fit into {self.context.n_ctx} tokens",
                hint="shorten it, or use a larger context (-c)",
            )
        prompt = self._tokenize(request)
        tokens = prompt.tokens
        if not tokens:
            raise UsageError("the prompt is empty", hint="this model needs at least one token to start from")
        if len(tokens) >= self.context.n_ctx:
            raise UsageError(
                f"the prompt has {len(tokens)} tokens, the context holds {self.context.n_ctx}",
                hint=f"shorten it, or use a larger context (-c {len(tokens) + 256} or more)",
            )
        return prompt

    def _tokenize(self, request: Request) -> _Prompt:
        template, special = self._loaded.template, request.special
        if not request.messages:
            return _Prompt(self.model.tokenize(request.prompt, add_special=True, parse_special=special))
        if not request.lenient:
            return _Prompt(template.tokenize(request.messages, special=special))
        return _Prompt(*tokenize_leniently(template, self.model, request.messages, self.note, special=special))

    def _note_limits(self, rule: VerifyRule) -> None:
        """Say what a verify rule cannot do with these drafters."""
        for drafter in self.engine.speculator.drafters:
            named = self.settings.spec_type != "auto" and not isinstance(drafter, ModelDrafter)
            if rule in ("rejection", "block") and named:
                self.note(
                    f"{rule} accepts drafts of {drafter.name} only where the target samples the same token, since "
                    "they are not sampled"
                )
        if rule == "block" and self.engine.speculator.tree_width > 1:
            self.note("drafting chains only: block verification does not support trees")

    def _run(
        self, jobs: Iterator[_Job | None], cancel: CancelFlag, tell: Callable[[Iterable[_Answer]], None]
    ) -> Stream:
        if self.engine.scheduler.active:
            raise UsageError("this model is already generating", hint="finish or close the other answer first")
        answers: dict[int, _Answer] = {}
        is_last, n_taken = False, 0
        self._watch(cancel)
        try:
            while answers or not is_last:
                while self.engine.scheduler.has_room and not is_last:
                    try:
                        job = next(jobs)
                    except StopIteration:
                        is_last = True
                        break
                    if job is None:  # requests are still to come
                        if not answers:
                            sleep(IDLE_S)
                        break
                    started = self._started(n_taken, job, cancel)
                    if isinstance(started, EdgespecError):
                        yield n_taken, started
                    else:
                        answers[started.sequence.slot] = started
                    n_taken += 1
                if not self.engine.scheduler.active:
                    continue
                for output in self.engine.step():
                    yield from answers[output.sequence.slot].events(output)
                tell(answers.values())
                for answer in [answer for answer in answers.values() if answer.sequence.finish]:
                    del answers[answer.sequence.slot]
                    error = answer.sequence.error
                    if error is None:
                        self._remember(answer)
                    self._end(answer.sequence)
                    if error is None:
                        yield answer.last_event()
                    else:
                        self.stats = answer.sequence.stats
                        yield answer.index, error
        except GenerationError:
            for answer in answers.values():
                answer.sequence.finish = "error"
                answer.sequence.n_decoded = 0
                yield answer.last_event()
            raise
        finally:
            for answer in answers.values():
                self._end(answer.sequence)
            self._watch(None)
            self._loaded.tuning.save(now=False)

    def _started(self, index: int, job: _Job, cancel: CancelFlag) -> _Answer | EdgespecError:
        """One request that cannot be begun with takes no other with it."""
        return job if isinstance(job, EdgespecError) else _attempted(partial(self._start, index, *job, cancel))

    def _start(self, index: int, request: Request, prompt: _Prompt, cancel: CancelFlag) -> _Answer:
        tokens, constraint = prompt.tokens, request.constraint
        chooser = Chooser(
            request.sampling,
            request.seed,
            request.sample,
            self.model.n_vocab,
            request.logprobs,
            self.model.end_tokens if request.ignore_eos else (),
            self.rounding,
            request.left,
            constraint and self._loaded.grammars.constraint(*constraint, self._answer_start(request, tokens)),
        )
        text = TextStream((*request.stop, *prompt.stop))
        limit = request.max_tokens if request.max_tokens >= 0 else self.context.n_ctx
        if request.reference:
            chooser = ReferenceChooser(chooser, len(tokens), request.reference)
            limit = min(limit, len(request.reference))
        sequence = self.engine.add(
            tokens, chooser, limit, cancel, rule=request.verify, n_cached=self._reusable(request, tokens)
        )
        self.stats = sequence.stats
        return _Answer(index, sequence, self.model, text)

    def _answer_start(self, request: Request, tokens: list[int]) -> int:
        """Where the answer begins in a prompt: at its end, unless that is the beginning of one that is to go on."""
        if not request.messages or request.messages[-1].role != "assistant":
            return len(tokens)
        begun = list(request.messages[-1].tokens) or self.model.tokenize(request.messages[-1].content)
        return len(tokens) - len(begun) if tokens[-len(begun) :] == begun else len(tokens)

    def _remember(self, answer: _Answer) -> None:
        """Keep what was answered for the next time that something like it comes."""
        sequence, store = answer.sequence, self._loaded.answers
        if store is not None and not isinstance(sequence.chooser, ReferenceChooser):
            store.add(sequence.tokens[sequence.n_prompt :])

    def _end(self, sequence: EngineSequence) -> None:
        if sequence.finish == "length" and len(sequence.tokens) >= self.context.n_ctx:
            self.note(f"the context of {self.context.n_ctx} tokens is full")
        self.engine.finish(sequence)
        self._cached = sequence.tokens[: sequence.n_decoded]

    def _tell_progress(self, answers: Iterable[_Answer]) -> None:
        """How much of the prompts is decoded, as long as one of them is not."""
        reading = [answer.sequence for answer in answers if not answer.sequence.stats.rounds]
        if reading:
            self._progress("prompt", sum(s.n_decoded for s in reading) / sum(s.n_prompt for s in reading))

    def _reusable(self, request: Request, tokens: list[int]) -> int:
        """How many tokens of this prompt the last conversation left in the cache: only chats continue each other.

        `_turns` says of each prompt in the cache from where to where it was read; between them lies what was generated.
        """
        if not request.messages or self.settings.sequences > 1 or not self.model.can_roll_back:
            self._turns = [(0, len(tokens))]
            return 0
        common = common_prefix(self._cached, tokens)
        while self._turns[-1][0] > common:
            self._turns.pop()
        start, end = self._turns[-1]
        n_reused = common
        if common <= end:  # that prompt again, or another one in its place
            self._turns.pop()
            n_reused = start + self.engine.scheduler.reusable(common - start, end - start, len(tokens) - start)
        else:  # the conversation goes on
            start = common
        self._turns.append((start, len(tokens)))
        return n_reused

    def _watch(self, cancel: CancelFlag | None) -> None:
        for context in self._loaded.contexts:
            context.watch(cancel)


def _attempted(step: Callable[[], Made]) -> Made | EdgespecError:
    """What a step for one request gives, or why it cannot be made."""
    try:
        return step()
    except EdgespecError as error:
        return error
    except Exception as error:
        log.debug("a request failed", exc_info=error)
        return GenerationError(f"unexpected {type(error).__name__}", why=str(error))


def _kind(request: Request) -> str:
    return kind_of(request.verify, request.sampling, is_constrained=request.constraint is not None)


def _without_index(answers: Answers) -> Answer:
    with closing(answers):
        for _, event in answers:
            yield event


_Job = tuple[Request, "_Prompt"] | EdgespecError


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What a request makes the model read, and texts that end the answer beside those it asks for."""

    tokens: list[int]
    stop: tuple[str, ...] = ()


@dataclass(slots=True)
class _Answer:
    """One sequence of the engine on its way to the reader."""

    index: int
    sequence: EngineSequence
    model: Model
    text: TextStream
    proposed: int = 0

    def events(self, output: StepOutput) -> Iterator[tuple[int, TokenEvent]]:
        """One event a token; end tokens and what follows a stop string are not for the reader."""
        number = self.sequence.stats.rounds - 1
        proposed, self.proposed = self.sequence.stats.proposed - self.proposed, self.sequence.stats.proposed
        for position, choice in enumerate(output.choices):
            if self.model.is_end(choice.id):
                return
            text = self.text.push(self.model.token_bytes(choice.id))
            drafted = position < len(output.sources)
            event = TokenEvent(
                choice.id,
                text,
                from_draft=drafted,
                source=output.sources[position] if drafted else "",
                round=number,
                proposed=proposed,
                gap=choice.gap,
                near_tie=choice.near_tie,
                logprob=choice.logprob,
                top_logprobs=choice.top_logprobs,
            )
            yield self.index, event
            if self.text.stopped:
                self.sequence.finish = "stop"
                return

    def last_event(self) -> tuple[int, TokenEvent]:
        finish, stats = self.sequence.finish, self.sequence.stats
        if finish == "length" and self._is_whole():
            finish = "stop"
        return self.index, TokenEvent(-1, self.text.flush(), finish_reason=finish, stats=stats, cut=self.text.stopped)

    def _is_whole(self) -> bool:
        """Whether nothing but an end may follow, by what the answer is made of: no limit has cut that off."""
        constraint, tokens = self.sequence.chooser.constraint, self.sequence.tokens
        if constraint is None or len(tokens) == self.sequence.n_prompt:
            return False
        return {*constraint.allowed(tokens).nonzero()[0].tolist()} <= {*self.model.end_tokens}


def _asked(prompt: str | Messages, options: AnswerOptions) -> Request:
    """What `complete` is asked for."""
    return _request(options, prompt=prompt) if isinstance(prompt, str) else _request(options, messages=_turns(prompt))


def _turns(messages: Messages) -> tuple[Message, ...]:
    try:
        return tuple(m if isinstance(m, Message) else Message(**m) for m in messages)
    except TypeError as error:
        raise UsageError("a message must have exactly role and content", why=str(error)) from error


def _request(options: AnswerOptions, **what: Any) -> Request:
    """Sort keywords into the request and its sampling settings. Raises UsageError for one that neither knows."""
    settings: dict[str, Any] = {**options}
    sampling_names = SamplingSettings.__dataclass_fields__
    sampling = {name: settings.pop(name) for name in list(settings) if name in sampling_names}
    try:
        if "json_schema" in settings:
            settings["json_schema"] = schema_text(settings["json_schema"])
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError("this JSON schema cannot be parsed", why=str(error)) from error
    if "logit_bias" in sampling:
        sampling["logit_bias"] = bias_pairs(sampling["logit_bias"])
    unknown = [name for name in settings if name not in Request.__dataclass_fields__]
    if unknown:
        raise UsageError(
            f"unknown setting {unknown[0]}", hint=f"one of: {', '.join(sampling_names)}, or a field of Request"
        )
    if sampling:
        try:
            settings["sampling"] = replace(settings.get("sampling", SamplingSettings()), **sampling)
        except ValueError as error:
            raise UsageError(str(error)) from error
    return Request(**what, **settings)
