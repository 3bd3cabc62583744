"""A context whose kernels round to whole numbers at some widths or places of a batch, so that it can be noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.llama.context import Context


class CoarseContext(Context):
    """`is_coarse` says whether the row at an index of a batch of some width is rounded."""

    is_coarse: Callable[[int, int], bool] = staticmethod(lambda width, index: False)
    width = 0

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequence_ids: Sequence[tuple[int, ...]],
        wanted: Sequence[bool],
    ) -> None:
        self.width = len(tokens)
        super().decode(tokens, positions, sequence_ids, wanted)

    def logits(self, index: int) -> NDArray[np.float32]:
        row = super().logits(index)
        return np.round(row) if self.is_coarse(self.width, index) else row
