"""The tokens at which texts occur that end a repetition (`core/dry.py`)."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from edgespec.core.dry import Breakers
from edgespec.core.sampling import SamplingSettings
from edgespec.llama.model import LlamaModel

MOST_BYTES, MOST_TOKENS = 40, 20  # of a breaker, and of the tokens after the first one; llama.cpp's limits
REMEMBERED = 16  # lists of breakers
_END = b"\xff"  # between the tokens; no part of a text in UTF-8


class BreakerFinder:
    """Finds the breakers of a request in the vocabulary of a model. Several threads may use it."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._known: dict[tuple[str, ...], Breakers] = {}

    def must_search(self, settings: SamplingSettings) -> bool:
        """True if `of` will search the vocabulary, which may take a second."""
        return settings.uses_dry and settings.dry_sequence_breakers not in self._known

    def of(self, settings: SamplingSettings) -> Breakers:
        """Return the tokens of the breakers."""
        texts = settings.dry_sequence_breakers
        known = self._known.get(texts) if settings.uses_dry else {}
        if known is not None:
            return known
        with self._lock:
            if texts not in self._known:
                found = self._find(texts)
                if len(self._known) == REMEMBERED:
                    del self._known[next(iter(self._known))]
                self._known[texts] = found
            return self._known[texts]

    def _find(self, texts: Sequence[str]) -> Breakers:
        found: dict[int, list[tuple[int, ...]]] = {}
        for text in texts:
            breaker = text.encode()[:MOST_BYTES]
            if not breaker:
                continue
            holding = {*self._tokens_with(breaker)}
            for token in holding:
                found.setdefault(token, []).append(())
            for length in range(1, len(breaker)):
                tokens = {*self._tokens_with(breaker[:length] + _END)} - holding
                tail = self._model.tokenize(breaker[length:].decode("utf-8", "replace")) if tokens else []
                for token in tokens:
                    found.setdefault(token, []).append(tuple(tail[:MOST_TOKENS]))
        return found

    def _tokens_with(self, data: bytes) -> Iterator[int]:
        """Yield the tokens that contain these bytes."""
        texts, ends = self._vocabulary
        starts = np.array([found.start() for found in re.finditer(re.escape(data), texts)], np.intp)
        yield from np.unique(np.searchsorted(ends, starts, "right")).tolist()

    @cached_property
    def _vocabulary(self) -> tuple[bytes, np.ndarray[tuple[int], np.dtype[np.intp]]]:
        """The bytes of all tokens, each followed by `_END`, and the positions where they end."""
        pieces = [self._model.token_bytes(token, special=True) for token in range(self._model.n_vocab)]
        return _END.join([*pieces, b""]), np.cumsum([len(piece) + 1 for piece in pieces])
