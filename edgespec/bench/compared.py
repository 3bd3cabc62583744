"""The result of `edgespec compare`: typed data about files, and a row for each file and mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edgespec.bench.machine import Conditions
from edgespec.bench.modes import PLAIN, Contest
from edgespec.bench.quality import Quality
from edgespec.bench.runner import Sample
from edgespec.bench.summary import median, summarise
from edgespec.core.prefix import common_prefix

VERSION = 4


@dataclass(slots=True, frozen=True)
class Row:
    """The speed of one file in one mode: medians over prompts, None for what is unknown.

    Attributes:
        speedup: over plain decoding of the same prompts on the same load, with its 95 % interval
        first_token_s: the time to the first token
        memory_bytes: the observed peak memory of the process
        is_best: True if no other row is better in both speed and closeness to the reference
    """

    file: str
    draft: str | None
    mode: str
    prompts: int
    tokens_per_s: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    first_token_s: float | None
    tokens_per_step: float | None
    memory_bytes: int
    is_best: bool = False

    @property
    def is_faster(self) -> bool:
        """True if the interval shows a speedup over plain decoding; noise alone does not."""
        return self.speedup_low is not None and self.speedup_low > 1 and (self.tokens_per_step or 0) > 1

    @property
    def is_candidate(self) -> bool:
        """True for plain decoding, and for modes that are certainly faster."""
        return self.mode == PLAIN.name or self.is_faster


@dataclass(slots=True, frozen=True)
class ComparedFile:
    """One of the compared files.

    Attributes:
        types: the share of each weight type
        quality: None if it was not measured
        greedy_same: the mean share of a greedy answer before it differs from the reference's
        spread: how much the speed of plain decoding varied
    """

    label: str
    name: str
    file: str
    quantisation: str
    size_bytes: int
    parameters: int
    types: dict[str, float]
    quality: Quality | None
    greedy_same: float | None
    spread: float | None


@dataclass(slots=True, kw_only=True)
class Comparison(Conditions):
    """The result, complete or not.

    Attributes:
        reference: the label of the reference
        reference_again: the reference's speed at the end of this run over its speed in the rows; None if it was not
            measured again
    """

    reference: str
    files: list[ComparedFile]
    rows: list[Row]
    reference_again: float | None
    messages: list[str]
    failures: list[str]
    complete: bool

    def as_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


def rows_of(label: str, contest: Contest, samples: Sequence[Sample], memory_bytes: int) -> Iterator[Row]:
    """Yield a row for each mode of one load of a file."""
    drafting = {mode.name for mode in contest.modes if mode.draft_model == "draft"}
    for cell in summarise(samples, [mode.name for mode in contest.modes]).overall(0.0):
        yield Row(
            label,
            contest.draft.stem if contest.draft and cell.mode in drafting else None,
            cell.mode,
            cell.prompts,
            cell.tokens_per_s,
            cell.speedup,
            cell.speedup_low,
            cell.speedup_high,
            cell.first_token_s,
            cell.tokens_per_step,
            memory_bytes,
        )


def with_best(rows: Sequence[Row], closeness: Mapping[str, float]) -> list[Row]:
    """Return the rows, with those marked that no other beats in both speed and closeness.

    `closeness` is the KL divergence by file. Speculation counts only if it is certainly faster than plain decoding.
    """
    points = [
        (row.tokens_per_s, closeness[row.file])
        if row.tokens_per_s is not None and row.file in closeness and row.is_candidate
        else None
        for row in rows
    ]
    known = [point for point in points if point is not None]
    return [
        replace(row, is_best=point is not None and not any(_beats(other, point) for other in known))
        for row, point in zip(rows, points, strict=True)
    ]


def times_as_fast(samples: Sequence[Sample], before: Sequence[Sample]) -> float | None:
    """Return the speed of samples over that of earlier ones, the median over common prompts."""
    earlier = {sample.item: sample.tokens_per_s for sample in before}
    pairs = [(sample.tokens_per_s, earlier.get(sample.item)) for sample in samples]
    return median(rate / rate_before for rate, rate_before in pairs if rate and rate_before)


def greedy_same(samples: Sequence[Sample], reference: Sequence[Sample]) -> float | None:
    """Return the mean share of a plain answer before it differs from the reference's; None without common prompts."""
    expected = {sample.item: sample.tokens for sample in reference}
    plain = {sample.item: sample.tokens for sample in samples if sample.mode == PLAIN.name and sample.item in expected}
    shares = [common_prefix(tokens, expected[item]) / len(expected[item]) for item, tokens in plain.items()]
    return sum(shares) / len(shares) if shares else None


def _beats(other: tuple[float, float], point: tuple[float, float]) -> bool:
    """Return whether a point is faster and at least as close to the reference, or closer and at least as fast."""
    return other != point and other[0] >= point[0] and other[1] <= point[1]
