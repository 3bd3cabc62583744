"""Requests through the engine: each begins with a prompt, and goes out as events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from time import sleep
from typing import TypeVar

from edgespec.cancel import CancelFlag
from edgespec.core.prefix import common_prefix
from edgespec.core.sampler import ReferenceSampler, Sampler
from edgespec.core.stats import Stats
from edgespec.engine.sequence import Sequence as EngineSequence
from edgespec.engine.sequence import StepOutput
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import Progress, TokenEvent
from edgespec.llama.model import Model
from edgespec.runtime.loading import ModelSession
from edgespec.settings import Request
from edgespec.text.textstream import TextStream

IDLE_S = 0.005  # between looking for further requests

log = logging.getLogger(__name__)

Made = TypeVar("Made")
Stream = Generator[tuple[int, TokenEvent | EdgespecError], None, None]


Job = tuple[Request, "Prompt"] | EdgespecError


@dataclass(frozen=True, slots=True)
class Prompt:
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
        constraint, tokens = self.sequence.sampler.constraint, self.sequence.tokens
        if constraint is None or len(tokens) == self.sequence.n_prompt:
            return False
        return {*constraint.allowed(tokens).nonzero()[0].tolist()} <= {*self.model.end_tokens}


class Answering:
    """Requests on their way through the engine, as many at a time as it has room for. `stats` are those of the answer
    that was started last."""

    def __init__(self, loaded: ModelSession, note: Callable[[str], None], progress: Progress) -> None:
        self._loaded, self._note, self._progress = loaded, note, progress
        self.model, self.context, self.engine = loaded.model, loaded.context, loaded.engine
        self.stats = Stats()
        self._cached: list[int] = []
        self._turns = [(0, 0)]

    def forget(self) -> None:
        """What the cache of the target holds is not known any more."""
        self._cached = []

    def watch(self, cancel: CancelFlag | None) -> None:
        """Let `cancel` stop passes of all models."""
        for context in self._loaded.contexts:
            context.watch(cancel)

    def run(self, jobs: Iterator[Job | None], cancel: CancelFlag, tell: Callable[[Iterable[_Answer]], None]) -> Stream:
        if self.engine.scheduler.active:
            raise UsageError("this model is already generating", hint="finish or close the other answer first")
        answers: dict[int, _Answer] = {}
        is_last, n_taken = False, 0
        self.watch(cancel)
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
            self.watch(None)
            self._loaded.tuning.save(now=False)

    def _started(self, index: int, job: Job, cancel: CancelFlag) -> _Answer | EdgespecError:
        """One request that cannot be begun with takes no other with it."""
        return job if isinstance(job, EdgespecError) else attempted(partial(self._start, index, *job, cancel))

    def _start(self, index: int, request: Request, prompt: Prompt, cancel: CancelFlag) -> _Answer:
        tokens, constraint = prompt.tokens, request.constraint
        sampler = Sampler(
            request.sampling,
            request.seed,
            request.sample,
            self.model.n_vocab,
            request.logprobs,
            self.model.end_tokens if request.ignore_eos else (),
            self._loaded.rounding,
            request.left,
            constraint and self._loaded.grammars.constraint(*constraint, self._answer_start(request, tokens)),
        )
        text = TextStream((*request.stop, *prompt.stop))
        limit = request.max_tokens if request.max_tokens >= 0 else self.context.n_ctx
        if request.reference:
            sampler = ReferenceSampler(sampler, len(tokens), request.reference)
            limit = min(limit, len(request.reference))
        sequence = self.engine.add(
            tokens, sampler, limit, cancel, rule=request.verify, n_cached=self._reusable(request, tokens)
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
        if store is not None and not isinstance(sequence.sampler, ReferenceSampler):
            store.add(sequence.tokens[sequence.n_prompt :])

    def _end(self, sequence: EngineSequence) -> None:
        if sequence.finish == "length" and len(sequence.tokens) >= self.context.n_ctx:
            self._note(f"the context of {self.context.n_ctx} tokens is full")
        self.engine.finish(sequence)
        self._cached = sequence.tokens[: sequence.n_decoded]

    def tell_progress(self, answers: Iterable[_Answer]) -> None:
        """How much of the prompts is decoded, as long as one of them is not."""
        reading = [answer.sequence for answer in answers if not answer.sequence.stats.rounds]
        if reading:
            self._progress("prompt", sum(s.n_decoded for s in reading) / sum(s.n_prompt for s in reading))

    def _reusable(self, request: Request, tokens: list[int]) -> int:
        """How many tokens of this prompt the last conversation left in the cache: only chats continue each other.

        `_turns` says of each prompt in the cache from where to where it was read; between them lies what was generated.
        """
        if not request.messages or self.context.sequences > 1 or not self.model.can_roll_back:
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


def attempted(step: Callable[[], Made]) -> Made | EdgespecError:
    """What a step for one request gives, or why it cannot be made."""
    try:
        return step()
    except EdgespecError as error:
        return error
    except Exception as error:
        log.debug("a request failed", exc_info=error)
        return GenerationError(f"unexpected {type(error).__name__}", why=str(error))
