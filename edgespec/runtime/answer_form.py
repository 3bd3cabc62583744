"""How the answer to a request is written: its reasoning, what may follow, and its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

from edgespec.core.sampler import Constraint
from edgespec.dialects.plain import PlainText
from edgespec.dialects.starts import CallStarts
from edgespec.llama.grammar import GrammarConstraint
from edgespec.llama.model import LlamaModel
from edgespec.runtime.begun_calls import BegunCalls
from edgespec.runtime.prompts import Prompt, Prompts, all_tools
from edgespec.runtime.reasoning import Frame, Reasoning
from edgespec.runtime.template_dialect import TemplateDialect
from edgespec.settings import Request

PROMPT_END = 64  # tokens at the end of a prompt that may open reasoning


class AnswerForm:
    """The form of one answer, in the dialect of the chat template."""

    def __init__(self, prompts: Prompts, model: LlamaModel, request: Request, prompt: Prompt) -> None:
        self._prompts, self._model, self._request, self._prompt = prompts, model, request, prompt

    def constraint(
        self, inner: Constraint | None, after: Callable[[int], Constraint] | None, limit: int
    ) -> Constraint | None:
        """Return the constraint of the answer, which may begin with reasoning that has a limit, or that is followed by
        a content with the constraint `after`, given the position of its beginning. `inner` is the constraint of all
        other tokens, and `limit` the most tokens of the answer."""
        request = self._request
        most = request.reasoning_budget if 0 <= request.reasoning_budget < limit else None
        reasoning = None
        if not request.reference and (most is not None if after is None else bool(request.messages)):
            reasoning = self._reasoning(most, inner, after)
        if reasoning is not None:
            return reasoning
        # A call begins after what the client has begun.
        start = len(self._prompt.tokens) if request.must_call else self._prompt.start
        return after(start) if after is not None else inner

    def with_calls(
        self, inner: Constraint | None, begun: Callable[[list[str | int], int], GrammarConstraint | None]
    ) -> BegunCalls:
        """Return the constraint of an answer that may call tools. `begun` returns the constraint of a call, given its
        beginning in pieces, of which special tokens are ids, and the position after it."""
        dialect, request, ends = self._written.dialect, self._request, self._model.end_tokens
        follow = list[list[int]]()
        if dialect.messages is not None:
            marks = (self._model.tokenize(mark, parse_special=True) for mark in dialect.messages.ends)
            follow = [*([id] for id in ends), *marks]
        return BegunCalls(
            CallStarts(dialect, all_tools(request), self._written.specials.values()),
            self._prompt.start,
            (self._opened or "") if dialect.messages is not None else "",
            self._model.n_vocab,
            partial(self._model.token_bytes, special=True),
            lambda text, start: begun(self._written.pieces(text), start),
            follow=follow,
            ends=() if request.parallel_calls else ends,
            inner=inner,
        )

    def ending(self, constraint: Constraint | None, n_tokens: int) -> Constraint | None:
        """Return the constraint of an answer, given its present one, so that its reasoning ends at position `n_tokens`
        of the sequence."""
        reasoning = constraint if isinstance(constraint, Reasoning) else self._reasoning(None, constraint, None)
        if reasoning is None:
            return constraint
        reasoning.end_at(n_tokens)
        return reasoning

    def _reasoning(
        self, most: int | None, inner: Constraint | None, after: Callable[[int], Constraint] | None
    ) -> Reasoning | None:
        """Return the constraint of an answer with reasoning; None if it cannot have any."""
        dialect = self._written.dialect
        frame = Frame.of(dialect, calls=bool(self._request.must_call))
        if frame is None:
            return None
        is_open = self._opened is not None
        if dialect.messages is not None:
            is_open = bool(frame.open) and (self._opened or "").endswith(frame.open)
        is_off = self._before.rstrip().endswith(frame.close) or (most == 0 and bool(dialect.switch))
        if not is_open and (dialect.is_assumed or is_off) and not frame.header:
            return None
        return Reasoning(
            frame,
            most,
            self._prompt.start,
            self._model.n_vocab,
            partial(self._model.tokenize, parse_special=True),
            partial(self._model.token_bytes, special=True),
            is_open=is_open,
            n_begun=len(self._prompt.tokens) - self._prompt.start,
            ends=self._model.end_tokens,
            inner=inner,
            after=after,
        )

    def reading(self, constraint: Constraint | None) -> tuple[Mapping[int, str], PlainText | None]:
        """Return the texts of control tokens that are marks, and what writes the answer with common marks."""
        request = self._request
        is_constrained = request.constraint is not None
        is_text = is_constrained and not isinstance(constraint, Reasoning)
        if not request.messages or request.raw_marks or request.reference or is_text:
            return {}, None
        schemas = all_tools(request)
        begun = self._text_of(self._prompt.tokens[self._prompt.start :])
        hides = is_constrained and not request.must_call
        return self._written.marks, PlainText(self._written.dialect, self._opened, begun, schemas, hides=hides)

    @cached_property
    def _written(self) -> TemplateDialect:
        return self._prompts.dialect(self._request)

    @cached_property
    def _before(self) -> str:
        """The end of the text before the answer."""
        start = self._prompt.start
        return self._text_of(self._prompt.tokens[max(0, start - PROMPT_END) : start])

    @cached_property
    def _opened(self) -> str | None:
        """What the prompt has begun of the answer, as `Dialect.opened` returns it."""
        return self._written.dialect.opened(self._before)

    def _text_of(self, tokens: Sequence[int]) -> str:
        text = b"".join(self._model.token_bytes(id, special=True) for id in tokens if id >= 0)  # others are of images
        return text.decode("utf-8", "replace")
