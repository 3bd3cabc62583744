"""Previous answers, saved between runs for the suffix drafter: one file per vocabulary.

Lost or damaged content is learned again, so nothing in here ends a program. Two processes may use one store: each adds
its own answers to the file's when it saves.
"""

from __future__ import annotations

import io
import logging
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from edgespec.core.index.automaton import SuffixAutomaton
from edgespec.core.index.context_index import ContextIndex, Tokens, order_of
from edgespec.core.index.continuation import BETWEEN, Place
from edgespec.errors import EdgespecError, UsageError, told_as
from edgespec.files.paths import cache_dir, write_whole

VERSION = 1
MOST_TOKENS = 1 << 18  # in a store; the oldest leave first
SAVED_AT = 1 << 14  # tokens that are new
LEAST_TOKENS = 8  # of an answer that is worth keeping
LOCK_S = 2.0

log = logging.getLogger(__name__)


def store_dir() -> Path:
    return cache_dir() / "answers"


def stored() -> list[dict[str, Any]]:
    """Describe the saved answers of each vocabulary as plain data. Files that cannot be read are left out."""
    found = []
    for file in sorted(store_dir().glob("*.npz")):
        try:
            kept = _Kept.read(file)
        except _UNREADABLE as error:
            log.debug("answer store %s cannot be read: %s", file, error)
            continue
        found.append(
            {
                "name": file.stem,
                "model": kept.model,
                "answers": int((kept.tokens == BETWEEN).sum()),
                "tokens": int((kept.tokens != BETWEEN).sum()),
                "bytes": file.stat().st_size,
            }
        )
    return found


def clear(names: Sequence[str] = ()) -> int:
    """Delete the stores of these vocabularies, or all; returns how many. Raises UsageError for an unknown one, and
    EdgespecError for one that cannot be deleted."""
    files = {file.stem: file for file in store_dir().glob("*.npz")}
    unknown = [name for name in names if name not in files]
    if unknown:
        raise UsageError(f"there is no answer store {unknown[0]}", hint="'edgespec store ls' lists them")
    for name in names or files:
        with told_as(EdgespecError, f"{files[name]} cannot be deleted"):
            files[name].unlink(missing_ok=True)
            files[name].with_suffix(".lock").unlink(missing_ok=True)
    return len(names or files)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The file: uint32 `tokens` of all answers, `BETWEEN` after each, their order (`core.context_index`), and the name
    of the last model that wrote it."""

    tokens: Tokens
    order: Tokens
    model: str = ""

    @classmethod
    def read(cls, file: Path) -> _Kept:
        """Raises one of `_UNREADABLE` for a file that is not a store."""
        with np.load(file, allow_pickle=False) as parts:
            if int(parts["version"]) != VERSION:
                raise ValueError("it was written by another version of edgespec")
            tokens, order, model = parts["tokens"], parts["order"], str(parts["model"])
        if tokens.dtype != np.uint32 or order.dtype != np.uint32 or tokens.shape != order.shape or tokens.ndim != 1:
            raise ValueError("its parts do not match")
        if len(order) and not 1 <= order.min() <= order.max() <= len(tokens):
            raise ValueError("its index is invalid")
        return cls(tokens, order, model)

    @property
    def index(self) -> ContextIndex:
        return ContextIndex(self.tokens, self.order)

    def write(self, file: Path) -> None:
        """Raises OSError."""
        packed = io.BytesIO()
        np.savez(packed, version=VERSION, tokens=self.tokens, order=self.order, model=self.model)
        write_whole(file, packed.getvalue())


_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


class AnswerStore:
    """The answers of one vocabulary. `model` is the name of the model, `note` receives messages for the user."""

    def __init__(self, vocabulary: str, model: str, note: Callable[[str], None] = log.warning) -> None:
        self.file = store_dir() / f"{vocabulary}.npz"
        self._model, self._note = model, note
        self._index = self._read().index
        self._new: list[list[int]] = []
        self.recent = SuffixAutomaton()

    def add(self, answer: list[int]) -> None:
        """Remember an answer."""
        if len(answer) < LEAST_TOKENS:
            return
        self._new.append(answer)
        self.recent.extend([*answer, BETWEEN])
        if sum(map(len, self._new)) >= SAVED_AT:
            self.save()

    def places(self, text: Sequence[int]) -> Iterable[Place]:
        """Return the places where saved answers have the last tokens of `text`."""
        return self._index.places(text)

    def save(self) -> None:
        """Add new answers to the file. If that fails it is retried the next time."""
        if not self._new:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.parent.chmod(0o700)  # what was said is for its user alone
            with FileLock(self.file.with_suffix(".lock"), timeout=LOCK_S):
                new = [np.array([*answer, BETWEEN], np.uint32) for answer in self._new]
                tokens = np.concatenate([self._read().tokens, *new])[-MOST_TOKENS:]
                kept = _Kept(tokens, order_of(tokens), self._model)
                kept.write(self.file)
        except (OSError, Timeout) as error:
            log.debug("answer store %s cannot be written: %s", self.file, error)
            return
        self._index, self._new, self.recent = kept.index, [], SuffixAutomaton()

    def _read(self) -> _Kept:
        try:
            return _Kept.read(self.file)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except _UNREADABLE as error:
            self._note(f"the store of earlier answers cannot be read; starting a new one ({error})")
        return _Kept(np.zeros(0, np.uint32), np.zeros(0, np.uint32))
