"""A Medusa head (arXiv 2401.10774): a small network for each token of a draft, none told what the others drafted.

From the target's final state h after token P, network k predicts token P + k + 2: `output (h + down_k silu(up_k h))`.
So each is asked once, however wide the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.core.sampling import FloatRow
from edgespec.drafters.hydra import HydraDrafter


class MedusaDrafter(HydraDrafter):
    """A `Network` whose `up` are float32[D, D]; it needs no norm."""

    name = "medusa"
    _state: FloatRow | None = None  # that was asked about last
    _rows: dict[int, FloatRow]

    def _predicted(self, state: FloatRow, tokens: Sequence[int]) -> FloatRow:
        if state is not self._state:
            self._state, self._rows = state, {}
        k = len(tokens) - 1
        if k not in self._rows:
            self._rows[k] = self.network.predicted(k, state, state)
        return self._rows[k]
