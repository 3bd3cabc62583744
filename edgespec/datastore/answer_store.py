"""Previous answers, saved between runs for the suffix drafter: one corpus per vocabulary.

Lost or damaged content is learned again, so nothing in here ends a program. Two processes may use one store: each adds
its own answers to the file's when it saves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from edgespec.core.index.automaton import SuffixAutomaton
from edgespec.core.index.context_index import ContextIndex
from edgespec.core.index.continuation import BETWEEN, Place
from edgespec.datastore.corpus import START, SUFFIX, About, Corpus, complete, listed
from edgespec.errors import EdgespecError, UsageError, told_as
from edgespec.files.optional_files import files_in, is_there, optional
from edgespec.files.paths import cache_dir
from edgespec.files.unfinished import becoming

MOST_TOKENS = 1 << 18  # in a store; the oldest leave first
SAVED_AT = 1 << 14  # tokens that are new
LEAST_TOKENS = 8  # of an answer that is worth keeping
LOCK_S = 2.0

log = logging.getLogger(__name__)


def store_dir() -> Path:
    return cache_dir() / "answers"


class StoredAnswers(TypedDict):
    """The saved answers of a vocabulary; the size of their file in bytes."""

    name: str
    model: str
    answers: int
    tokens: int
    bytes: int


def stored() -> list[StoredAnswers]:
    """Describe the saved answers of each vocabulary as plain data. Files that cannot be read are left out."""
    return [
        {
            "name": file.stem,
            "model": about.model,
            "answers": about.files,
            "tokens": about.tokens - about.files,
            "bytes": file.stat().st_size,
        }
        for file, about in listed(log.debug, store_dir())
    ]


def clear() -> int:
    """Delete all stores; return how many. Raises EdgespecError for one that cannot be deleted."""
    files = files_in(store_dir(), f"*{SUFFIX}")
    for file in files:
        with told_as(EdgespecError, f"{file} cannot be deleted"):
            file.unlink(missing_ok=True)
            file.with_suffix(".lock").unlink(missing_ok=True)
    return len(files)


class AnswerStore:
    """The answers of one vocabulary. `model` is the name of the model, `note` receives messages for the user."""

    def __init__(self, vocabulary: str, model: str, note: Callable[[str], None] = log.warning) -> None:
        self.file = store_dir() / f"{vocabulary}{SUFFIX}"
        self._model, self._note = model, note
        self._index = self._read()
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

    @property
    def tokens(self) -> NDArray[np.uint32]:
        """The saved answers one after the other, with `BETWEEN` after each."""
        return self._index.tokens

    def counts(self, n_vocab: int) -> NDArray[np.int64]:
        """Return how often each token is in the saved answers, int64[V]."""
        tokens = self.tokens.astype(np.int64)
        return np.bincount(tokens[tokens < n_vocab], minlength=n_vocab)  # `BETWEEN` is beyond the vocabulary

    def save(self) -> None:
        """Add new answers to the file. If that fails it is retried the next time."""
        if not self._new:
            return
        with optional(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.parent.chmod(0o700)  # what was said is for its user alone
            with FileLock(self.file.with_suffix(".lock"), timeout=LOCK_S):
                new = [np.array([*answer, BETWEEN], np.uint32) for answer in self._new]
                tokens = np.concatenate([self._read().tokens, *new])[-MOST_TOKENS:]
                n_answers = int((tokens == BETWEEN).sum())
                about = About(self.file.stem, self._model, n_answers, 4 * len(tokens), len(tokens))
                with becoming(self.file) as unfinished, unfinished.open("w+b") as scratch:
                    scratch.seek(START)
                    scratch.write(tokens.data)
                    _, index = complete(scratch, about)
            self._index, self._new, self.recent = index, [], SuffixAutomaton()

    def _read(self) -> ContextIndex:
        """Return the saved answers in memory: another process may replace the file."""
        if is_there(self.file):
            try:
                corpus = Corpus(self.file)
                corpus.check()
                return ContextIndex(corpus.index.tokens.copy(), corpus.index.order.copy())
            except (UsageError, OSError) as error:
                self._note(f"the store of earlier answers cannot be read; starting a new one ({error})")
        return ContextIndex(np.zeros(0, np.uint32), np.zeros(0, np.uint32))
