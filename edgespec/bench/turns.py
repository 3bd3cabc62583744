"""Whose turn it is: modes take turns on a prompt, and prompts go in pairs, so that every answer starts cold."""

from __future__ import annotations

from collections.abc import Iterator


def pairs(n_items: int) -> list[range]:
    """Items that take turns; an odd one out joins the last pair."""
    starts = list(range(0, max(1, n_items - 1), 2))
    return [range(start, end) for start, end in zip(starts, [*starts[1:], n_items], strict=True)]


def turns(items: range, n_modes: int, repeat: int = 0) -> Iterator[tuple[int, int]]:
    """Each of these items with each mode, every item beginning with another one.

    No two turns of an item follow each other, and the item before it took the same mode's turn: no model finds its
    prompt in a cache that the answer before has left.
    """
    for step in range(n_modes):
        for item in items:
            yield item, (item + step + repeat) % n_modes
