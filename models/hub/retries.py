"""When a failed request to the hub is retried, for how long, and which notes are shown."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from time import monotonic

from edgespec.models.hub.requests import header_of, kind, reason, status_of

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
LONGEST_ASKED_S = 300.0  # the hub counts requests over five minutes
FETCHING_S = 600.0  # of waits without a byte: a network may be gone that long
LOOKING_S = 60.0  # of waits before the download starts, while the user may be watching
TOLD_EVERY_S = 30.0  # between notes for the same reason

_PASSING = ("TimeoutException", "NetworkError", "RemoteProtocolError", "ConnectionError")


class Patience:
    """The waits between the failures of one request: they grow, and end once `patience_s` were waited without success.

    Time asleep, of a laptop for instance, is not counted.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.renew()

    def renew(self) -> None:
        """Data came: start again with short waits."""
        self.left_s = self._patience_s
        self._next_s = FIRST_WAIT_S

    def wait_s(self, error: Exception) -> float | None:
        """How long to wait after this failure; None if a retry is useless."""
        status = status_of(error)
        passes = status in (408, 429) or status >= 500 or kind(error, *_PASSING)
        if not passes or self.left_s <= 0:
            return None
        wait_s = max(self._next_s, min(_asked_wait_s(error), LONGEST_ASKED_S))
        self._next_s = min(2 * self._next_s, LONGEST_WAIT_S)
        self.left_s -= wait_s
        return wait_s


class Notes:
    """Notes on retries: each reason at once, and while it lasts from time to time, with the number of retries."""

    def __init__(self, tell: Callable[[str], object], clock: Callable[[], float] = monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._told_s: dict[str, float] = {}
        self._times: dict[str, int] = {}
        self._alone = threading.Lock()

    def waits(self, error: Exception, wait_s: float, patience: Patience) -> None:
        """A request failed, and is retried after this wait."""
        why = reason(error)
        with self._alone:
            times = self._times[why] = self._times.get(why, 0) + 1
            if times > 1 and self._clock() - self._told_s[why] < TOLD_EVERY_S:
                return
            self._told_s[why] = self._clock()
        so_far = f" ({times} times so far)" if times > 1 else ""
        longest = f", giving up in {_spell(patience.left_s)} if no data arrives" if patience.left_s >= 1 else ""
        self._tell(f"{why}{so_far}: retrying in {wait_s:.0f} s{longest}")


def _asked_wait_s(error: Exception) -> float:
    """How long the hub asks to wait."""
    after = header_of(error, "Retry-After") or next(
        iter(re.findall(r"\br=0;\s*t=(\d+)", header_of(error, "RateLimit"))), ""
    )
    return float(after) if after.isdigit() else 0.0


def _spell(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} s"
