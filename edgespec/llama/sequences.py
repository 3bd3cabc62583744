"""The sequences in the KV cache of a context: cutting, copying, saving and restoring them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.llama.batch import pointer
from edgespec.llama.library import api, complaints
from edgespec.llama.model import LlamaModel
from edgespec.llama.window import joined

_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class Sequences:
    """The part of `Context` that is about sequences. All of its methods count tokens from the start of a sequence;
    `positions` translates where images take fewer positions than tokens.

    Attributes:
        can_roll_back: True if tokens can be removed: not from recurrent memories.
        can_save: False if saving was found to be impossible.
    """

    model: LlamaModel
    n_batch: int
    streams: bool
    can_roll_back: bool
    can_save: bool
    _native: int | None
    _has_windows: bool
    _rollback: int
    _branches: list[int]

    def __init__(self) -> None:
        self._last_start: dict[int, int] = {}  # for each sequence of the last decode, where it can be cut if recurrent
        self._unknown: set[int] = set()  # sequences whose recurrent state was lost
        self._positions = Positions()

    @property
    def _handle(self) -> int:
        raise NotImplementedError

    def length(self, sequence: int) -> int:
        """Return the number of cached positions of a sequence."""
        return self._positions.length(sequence, int(api.llama_memory_seq_pos_max(self._memory(), sequence)))

    @property
    def rollback(self) -> int:
        """The number of tokens of its last decode that a sequence can remove; few or none if recurrent."""
        return self.n_batch if self.can_roll_back else self._rollback

    def truncate(self, sequence: int, length: int) -> bool:
        """Remove a sequence from position `length` on; returns False if this memory cannot be cut there."""
        if not self.can_roll_back and length > 0:
            if sequence in self._unknown:
                return False
            if length < self.length(sequence):
                start = self._last_start.pop(sequence, None)
                if start is None or length <= start:
                    return False
        if length <= 0:
            self._unknown.discard(sequence)
        is_cut = bool(api.llama_memory_seq_rm(self._memory(), sequence, self._positions.position(sequence, length), -1))
        if is_cut:
            self._positions.truncate(sequence, length)
        return is_cut

    def forget(self, sequence: int) -> None:
        """Remove a sequence; its cells are free again."""
        self._unknown.discard(sequence)
        self._positions.truncate(sequence, 0)
        if self._native is not None:
            api.llama_memory_seq_rm(self._memory(), sequence, -1, -1)

    def copy(self, source: int, destination: int, start: int = 0, end: int = -1) -> None:
        """Share cells of `source` from position `start` to `end` (-1: all); streams replace all by a copy."""
        first, last = (at if at < 0 else self._positions.position(source, at) for at in (start, end))
        if self.streams or start == 0:
            self._positions.copy(source, destination, -1 if self.streams else end)
        if self.streams:
            api.llama_memory_seq_cp(self._memory(), source, destination, -1, -1)
            if end >= 0:
                self.truncate(destination, end)
        else:
            api.llama_memory_seq_cp(self._memory(), source, destination, first, last)

    def saved_bytes(self, sequence: int, *, partial: bool = False) -> int:
        """Return about how many bytes `save` returns; 0 if the sequence cannot be saved."""
        if not self.can_save or sequence in self._unknown:
            return 0
        size = int(api.llama_state_seq_get_size_ext(self._handle, sequence, _PARTIAL if partial else 0))
        if not partial and self._has_windows:
            n_windows = max(1, self.length(sequence) // self.model.sliding_window)
            size += (n_windows - 1) * self.saved_bytes(sequence, partial=True)
        return size

    def save(self, sequence: int, *, partial: bool = False) -> NDArray[np.uint8]:
        """Return the memory of a sequence as bytes; empty if saving failed, which may clear the sequence too.

        `partial` leaves out the cells that can be cut: those of layers that attend to all tokens.
        """
        if not self.saved_bytes(sequence, partial=True):
            return np.empty(0, np.uint8)
        if partial or not self._has_windows:
            return self._positions.with_images(sequence, self._saved(sequence, _PARTIAL if partial else 0))
        state = joined(
            self.length(sequence),
            lambda: self._saved(sequence, 0),
            lambda: self._saved(sequence, _PARTIAL),
            lambda length: self.truncate(sequence, length),
        )
        if not state.size or not self.restore(sequence, state):
            self.can_save = False
            self.forget(sequence)
        return state if self.can_save else state[:0]

    def restore(self, sequence: int, state: NDArray[np.uint8], *, partial: bool = False) -> bool:
        """Load a saved state into a sequence; returns False, with an empty sequence, if there is no room.

        A `partial` state keeps the other cells, also those after the saved position: `truncate` removes them.
        """
        self._last_start.pop(sequence, None)
        if self.model.has_mrope:
            state = self._positions.taken_from(sequence, state)
        address, flags = pointer(state, ctypes.c_uint8), _PARTIAL if partial else 0
        with complaints():
            n = api.llama_state_seq_set_data_ext(self._handle, address, state.size, sequence, flags)
        if n != state.size:
            self.forget(sequence)
        self._unknown.discard(sequence)
        return bool(n == state.size)

    def _saved(self, sequence: int, flags: int) -> NDArray[np.uint8]:
        handle = self._handle
        state = np.empty(api.llama_state_seq_get_size_ext(handle, sequence, flags), np.uint8)
        n = api.llama_state_seq_get_data_ext(handle, pointer(state, ctypes.c_uint8), state.size, sequence, flags)
        return state[:n]

    @property
    def free_branches(self) -> int:
        return len(self._branches)

    def fork(self, source: int, length: int) -> int:
        """Return a branch that shares the first `length` positions of `source`; free it with `release`."""
        branch = self._branches.pop()
        self.copy(source, branch, 0, length)
        return branch

    def adopt(self, sequence: int, branch: int, start: int, end: int) -> None:
        """Replace the cells of `sequence` from position `start` on by those of `branch`, up to `end`."""
        self.truncate(sequence, start)
        self.copy(branch, sequence, start, end)

    def release(self, branches: Iterable[int]) -> None:
        """Free branches, with the cells that they do not share with others."""
        for branch in branches:
            self.forget(branch)
            self._branches.append(branch)

    def _memory(self) -> int:
        memory: int = api.llama_get_memory(self._handle)
        return memory


# --- positions --------------------------------------------------------------------------------------------------------

# Positions of tokens in the KV cache of a model with M-RoPE, where an image takes fewer positions than cells.
#
# All other code counts tokens: the first token of a sequence has the index 0. An image of W times H cells has W * H
# tokens, which share one position, and the text after it continues max(W, H) positions later (Qwen2-VL, arXiv
# 2409.12191).


Bytes = NDArray[np.uint8]
_MARK = np.frombuffer(b"edgespec:images\0", np.uint8)


class Placed(NamedTuple):
    """An image: the indexes of its first token and after its last one, and the positions of the same."""

    start: int
    end: int
    first: int
    after: int


@dataclass(slots=True)
class Positions:
    """The images of each sequence whose positions differ from their indexes, in order."""

    _images: dict[int, list[Placed]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._images)

    def add(self, sequence: int, start: int, n_tokens: int, n_positions: int) -> None:
        """Add the next image of a sequence."""
        if n_tokens != n_positions:
            self.truncate(sequence, start)
            first = self.position(sequence, start)
            self._images.setdefault(sequence, []).append(Placed(start, start + n_tokens, first, first + n_positions))

    def position(self, sequence: int, index: int) -> int:
        """Return the position of the token with this index, which is not within an image."""
        for image in reversed(self._images.get(sequence, ())):
            if index >= image.end:
                return image.after + index - image.end
        return index

    def length(self, sequence: int, last: int) -> int:
        """Return the number of tokens of a sequence whose last position is `last`; -1: it is empty."""
        for image in reversed(self._images.get(sequence, ())):
            if last >= image.first:
                return image.end + max(0, last + 1 - image.after)
        return last + 1

    def truncate(self, sequence: int, length: int) -> None:
        """Forget the images of a sequence from the index `length` on."""
        if images := self._images.get(sequence):
            self._keep(sequence, [image for image in images if image.end <= length])

    def copy(self, source: int, destination: int, length: int) -> None:
        """Let the first `length` tokens of a sequence be those of another one; -1: all."""
        images = self._images.get(source, ())
        self._keep(destination, [image for image in images if length < 0 or image.end <= length])

    def with_images(self, sequence: int, state: Bytes) -> Bytes:
        """Return the saved state of a sequence, with the positions of its images at the end if it has any."""
        images = self._images.get(sequence)
        if not images or not state.size:
            return state
        numbers = np.array([*images, (len(images), 0, 0, 0)], "<i4")
        return np.concatenate([state, numbers.reshape(-1).view(np.uint8), _MARK])

    def taken_from(self, sequence: int, state: Bytes) -> Bytes:
        """Return a state without what `with_images` added to it, and take over the positions."""
        if state.size < 2 * _MARK.size or not np.array_equal(state[-_MARK.size :], _MARK):
            self._keep(sequence, [])
            return state
        numbers = state[: -_MARK.size]
        n_bytes = 16 * (1 + int(numbers[-16:-12].copy().view("<i4")[0]))
        rows = numbers[-n_bytes:].copy().view("<i4").reshape(-1, 4)[:-1].tolist()
        self._keep(sequence, [Placed(*row) for row in rows])
        return numbers[:-n_bytes]

    def _keep(self, sequence: int, images: list[Placed]) -> None:
        if images:
            self._images[sequence] = images
        else:
            self._images.pop(sequence, None)
