"""The size of the pieces in which prompts are read while other sequences generate.

Reading a piece may take as long as a few passes of the other sequences.
"""

from __future__ import annotations

FEW = 8  # a piece of a prompt may take as long as this many passes that generate
LEAST = 16  # tokens: a pass over fewer does not take less time
WIDE = 64  # tokens of a prompt that are worth a pass, and the fewest whose time is measured
GAIN = 1 / 4  # weight of the last measurement in the mean


class ReadingCosts:
    """Running means of the seconds of a pass without prompts, and of each token of a prompt; 0 means unknown."""

    def __init__(self) -> None:
        self.pass_s = self.token_s = 0.0

    def observe(self, n_read: int, n_others: int, seconds: float) -> None:
        """Record a pass over `n_read` tokens of prompts and `n_others` others. Reads of less than WIDE tokens do not
        count: each of their tokens costs more."""
        if not n_read:
            self.pass_s = _mean(self.pass_s, seconds)
        elif n_read >= WIDE:
            own_s = max(seconds - (self.pass_s if n_others else 0.0), seconds / (n_read + n_others))
            self.token_s = _mean(self.token_s, own_s / n_read)

    @property
    def most(self) -> int:
        """The most tokens of prompts to read at a time while other sequences generate."""
        return max(WIDE, int(FEW * self.pass_s / self.token_s)) if self.token_s > 0 else WIDE


def _mean(known: float, seconds: float) -> float:
    return known + GAIN * (seconds - known) if known else seconds
