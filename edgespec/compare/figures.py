"""From measured samples to figures: a row for each file, draft and mode, and which rows are Pareto-optimal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import quantiles
from typing import Any

from edgespec.bench.paired import PLAIN, bootstrap_interval, by_item, median, ratios
from edgespec.compare.contests import Contest
from edgespec.compare.speed import Speed
from edgespec.core.prefix import common_prefix
from edgespec.settings import HEADS

LEAST_RATES = 4

Sample = Mapping[str, Any]


@dataclass(slots=True, frozen=True)
class Row:
    """One way of decoding one file: medians over prompts, None for what is unknown.

    `speedup` is over plain decoding of the same prompts on the same load, with its 95 % interval; `first_token_s` the
    time to the first token; `memory_bytes` the observed peak memory of the process. `is_best` marks rows that no other
    beats in both speed and closeness to the reference. `runs` are the start times of the runs that measured it: this
    one, earlier ones, or both.
    """

    target: str
    draft: str | None
    mode: str
    prompts: int
    tokens_per_s: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    first_token_s: float | None
    tokens_per_round: float | None
    memory_bytes: int
    runs: list[str]
    is_best: bool = False


def rows_of(target: str, contests: Sequence[Contest], speeds: Sequence[Speed]) -> list[Row]:
    """The rows of one file, one contest and its samples at a time; plain decoding is taken from the first one."""
    found: list[Row] = []
    for number, (contest, speed) in enumerate(zip(contests, speeds, strict=True)):
        speedups = ratios(speed["samples"])
        for mode in contest.modes:
            chosen = [at for at, sample in enumerate(speed["samples"]) if sample["mode"] == mode.name]
            if not chosen or (number and mode.name == PLAIN):
                continue
            samples = [speed["samples"][at] for at in chosen]
            paired = list(by_item(samples, [speedups[at] for at in chosen]).values())
            low, high = (None, None) if mode.name == PLAIN else bootstrap_interval(paired) or (None, None)
            rounds = sum(sample["rounds"] or 0 for sample in samples)
            found.append(
                Row(
                    target,
                    contest.draft.stem if contest.draft and not {"draft", *HEADS}.isdisjoint(mode.drafters) else None,
                    contest.names[mode.name],
                    len(samples),
                    _median(samples, "tokens_per_s"),
                    median(paired),
                    low,
                    high,
                    _median(samples, "prompt_s"),
                    sum(sample["tokens"] for sample in samples) / rounds if rounds else None,
                    speed["memory_bytes"],
                    sorted({sample["run"] for sample in samples}),
                )
            )
    return found


def with_best(rows: Sequence[Row], divergences: Mapping[str, float]) -> list[Row]:
    """The rows, with those marked that no other beats in both; `divergences` are KL by file, without unknown ones.

    Speculation counts for a file only if it is certainly faster than plain decoding: if its interval is above 1.
    """
    points = [
        (row.tokens_per_s, divergences[row.target])
        if row.tokens_per_s is not None
        and row.target in divergences
        and (row.mode == PLAIN or is_faster(row.speedup_low, row.tokens_per_round))
        else None
        for row in rows
    ]
    known = [point for point in points if point is not None]
    return [
        replace(row, is_best=point is not None and not any(_beats(other, point) for other in known))
        for row, point in zip(rows, points, strict=True)
    ]


def is_faster(speedup_low: float | None, tokens_per_round: float | None) -> bool:
    """Whether an interval shows a speedup over plain decoding of the file; noise alone does not."""
    return speedup_low is not None and speedup_low > 1 and (tokens_per_round or 0) > 1


def plain_spread(speeds: Sequence[Speed]) -> float | None:
    """How much plain decoding of one file differs between prompts and loads: the slower and the faster quarter of them.
    None for few."""
    rates = [rate for speed in speeds for _, rate in _plain_rates(speed)]
    if len(rates) < LEAST_RATES:
        return None
    slow, _, fast = quantiles(rates, n=4)
    return fast / slow - 1


def times_as_fast(speed: Speed, before: Speed) -> float | None:
    """Speed of plain decoding of one file over its earlier speed, the median over common prompts."""
    rates_before = dict(_plain_rates(before))
    return median(rate / rates_before[item] for item, rate in _plain_rates(speed) if item in rates_before)


def greedy_agreement(answers: Mapping[str, Sequence[int]], reference: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Over the prompts that both answered, the share of equal answers, and the mean share of an answer before the first
    difference. None if there are none."""
    pairs = [(list(answers[item]), list(reference[item])) for item in reference if item in answers]
    if not pairs:
        return {"equal": None, "until_they_part": None}
    equal = sum(ours == theirs for ours, theirs in pairs) / len(pairs)
    return {"equal": equal, "until_they_part": sum(common_prefix(*pair) / len(pair[1]) for pair in pairs) / len(pairs)}


def _plain_rates(speed: Speed) -> list[tuple[str, float]]:
    """Tokens per second by prompt."""
    plain = [sample for sample in speed["samples"] if sample["mode"] == PLAIN]
    return [(sample["item"], sample["tokens_per_s"]) for sample in plain if sample["tokens_per_s"]]


def _beats(other: tuple[float, float], point: tuple[float, float]) -> bool:
    """Faster and at least as close to the reference, or closer and at least as fast."""
    return other != point and other[0] >= point[0] and other[1] <= point[1]


def _median(samples: Sequence[Sample], name: str) -> float | None:
    return median(by_item(samples, [sample[name] for sample in samples]).values())
