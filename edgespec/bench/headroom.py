"""What choosing the draft length gained, beside the lengths that would have been best in hindsight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from edgespec.bench.paired import PLAIN, Item, Sample, by_item, guessing

Speedups = Mapping[int | None, Mapping[Item, float]]
"""By length of the drafts - 0 for plain decoding, None for auto - and prompt."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """One drafter at one temperature, over the prompts that all its modes answered.

    Speedups are geometric means of the categories' medians: a median over all prompts would hide a gain in the
    categories that are fast anyway. `fixed` are those of the fixed lengths, 0 being plain decoding. The oracle knows
    the best length of each category beforehand. Both it and the best length are selected by the same figures that are
    reported, which flatters them.
    """

    family: str
    temperature: float
    items: int
    fixed: dict[int, float]
    best_length: int
    best_speedup: float
    oracle_lengths: dict[str, int]
    oracle_speedup: float
    auto_speedup: float | None


def headroom(
    samples: Sequence[Sample],
    ratios: Sequence[float | None],
    modes: Iterable[str],
    temperatures: Iterable[float],
) -> list[Headroom]:
    """For every drafter of `modes` that ran with a fixed length, at every temperature."""
    families: dict[str, dict[int | None, str]] = {}
    for name in modes:
        mode = guessing(name)
        if mode is not None:
            families.setdefault(mode.family, {0: PLAIN})[mode.length] = name
    temperatures = list(temperatures)
    return [
        room
        for family, by_length in families.items()
        for temperature in temperatures
        for room in _room(family, temperature, _speedups(samples, ratios, by_length, temperature))
    ]


def _speedups(
    samples: Sequence[Sample],
    ratios: Sequence[float | None],
    by_length: Mapping[int | None, str],
    temperature: float,
) -> Speedups:
    found = {}
    for length, name in by_length.items():
        chosen = [
            (sample, ratio)
            for sample, ratio in zip(samples, ratios, strict=True)
            if sample["mode"] == name and sample["temperature"] == temperature
        ]
        known = by_item((sample for sample, _ in chosen), (ratio for _, ratio in chosen))
        if known:
            found[length] = known
    return found


def _room(family: str, temperature: float, speedups: Speedups) -> Iterator[Headroom]:
    """One, or none if no fixed length has a prompt in common with the others."""
    lengths = sorted(length for length in speedups if length is not None)
    if len(lengths) < 2:
        return
    items = sorted(set[Item].intersection(*(set(known) for known in speedups.values())))
    if not items:
        return
    categories = sorted({category for category, _ in items})
    medians = {
        length: {name: median(known[item] for item in items if item[0] == name) for name in categories}
        for length, known in speedups.items()
    }
    fixed = {length: geometric_mean(medians[length].values()) for length in lengths}
    best = _best(fixed)
    oracle = {name: _best({length: medians[length][name] for length in lengths}) for name in categories}
    reached = geometric_mean(medians[length][name] for name, length in oracle.items())
    auto = geometric_mean(medians[None].values()) if None in medians else None
    yield Headroom(family, temperature, len(items), fixed, best, fixed[best], oracle, reached, auto)


def _best(speedups: Mapping[int, float]) -> int:
    """The length of the highest speedup, of several the shortest."""
    return max(speedups, key=speedups.__getitem__)
