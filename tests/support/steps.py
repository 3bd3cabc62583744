"""The scheduler over a context without a model, and texts for it."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

from fake_context import FakeContext

from edgespec.cancel import CancelFlag
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.engine.scheduler import Scheduler
from edgespec.engine.sequence import Reuse, Scheduled, Sequence
from edgespec.engine.slots import Slots

SAMPLER = Sampler(SamplingSettings(), 0, 0, 1000)


class Steps:
    """A scheduler over a fake context; what is generated are numbers that come once."""

    def __init__(self, cache_bytes: int = 0, **context: Any) -> None:
        self.context = FakeContext(**context)
        self.slots = Slots(cast(Any, self.context), cache_bytes)
        self.scheduler = Scheduler(self.slots, 64)
        self._news = count(10**6)

    def add(
        self, tokens: list[int], n: int = 4, *, reuse: Reuse = "all", cancel: Any = None, adapters: Any = ()
    ) -> Sequence:
        sequence = Sequence([*tokens], SAMPLER, n, cancel or CancelFlag(), reuse=reuse, adapters=adapters)
        self.scheduler.add(sequence)
        self.scheduler.admit()
        return sequence

    def step(self) -> None:
        self.scheduler.admit()
        self.run_pass(self.scheduler.schedule())

    def run_pass(self, scheduled: list[Scheduled]) -> None:
        assert len({part.sequence.adapters for part in scheduled}) <= 1  # a pass has one set
        for part in scheduled:
            sequence = part.sequence
            pending = sequence.tokens[sequence.n_decoded : sequence.n_decoded + part.n_pending]
            self.context.decode(sequence.slot, pending)
            sequence.n_decoded += part.n_pending
            assert self.context.held[sequence.slot] == sequence.tokens[: sequence.n_decoded]
            if part.is_complete:
                sequence.tokens.append(next(self._news))
                sequence.stats.rounds += 1
                sequence.finish = "length" if sequence.remaining <= 0 else None
            elif sequence.n_decoded == len(sequence.tokens):  # it may not generate
                sequence.finish = "length"

    def run(self) -> None:
        """All that is there to its end."""
        while self.scheduler.active or self.scheduler.waiting:
            self.step()
            for sequence in self.scheduler.finished():
                self.scheduler.remove(sequence)

    def answer(self, tokens: list[int], n: int = 4, *, reuse: Reuse = "all", adapters: Any = ()) -> Sequence:
        sequence = self.add(tokens, n, reuse=reuse, adapters=adapters)
        self.run()
        return sequence


def text(n: int, seed: int = 0) -> list[int]:
    return [seed * 1000 + place for place in range(n)]
