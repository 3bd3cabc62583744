"""The reference's predictions at every position of a text, on disk, while other models are compared with them.

A row is the logarithms of V probabilities as float16: 2 V bytes, 304 kB for a vocabulary of 152 thousand. It is
normalised again when it is read, so that the rounding of these numbers, about 0.02 % of each, changes a divergence by
less than the rounding of kernels does.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.compare.perplexity import Told
from edgespec.compare.windows import Windows, counted, log_probabilities, watching
from edgespec.errors import UsageError, told_as
from edgespec.files.paths import cache_dir, make_room
from edgespec.files.unfinished import becoming
from edgespec.llama.context import Context

MOST_BYTES = 1_000_000_000
MOST_WINDOWS = 12  # 3060 positions of windows of 512 tokens
SMALLEST = np.float16(-65504)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReferenceRows:
    """The reference's rows in `file`, its most likely token and the loss (nats) at each position."""

    file: Path
    n_vocab: int
    likeliest: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __iter__(self) -> Generator[NDArray[np.float64], None, None]:
        """The log-probabilities float64[V] of each position, in order."""
        with self.file.open("rb") as file:
            for _ in self.losses:
                row = np.frombuffer(file.read(2 * self.n_vocab), np.float16).astype(np.float64)
                yield row - np.log(np.exp(row).sum())


def default_limit(n_vocab: int, size: int) -> int:
    """The default number of windows: fewer if rows would take more than `MOST_BYTES`."""
    return max(1, min(MOST_WINDOWS, MOST_BYTES // _size_bytes(n_vocab, size, 1)))


@contextmanager
def room_for_rows(n_vocab: int, size: int, n_windows: int) -> Iterator[ReferenceRows]:
    """Empty rows in a file in the cache folder, which is deleted afterwards. Raises UsageError without room."""
    folder, needed = cache_dir() / "compare", _size_bytes(n_vocab, size, n_windows)
    _remove_abandoned(folder)
    make_room(
        folder,
        needed,
        no_place="there is no space for the reference's log probabilities in",
        no_room="the reference's log probabilities do not fit into",
        needs=f"{n_windows} windows take",
        less="compare fewer (--limit), ",
    )
    file = folder / "rows"
    try:
        with becoming(file) as scratch:  # also gone when a signal ends the program
            yield ReferenceRows(scratch, n_vocab)
            scratch.touch()
    finally:
        file.unlink(missing_ok=True)


def keep_rows(context: Context, text: Windows, rows: ReferenceRows, tell: Told, cancel: CancelFlag) -> None:
    """Fill `rows` with what the model in `context` says. Raises CancelledError, GenerationError, UsageError."""
    what = f"the reference's log probabilities cannot be written to {rows.file.parent}"
    with told_as(UsageError, what), rows.file.open("wb") as file, watching(context, cancel):
        for done, window in enumerate(text):
            tell(done, len(text))
            for token, row in log_probabilities(context, window):
                rows.likeliest.append(int(row.argmax()))
                rows.losses.append(-float(row[token]))
                file.write(np.maximum(row, SMALLEST).astype(np.float16).tobytes())
        tell(len(text), len(text))


def _size_bytes(n_vocab: int, size: int, n_windows: int) -> int:
    return 2 * n_vocab * len(counted(size)) * n_windows


def _remove_abandoned(folder: Path) -> None:
    """Files that a killed run left behind."""
    for file in folder.glob("rows.*.part"):
        pid = file.name.split(".")[1]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                log.debug("cannot remove %s: %s", file, error)
