"""The progress of a download, its speed, and when a failed request is retried."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from edgespec.models.hub.requests import DownloadError, header_of, is_kind, reason, status_of

Tell = Callable[[str], object]  # takes notes for the user
SPEED_OVER_S = 5.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a download.

    Attributes:
        here_bytes: Bytes that are on this machine.
        transferred_bytes: Bytes that came over the network this time.
        files_done: Complete files.
        step: What is done with the received files, such as computing their hashes; empty while files are received.
        step_done: The progress of this step, 0 to 1.
    """

    here_bytes: int
    transferred_bytes: int
    files_done: int
    step: str = ""
    step_done: float = 0.0


class DownloadCancelled(DownloadError):  # noqa: N818 - nothing went wrong
    """The user stopped a download."""


class Speed:
    """Bytes per second over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, n_bytes: int) -> None:
        self._seen.append((now_s, n_bytes))
        while now_s - self._seen[0][0] > SPEED_OVER_S and len(self._seen) > 2:
            self._seen.popleft()

    @property
    def bytes_per_s(self) -> float:
        (then_s, then), (now_s, now) = self._seen[0], self._seen[-1]
        return (now - then) / (now_s - then_s) if now_s > then_s else 0.0


FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
LONGEST_ASKED_S = 300.0  # the hub counts requests over five minutes
FETCHING_S = 600.0  # of waits without a byte: a network may be gone that long
LOOKING_S = 60.0  # of waits before the download starts, while the user may be watching

_PASSING = ("TimeoutException", "NetworkError", "RemoteProtocolError", "ConnectionError")


class Patience:
    """The waits between the failures of one request: they grow, and end once `patience_s` were waited without success.

    Time asleep, of a laptop for instance, is not counted.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.renew()

    def renew(self) -> None:
        """Start again with short waits, after data has come."""
        self.left_s = self._patience_s
        self._next_s = FIRST_WAIT_S

    def wait_s(self, error: Exception) -> float | None:
        """Return how long to wait after this failure; None if a retry is useless."""
        status = status_of(error)
        passes = status in (408, 429) or status >= 500 or is_kind(error, *_PASSING)
        if not passes or self.left_s <= 0:
            return None
        wait_s = max(self._next_s, min(_requested_wait_s(error), LONGEST_ASKED_S))
        self._next_s = min(2 * self._next_s, LONGEST_WAIT_S)
        self.left_s -= wait_s
        return wait_s


class Notes:
    """Notes on retries: each reason is reported once."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._reported: set[str] = set()

    def retrying(self, error: Exception, wait_s: float, patience: Patience) -> None:
        """Report that a request failed, and is retried after this wait."""
        if (why := reason(error)) not in self._reported:
            self._reported.add(why)
            left = f"{patience.left_s / 60:.0f} minutes" if patience.left_s >= 90 else f"{patience.left_s:.0f} s"
            self._tell(f"{why}: retrying in {wait_s:.0f} s, giving up in {left} if no data arrives")


def _requested_wait_s(error: Exception) -> float:
    """Return how long the hub asks to wait."""
    after = header_of(error, "Retry-After") or next(
        iter(re.findall(r"\br=0;\s*t=(\d+)", header_of(error, "RateLimit"))), ""
    )
    return float(after) if after.isdigit() else 0.0
