"""Medians, intervals and spreads of measured samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean, quantiles

import numpy as np

from edgespec.bench.modes import PLAIN
from edgespec.bench.runner import Sample

RESAMPLES = 2000  # of a bootstrap interval
LEAST_RATES = 4  # prompts from which a spread can be estimated


def speedups(samples: Sequence[Sample]) -> list[float | None]:
    """Return the speedup of each sample: its speed divided by that of plain decoding of the same prompt, at the same
    temperature and in the same repeat. None without a plain sample, or if nothing was timed."""
    plain = {_run(sample): sample.tokens_per_s for sample in samples if sample.mode == PLAIN.name}
    found: list[float | None] = []
    for sample in samples:
        rate, plain_rate = sample.tokens_per_s, plain.get(_run(sample))
        found.append(rate / plain_rate if rate and plain_rate else None)
    return found


def by_prompt(samples: Iterable[Sample], values: Iterable[float | None]) -> dict[str, float]:
    """Return the median of each prompt's values, without prompts that have none."""
    known: dict[str, list[float]] = {}
    for sample, value in zip(samples, values, strict=True):
        if value is not None:
            known.setdefault(sample.item, []).append(value)
    return {item: float(np.median(found)) for item, found in known.items()}


def median(values: Iterable[float]) -> float | None:
    """Return the median, or None for no values."""
    known = list(values)
    return float(np.median(known)) if known else None


def median_by_prompt(samples: Sequence[Sample], values: Iterable[float | None]) -> float | None:
    """Return the median over prompts of the medians over each prompt's repeats."""
    return median(by_prompt(samples, values).values())


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median, always the same for the same values; None for fewer than two."""
    if len(values) < 2:
        return None
    picks = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(np.median(np.asarray(values)[picks], axis=1), (0.025, 0.975))
    return float(low), float(high)


def mean_of_categories(values: Mapping[str, Sequence[float]]) -> tuple[float, float, float] | None:
    """Return the geometric mean of the categories' medians, with its 95 % interval; None for fewer than two values.

    The interval is a bootstrap within each category, or over all values if a category has only one.
    """
    groups = [np.asarray(found) for found in values.values() if len(found)]
    pooled = np.concatenate(groups) if groups else np.empty(0)
    if len(pooled) < 2:
        return None
    random = np.random.default_rng(0)
    if min(map(len, groups)) > 1:
        medians = [np.median(random.choice(group, (RESAMPLES, len(group))), axis=1) for group in groups]
        means = np.exp(np.mean(np.log(medians), axis=0))
    else:
        means = np.exp(np.mean(np.log(random.choice(pooled, (RESAMPLES, len(pooled)))), axis=1))
    low, high = np.quantile(means, (0.025, 0.975))
    mean = geometric_mean(float(np.median(group)) for group in groups)
    return mean, min(float(low), mean), max(float(high), mean)


def plain_spread(samples: Iterable[Sample]) -> float | None:
    """Return how much the speed of plain decoding varied, as a share: between repeats of the same prompt, or, without
    repeats, between the slower and the faster quarter of the prompts. None if there are too few samples."""
    rates: dict[tuple[str, float], list[float]] = {}
    for sample in samples:
        if sample.mode == PLAIN.name and sample.tokens_per_s:
            rates.setdefault((sample.item, sample.temperature), []).append(sample.tokens_per_s)
    repeated = [max(found) / min(found) - 1 for found in rates.values() if len(found) > 1]
    if repeated:
        return median(repeated)
    alone = [found[0] for found in rates.values()]
    if len(alone) < LEAST_RATES:
        return None
    slow, _, fast = quantiles(alone, n=4)
    return fast / slow - 1


def repeated_4grams(tokens: Sequence[int]) -> float:
    """Return the share of runs of four tokens that occurred before in the same answer."""
    runs = [tuple(tokens[at : at + 4]) for at in range(len(tokens) - 3)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _run(sample: Sample) -> tuple[str, float, int]:
    return sample.item, sample.temperature, sample.repeat
