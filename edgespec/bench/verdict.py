"""Is a drafter worth it? One decision from what was measured and what was predicted, and sentences that follow from it.

Two speedups are compared with the same bounds: the one that costs and acceptance predict, by replays of recorded texts,
and the one that was measured, with its 95 % interval. Each outcome has its own sentence, which states only what led to
the outcome, so that no sentence can contradict another one or the figures shown with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

import numpy as np

from edgespec.core.theory import CostCurve, expected_tokens
from edgespec.text.figures import percent

WORTH_IT, HARMLESS = 1.02, 0.97
CONTRADICTED = 0.8  # of the other speedup: a difference this large has another cause than the drafter
DISTURBED = 0.9  # passes over one token: a wider pass cannot be cheaper
LENGTHS = (1, 3)  # of the drafts for which `elsewhere` names a cost
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Kind:
    """The drafter on one category's texts.

    Attributes:
        alpha: the share of next tokens that the drafter predicted
        best_length: the best fixed draft length by replay, with its speedup in `best_speedup`
        auto_speedup: the speedup of the automatic draft length by replay
        oracle_speedup: the speedup of an oracle that knows the text
    """

    category: str
    tokens: int
    alpha: float
    best_length: int
    best_speedup: float
    auto_speedup: float
    oracle_speedup: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured speedup over plain decoding with its 95 % interval, and the speedup predicted for the same texts."""

    speedup: float
    low: float
    high: float
    predicted: float

    def __str__(self) -> str:
        return f"{self.speedup:.2f}x as fast as plain decoding (95 % interval {self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision and its reason. `use_it` is None if the figures allow no decision; `elsewhere` says on which machine
    drafts would pay, if they cannot pay here."""

    use_it: bool | None
    why: str
    elsewhere: str = ""


def measured_speedup(ratios: Mapping[str, Sequence[float]], kinds: Sequence[Kind]) -> Measured | None:
    """Average the speedups of pairs of answers, by category: the geometric mean of the categories' medians.

    The interval is a bootstrap over the pairs, within their categories if each has several, else over all pairs. None
    for fewer than two pairs.
    """
    groups = [np.asarray(values) for values in ratios.values() if len(values)]
    pooled = np.concatenate(groups) if groups else np.empty(0)
    if len(pooled) < 2:
        return None
    random = np.random.default_rng(0)
    if min(map(len, groups)) > 1:
        picked = [np.median(random.choice(group, (RESAMPLES, len(group))), axis=1) for group in groups]
        means = np.exp(np.mean(np.log(picked), axis=0))
    else:
        means = np.exp(np.mean(np.log(random.choice(pooled, (RESAMPLES, len(pooled)))), axis=1))
    low, high = np.quantile(means, (0.025, 0.975))
    speedup = geometric_mean(median(group.tolist()) for group in groups)
    alike = [kind.auto_speedup for kind in kinds if ratios.get(kind.category)]
    return Measured(speedup, min(float(low), speedup), max(float(high), speedup), geometric_mean(alike or [1.0]))


def break_even(curve: CostCurve) -> float | None:
    """The least alpha, in steps of a per cent, at which some draft length pays off; None if none does."""
    return next((alpha / 100 for alpha in range(1, 101) if curve.best(alpha / 100)[1] > 1), None)


def judge(
    drafter: str,
    curve: CostCurve,
    kinds: Sequence[Kind],
    overall: Kind,
    measured: Measured | None = None,
    *,
    cheapest: float = 1.0,
) -> Verdict:
    """Decide from the prediction for all texts and from the measurement, where there is one. `cheapest` is the cost of
    the cheapest pass as it was measured; the curve has no pass below 1."""
    disturbed = _disturbance(cheapest, measured)
    if disturbed:
        advice = "close other programs and run tune again"
        return Verdict(None, f"none: another program disturbed the measurement ({disturbed}); {advice}")
    predicted = overall.auto_speedup
    if predicted < WORTH_IT:
        if measured is None or measured.low < WORTH_IT:
            return Verdict(False, _not_worth_it(drafter, curve, kinds, overall, measured), elsewhere(curve, overall))
        return Verdict(None, f"too close to call: {measured}, but costs and acceptance predict {predicted:.2f}x")
    if measured is None:
        return Verdict(True, f"worth it: {predicted:.2f}x as fast as plain decoding is expected{_most_of_it(kinds)}")
    if measured.low >= HARMLESS and measured.speedup >= WORTH_IT:
        return Verdict(True, f"worth it: {measured.speedup:.2f}x as fast as plain decoding{_most_of_it(kinds)}")
    if measured.high < WORTH_IT:
        expected = f"costs and acceptance let expect {predicted:.2f}x, but {measured.speedup:.2f}x was measured"
        return Verdict(False, f"not worth it ({drafter}): {expected}")
    return Verdict(
        None,
        f"too close to call: between {measured.low:.2f}x and {measured.high:.2f}x as fast as plain decoding; run tune "
        "again with more --seconds, while no other program is busy",
    )


def elsewhere(curve: CostCurve, overall: Kind) -> str:
    """The costs of wider passes below which drafts of this acceptance would pay. Empty if passes cost less than that
    here, so that something else is the reason."""
    step = curve.draft or 0.0
    lengths = [length for length in LENGTHS if length <= curve.longest]
    bounds = {length + 1: expected_tokens(overall.alpha, length) - step * length for length in lengths}
    if not any(bound > 1 for bound in bounds.values()):
        return "nowhere: drafting costs more than these drafts save"
    if any(curve.at(width) < bound for width, bound in bounds.items()):
        return ""
    parts = [
        f"over {width} tokens costs less than {bound:.2f} (here {curve.at(width):.2f})"
        for width, bound in bounds.items()
        if bound > 1
    ]
    return f"where a pass {', or one '.join(parts)}, a pass over one token being 1"


def _disturbance(cheapest: float, measured: Measured | None) -> str:
    if cheapest < DISTURBED:
        return "a wide pass appeared cheaper than a pass over a single token"
    if measured is None:
        return ""
    if measured.high < CONTRADICTED * measured.predicted or measured.predicted < CONTRADICTED * measured.low:
        return f"costs and acceptance predict {measured.predicted:.2f}x, but {measured.speedup:.2f}x was measured"
    return ""


def _not_worth_it(
    drafter: str, curve: CostCurve, kinds: Sequence[Kind], overall: Kind, measured: Measured | None
) -> str:
    """Why the prediction is below `WORTH_IT`, and what --pace auto makes of that."""
    even, step = break_even(curve), curve.draft or 0.0
    costs = f"a pass over 2 tokens costs {curve.at(2):.2f} of a pass over 1, and a draft token {step:.2g}"
    if step >= 1:
        why = f"a draft token costs more than a pass of the target itself ({step:.1f} passes)"
    elif even is None:
        why = f"{costs}, so not even {percent(1)} acceptance would pay off"
    elif overall.alpha < even:
        why = f"{costs}, so break-even is {percent(even)} acceptance; {percent(overall.alpha)} was measured"
    else:
        why = f"drafts of {percent(overall.alpha)} acceptance make decoding only {overall.auto_speedup:.2f}x as fast"
    paying = [kind.category for kind in kinds if kind.auto_speedup >= WORTH_IT]
    some = f"; drafts pay off on {', '.join(paying)} only" if paying else ""
    harm = "--pace auto switches drafting off by itself" if not paying else "--pace auto drafts only where it pays off"
    if measured is not None and measured.high < HARMLESS:
        harm = f"measured {measured}"
    elif measured is not None and measured.speedup >= WORTH_IT:
        harm += f"; the measured {measured.speedup:.2f}x may be chance"
    return f"not worth it ({drafter}): {why}{some}; {harm}"


def _most_of_it(kinds: Sequence[Kind]) -> str:
    paying = [kind.category for kind in kinds if kind.auto_speedup >= WORTH_IT]
    return "" if len(paying) in (0, len(kinds)) else f", most of it on {', '.join(paying)}"
