"""A Medusa head (arXiv 2401.10774): one small network per draft token; none of them reads the drafted tokens.

From the target's final state h after token P, network k predicts token P + k + 2: `output (h + down_k silu(up_k h))`.
So each network runs once per draft, however wide the tree is.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.core.sampling import FloatRow
from edgespec.drafters.hydra import HydraDrafter


class MedusaDrafter(HydraDrafter):
    """Drafts with a Medusa head: a `Network` whose `up` are float32[D, D], without a norm."""

    name = "medusa"
    _state: FloatRow | None = None  # the state of the last call
    _rows: dict[int, FloatRow]

    def _predicted(self, state: FloatRow, tokens: Sequence[int]) -> FloatRow:
        if state is not self._state:
            self._state, self._rows = state, {}
        k = len(tokens) - 1
        if k not in self._rows:
            self._rows[k] = self.network.predicted(k, state, state)
        return self._rows[k]
