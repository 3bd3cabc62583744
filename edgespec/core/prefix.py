"""How much two lists of tokens have in common."""

from __future__ import annotations


def common_prefix(left: list[int], right: list[int]) -> int:
    """How many tokens are the same from the first one on."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(index for index in range(length) if left[index] != right[index])
