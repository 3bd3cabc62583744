"""Saving a sequence with sliding windows completely.

For a layer with a sliding window, llama.cpp saves only the cells within the window before the last position, although
the cache holds all of them. A sequence restored from such a state cannot be cut, and its cells lie elsewhere than
before, so that sums round differently. So the sequence is cut window by window, each is saved, and the saved cells are
joined as if one window had reached all of them.

The bytes are those of `llama_kv_cache::state_write`; data that does not look like this is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

HEAD = 8  # magic number and sequence id
_CELL = 12  # position, the number 1, sequence id


@dataclass(slots=True)
class _Cells:
    """The cells of one cache: the streams `before` that have none, uint8[n, 12] for each cell, and uint8[n, row] with
    the keys of all layers, then their values, each with its description."""

    before: bytes
    after: bytes
    cells: Bytes
    layers: tuple[bytes, list[tuple[bytes, Bytes]]]

    @classmethod
    def parsed(cls, state: Bytes) -> _Cells:
        """Parse a state. Raises ValueError or struct.error for other data."""
        data, at, before = state.tobytes(), 4, b""
        (n_streams,) = struct.unpack_from("<I", data, 0)
        found: _Cells | None = None
        for stream in range(n_streams):
            (n,) = struct.unpack_from("<I", data, at)
            at += 4
            if not n:
                continue
            if found is not None:
                raise ValueError("cells of several streams")
            before = data[: at - 4]
            cells = state[at : at + n * _CELL].reshape(n, _CELL)
            at += n * _CELL
            if (cells[:, 4:8].view("<u4") != 1).any():
                raise ValueError("cells are described in another way")
            is_transposed, n_layers = struct.unpack_from("<II", data, at)
            if is_transposed:
                raise ValueError("the values are transposed")
            head, at, rows = data[at : at + 8], at + 8, []
            for _ in range(2 * n_layers):
                (size,) = struct.unpack_from("<Q", data, at + 4)
                end = at + 12 + n * size
                rows.append((data[at : at + 12], state[at + 12 : end].reshape(n, size)))
                at = end
            found = cls(before, bytes(4 * (n_streams - stream - 1)), cells, (head, rows))
        if found is None or at != state.size:
            raise ValueError("no cells, or more than cells")
        return found

    @property
    def first(self) -> int:
        return int(self.cells[:, :4].view("<i4").min())

    @property
    def signature(self) -> tuple[bytes, bytes, list[bytes]]:
        return self.before, self.layers[0], [head for head, _ in self.layers[1]]


def joined(
    length: int, save: Callable[[], Bytes], save_window: Callable[[], Bytes], cut: Callable[[int], bool]
) -> Bytes:
    """Return the state of a sequence of `length` tokens with all of its cells; empty if this is impossible.

    `save` returns the state of the sequence, `save_window` the part of layers with a window, and `cut` removes the end
    of the sequence. The sequence is cut on the way.
    """
    whole, window = save(), save_window()
    pieces, start = list[_Cells](), length
    try:
        while True:
            piece = _Cells.parsed(window[HEAD:])
            if piece.first >= start or (pieces and piece.signature != pieces[0].signature):
                raise ValueError("the windows do not fit together")
            pieces.insert(0, piece)
            start = piece.first
            if not start:
                break
            if not cut(start):
                raise ValueError("the sequence cannot be cut")
            window = save_window()
    except (ValueError, struct.error):
        return whole[:0]
    return _state(whole, pieces, length)


def _state(whole: Bytes, pieces: list[_Cells], length: int) -> Bytes:
    last = pieces[-1]
    if sum(len(piece.cells) for piece in pieces) != length:
        return whole[:0]
    size = len(last.before) + 4 + len(last.after) + last.cells.size + len(last.layers[0])
    size += sum(len(head) + rows.size for head, rows in last.layers[1])
    parts: list[Bytes] = [whole[: whole.size - size]]
    parts.append(np.frombuffer(last.before + struct.pack("<I", length), np.uint8))
    parts += [piece.cells.reshape(-1) for piece in pieces]
    parts.append(np.frombuffer(last.layers[0], np.uint8))
    for number, (head, _) in enumerate(last.layers[1]):
        parts.append(np.frombuffer(head, np.uint8))
        parts += [piece.layers[1][number][1].reshape(-1) for piece in pieces]
    parts.append(np.frombuffer(last.after, np.uint8))
    return np.concatenate(parts)
