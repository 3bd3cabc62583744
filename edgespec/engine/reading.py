"""How much of a prompt a forward pass reads while others generate: what takes as long as a few of their passes."""

from __future__ import annotations

from edgespec.core.exactness import WIDE

FEW = 8  # passes of those that generate for whose time prompts may hold them up
LEAST = WIDE // 4  # tokens: what a pass over fewer takes no less than
GAIN = 1 / 4  # what the last measurement counts for


class ReadingCosts:
    """Seconds of a pass without prompts, and of each token of a prompt, as means of the last passes; 0 is unknown.
    Fewer than `least` tokens at a time are not worth a pass."""

    def __init__(self, least: int = WIDE) -> None:
        self._least = least
        self.pass_s = self.token_s = 0.0

    def observe(self, n_read: int, n_others: int, seconds: float) -> None:
        """A pass read so many tokens of prompts, beside so many others. Of less than WIDE tokens each costs more."""
        if not n_read:
            self.pass_s = _mean(self.pass_s, seconds)
        elif n_read >= WIDE:
            own_s = max(seconds - (self.pass_s if n_others else 0.0), seconds / (n_read + n_others))
            self.token_s = _mean(self.token_s, own_s / n_read)

    @property
    def most(self) -> int:
        """Tokens of prompts that may be read at a time while others generate."""
        return max(self._least, int(FEW * self.pass_s / self.token_s)) if self.token_s > 0 else self._least


def _mean(known: float, seconds: float) -> float:
    return known + GAIN * (seconds - known) if known else seconds
