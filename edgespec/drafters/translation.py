"""A draft model with another vocabulary: the tokens that both models have (Timor et al., 2502.05202, TLI).

Only shared tokens are drafted: the draft's distribution is restricted to them, in the target's ids, so everything else
works as with a draft of the same vocabulary. The draft reads other tokens of the target in its own tokenization.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampling import FloatRow

LEAST_OVERLAP = 0.1  # share of the target's tokens; a draft with fewer shared tokens is of no use
_NO_TEXT = b"\xff\xff"  # no UTF-8 text begins with these bytes


class Vocabulary(Protocol):
    """The tokens of a model."""

    n_vocab: int

    @property
    def bos(self) -> int | None: ...

    @property
    def eos(self) -> int | None: ...

    def is_control(self, token: int) -> bool: ...

    def token_bytes(self, token: int, *, special: bool = False) -> bytes: ...

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]: ...


class Translation:
    """Translates between the ids of a target and of a draft, given the bytes of their tokens by id (empty: no text).

    `read` tokenizes bytes that are not a single token of the draft.
    """

    def __init__(self, target: Sequence[bytes], draft: Sequence[bytes], read: Callable[[bytes], list[int]]) -> None:
        self._target, self._read = target, read
        ours, theirs = _numbered(target), _numbered(draft)
        self._to_draft = {id: theirs[piece, 0] for (piece, _), id in ours.items() if (piece, 0) in theirs}
        pairs = [(id, theirs[key]) for key, id in ours.items() if key in theirs]
        self._to_draft.update(pairs)
        self._ids: NDArray[np.int64] = np.array(pairs, np.int64).reshape(-1, 2)
        self._row: FloatRow = np.full(len(target), -np.inf, np.float32)

    @classmethod
    def between(cls, target: Vocabulary, draft: Vocabulary) -> Translation:
        """Make the translation between two vocabularies. Control tokens match by role or name; the draft never sees
        other ones."""
        pieces = list(_pieces(draft))
        byte = {piece[0]: id for id, piece in reversed(list(enumerate(pieces))) if len(piece) == 1}

        def read(piece: bytes) -> list[int]:
            if piece.startswith(_NO_TEXT):
                return []
            try:
                return draft.tokenize(piece.decode())
            except UnicodeDecodeError:  # a part of a character
                return [byte[one] for one in piece if one in byte]

        return cls(list(_pieces(target)), pieces, read)

    @property
    def overlap(self) -> float:
        """The share of the target's tokens that the draft has too."""
        return len(self._to_draft) / max(1, len(self._target))

    def own(self, token: int) -> int:
        """Return the draft's id of a shared token."""
        return self._to_draft[token]

    def tokens(self, token: int) -> list[int]:
        """Return the draft's tokens for any token of the target."""
        own = self._to_draft.get(token)
        return self._read(self._target[token]) if own is None else [own]

    def row(self, row: FloatRow) -> FloatRow:
        """Convert the draft's logits to the target's ids, -inf for tokens that it does not have; valid until the next
        call."""
        self._row[self._ids[:, 0]] = row[self._ids[:, 1]]
        return self._row


def _numbered(pieces: Sequence[bytes]) -> dict[tuple[bytes, int], int]:
    """Return the ids by their bytes and by how many later tokens have the same bytes.

    SentencePiece has two tokens for an ASCII character: its byte, and later the character, which texts consist of.
    """
    found: dict[tuple[bytes, int], int] = {}
    later: Counter[bytes] = Counter()
    for id, piece in reversed(list(enumerate(pieces))):
        if piece:
            found[piece, later[piece]] = id
            later[piece] += 1
    return found


def _pieces(model: Vocabulary) -> Iterator[bytes]:
    """Yield the bytes of each token; for a control token its role or name."""
    for token in range(model.n_vocab):
        if token == model.bos:
            yield _NO_TEXT + b"begin"
        elif token == model.eos:
            yield _NO_TEXT + b"end"
        elif model.is_control(token):
            yield _NO_TEXT + b"name " + model.token_bytes(token, special=True)
        else:
            yield model.token_bytes(token)
