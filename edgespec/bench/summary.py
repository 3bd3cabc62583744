"""The figures of a benchmark: what each mode gained over plain decoding, how certain that is, and where the time went.

A speedup is the median over prompts of ratios to plain decoding; if a prompt has several, their median counts. The 95 %
interval is a bootstrap over prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from edgespec.bench.headroom import Headroom, headroom
from edgespec.bench.paired import (
    ALL,
    Sample,
    Temperature,
    bootstrap_interval,
    by_item,
    guessing,
    item_of,
    median,
    ratios,
)
from edgespec.core.theory import CostCurve, acceptance_probability, cost_curve

Result = dict[str, Any]
Key = tuple[str, Temperature, str]  # mode, temperature, category


@dataclass(frozen=True, slots=True)
class Guesser:
    """What one drafter of a mode did: in how many steps it was asked, how many tokens it proposed, how many were
    accepted, milliseconds per step, and the tokens per second that it added; None if costs are unknown."""

    name: str
    asked: int
    proposed: int
    accepted: int
    ms: float | None
    gained_per_s: float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """The figures of one mode at one temperature in one category, both of which may be ALL; None for what is unknown.

    `reach` is the share of steps in which the draft was accepted at least so far, by position; it adds up to the tokens
    gained per step. Shares are those of the time. `table_speedup` counts only the target's passes, each at the t(n) of
    its width: the value of the drafts in any program. `alpha` and `predicted_speedup` are theory's: for auto the best
    prediction over all lengths, from the alpha of the fixed lengths of its family.
    """

    mode: str
    temperature: Temperature
    category: str
    items: int
    samples: int
    tokens_per_s: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    tokens_per_round: float | None
    acceptance: float | None
    acceptance_per_pos: list[float | None]
    reach: list[float]
    target_share: float | None
    draft_share: float | None
    other_share: float | None
    repeated_4grams: float | None
    equal_share: float | None
    joules_per_token: float | None
    alpha: float | None
    predicted_speedup: float | None
    predicted_length: int | None
    table_speedup: float | None
    guessers: list[Guesser]


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything a report shows. `unpaired` counts answers that cannot be compared with plain decoding."""

    modes: list[str]
    temperatures: list[float]
    categories: list[str]
    cells: dict[Key, Cell]
    headroom: list[Headroom]
    curve: CostCurve | None
    unpaired: int

    def cell(self, mode: str, temperature: Temperature = ALL, category: str = ALL) -> Cell | None:
        return self.cells.get((mode, temperature, category))


def summarise(result: Result) -> Summary:
    """All figures of a result; an interrupted run has fewer."""
    samples: Sequence[Sample] = result["samples"]
    settings = result["settings"]
    modes = _in_order(settings.get("modes") or (), (sample["mode"] for sample in samples))
    temperatures = _in_order(settings.get("temperatures") or (), (sample["temperature"] for sample in samples))
    speedups = ratios(samples)
    groups: dict[Key, list[int]] = {}
    for at, sample in enumerate(samples):
        for temperature in (sample["temperature"], ALL):
            for category in (sample["category"], ALL):
                groups.setdefault((sample["mode"], temperature, category), []).append(at)
    curve = cost_curve(result.get("costs"))
    alphas = _alphas(samples, groups)
    return Summary(
        modes,
        temperatures,
        _in_order(sample["category"] for sample in samples),
        {
            key: _cell(key, [samples[at] for at in chosen], [speedups[at] for at in chosen], alphas, curve)
            for key, chosen in groups.items()
        },
        headroom(samples, speedups, modes, temperatures),
        curve,
        speedups.count(None),
    )


def _cell(
    key: Key,
    samples: list[Sample],
    speedups: list[float | None],
    alphas: Mapping[Key, float | None],
    curve: CostCurve | None,
) -> Cell:
    paired = list(by_item(samples, speedups).values())
    low, high = bootstrap_interval(paired) or (None, None)
    times = [_sum(samples, name) for name in ("target_s", "draft_s", "other_s")]
    target, draft, other = (_ratio(time, sum(times)) for time in times)
    in_rounds = [sample for sample in samples if sample.get("rounds")]
    metered = [sample for sample in samples if sample.get("energy_j") is not None]
    rounds = _sum(in_rounds, "rounds")
    alpha, predicted, length = _prediction(key, alphas, curve)
    return Cell(
        mode=key[0],
        temperature=key[1],
        category=key[2],
        items=len({item_of(sample) for sample in samples}),
        samples=len(samples),
        tokens_per_s=median(by_item(samples, [sample["tokens_per_s"] for sample in samples]).values()),
        speedup=median(paired),
        speedup_low=low,
        speedup_high=high,
        tokens_per_round=_ratio(_sum(in_rounds, "tokens"), rounds),
        acceptance=_ratio(_sum(samples, "accepted"), _sum(samples, "proposed")),
        acceptance_per_pos=[
            _ratio(accepted, proposed)
            for accepted, proposed in zip_longest(
                _sum_per_pos(samples, "accepted_per_pos"), _sum_per_pos(samples, "proposed_per_pos"), fillvalue=0
            )
        ],
        reach=[count / rounds for count in _sum_per_pos(in_rounds, "accepted_per_pos") if count],
        target_share=target,
        draft_share=draft,
        other_share=other,
        repeated_4grams=_mean(sample.get("repeated_4grams") for sample in samples),
        equal_share=_mean(sample.get("equal") for sample in samples),
        joules_per_token=_ratio(_sum(metered, "energy_j"), _sum(metered, "tokens")),
        alpha=alpha,
        predicted_speedup=predicted,
        predicted_length=length,
        table_speedup=_table_speedup(samples, curve),
        guessers=list(_guessers(in_rounds)),
    )


def _guessers(samples: Sequence[Sample]) -> Iterator[Guesser]:
    seconds = _sum(samples, "seconds")
    for name in _in_order(*(sample.get("by_source") or () for sample in samples)):
        counts = [sample["by_source"][name] for sample in samples if name in (sample.get("by_source") or ())]
        asked, accepted = _sum(counts, "asked"), _sum(counts, "accepted")
        costs = [known["cost"] for known in counts if known.get("cost") is not None]
        yield Guesser(
            name,
            int(asked),
            int(_sum(counts, "proposed")),
            int(accepted),
            _ratio(_sum(counts, "seconds") * 1e3, asked),
            _ratio(accepted - sum(costs), seconds) if costs else None,
        )


def _table_speedup(samples: Iterable[Sample], curve: CostCurve | None) -> float | None:
    """Tokens per time of a single-token pass; None if widths are unknown or unmeasured."""
    known = [sample for sample in samples if sample.get("widths")]
    passes = [(int(width), count) for sample in known for width, count in sample["widths"].items()]
    if curve is None or any(width > curve.longest + 1 for width, _ in passes):
        return None
    tokens = sum(sample["tokens"] - 1 for sample in known)  # the first one comes out of the prompt's pass
    return _ratio(tokens, sum(count * curve.at(width) for width, count in passes))


def _prediction(
    key: Key, alphas: Mapping[Key, float | None], curve: CostCurve | None
) -> tuple[float | None, float | None, int | None]:
    """alpha, the speedup that theory predicts from it, and at which length."""
    mode = guessing(key[0])
    if mode is None or not mode.is_predictable:
        return None, None, None
    alpha = alphas.get((mode.family, key[1], key[2]) if mode.length is None else key)
    if alpha is None or curve is None or curve.draft is None:
        return alpha, None, None
    if mode.length is None:
        length, speedup = curve.best(alpha)
        return alpha, speedup, length
    if mode.length > curve.longest:
        return alpha, None, None
    return alpha, curve.speedup(alpha, mode.length), mode.length


def _alphas(samples: Sequence[Sample], groups: Mapping[Key, list[int]]) -> dict[Key, float | None]:
    """alpha of every mode of fixed length, and under the family's name that of all its fixed lengths together."""
    counts: dict[Key, list[tuple[Sequence[int], Sequence[int]]]] = {}
    for (name, temperature, category), chosen in groups.items():
        mode = guessing(name)
        if mode is None or mode.length is None:
            continue
        for at in chosen:
            pair = samples[at].get("proposed_per_pos") or (), samples[at].get("accepted_per_pos") or ()
            counts.setdefault((name, temperature, category), []).append(pair)
            counts.setdefault((mode.family, temperature, category), []).append(pair)
    return {key: acceptance_probability(pairs) for key, pairs in counts.items()}


def _in_order(*names: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(name for some in names for name in some))


def _sum(samples: Iterable[Sample], name: str) -> float:
    return sum(sample.get(name) or 0 for sample in samples)


def _sum_per_pos(samples: Iterable[Sample], name: str) -> list[int]:
    return [sum(counts) for counts in zip_longest(*(sample.get(name) or () for sample in samples), fillvalue=0)]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
