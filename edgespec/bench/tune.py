"""`edgespec tune`: find out whether a drafter is worth it on this machine, and why.

Plain decoding, drafts of a fixed length and the automatic draft length answer the same prompts, interleaved. The
speedup of the automatic length over plain decoding decides. The acceptance rate of the fixed length and the cost of
passes explain the decision. The draft-length policy saves what it learns here for the next start.

The prediction (Leviathan et al., arXiv 2211.17192, section 3): if every draft token is accepted with the same
probability alpha, a step with K draft tokens emits E = 1 + alpha + ... + alpha^K tokens and takes K c + t(K+1): K
passes of the draft model and one pass of the target over K + 1 tokens, in units of t(1). E divided by that is the
speedup over plain decoding, if nothing else takes time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np

from edgespec.bench.modes import PLAIN, Mode
from edgespec.bench.runner import Runner, Sample, ask
from edgespec.bench.suites import Item
from edgespec.bench.summary import ALL, mean_of_categories, median, speedups
from edgespec.cancel import CancelFlag
from edgespec.errors import UsageError
from edgespec.events import Progress
from edgespec.llama.context import CancelledError
from edgespec.runtime.runtime import Runtime
from edgespec.text.figures import counted, percent

TOKENS = 32
LENGTH = 3  # of the fixed drafts that measure the acceptance rate
MOST_REPEATS = 20  # of the same prompt
WORTH_IT, HARMLESS = 1.02, 0.97  # speedups
MUCH = 1.1  # speedup of a category that is named; smaller ones may be chance
DISTURBED = 0.9  # passes over one token: a wider pass cannot be cheaper


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

    def speedup(self, alpha: float, length: int) -> float:
        """Return the predicted speedup of chains of `length` draft tokens. Needs c."""
        assert self.draft is not None
        return sum(alpha**k for k in range(length + 1)) / (self.draft * length + self.at(length + 1))

    def best_length(self, alpha: float) -> int:
        """Return the length with the best predicted speedup within the measured widths; 0 is plain decoding."""
        return max(range(max(self.target)), key=lambda length: self.speedup(alpha, length))

    def best(self, alpha: float) -> float:
        """Return the predicted speedup at the best length within the measured widths; 1 is plain decoding."""
        return self.speedup(alpha, self.best_length(alpha))

    @property
    def break_even(self) -> float | None:
        """The least acceptance rate, in steps of a per cent, at which some draft length pays off, if there is one."""
        if self.draft is None:
            return None
        return next((alpha / 100 for alpha in range(1, 101) if self.best(alpha / 100) > 1), None)


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


@dataclass(frozen=True, slots=True)
class CategoryFigures:
    """The drafter on the texts of one category, or of all.

    Attributes:
        alpha: the share of draft tokens that were accepted, given that those before them were; None if nothing was
            drafted
        fixed_speedup: of drafts of `LENGTH` tokens over plain decoding
        auto_speedup: of the automatic draft length over plain decoding
    """

    category: str
    alpha: float | None
    fixed_speedup: float | None
    auto_speedup: float | None


@dataclass(frozen=True, slots=True)
class Speedup:
    """A measured speedup over plain decoding with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}x as fast as plain decoding (95 % interval {self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The decision and its reason; `use_it` is None if the figures allow no decision."""

    use_it: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of `tune`.

    Attributes:
        curve: the cost of passes
        length: of the fixed drafts
        speedup: of the automatic draft length; None if there was not enough time
    """

    drafter: str
    curve: CostCurve
    length: int
    categories: list[CategoryFigures]
    overall: CategoryFigures
    speedup: Speedup | None
    recommendation: Recommendation
    messages: list[str]

    def as_json(self) -> dict[str, Any]:
        """Return plain data; costs in seconds and relative to a pass over one token."""
        widths = {str(width): round(cost, 4) for width, cost in self.curve.target.items()}
        curve = {"pass_s": self.curve.pass_s, "passes": widths, "draft": self.curve.draft}
        return asdict(self) | {"curve": curve, "break_even": self.curve.break_even}


def tune(
    llm: Runtime,
    items: Sequence[Item],
    seconds: float,
    *,
    temperature: float = 0.0,
    progress: Progress | None = None,
    cancel: CancelFlag | None = None,
) -> Tuned | None:
    """Measure the loaded drafter on `items` for about that long; every category gets at least one answer.

    Returns None if it was cancelled before it had any result. Raises UsageError without a drafter, or if no
    prompt fits.
    """
    progress, cancel = progress or (lambda what, done: None), cancel or CancelFlag()
    if not llm.engine.speculator.drafters:
        raise UsageError(
            "there is nothing to tune: no drafter is loaded", hint="pass a draft model (-md), or --spec-type suffix"
        )
    started_s = perf_counter()
    drafter = llm.engine.speculator.drafters[0].name
    spelling, length = llm.settings.spelling(drafter), min(LENGTH, llm.settings.draft_n_max)
    auto, fixed = Mode(spelling), Mode(spelling, f"fixed:{length}")
    questions, messages = ask(llm, items, TOKENS, reference=False)
    n_categories = len({question.item.category for question in questions})
    samples: list[Sample] = []
    with Runner(llm, [PLAIN, auto, fixed], cancel) as runner:
        try:
            progress("warming up", 0.0)
            costs = runner.warm_up(questions[0])
            for sample in runner.samples(questions, [temperature], MOST_REPEATS):
                samples.append(sample)
                share = (perf_counter() - started_s) / seconds
                progress("comparing with plain decoding", min(1.0, share))
                turns, rest = divmod(len(samples), len(runner.modes))
                if share >= 1 and turns >= n_categories and not rest:
                    break
        except CancelledError:
            if not samples:
                return None
            messages.append("stopped early: the recommendation covers only what was measured")
    curve = cost_curve(costs)
    assert curve is not None
    ratios = [_speedups(samples, mode) for mode in (fixed, auto)]
    figures = [
        CategoryFigures(name, _alpha(samples, fixed, name), *(median(found.get(name, ())) for found in ratios))
        for name in dict.fromkeys(sample.category for sample in samples)
    ]
    means = [mean_of_categories(found) for found in ratios]
    overall = CategoryFigures(ALL, _alpha(samples, fixed, ALL), *(mean and mean[0] for mean in means))
    speedup = means[1] and Speedup(*means[1])
    cheapest = min(seconds for seconds in costs["target"].values()) / curve.pass_s
    recommendation = recommend(drafter, curve, figures, overall.alpha, speedup, cheapest=cheapest)
    return Tuned(drafter, curve, length, figures, overall, speedup, recommendation, messages)


def recommend(
    drafter: str,
    curve: CostCurve,
    categories: Sequence[CategoryFigures],
    alpha: float | None,
    speedup: Speedup | None,
    *,
    cheapest: float = 1.0,
) -> Recommendation:
    """Decide from the measured speedup, and where that is close to 1, from what costs and acceptance rate predict.

    `cheapest` is the measured cost of the cheapest pass, relative to a pass over one token.
    """
    if cheapest < DISTURBED:
        return _disturbed("a wide pass appeared cheaper than a pass over a single token")
    if speedup is None:
        return Recommendation(None, "none: there was no time for two answers; run tune again with more --seconds")
    even = curve.break_even
    cannot_pay = curve.draft is not None and (even is None or (alpha or 0.0) < even)
    # A pass with drafts generates at most 1 / (1 - alpha) tokens.
    if cannot_pay and speedup.value >= WORTH_IT and speedup.value * (1 - (alpha or 0.0)) > 1:
        return _disturbed(f"drafts appeared to save more than {percent(alpha or 0.0)} acceptance allows")
    if speedup.low >= (WORTH_IT if cannot_pay else HARMLESS) and speedup.value >= WORTH_IT:
        paying = [each.category for each in categories if (each.auto_speedup or 0.0) >= MUCH]
        most = f", most of it on {', '.join(paying)}" if 0 < len(paying) < len(categories) else ""
        return Recommendation(True, f"worth it: {speedup.value:.2f}x as fast as plain decoding{most}")
    if speedup.high < WORTH_IT or (cannot_pay and speedup.value < WORTH_IT):
        return Recommendation(False, f"not worth it ({drafter}): {_reason(curve, alpha, speedup)}")
    return Recommendation(
        None,
        f"too close to call: between {speedup.low:.2f}x and {speedup.high:.2f}x as fast as plain decoding; run tune "
        "again with more --seconds, while no other program is busy",
    )


def _disturbed(how: str) -> Recommendation:
    return Recommendation(
        None, f"none: another program disturbed the measurement ({how}); close other programs and run tune again"
    )


def _reason(curve: CostCurve, alpha: float | None, speedup: Speedup) -> str:
    """Return the measured figures, which explain why drafting does not pay."""
    facts = [
        "nothing was drafted" if alpha is None else f"{percent(alpha)} of the draft tokens were accepted",
        f"a pass over 2 tokens costs {curve.at(2):.2f} passes over 1",
    ]
    if curve.draft is not None:
        facts += [f"a draft token {curve.draft:.2g}", _prediction(curve, alpha or 0.0)]
    return "; ".join([*facts, f"measured {speedup}"])


def _prediction(curve: CostCurve, alpha: float) -> str:
    """Return the break-even that `alpha` misses. Above it, return the predicted speedup: a break-even below the
    measured rate would contradict a recommendation that follows from the measured speedup."""
    even = curve.break_even
    if even is None:
        return f"not even {percent(1)} acceptance would pay off"
    if alpha < even:
        return (
            f"break-even is {percent(even)} acceptance, with {counted(curve.best_length(even), 'draft token')} a step"
        )
    length = counted(curve.best_length(alpha), "draft token")
    return f"if only passes took time, {length} a step would be {curve.best(alpha):.2f}x as fast as plain decoding"


def _alpha(samples: Sequence[Sample], fixed: Mode, category: str) -> float | None:
    drafted = [s.stats for s in samples if s.mode == fixed.name and category in (ALL, s.category)]
    return acceptance_probability([(stats.proposed_per_pos, stats.accepted_per_pos) for stats in drafted])


def _speedups(samples: Sequence[Sample], mode: Mode) -> Mapping[str, Sequence[float]]:
    """The speedups of a mode by category."""
    found: dict[str, list[float]] = {}
    for sample, ratio in zip(samples, speedups(samples), strict=True):
        if sample.mode == mode.name and ratio is not None:
            found.setdefault(sample.category, []).append(ratio)
    return found
