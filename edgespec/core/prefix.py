"""The common prefix of two token lists."""

from __future__ import annotations


def common_prefix(left: list[int], right: list[int]) -> int:
    """Return the number of equal tokens at the beginning."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(index for index in range(length) if left[index] != right[index])
