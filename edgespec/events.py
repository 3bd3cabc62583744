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

    The last event (`is_last`) is no token: its `id` is -1, and its `text` is the rest of the text.
    """

    id: int
    #: Complete UTF-8 only. Bytes of an unfinished character, and text that may become a stop string, come with a later
    #: event.
    text: str
    from_draft: bool = False
    #: The drafter of the token, if it is `from_draft`.
    source: str = ""
    #: The step of this answer, a pass of the target, from 0.
    round: int = 0
    #: Draft tokens that were verified in this step.
    proposed: int = 0
    #: The lead of the token's score over the second best one.
    gap: float = math.inf
    #: Whether the measured rounding of kernels could have changed the token; None if it was not measured.
    near_tie: bool | None = None
    #: Natural logarithm of the token's probability after bias and penalties, before truncation and temperature.
    logprob: float | None = None
    #: (id, log-probability) pairs, best first.
    top_logprobs: tuple[tuple[int, float], ...] = ()
    #: Only in the last event.
    finish_reason: FinishReason | None = None
    #: The counters of this answer, only in the last event.
    stats: Stats | None = None
    #: The stop string at which the text was cut, only in the last event. The tokens then hold more than the text.
    cut: str = ""

    @property
    def is_last(self) -> bool:
        """True for the end of the answer, False for a token."""
        return self.finish_reason is not None

    def as_json(self) -> dict[str, Any]:
        """Return the event as plain data, without fields that have their default. Infinite numbers are null."""
        plain: dict[str, Any] = {"id": self.id, "text": self.text}
        for item in fields(self)[2:]:
            if (value := getattr(self, item.name)) != item.default:
                plain[item.name] = value
        if self.top_logprobs:
            plain["top_logprobs"] = [[id, _finite(logprob)] for id, logprob in self.top_logprobs]
        return plain | ({} if self.logprob is None else {"logprob": _finite(self.logprob)})

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> TokenEvent:
        """Return the event that `as_json` returned as plain data. Raises TypeError, ValueError, KeyError for others."""
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
    """A whole answer."""

    text: str
    #: Ids without the end token.
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    #: Whether the text was cut at a stop string. The tokens then hold more than the text.
    cut: bool = False
    #: One entry for each token if log-probabilities were requested; see `TokenEvent`.
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()

    @classmethod
    def of(cls, events: Iterable[TokenEvent]) -> Completion:
        """Join events to an answer. Raises UsageError if the last one is missing: the model was closed."""
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
