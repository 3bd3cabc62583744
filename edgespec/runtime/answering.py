"""From requests to sequences of the engine, and from its output to events."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from edgespec.cancel import CancelFlag
from edgespec.core.infill import Infill
from edgespec.core.sampler import Constraint, ReferenceSampler, SampledToken, Sampler
from edgespec.dialects.plain import PlainText
from edgespec.engine.sequence import Reuse, Sequence, StepOutput
from edgespec.errors import EdgespecError, UsageError, for_users
from edgespec.events import CONTEXT_FULL, Progress, TokenEvent, TokenPart
from edgespec.llama.model import LlamaModel
from edgespec.llm.stream import Loop, Stream
from edgespec.runtime.answer_form import AnswerForm
from edgespec.runtime.ends import ends_of
from edgespec.runtime.loading import ModelSession
from edgespec.runtime.prompts import Prompt, Prompts
from edgespec.settings import Constraint as ConstraintKind
from edgespec.settings import Request
from edgespec.text.indentation import Indentation
from edgespec.text.repetition import RepetitionDetector
from edgespec.text.textstream import TextStream

if TYPE_CHECKING:
    from llguidance import LLMatcher

log = logging.getLogger(__name__)

Made = TypeVar("Made")
Compiled = tuple[ConstraintKind, str, "LLMatcher"]
"""The kind of a constraint, its text, and its matcher."""

Prepared = tuple[Request, Prompt, Compiled | None]
"""A request, its prompt, and its compiled constraint if it has one; without one, the grammar of the calls that the
answer may have."""


@dataclass(slots=True)
class _Running:
    """An answer that is being generated: its sequence in the engine, and the stream for its events."""

    stream: Stream
    number: int
    sequence: Sequence
    model: LlamaModel
    text: TextStream
    indentation: Indentation | None
    most_s: float
    repeat_limit: int
    returns_progress: bool
    words: Mapping[int, str]  # of control tokens that have a text
    plain: PlainText | None
    form: AnswerForm
    cancel: CancelFlag
    is_told_to_answer: bool = False
    repeats: RepetitionDetector = field(default_factory=RepetitionDetector)
    proposed: int = 0
    is_cut: bool = False
    n_read: int = -1  # tokens of the prompt in the last event about them

    def progress(self) -> Iterator[TokenEvent]:
        """Yield the events about what was read of the prompt since the last call; the first one is about the cached
        tokens."""
        n_prompt, n_cached = self.sequence.n_prompt, self.sequence.stats.cached_tokens
        n_read = n_prompt if self.sequence.stats.rounds else min(self.sequence.n_decoded, n_prompt)
        if not self.returns_progress or n_read <= max(n_cached, self.n_read):
            return
        for count in (n_cached, n_read) if self.n_read < 0 else (n_read,):
            yield TokenEvent(-1, "", reading=(n_prompt, n_cached, count))
        self.n_read = n_read

    def events(self, output: StepOutput) -> Iterator[TokenEvent]:
        """Yield an event per token, without end tokens and anything after a stop string."""
        if output.is_prompt:
            yield from (self._scored(choice, "prompt") for choice in output.choices)
            return
        yield from self.progress()
        round = self.sequence.stats.rounds - 1
        proposed, self.proposed = self.sequence.stats.proposed - self.proposed, self.sequence.stats.proposed
        for position, choice in enumerate(output.choices):
            if self.model.is_end(choice.id) or choice.id in self.sequence.ends:
                if self.sequence.prompt_logprobs is not None:
                    yield self._scored(choice, "end")
                return
            piece = self.words[choice.id].encode() if choice.id in self.words else self.model.token_bytes(choice.id)
            text = self._indented(self._plain(self.text.push(piece)))
            drafted = position < len(output.sources)
            yield TokenEvent(
                choice.id,
                text,
                from_draft=drafted,
                source=output.sources[position] if drafted else "",
                round=round,
                proposed=proposed,
                logprob=choice.logprob,
                top_logprobs=choice.top_logprobs,
            )
            self.repeats.add(choice.id)
            if self.text.stopped:
                self.sequence.finish = "stop"
                return
            if self.repeat_limit and self.repeats.exceeds(self.repeat_limit):
                self.sequence.finish = "repetition"
                return
            if self.is_cut or ("\n" in text and perf_counter() - self.sequence.first_token_s > self.most_s):
                self.text.flush()
                self.sequence.finish = "length"
                return

    @staticmethod
    def _scored(choice: SampledToken, part: TokenPart) -> TokenEvent:
        return TokenEvent(
            choice.id, "", logprob=choice.logprob, top_logprobs=choice.top_logprobs, part=part, rank=choice.rank
        )

    def _indented(self, text: str) -> str:
        """Return the next part of the text up to a line that is not indented enough, at which the answer ends."""
        end = self.indentation.end(text) if self.indentation else None
        self.is_cut = end is not None
        return text[:end]

    def _plain(self, text: str) -> str:
        return self.plain.push(text) if self.plain is not None else text

    def last_event(self) -> TokenEvent:
        finish, stats = self.sequence.finish, self.sequence.stats
        stats.repeated_tokens = self.repeats.found.tokens if self.repeats.found else 0
        if finish == "length" and self._is_whole():
            finish = "stop"
        rest = self._plain(self.text.flush()) + (self.plain.end() if self.plain is not None else "")
        rest = self._indented(rest)
        return TokenEvent(-1, rest, finish_reason=finish, stats=stats, cut=self.text.stopped)

    def _is_whole(self) -> bool:
        """True if the constraint allows only an end token next: then no limit cut the answer off."""
        constraint, tokens = self.sequence.sampler.constraint, self.sequence.tokens
        if constraint is None or len(tokens) == self.sequence.n_prompt:
            return False
        try:
            allowed = constraint.allowed(tokens)
        except UsageError:  # a grammar that fails after the last token
            return False
        return allowed is not None and {*allowed.nonzero()[0].tolist()} <= {*self.model.end_tokens}


class Answering(Loop):
    """Answers requests with the engine, as many at a time as it has slots."""

    def __init__(self, loaded: ModelSession, prompts: Prompts, note: Callable[[str], None], progress: Progress) -> None:
        super().__init__()
        self._prompts = prompts
        self._loaded, self._note, self._progress = loaded, note, progress
        self._target, self.engine = loaded.target, loaded.engine
        self.model, self.context = loaded.target.model, loaded.target.context
        self._added: deque[tuple[Stream, int, Prepared, CancelFlag]] = deque()
        self._answers: dict[Sequence, _Running] = {}
        self._reported = 0.0  # of the prompts

    def add(self, stream: Stream, number: int, what: Prepared | EdgespecError, cancel: CancelFlag) -> None:
        if isinstance(what, EdgespecError):
            stream.put(number, what)
        else:
            self._added.append((stream, number, what, cancel))

    def turn(self) -> None:
        """Run a step of the engine; an error in it ends the answers that had a slot."""
        while self._added:
            stream, number, job, cancel = self._added.popleft()
            if not stream.is_closed:
                refused = attempted(partial(self._start, stream, number, job, cancel))
                if refused is not None:
                    stream.put(number, refused)
        try:
            self._end_reasoning()
            for output in self.engine.step():
                answer = self._answers[output.sequence]
                for event in answer.events(output):
                    answer.stream.put(answer.number, event)
            for answer in self._answers.values():
                for event in answer.progress():
                    answer.stream.put(answer.number, event)
        except BaseException as error:
            known = for_users(error)
            self._break_off(known)
            if error is not known:
                raise
        self._tell_progress()
        self._end_finished()

    def _end_reasoning(self) -> None:
        """End the reasoning of answers whose readers want it to end now."""
        for sequence, answer in self._answers.items():
            if answer.cancel.ends_reasoning and not answer.is_told_to_answer:
                answer.is_told_to_answer = True
                if isinstance(sampler := sequence.sampler, Sampler):
                    sampler.constraint = answer.form.ending(sampler.constraint, len(sequence.tokens))

    def settle(self) -> None:
        for sequence, answer in self._answers.items():
            if answer.stream.is_closed and sequence.finish is None:
                sequence.finish = "cancelled"
        self._end_finished()

    def _start(self, stream: Stream, number: int, job: Prepared, cancel: CancelFlag) -> None:
        request, prompt, compiled = job
        tokens = prompt.tokens
        limit = request.max_tokens if request.max_tokens >= 0 else self.context.n_ctx
        form = AnswerForm(self._prompts, self.model, request, prompt)
        after: Callable[[int], Constraint] | None = None
        inner: Constraint | None = ends_of(request, self.model, len(tokens))
        if compiled is not None and request.constraint is not None:
            after = partial(self._target.grammars.constraint, *request.constraint, matcher=compiled[2])
        elif compiled is not None:
            inner = form.with_calls(inner, partial(self._target.grammars.continued, *compiled))
        constraint = form.constraint(inner, after, limit)
        sampler = Sampler(
            request.sampling,
            request.seed,
            request.sample,
            self.model.n_vocab,
            request.logprobs,
            self.model.end_tokens if request.ignore_eos else (),
            request.left,
            constraint,
            Infill(self.model.token_bytes, self.model.is_end, self.model.eot) if request.infill else None,
            self._target.breakers.of(request.sampling),
        )
        text = TextStream((*request.stop, *prompt.stop), self._last_bytes(tokens[prompt.start :]))
        if request.reference:
            sampler = ReferenceSampler(sampler, len(tokens), request.reference)
            limit = min(limit, len(request.reference))
        reading = form.reading(constraint)
        reuse, drafting = self._reuse(request), self._loaded.drafting.of(request)
        adapters = self._target.adapters.chosen(request.lora)
        add = partial(self.engine.add, rule=request.verify, reuse=reuse, drafting=drafting, adapters=adapters)
        sequence = add(tokens, sampler, limit, cancel, images=prompt.images, prompt_logprobs=request.prompt_logprobs)
        sequence.ends = frozenset(request.stop_token_ids)
        # Answers with other adapters than usual are no examples of usual ones.
        is_usual = not request.reference and adapters == self._target.adapters.default
        sequence.is_remembered = request.remembered and is_usual
        self.stats = sequence.stats
        indentation = Indentation(request.n_indent) if request.n_indent else None
        most_s = request.t_max_predict_ms / 1000 if request.t_max_predict_ms > 0 else math.inf
        # A loop that was asked for is no fault: the answer must be whole.
        is_free = request.constraint is None and not (request.reference or request.ignore_eos or request.min_tokens)
        limit = request.repeat_limit if is_free else 0
        self._answers[sequence] = _Running(
            *(stream, number, sequence, self.model, text, indentation, most_s, limit, request.return_progress),
            *reading,
            *(form, cancel),
        )

    def _reuse(self, request: Request) -> Reuse:
        """Return how much of the KV cache a request may use.

        If bits depend on the pass in which a token was read, prompts that are completed verbatim are read again.
        """
        if not request.cache_prompt or request.prompt_logprobs is not None:
            return "nothing"
        return "all" if request.messages or self.context.exact else "running"

    def _last_bytes(self, begun: list[int]) -> bytes:
        """Return the last bytes of the text that an answer continues. Three tokens are enough, since an unfinished
        character has at most three bytes."""
        return b"".join(self.model.token_bytes(token) for token in begun[-3:])

    def _tell_progress(self) -> None:
        """Report how much of the prompts is decoded, until all are; not at each step while prompts wait for a slot."""
        reading = [sequence for sequence in self._answers if not sequence.stats.rounds]
        done = sum(s.n_decoded for s in reading) / sum(s.n_prompt for s in reading) if reading else 0.0
        if done not in (0.0, self._reported):
            self._progress("prompt", done)
        self._reported = done

    def _end_finished(self) -> None:
        finished = self.engine.scheduler.finished()
        for sequence in finished:
            answer = self._answers.pop(sequence)
            if sequence.error is None and sequence.is_remembered:
                self._remember(sequence)
            if sequence.finish == "length" and len(sequence.tokens) >= self.context.n_ctx:
                self._note(CONTEXT_FULL.format(self.context.n_ctx))
            self.engine.finish(sequence)
            answer.stream.put(answer.number, sequence.error or answer.last_event())
        if finished:
            self._loaded.save(now=False)

    def _break_off(self, error: EdgespecError) -> None:
        """End the answers that had a slot, since the KV cache is in an unknown state; the others continue to wait."""
        broken = [self._answers.pop(sequence) for sequence in [*self.engine.scheduler.active]]
        for answer in broken:
            answer.sequence.finish, answer.sequence.n_decoded = "error", 0
            self.engine.finish(answer.sequence)
            answer.stream.put(answer.number, answer.last_event())
            answer.stream.fail(answer.number, error)

    def _remember(self, sequence: Sequence) -> None:
        """Add an answer to the store that the suffix drafter reads."""
        store = self._loaded.drafters.answers
        if store is not None:
            store.add(sequence.tokens[sequence.n_prompt :])


def attempted(step: Callable[[], Made]) -> Made | EdgespecError:
    """Return the result of a step for one request, or its error."""
    try:
        return step()
    except Exception as error:
        if not isinstance(error, EdgespecError):
            log.debug("a request failed", exc_info=error)
        return for_users(error)
