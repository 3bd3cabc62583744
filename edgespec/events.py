"""The output of a generation, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Literal

from edgespec.core.stats import Stats
from edgespec.errors import UsageError
from edgespec.text.thinking import split, without_thinking

Progress = Callable[[str, float], None]
"""A callback that gets the name of a task and its progress, 0 to 1."""

PROGRESS = {
    "loading": "loading {}",
    "making": "creating a draft of {}",
    "rounding": "checking reproducibility",
    "costs": "measuring passes",
    "prompt": "reading the prompt",
}
"""Descriptions of the tasks; the braces are replaced by the name of the model."""

CONTEXT_FULL = "the context of {} tokens is full"
"""The note of a model, once per process, when an answer has filled the context."""

TokenPart = Literal["prompt", "answer", "end"]

FinishReason = Literal["stop", "length", "repetition", "cancelled", "error"]
"""Why an answer ended. "repetition": it repeated itself for `Request.repeat_limit` tokens."""

COMPLETE: tuple[FinishReason, ...] = ("stop", "length", "repetition")
"""The reasons of answers that are over as the request asked, and not broken off."""
ENDED_BY = {"ended_by": "repetition"}


def ended_json(reason: FinishReason | None) -> dict[str, object]:
    """Return a finish reason for JSON. Clients do not know "repetition", so it is the "length" of answers that are cut
    off, with another field."""
    return {"finish_reason": "length", **ENDED_BY} if reason == "repetition" else {"finish_reason": reason}


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token of an answer, or the end of the answer (`is_last`). The answer to `Inputs` has vectors in place of
    tokens, each with the number of its text as `id`.

    With `Request.prompt_logprobs`, the tokens of the prompt come first, and the end token after those of the answer, if
    the model chose one. These events have no text.
    """

    #: token id; -1 in the last event
    id: int
    #: complete UTF-8: unfinished characters and possible beginnings of stop strings are held back for a later event
    text: str
    from_draft: bool = False
    #: name of the drafter if `from_draft`
    source: str = ""
    #: number of the step (target pass) of this answer, from 0
    round: int = 0
    #: number of draft tokens verified in this step
    proposed: int = 0
    #: natural logarithm of the token's probability after bias and penalties, before truncation and temperature
    logprob: float | None = None
    #: (id, logprob) pairs, best first
    top_logprobs: tuple[tuple[int, float], ...] = ()
    #: only in the last event, like `stats` and `cut`
    finish_reason: FinishReason | None = None
    stats: Stats | None = None
    #: stop string at which the text was cut, if any; the tokens then hold more than the text
    cut: str = ""
    #: float32 values
    vector: bytes = b""
    part: TokenPart = "answer"
    #: the number of tokens that are at least as likely; only of tokens of the prompt
    rank: int | None = None
    #: of an event without a token, if the request asks for it: the number of tokens of the prompt, of those that were
    #: cached, and of those that are read or cached by now
    reading: tuple[int, int, int] | None = None
    #: of an event without a token: a model was lost, and the answer begins again; ignore its earlier events
    is_anew: bool = False

    def __reduce__(self) -> tuple[type[TokenEvent], tuple[object, ...]]:
        return TokenEvent, _values(self)  # takes a tenth of the time that pickling a dataclass takes

    @property
    def is_last(self) -> bool:
        """True if this is the end of the answer, not a token."""
        return self.finish_reason is not None

    def as_json(self) -> dict[str, object]:
        """Return the event as plain data, without fields that have their default; infinite logprobs are null."""
        plain: dict[str, object] = {"id": self.id, "text": self.text}
        for item in fields(self)[2:]:
            if (value := getattr(self, item.name)) != item.default:
                plain[item.name] = value
        if self.top_logprobs:
            plain["top_logprobs"] = [[id, _finite(logprob)] for id, logprob in self.top_logprobs]
        return plain | ({} if self.logprob is None else {"logprob": _finite(self.logprob)})

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> TokenEvent:
        """Return the event of `as_json`'s data. Raises TypeError, ValueError, KeyError if the data is invalid."""
        known = {item.name: plain[item.name] for item in fields(cls) if item.name in plain}
        if "logprob" in known:
            known["logprob"] = _number(known["logprob"])
        if "top_logprobs" in known:
            known["top_logprobs"] = tuple((int(id), _number(logprob)) for id, logprob in known["top_logprobs"])
        return cls(**known | {"id": int(known["id"]), "text": str(known["text"])})


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _number(logprob: Any) -> float:
    return -math.inf if logprob is None else float(logprob)


_values = attrgetter(*(field.name for field in fields(TokenEvent)))


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer, and what the model predicted in the prompt if `Request.prompt_logprobs` asks for it."""

    text: str
    #: ids without the end token
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    #: True if the text was cut at a stop string; the tokens then hold more than the text
    cut: bool = False
    #: one entry per token, as in `TokenEvent`; empty unless requested
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    #: ids of the prompt, and one entry for each; the first token has no log probability
    prompt_tokens: tuple[int, ...] = ()
    prompt_logprobs: tuple[float | None, ...] = ()
    prompt_top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()

    @property
    def content(self) -> str:
        """The text without the model's reasoning."""
        return without_thinking(self.text)

    @property
    def reasoning(self) -> str:
        """The model's reasoning, which `text` has between `<think>` and `</think>`; "" if there is none."""
        return "".join(text for kind, text in split(self.text) if kind == "thinking")

    @property
    def message(self) -> dict[str, str]:
        """The answer as a message, to continue the chat."""
        return {"role": "assistant", "content": self.text}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """Return the text and the finish reason. A notebook and a shell show it, so the ids of all tokens are left
        out."""
        return f"{type(self).__name__}({self.text!r}, finish_reason={self.finish_reason!r})"

    @classmethod
    def of(cls, events: Iterable[TokenEvent]) -> Completion:
        """Return the answer of these events. Raises UsageError if the last event is missing: the model was closed."""
        whole: list[TokenEvent] = []
        for event in events:
            if event.is_anew:
                whole.clear()
            whole.append(event)
        *made, last = whole or [TokenEvent(-1, "")]
        prompt, tokens = ([event for event in made if event.part == part] for part in ("prompt", "answer"))
        if last.finish_reason is None or last.stats is None:
            raise UsageError("this model is closed", why="it was closed in the middle of the answer")
        return cls(
            "".join(event.text for event in (*tokens, last)),
            tuple(event.id for event in tokens),
            last.finish_reason,
            last.stats,
            last.cut != "",
            tuple(event.logprob for event in tokens if event.logprob is not None),
            tuple(event.top_logprobs for event in tokens if event.logprob is not None),
            *(tuple(getattr(event, name) for event in prompt) for name in ("id", "logprob", "top_logprobs")),
        )
