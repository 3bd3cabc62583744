"""Positions of tokens in the KV cache of a model with M-RoPE, where an image takes fewer positions than cells.

All other code counts tokens: the first token of a sequence has the index 0. An image of W times H cells has W * H
tokens, which share one position, and the text after it continues max(W, H) positions later (Qwen2-VL, arXiv
2409.12191).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
