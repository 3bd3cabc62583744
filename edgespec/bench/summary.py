"""The figures of a benchmark: what each mode gained over plain decoding, how certain that is, and where the time went.

A speedup is the median over prompts of ratios to plain decoding of the same prompt; if a prompt was repeated, the
median of its ratios counts. The 95 % interval is a bootstrap over prompts.

If every draft token is accepted with the same probability alpha (Leviathan et al., arXiv 2211.17192, section 3), a step
with K draft tokens emits 1 + alpha + ... + alpha^K tokens. It takes the time of a draft and of one pass of the target
over K + 1 tokens. Drafts pay off if the tokens are more than that time in passes over one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import numpy as np

from edgespec.bench.measure import Sample
from edgespec.bench.modes import PLAIN, parse_mode
from edgespec.core.stats import Stats
from edgespec.text.figures import counted

ALL = "all"  # categories
RESAMPLES = 2000  # of a bootstrap interval
SHOWN = 8  # prompts in a note
LEAST_RATES = 4  # prompts from which a spread can be estimated


@dataclass(frozen=True, slots=True)
class Cell:
    """The figures of one mode at one temperature in one category, or in all; None for what is unknown.

    Attributes:
        first_token_s: the time to the first token
        repeated_4grams: the share of runs of four tokens that occurred before in the same answer
        equal_share: the share of answers that equal plain decoding's; None where they need not be equal
        stats: the counters of all answers together
    """

    mode: str
    temperature: float
    category: str
    prompts: int
    tokens_per_s: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    first_token_s: float | None
    repeated_4grams: float
    equal_share: float | None
    stats: Stats

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens per pass of the target."""
        return self.stats.tokens_per_round or None

    @property
    def acceptance(self) -> float | None:
        """Accepted over proposed draft tokens."""
        return self.stats.acceptance_rate if self.stats.proposed else None

    @property
    def reach(self) -> list[float]:
        """By length, the share of steps in which at least this many draft tokens were accepted."""
        return [count / self.stats.rounds for count in self.stats.accepted_per_pos if count]

    @property
    def drafted_nothing(self) -> bool:
        """True for a mode with drafters in which none of them proposed anything."""
        return self.mode != PLAIN.name and not self.stats.proposed


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

    def by_category(self, mode: str, temperature: float) -> dict[str, float | None]:
        """The speedups of a mode in each category."""
        cells = (self.cell(mode, temperature, name) for name in self.categories)
        return {cell.category: cell.speedup for cell in cells if cell}

    def overall(self, temperature: float) -> list[Cell]:
        """The cells of all modes over all categories."""
        return [cell for mode in self.modes if (cell := self.cell(mode, temperature))]


def summarise(samples: Sequence[Sample], modes: Sequence[str]) -> Summary:
    """Return all figures of answers in these modes; an interrupted run has fewer."""
    groups: dict[tuple[str, float, str], list[tuple[Sample, float | None, bool | None]]] = {}
    for measured in zip(samples, speedups(samples), _equal(samples), strict=True):
        sample, _, _ = measured
        for category in (sample.category, ALL):
            groups.setdefault((sample.mode, sample.temperature, category), []).append(measured)
    return Summary(
        [*modes],
        list(dict.fromkeys(sample.temperature for sample in samples)),
        list(dict.fromkeys(sample.category for sample in samples)),
        [_cell(*key, *zip(*group, strict=True)) for key, group in groups.items()],
    )


def _cell(
    mode: str,
    temperature: float,
    category: str,
    samples: Sequence[Sample],
    ratios: Sequence[float | None],
    equal: Sequence[bool | None],
) -> Cell:
    paired = [*by_prompt(samples, ratios).values()]
    low, high = (None, None) if mode == PLAIN.name else bootstrap_interval(paired) or (None, None)
    known = [value for value in equal if value is not None]
    stats = Stats()
    for sample in samples:
        stats.add(sample.stats)
    return Cell(
        mode=mode,
        temperature=temperature,
        category=category,
        prompts=len({sample.item for sample in samples}),
        tokens_per_s=median(by_prompt(samples, [sample.tokens_per_s for sample in samples]).values()),
        speedup=median(paired),
        speedup_low=low,
        speedup_high=high,
        first_token_s=median(by_prompt(samples, [sample.stats.prompt_s for sample in samples]).values()),
        repeated_4grams=sum(repeated_4grams(sample.tokens) for sample in samples) / len(samples),
        equal_share=sum(known) / len(known) if known else None,
        stats=stats,
    )


def _equal(samples: Sequence[Sample]) -> list[bool | None]:
    """Return whether each answer equals plain decoding's; None where it need not, or nothing can be compared."""
    plain = {(s.item, s.temperature): s.tokens for s in samples if s.mode == PLAIN.name}
    exact = {mode: parse_mode(mode, ()).rule == "coupled" for mode in {sample.mode for sample in samples}}
    found: list[bool | None] = []
    for sample in samples:
        expected = plain.get((sample.item, sample.temperature))
        must_be_equal = exact[sample.mode] or sample.temperature == 0
        found.append(sample.tokens == expected if expected is not None and must_be_equal else None)
    return found


# --- statistics -------------------------------------------------------------------------------------------------------


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
    """Return the median of each prompt's values by its id, without prompts that have none."""
    known: dict[str, list[float]] = {}
    for sample, value in zip(samples, values, strict=True):
        if value is not None:
            known.setdefault(sample.item, []).append(value)
    return {item: float(np.median(found)) for item, found in known.items()}


def median(values: Iterable[float]) -> float | None:
    """Return the median, or None for no values."""
    known = list(values)
    return float(np.median(known)) if known else None


def bootstrap_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the interval of the median, always the same for the same values; None for fewer than two."""
    if len(values) < 2:
        return None
    picks = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(np.median(np.asarray(values)[picks], axis=1), ((1 - confidence) / 2, (1 + confidence) / 2))
    return float(low), float(high)


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


def loops_note(samples: Iterable[Sample]) -> str:
    """Return a note about prompts whose answers repeat the same few tokens over and over; empty if there are none."""
    plain = {sample.item: sample.stats.repeated_tokens for sample in samples if sample.mode == PLAIN.name}
    looping = [item for item, n_repeated in plain.items() if n_repeated]
    if not looping:
        return ""
    shown = ", ".join(looping[:SHOWN]) + (", ..." if len(looping) > SHOWN else "")
    return f"{len(looping)} of {counted(len(plain), 'answer')} repeat themselves, which drafts predict easily: {shown}"


def repeated_4grams(tokens: Sequence[int]) -> float:
    """Return the share of runs of four tokens that occurred before in the same answer."""
    runs = [tuple(tokens[at : at + 4]) for at in range(len(tokens) - 3)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _run(sample: Sample) -> tuple[str, float, int]:
    return sample.item, sample.temperature, sample.repeat


# --- costs of passes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Measured costs of passes."""

    #: t(1) in seconds
    pass_s: float
    #: t(n) / t(1) by width n
    target: Mapping[int, float]
    #: c, a draft pass in units of t(1), if there is a draft model
    draft: float | None

    def at(self, width: int) -> float:
        """Return t(width) / t(1), interpolated."""
        return float(np.interp(width, [*self.target], [*self.target.values()]))

    def break_even(self, length: int, draft: float) -> float | None:
        """Return the least acceptance rate, in steps of a per cent, at which chains of `length` draft tokens pay off if
        such a draft takes `draft` passes over one token; None if there is none."""
        cost = draft + self.at(length + 1)
        rates = (alpha / 100 for alpha in range(1, 101))
        return next((alpha for alpha in rates if sum(alpha**k for k in range(length + 1)) > cost), None)


def cost_curve(costs: Mapping[str, Any]) -> CostCurve | None:
    """Return the curve of a result's `costs`, or None if t(1) was not measured."""
    target = {int(width): seconds for width, seconds in (costs.get("target") or {}).items() if seconds}
    if 1 not in target:
        return None
    draft_s = costs.get("draft")
    return CostCurve(
        target[1],
        {width: max(1.0, target[width] / target[1]) for width in sorted(target)},  # below 1: disturbed measurement
        None if draft_s is None else draft_s / target[1],
    )


def acceptance_probability(counts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> float | None:
    """Return alpha, the share of verified draft tokens of chains that were accepted; None if none was verified.

    `counts` are pairs of proposed and accepted tokens by position. A draft token is verified only if all tokens before
    it were accepted, so each step verifies the accepted tokens, and one more if it rejects a token.
    """
    verified = accepted_in_all = 0
    for proposed, accepted in counts:
        reached = [*proposed[:1], *accepted]
        verified += sum(map(min, proposed, reached))
        accepted_in_all += sum(accepted)
    return accepted_in_all / verified if verified else None
