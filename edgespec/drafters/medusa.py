"""A Medusa head (arXiv 2401.10774): a small network for each token of a draft, none told what the others drafted.

From the target's final state h after token P, network k predicts token P + k + 2: `output (h + down_k silu(up_k h))`.
So a step takes one product with the output rows for each network, whatever the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.core.sampling import FloatRow
from edgespec.drafters.hydra import HydraDrafter, product


class MedusaDrafter(HydraDrafter):
    """A `Network` whose `up` are float32[D, D]; it needs no norm."""

    name = "medusa"
    _state: FloatRow | None = None  # for which the rows were computed
    _rows: FloatRow

    def _predicted(self, state: FloatRow, tokens: Sequence[int]) -> FloatRow:
        if state is not self._state:
            net = self.network
            inner = [product(up, state) for up in net.up]
            states = [state + product(down, x / (1 + np.exp(-x))) for down, x in zip(net.down, inner, strict=True)]
            self._state, self._rows = state, np.stack([product(net.output, one) for one in states])
        drafted: FloatRow = self._rows[len(tokens) - 1]
        return drafted
