"""A draft: the tokens a drafter guesses to come next, as a tree. A chain is a tree without branches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Draft:
    """n guessed tokens. `parents[i] < i`; -1 hangs off the last committed token.

    tokens: int32[n]; parents: int32[n]; confidence: float32[n], the drafter's own estimate that the node is accepted
    given that its parent was; source: which drafter.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    confidence: NDArray[np.float32]
    source: str = ""

    @classmethod
    def chain(cls, tokens: list[int], confidence: list[float], source: str) -> Draft:
        """Each token hangs off the one before it."""
        return cls(
            np.array(tokens, np.int32),
            np.arange(-1, len(tokens) - 1, dtype=np.int32),
            np.array(confidence, np.float32),
            source,
        )

    @classmethod
    def empty(cls) -> Draft:
        return cls.chain([], [], "")

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that guesses `token`, if there is one."""
        for index in range(node + 1, len(self.tokens)):
            if self.parents[index] == node and self.tokens[index] == token:
                return index
        return None
