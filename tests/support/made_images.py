"""Images without a projector: cells with random rows, for tests of the engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.core.images import image_ids


@dataclass
class MadeCells:
    """An image of `width` by `height` cells in a model with rows of `n_embd` values."""

    seed: int
    width: int = 10
    height: int = 8
    n_embd: int = 64
    has_mrope: bool = False
    is_whole: bool = False

    @property
    def n(self) -> int:
        return self.width * self.height

    @property
    def n_positions(self) -> int:
        return max(self.width, self.height) if self.has_mrope else self.n

    @property
    def tokens(self) -> list[int]:
        return image_ids(b"%d" % self.seed, self.n)

    def rows(self) -> NDArray[np.float32]:
        return np.random.default_rng(self.seed).standard_normal((self.n, self.n_embd)).astype(np.float32)

    def positions(self, first: int) -> NDArray[np.int32]:
        cells = np.arange(self.n)
        if not self.has_mrope:
            return (first + cells).astype(np.int32)[np.newaxis]
        t, z = np.full(self.n, first), np.zeros(self.n)
        return np.array([t, first + cells // self.width, first + cells % self.width, z], np.int32)
