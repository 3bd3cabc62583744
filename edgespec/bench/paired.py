"""Speedups: each answer beside plain decoding of the same prompt, at the same temperature, in the same repeat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgespec.bench.modes import parse_mode
from edgespec.errors import UsageError
from edgespec.settings import fixed_length

Sample = Mapping[str, Any]
Temperature = float | str  # a temperature, or ALL
Item = tuple[str, str]  # category and name of a prompt

PLAIN, ALL = "plain", "all"
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Guessing:
    """What a speculating mode's name says; `family` groups modes that differ only in the draft length."""

    family: str
    length: int | None  # None for auto
    is_predictable: bool  # theory is about chains of the draft model; lookup's are only as long as their match


def guessing(name: str) -> Guessing | None:
    """None for plain decoding and for other programs."""
    try:
        mode = parse_mode(name, ("draft",))
    except UsageError:
        return None
    if not mode.drafters:
        return None
    family = " ".join(word for word in mode.name.split() if word != mode.pace)
    return Guessing(family, fixed_length(mode.pace), mode.drafters in (("draft",), ("self",)) and mode.tree == 1)


def ratios(samples: Sequence[Sample]) -> list[float | None]:
    """Each sample's speed over that of its plain counterpart; None without one, or if nothing was timed."""
    plain = {_run(sample): sample["tokens_per_s"] for sample in samples if sample["mode"] == PLAIN}
    found: list[float | None] = []
    for sample in samples:
        rate, plain_rate = sample["tokens_per_s"], plain.get(_run(sample))
        found.append(rate / plain_rate if rate and plain_rate else None)
    return found


def by_item(samples: Iterable[Sample], values: Iterable[float | None]) -> dict[Item, float]:
    """The median of each prompt's values."""
    known: dict[Item, list[float]] = {}
    for sample, value in zip(samples, values, strict=True):
        if value is not None:
            known.setdefault(item_of(sample), []).append(value)
    return {item: float(np.median(found)) for item, found in known.items()}


def median(values: Iterable[float]) -> float | None:
    """None for no values."""
    known = list(values)
    return float(np.median(known)) if known else None


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median of `values`, always the same for the same values; None for fewer than two."""
    if len(values) < 2:
        return None
    picks = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(np.median(np.asarray(values)[picks], axis=1), (0.025, 0.975))
    return float(low), float(high)


def item_of(sample: Sample) -> Item:
    return sample["category"], str(sample["item"])


def _run(sample: Sample) -> tuple[Item, float, int]:
    return item_of(sample), sample["temperature"], sample["repeat"]
