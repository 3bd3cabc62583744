"""Turns of sequences that use different sets of LoRA adapters: a pass has one set."""

from __future__ import annotations

from edgespec.engine.sequence import Sequence
from edgespec.llama.adapters import AdapterSet

TURN = 16  # passes with one set while other sets wait: llama.cpp reserves its buffers again for each set


class Turns:
    """Chooses the set of adapters for each pass. After `TURN` passes the next set follows, so that no sequence waits
    for the end of another answer."""

    def __init__(self) -> None:
        self._sets: list[AdapterSet] = []  # first the one that passes have now
        self._n_passes = 0  # of this turn

    def next_of(self, sequences: list[Sequence]) -> list[Sequence]:
        """Return the sequences that can share the next pass."""
        asked = dict.fromkeys(sequence.adapters for sequence in sequences)
        self._sets = [*filter(asked.__contains__, self._sets), *(one for one in asked if one not in self._sets)]
        if len(self._sets) > 1 and self._n_passes >= TURN:
            self._sets.append(self._sets.pop(0))
            self._n_passes = 0
        self._n_passes += 1
        return [sequence for sequence in sequences if sequence.adapters == self._sets[0]]
