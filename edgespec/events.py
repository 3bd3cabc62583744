"""The output of a generation, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from edgespec.core.stats import Stats
from edgespec.errors import UsageError

Progress = Callable[[str, float], None]
"""Called with the name of the work and its progress, 0 to 1."""

PROGRESS = {
    "loading": "loading {}",
    "making": "creating a draft of {}",
    "rounding": "checking reproducibility",
    "costs": "measuring passes",
    "prompt": "reading the prompt",
}
"""The work in words; the braces stand for the model."""

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token of an answer, or its end.

    `text` is complete UTF-8 only: bytes of an unfinished character, and text that may become a stop string, are held
    back and come with a later event. The last event (`is_last`) is no token: it has `id` -1, the rest of the text,
    `finish_reason`, the `stats` of this answer, and the stop string at which the text was `cut`, if it was: then the
    tokens hold more than the text. `logprob` is the natural logarithm of the token's probability after bias and
    penalties, before truncation and temperature; `top_logprobs` holds (id, logprob) pairs, best first. `source` names
    the drafter if `from_draft`. `round` counts the steps (target passes) of this answer from 0, `proposed` is the
    number of draft tokens verified in it; `gap` is the distance of the token's score from the second best, and
    `near_tie` whether the measured rounding of kernels could have changed it.
    """

    id: int
    text: str
    from_draft: bool = False
    source: str = ""
    round: int = 0
    proposed: int = 0
    gap: float = math.inf
    near_tie: bool | None = None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    stats: Stats | None = None
    cut: str = ""

    @property
    def is_last(self) -> bool:
        """Whether this is the end of the answer, not a token."""
        return self.finish_reason is not None

    def as_json(self) -> dict[str, Any]:
        """A token as plain data, without what has its default; an infinite log-probability is null."""
        plain: dict[str, Any] = {"id": self.id, "text": self.text}
        for item in fields(self)[2:]:
            if (value := getattr(self, item.name)) != item.default:
                plain[item.name] = value
        if self.top_logprobs:
            plain["top_logprobs"] = [[id, _finite(logprob)] for id, logprob in self.top_logprobs]
        return plain | ({} if self.logprob is None else {"logprob": _finite(self.logprob)})

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> TokenEvent:
        """What `as_json` gave. Raises TypeError, ValueError, KeyError for something else."""
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


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer.

    `tokens` are its ids, without the end token; if the text was `cut` at a stop string, they hold more than `text`.
    `stats` are those of this answer. `logprobs` and `top_logprobs` have one entry per token, as `TokenEvent` describes
    them, and are empty unless they were asked for.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    cut: bool = False
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()

    @classmethod
    def of(cls, events: Iterable[TokenEvent]) -> Completion:
        """The answer of these events. Raises UsageError if the last one is missing: the model was closed."""
        *tokens, last = [*events] or [TokenEvent(-1, "")]
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
        )
