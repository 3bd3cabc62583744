"""The predicted speedup of chains of a fixed length (Leviathan et al., arXiv 2211.17192, section 3).

If every draft token is accepted with the same probability alpha, a step with K draft tokens emits E = 1 + alpha + ... +
alpha^K tokens and takes K c + t(K+1): K passes of the draft model and one pass of the target over K + 1 tokens, in
units of t(1). E divided by that is the speedup over plain decoding, if nothing else takes time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Measured costs of passes."""

    #: t(1) in seconds
    pass_s: float
    #: t(n) / t(1) by width n
    target: Mapping[int, float]
    #: c, a draft pass in units of t(1), if there is a draft model
    draft: float | None

    @property
    def longest(self) -> int:
        """The longest chain whose target pass is within the measured widths."""
        return max(self.target) - 1

    def at(self, width: int) -> float:
        """Return t(width) / t(1), interpolated. Raises ValueError beyond the widest measured pass."""
        below = max(n for n in self.target if n <= width)
        above = min(n for n in self.target if n >= width)
        if below == above:
            return self.target[width]
        share = (width - below) / (above - below)
        return (1 - share) * self.target[below] + share * self.target[above]

    def speedup(self, alpha: float, length: int) -> float:
        """Return the predicted speedup of chains of `length` draft tokens. Needs c."""
        assert self.draft is not None
        return expected_tokens(alpha, length) / (self.draft * length + self.at(length + 1))

    def best(self, alpha: float) -> tuple[int, float]:
        """Return the best length, 0 for plain decoding, and its predicted speedup."""
        speedups = [self.speedup(alpha, length) for length in range(self.longest + 1)]
        return max(enumerate(speedups), key=lambda pair: pair[1])


def cost_curve(costs: Mapping[str, Any] | None) -> CostCurve | None:
    """Return the curve of a result's `costs`, or None if t(1) was not measured."""
    target = {int(width): seconds for width, seconds in ((costs or {}).get("target") or {}).items() if seconds}
    if costs is None or 1 not in target:
        return None
    draft_s = costs.get("draft")
    return CostCurve(
        target[1],
        {width: max(1.0, target[width] / target[1]) for width in sorted(target)},  # below 1: disturbed measurement
        None if draft_s is None else draft_s / target[1],
    )


def expected_tokens(alpha: float, length: int) -> float:
    """Return E, the expected number of tokens emitted in a step with `length` draft tokens."""
    return sum(alpha**k for k in range(length + 1))


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
