"""The progress of a download, and its speed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from edgespec.models.hub.requests import DownloadError

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
