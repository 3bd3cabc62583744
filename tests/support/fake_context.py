"""A target context without a model, for tests of the scheduler: it knows which tokens each sequence id holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class FakeContext:
    """`held` are the tokens of each sequence id; `n_decoded` counts those that went through `decode`."""

    sequences: int = 2
    n_ctx: int = 1024
    n_batch: int = 512
    exact: bool = False
    can_roll_back: bool = True
    streams: bool = False
    n_decoded: int = 0
    held: dict[int, list[int]] = field(default_factory=dict)
    default_adapters: tuple[tuple[int, float], ...] = ()

    @property
    def model(self) -> Any:
        return SimpleNamespace(
            can_roll_back=self.can_roll_back, is_offloaded=False, n_params=10**10, is_end=lambda token: False
        )

    def decode(self, sequence: int, tokens: Sequence[int]) -> None:
        self.held.setdefault(sequence, []).extend(tokens)
        self.n_decoded += len(tokens)

    def truncate(self, sequence: int, length: int) -> bool:
        if not self.can_roll_back and 0 < length < self.length(sequence):
            return False
        del self.held.setdefault(sequence, [])[length:]
        return True

    def length(self, sequence: int) -> int:
        return len(self.held.get(sequence, []))

    def saved_bytes(self, sequence: int, *, partial: bool = False) -> int:
        return 4 * self.length(sequence)

    def save(self, sequence: int, *, partial: bool = False) -> NDArray[np.uint8]:
        return np.array(self.held[sequence], np.int32).view(np.uint8)

    def restore(self, sequence: int, state: NDArray[np.uint8], *, partial: bool = False) -> bool:
        held: list[int] = state.view(np.int32).tolist()
        assert not partial or self.held[sequence][: len(held)] == held
        self.held[sequence] = held
        return True

    def forget(self, sequence: int) -> None:
        self.held[sequence] = []

    def copy(self, source: int, destination: int, start: int = 0, end: int = -1) -> None:
        assert start == 0 and end <= len(self.held[source])
        self.held[destination] = self.held[source][:end]
