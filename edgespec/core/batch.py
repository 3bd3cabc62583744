"""The tokens of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Batch(NamedTuple):
    """Token ids, their positions, the sequences that each token belongs to, and whether its row of logits is wanted."""

    tokens: list[int]
    positions: list[int]
    sequence_ids: list[tuple[int, ...]]
    wanted: list[bool]

    @classmethod
    def empty(cls) -> Batch:
        return cls([], [], [], [])

    @property
    def size(self) -> int:
        return len(self.tokens)

    def add(self, tokens: Sequence[int], position: int, sequence_ids: tuple[int, ...], *, wanted: bool) -> None:
        """Append consecutive tokens from `position` on; `wanted` asks for the logits of the last one."""
        self.tokens.extend(tokens)
        self.positions.extend(range(position, position + len(tokens)))
        self.sequence_ids.extend([sequence_ids] * len(tokens))
        self.wanted.extend([False] * (len(tokens) - 1) + [wanted] if tokens else [])
