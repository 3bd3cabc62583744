"""A target context without a model, for tests of the scheduler: it knows which tokens each sequence id holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


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

    @property
    def model(self) -> Any:
        return SimpleNamespace(can_roll_back=self.can_roll_back)

    def decode(self, sequence: int, tokens: Sequence[int]) -> None:
        self.held.setdefault(sequence, []).extend(tokens)
        self.n_decoded += len(tokens)

    def truncate(self, sequence: int, length: int) -> bool:
        if not self.can_roll_back and length > 0:
            return False
        del self.held.setdefault(sequence, [])[length:]
        return True

    def forget(self, sequence: int) -> None:
        self.held[sequence] = []

    def copy(self, source: int, destination: int, start: int = 0, end: int = -1) -> None:
        assert start == 0 and end <= len(self.held[source])
        self.held[destination] = self.held[source][:end]
