"""Images in lists of tokens.

An image is a run of negative ids, one for each cell that it takes in the KV cache. The ids are a hash of the image and
of the projector that reads it. So two lists of tokens with a common prefix also have the same images there, and slots,
saved states and files need nothing else to compare them. An image is read as a whole: no prefix ends within one.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_256

FIRST = -(1 << 30)
"""The first id of an image is at least this number, and its other ids are less."""


def image_ids(key: bytes, n: int) -> list[int]:
    """Return the `n` ids of an image that has this key."""
    stream = shake_256(key).digest(4 * n)
    hashes = [int.from_bytes(stream[4 * index : 4 * index + 4], "little") >> 2 for index in range(n)]
    return [(FIRST if index == 0 else 2 * FIRST) + number for index, number in enumerate(hashes)]


def has_images(tokens: Sequence[int]) -> bool:
    """Return whether a list of tokens has an image."""
    return min(tokens, default=0) < 0


def whole(tokens: Sequence[int], length: int) -> int:
    """Return `length`, or the start of the image that a cut there would divide."""
    while 0 < length < len(tokens) and tokens[length] < FIRST:
        length -= 1
    return length
