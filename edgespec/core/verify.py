"""Which drafted tokens stay: the walk of a draft tree by a verify rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.core.choose import Choice
from edgespec.core.draft import Draft

RowOf = Callable[[int], NDArray[np.float32]]
"""The target's float32[V] row after a draft node; -1 is the last committed token."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`path`: accepted nodes, root first. `choices`: the target's own tokens, one longer than the path."""

    path: list[int]
    choices: list[Choice]


def verify_coupled(
    draft: Draft,
    row_of: RowOf,
    choose: Callable[[NDArray[np.float32], list[int], int], Choice],
    tokens: list[int],
    position: int,
    is_last: Callable[[Choice], bool],
) -> Verdict:
    """Follow the target's own choices down the tree for as long as one of them is a child.

    `choose(row, prefix, position)` is the target's choice with the noise of that position, so that what is emitted is
    what plain decoding with the same seed emits, for every draft (Daliri et al., 2408.07978). `tokens` is the committed
    prefix, `position` the logical index of the next token; `is_last` says that nothing may follow a token.
    """
    prefix, node = list(tokens), -1
    verdict = Verdict([], [])
    while True:
        choice = choose(row_of(node), prefix, position)
        verdict.choices.append(choice)
        child = None if is_last(choice) else draft.child(node, choice.id)
        if child is None:
            return verdict
        verdict.path.append(child)
        prefix.append(choice.id)
        node, position = child, position + 1
