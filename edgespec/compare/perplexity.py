"""Perplexity: how many tokens a model hesitates between, on average, when it predicts the next one of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from edgespec.cancel import CancelFlag
from edgespec.compare.windows import Windows, log_probabilities, watching
from edgespec.llama.context import CancelledError, Context

Told = Callable[[int, int], None]
"""Called with the number of windows done, and of all."""


@dataclass(slots=True, frozen=True)
class Perplexity:
    """exp of the mean negative log-likelihood over `positions` tokens, with its standard error, and the time it
    took."""

    value: float
    standard_error: float
    positions: int
    windows: int
    seconds: float
    tokens_per_s: float


def perplexity(context: Context, text: Windows, tell: Told, cancel: CancelFlag) -> Perplexity | None:
    """The perplexity over the windows of `text`, or over those processed before it was cancelled, if any. Raises
    GenerationError."""
    losses: list[float] = []
    done, started_s = 0, perf_counter()
    took_s = 0.0
    with watching(context, cancel):
        try:
            for window in text:
                tell(done, len(text))
                found = [-float(row[token]) for token, row in log_probabilities(context, window)]
                losses += found
                done, took_s = done + 1, perf_counter() - started_s
            tell(done, len(text))
        except CancelledError:
            pass
    if not done:
        return None
    value, error = exp_of_mean(losses)
    return Perplexity(value, error, len(losses), done, took_s, done * len(text[0]) / took_s)


def exp_of_mean(losses: Sequence[float]) -> tuple[float, float]:
    """exp of the mean, and the standard error of that."""
    with np.errstate(over="ignore", invalid="ignore"):
        value = np.exp(np.mean(losses))
        return float(value), float(value * np.std(losses) / np.sqrt(len(losses) - 1))
