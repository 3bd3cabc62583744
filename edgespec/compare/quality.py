"""How far a file is from its reference over a text: KL divergence, same top token, perplexity."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.compare.perplexity import Told, exp_of_mean
from edgespec.compare.rows import ReferenceRows
from edgespec.compare.windows import Windows, log_probabilities, watching
from edgespec.llama.context import Context


@dataclass(slots=True, frozen=True)
class Quality:
    """Figures over `positions` tokens of a text.

    `kl` is the mean Kullback-Leibler divergence of the file's probabilities from the reference's (nats per token), with
    its standard error, the median and the 99th percentile; `same_top` the share of positions with the same most likely
    token; `perplexity_ratio` the file's perplexity over the reference's, with a standard error that accounts for the
    common text.
    """

    positions: int
    perplexity: float
    perplexity_error: float
    perplexity_ratio: float
    perplexity_ratio_error: float
    kl: float
    kl_error: float
    kl_median: float
    kl_99: float
    same_top: float


def reference_quality(positions: int, perplexity: float, perplexity_error: float) -> Quality:
    """That of the reference itself."""
    return Quality(positions, perplexity, perplexity_error, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


def compare_with(rows: ReferenceRows, context: Context, text: Windows, tell: Told, cancel: CancelFlag) -> Quality:
    """The quality of the model in `context` over the text of `rows`. Raises CancelledError, GenerationError."""
    divergences: list[float] = []
    losses: list[float] = []
    same = 0
    # Closed here: not every system can delete an open file, and it must be deleted when a signal ends this.
    with closing(iter(rows)) as read, watching(context, cancel):
        reference = zip(read, rows.likeliest, strict=True)
        for done, window in enumerate(text):
            tell(done, len(text))
            for (token, row), (expected, likeliest) in zip(log_probabilities(context, window), reference, strict=False):
                divergences.append(divergence(expected, row))
                losses.append(-float(row[token]))
                same += int(row.argmax()) == likeliest
        tell(len(text), len(text))
    n = len(losses)
    ratio, ratio_error = exp_of_mean(np.subtract(losses, rows.losses).tolist())
    return Quality(
        n,
        *exp_of_mean(losses),
        ratio,
        ratio_error,
        kl=float(np.mean(divergences)),
        kl_error=float(np.std(divergences) / np.sqrt(n - 1)),
        kl_median=float(np.median(divergences)),
        kl_99=float(np.quantile(divergences, 0.99)),
        same_top=same / n,
    )


def divergence(reference: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Sum of p (log p - log q) over the vocabulary, in nats; both are log-probabilities."""
    p = np.exp(reference)
    with np.errstate(invalid="ignore"):
        return float(np.sum(p * (reference - other), where=p > 0))
