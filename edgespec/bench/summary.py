"""The figures of a benchmark: what each mode gained over plain decoding, how certain that is, and where the time went.

A speedup is the median over prompts of ratios to plain decoding of the same prompt; if a prompt was repeated, the
median of its ratios counts. The 95 % interval is a bootstrap over prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from edgespec.bench.measure import BenchResult
from edgespec.bench.modes import PLAIN, parse_mode
from edgespec.bench.runner import Sample
from edgespec.bench.statistics import bootstrap_interval, by_prompt, median, median_by_prompt, repeated_4grams, speedups
from edgespec.core.stats import SourceStats

ALL = "all"  # categories


@dataclass(frozen=True, slots=True)
class DrafterFigures:
    """The figures of one drafter of a mode.

    Attributes:
        asked: the steps in which it was asked
        proposed, accepted: tokens
        ms: milliseconds per step in which it was asked
        gained_per_s: the tokens per second that it added; None if costs are unknown
    """

    name: str
    asked: int
    proposed: int
    accepted: int
    ms: float | None
    gained_per_s: float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """The figures of one mode at one temperature in one category, or in all; None for what is unknown.

    Attributes:
        tokens_per_step: tokens per pass of the target
        acceptance: accepted over proposed draft tokens
        reach: by length, the share of steps in which at least this many draft tokens were accepted
        target_share, draft_share, other_share: of the time
        repeated_4grams: the share of runs of four tokens that occurred before in the same answer
        equal_share: the share of answers that equal plain decoding's; None where they need not be equal
    """

    mode: str
    temperature: float
    category: str
    prompts: int
    tokens_per_s: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    tokens_per_step: float | None
    acceptance: float | None
    reach: list[float]
    target_share: float | None
    draft_share: float | None
    other_share: float | None
    repeated_4grams: float
    equal_share: float | None
    drafters: list[DrafterFigures]

    @property
    def drafted_nothing(self) -> bool:
        """True for a mode with drafters in which none of them proposed anything."""
        return self.mode != PLAIN.name and self.acceptance is None


@dataclass(frozen=True, slots=True)
class Summary:
    """All figures that a report shows."""

    modes: list[str]
    temperatures: list[float]
    categories: list[str]
    cells: list[Cell]

    def cell(self, mode: str, temperature: float, category: str = ALL) -> Cell | None:
        key = mode, temperature, category
        return next((cell for cell in self.cells if (cell.mode, cell.temperature, cell.category) == key), None)

    def overall(self, temperature: float) -> list[Cell]:
        """The cells of all modes over all categories."""
        return [cell for mode in self.modes if (cell := self.cell(mode, temperature))]


def summarise(result: BenchResult) -> Summary:
    """Return all figures of a result; an interrupted run has fewer."""
    samples = result.samples
    groups: dict[tuple[str, float, str], list[int]] = {}
    for at, sample in enumerate(samples):
        for category in (sample.category, ALL):
            groups.setdefault((sample.mode, sample.temperature, category), []).append(at)
    ratios, equal = speedups(samples), _equal(samples)
    cells = [
        _cell(*key, [samples[at] for at in chosen], [ratios[at] for at in chosen], [equal[at] for at in chosen])
        for key, chosen in groups.items()
    ]
    categories = list(dict.fromkeys(sample.category for sample in samples))
    return Summary(result.modes, result.temperatures, categories, cells)


def _cell(
    mode: str,
    temperature: float,
    category: str,
    samples: Sequence[Sample],
    ratios: Sequence[float | None],
    equal: Sequence[bool | None],
) -> Cell:
    paired = list(by_prompt(samples, ratios).values())
    low, high = bootstrap_interval(paired) or (None, None)
    all_stats = [sample.stats for sample in samples]
    steps = sum(stats.rounds for stats in all_stats)
    seconds = sum(stats.generation_s for stats in all_stats)
    known = [value for value in equal if value is not None]
    accepted = [sum(counts) for counts in zip_longest(*(s.accepted_per_pos for s in all_stats), fillvalue=0)]
    return Cell(
        mode=mode,
        temperature=temperature,
        category=category,
        prompts=len({sample.item for sample in samples}),
        tokens_per_s=median_by_prompt(samples, [sample.tokens_per_s for sample in samples]),
        speedup=median(paired),
        speedup_low=None if mode == PLAIN.name else low,
        speedup_high=None if mode == PLAIN.name else high,
        tokens_per_step=_ratio(sum(len(sample.tokens) for sample in samples), steps),
        acceptance=_ratio(sum(stats.accepted for stats in all_stats), sum(stats.proposed for stats in all_stats)),
        reach=[count / steps for count in accepted if count],
        target_share=_ratio(sum(stats.target_s for stats in all_stats), seconds),
        draft_share=_ratio(sum(stats.draft_s for stats in all_stats), seconds),
        other_share=_ratio(sum(stats.other_s for stats in all_stats), seconds),
        repeated_4grams=sum(repeated_4grams(sample.tokens) for sample in samples) / len(samples),
        equal_share=_ratio(sum(known), len(known)),
        drafters=list(_drafters(samples, seconds)),
    )


def _equal(samples: Iterable[Sample]) -> list[bool | None]:
    """Return whether each answer equals plain decoding's; None where it need not, or nothing can be compared."""
    samples = list(samples)
    plain = {(s.item, s.temperature): s.tokens for s in samples if s.mode == PLAIN.name}
    exact = {mode: parse_mode(mode, ()).rule == "coupled" for mode in {sample.mode for sample in samples}}
    found: list[bool | None] = []
    for sample in samples:
        expected = plain.get((sample.item, sample.temperature))
        must_be_equal = exact[sample.mode] or sample.temperature == 0
        found.append(sample.tokens == expected if expected is not None and must_be_equal else None)
    return found


def _drafters(samples: Sequence[Sample], seconds: float) -> Iterator[DrafterFigures]:
    counts: dict[str, list[SourceStats]] = {}
    for sample in samples:
        for name, source in sample.stats.by_source.items():
            counts.setdefault(name, []).append(source)
    for name, sources in counts.items():
        asked, accepted = sum(source.asked for source in sources), sum(source.accepted for source in sources)
        costs = [source.cost for source in sources if source.cost is not None]
        yield DrafterFigures(
            name,
            asked,
            sum(source.proposed for source in sources),
            accepted,
            _ratio(sum(source.seconds for source in sources) * 1e3, asked),
            _ratio(accepted - sum(costs), seconds) if costs else None,
        )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
