"""The measured costs of passes, and the acceptance rate from which drafts pay off.

If every draft token is accepted with the same probability alpha (Leviathan et al., arXiv 2211.17192, section 3), a step
with K draft tokens emits 1 + alpha + ... + alpha^K tokens. It takes the time of a draft and of one pass of the target
over K + 1 tokens. Drafts pay off if the tokens are more than that time in passes over one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


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
