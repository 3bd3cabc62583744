"""Overlapped drafting: while the target verifies a draft on one device, the draft model starts the next one on another.

The drafter assumes that the target accepts the whole draft and then chooses the token that the draft model finds most
likely. If so, the next draft continues from there; otherwise the added cells are removed from the cache. In both cases
a draft has the same tokens as without overlapping: they are computed from the same rows and the same noise, only
earlier. So overlapping changes no text, under any verification rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from math import inf
from threading import Event
from time import perf_counter

from edgespec.core.distribution import Distribution
from edgespec.core.draft import Draft
from edgespec.core.noise import NoiseStream
from edgespec.core.sampler import Sampler
from edgespec.drafters.base import Budget, DraftContext
from edgespec.drafters.decoding import DecodingContext
from edgespec.drafters.model import Growth, ModelDrafter
from edgespec.drafters.translation import Translation
from edgespec.drafters.tree import ROOT

GAIN = 1 / 4  # weight of a new measurement in the mean
FORGET = 0.9  # shrinks the assumed time of a pass that seemed too slow to start: otherwise it is never measured again


@dataclass(slots=True)
class _Assumed:
    """A sequence as it will be if its draft is accepted."""

    slot: int
    tokens: list[int]
    sampler: Sampler
    draws: bool
    is_draft_invariant: bool
    round: int


class OverlappedDrafter(ModelDrafter):
    """Drafts chains. While the target verifies a chain, a thread drafts the next: as many tokens, or as there is time
    for.

    The thread works between `verifying` and `settle` only, when nothing else uses the drafter, so its context never has
    two users. The executor `thread` must run one task at a time.
    """

    def __init__(
        self,
        context: DecodingContext,
        name: str = "draft",
        translation: Translation | None = None,
        thread: Executor | None = None,
    ) -> None:
        super().__init__(context, 1, name, translation)
        context.fingerprint |= {"overlapped": True}  # passes are slower side by side: keep these measurements apart
        self._thread = thread or ThreadPoolExecutor(1, "edgespec-overlap")
        self._is_over = Event()
        self._work: Future[None] | None = None
        self._ahead: Growth | None = None
        self._started_s = self._pass_s = 0.0
        self._target_s = dict[int, float]()  # time of the target's pass by the length of the draft
        self._length = 0

    def verifying(self, sequence: DraftContext, draft: Draft) -> bool:
        last = self._slots[sequence.slot].grown
        if last is None or self._is_end(draft.tokens[-1]):
            return False
        tokens, sampler = sequence.tokens + draft.tokens, sequence.sampler
        assumed = _Assumed(sequence.slot, tokens, sampler, sequence.draws, sequence.is_draft_invariant, sequence.round)
        self._is_over.clear()
        self._ahead, self._length, self._started_s = None, len(draft), perf_counter()
        self._work = self._thread.submit(self._draft_on, assumed, last)
        return True

    def settle(self) -> bool:
        if self._work is None:
            return False
        if not self._is_over.is_set():
            self._is_over.set()
            took_s = perf_counter() - self._started_s
            known_s = self._target_s.setdefault(self._length, took_s)
            self._target_s[self._length] += GAIN * (took_s - known_s)
        try:
            wait([self._work])
        finally:
            # Wait again: Ctrl-C may have interrupted the first wait, and the next pass must not share the context.
            wait([self._work])
        work, self._work = self._work, None
        work.result()
        return self._ahead is not None

    def close(self) -> None:
        self._is_over.set()
        self._thread.shutdown()

    def begin(self, sequence: DraftContext) -> None:
        self.settle()
        self._ahead = None
        super().begin(sequence)

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        self.settle()
        return super().propose(sequences, budgets)

    def forget(self) -> None:
        self.settle()
        self._ahead = None
        super().forget()

    def _growth(self, sequence: DraftContext, budget: Budget) -> Growth:
        """Return the draft that was started ahead, if it is for this text and this step."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or not ahead.tree.tokens or not budget.tokens:
            return super()._growth(sequence, budget)
        assumed = ahead.sequence
        if (assumed.slot, assumed.round) != (sequence.slot, sequence.round) or assumed.tokens != sequence.tokens:
            return super()._growth(sequence, budget)
        ahead.slot.hold(self._text(sequence))
        ahead.sequence = sequence
        ahead.tree.go_on(budget)
        self.overlapped += 1
        return ahead

    # --- in the thread --------------------------------------------------------------------------------------------

    def has_time(self, passes: int = 1) -> bool:
        """Return whether this number of passes is likely to end before the target's pass: waiting for an unused draft
        costs time."""
        until_s = self._started_s + self._target_s.get(self._length, inf)
        return not self._is_over.is_set() and perf_counter() + passes * self._pass_s <= until_s

    def _draft_on(self, assumed: _Assumed, last: Growth) -> None:
        """Draft after the draft and the token expected there.

        To the other methods this is a longer path after the accepted tokens. `last` is the growth to compare the text
        with.
        """
        slot, started_s, n_passes = last.slot, perf_counter(), self.passes
        mark = slot.mark()
        try:
            token = self._expected(assumed, last.tree.tokens)
            if token is None or self._is_end(token) or not self.has_time():
                return
            assumed.tokens.append(token)
            assumed.round += 1
            budget = self._fitting(assumed, Budget(self._length, worth=lambda reaches, last: self.has_time()))
            if budget.tokens:
                growth = self._growth(assumed, budget)
                self._draft([growth])
                self._ahead = growth
        finally:
            if passes := self.passes - n_passes:
                took_s = (perf_counter() - started_s) / passes
                self._pass_s += GAIN * (took_s - self._pass_s) if self._pass_s else took_s
            else:
                self._pass_s *= FORGET
            slot.rewind(mark)

    def _expected(self, assumed: _Assumed, drafted: list[int]) -> int | None:
        """Return the target's most likely choice after the draft.

        This is the next one of the `drafted` tokens if the draft was cut; otherwise the draft model's own choice, with
        the noise that the target will use there.
        """
        if len(drafted) > self._length:
            return drafted[self._length]
        budget = self._fitting(assumed, Budget(1))
        if not budget.tokens or not self.has_time(2):
            return None
        growth = self._growth(replace(assumed, draws=False), budget)
        self._draft([growth])
        if not growth.tree.tokens or assumed.is_draft_invariant:
            return next(iter(growth.tree.tokens), None)
        sampler = assumed.sampler
        tokens = assumed.tokens if sampler.reads_prefix else []
        adjusted = sampler.adjusted(self._row(growth, ROOT, -1)[: sampler.n_vocab], tokens)
        distribution = Distribution.of(sampler.candidates(adjusted, len(assumed.tokens)))
        return sampler.draw(distribution, len(assumed.tokens), NoiseStream.RESIDUAL, assumed.round)
