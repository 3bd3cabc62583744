"""Sequences and rounds: guess, decode everything in one target pass, verify, commit.

Between rounds the target's KV cache holds `tokens[:n_decoded]` of each sequence, and `n_decoded <= len(tokens) - 1`.
A round decodes `tokens[n_decoded:]` (at most a chunk of it) plus the draft; prompts, further turns and plain decoding
(the empty draft) are all this one path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from edgespec.cancel import CancelFlag
from edgespec.core.choose import Choice, Chooser
from edgespec.core.draft import Draft
from edgespec.core.stats import Stats
from edgespec.core.verify import Verdict, verify_coupled
from edgespec.drafters.base import Drafter
from edgespec.errors import GenerationError
from edgespec.events import FinishReason
from edgespec.llama.context import CacheFullError, CancelledError, Context

logger = logging.getLogger("edgespec.engine")


@dataclass(slots=True)
class Sequence:
    """One answer in the making. `tokens` is prompt and answer; `n_decoded` of them are in the KV cache of `slot`.

    `finish` is set when the sequence is over.
    """

    slot: int
    tokens: list[int]
    chooser: Chooser
    max_tokens: int
    cancel: CancelFlag
    stats: Stats = field(default_factory=Stats)
    n_decoded: int = 0
    n_prompt: int = 0
    drafts: bool = True
    finish: FinishReason | None = None
    started_s: float = 0.0
    first_token_s: float = 0.0

    @property
    def remaining(self) -> int:
        """How many tokens may still be generated."""
        return self.n_prompt + self.max_tokens - len(self.tokens)


@dataclass(frozen=True, slots=True)
class Emission:
    """What one round gave one sequence: the target's choices, the first `accepted` of them guessed by `source`."""

    sequence: Sequence
    choices: list[Choice]
    accepted: int
    source: str


@dataclass(slots=True)
class _Part:
    """A sequence's share of a batch: its next `n_pending` committed tokens, then the draft, from entry `start` on."""

    sequence: Sequence
    n_pending: int
    draft: Draft = field(default_factory=Draft.empty)
    start: int = 0

    @property
    def is_complete(self) -> bool:
        return self.sequence.n_decoded + self.n_pending == len(self.sequence.tokens)


class Engine:
    """Rounds over as many sequences as the target's context holds, with one drafter or none."""

    def __init__(
        self,
        context: Context,
        *,
        drafter: Drafter | None = None,
        draft_n_max: int = 0,
        warn: Callable[[str], None] = logger.warning,
    ) -> None:
        self.context, self.drafter, self.draft_n_max, self.warn = context, drafter, draft_n_max, warn
        self._free = list(range(context.sequences))
        self.active: list[Sequence] = []

    @property
    def has_room(self) -> bool:
        """Whether another sequence can be started."""
        return bool(self._free)

    def start(
        self, tokens: list[int], chooser: Chooser, max_tokens: int, cancel: CancelFlag, *, n_decoded: int = 0
    ) -> Sequence:
        """Admit a prompt of at least one token. `n_decoded` tokens of it are in the cache of the free slot already."""
        room = self.context.n_ctx - len(tokens)
        sequence = Sequence(self._free.pop(0), list(tokens), chooser, min(max_tokens, room), cancel)
        sequence.n_prompt = len(tokens)
        self._keep(sequence, min(n_decoded, len(tokens) - 1))
        sequence.stats.prompt_tokens, sequence.stats.cached_tokens = len(tokens), sequence.n_decoded
        sequence.started_s = sequence.first_token_s = perf_counter()
        if sequence.max_tokens <= 0:
            sequence.finish = "length"
        self.active.append(sequence)
        return sequence

    def end(self, sequence: Sequence) -> None:
        """Give the slot back. The target's cache of it stays until the slot is used again."""
        self.active.remove(sequence)
        self._free.insert(0, sequence.slot)

    def round(self) -> list[Emission]:
        """One target pass for all unfinished sequences. Raises GenerationError when the native library fails."""
        for sequence in self.active:
            if sequence.cancel.is_set() and sequence.finish is None:
                sequence.finish = "cancelled"
        sequences = [sequence for sequence in self.active if sequence.finish is None]
        if not sequences:
            return []
        parts = self._share(sequences)
        try:
            self._propose(parts)
            self._decode(parts)
        except CancelledError:
            self._cancel(sequences)
            return []
        except CacheFullError:
            for sequence in sequences:
                sequence.finish = "length"
            return []
        return [self._commit(part, self._verify(part)) for part in parts if part.is_complete]

    # --- propose --------------------------------------------------------------------------------------------------

    def _share(self, sequences: list[Sequence]) -> list[_Part]:
        """What of each sequence goes into the next batch: those with little to decode first, long prompts fill up."""
        room, parts = self.context.n_batch, []
        for sequence in sorted(sequences, key=lambda s: len(s.tokens) - s.n_decoded):
            n_pending = min(room, len(sequence.tokens) - sequence.n_decoded)
            if n_pending:
                parts.append(_Part(sequence, n_pending))
                room -= n_pending
        return parts

    def _propose(self, parts: list[_Part]) -> None:
        """Give each part a draft where one is wanted and fits into the batch."""
        asked = [part for part in parts if self._wanted(part) > 0]
        if self.drafter is None or not asked:
            return
        room = self.context.n_batch - sum(part.n_pending for part in parts)
        budgets = [min(self._wanted(part), room // len(asked)) for part in asked]
        started_s = perf_counter()
        try:
            drafts = self.drafter.propose([part.sequence for part in asked], budgets)
            for part, draft, budget in zip(asked, drafts, budgets, strict=True):
                part.draft = self._checked(draft, budget)
        except CancelledError:
            raise
        except Exception as error:  # whatever a drafter does, the answer goes on without it
            logger.debug("drafter failed", exc_info=True)
            self.warn(f"drafting is switched off for this answer: {self.drafter.name} failed ({error!r})")
            for part in parts:
                part.sequence.drafts, part.draft = False, Draft.empty()
        for part in asked:
            part.sequence.stats.draft_s += (perf_counter() - started_s) / len(asked)

    def _wanted(self, part: _Part) -> int:
        """How many tokens are worth guessing now: none while the prompt is decoded, else what has room."""
        sequence = part.sequence
        if not sequence.drafts or part.n_pending > 1 or not part.is_complete:
            return 0
        return max(0, min(self.draft_n_max, sequence.remaining - 1, self.context.n_ctx - len(sequence.tokens)))

    def _checked(self, draft: Draft, budget: int) -> Draft:
        """A draft that can be decoded, or ValueError."""
        n_vocab = self.context.model.n_vocab
        if len(draft) > budget or any(not 0 <= token < n_vocab for token in draft.tokens):
            raise ValueError(f"it proposed {len(draft)} tokens for a budget of {budget}, or ids outside the vocabulary")
        return draft

    # --- decode ---------------------------------------------------------------------------------------------------

    def _decode(self, parts: list[_Part]) -> None:
        """One target pass over all parts. Raises CacheFullError when not even their committed tokens have room."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[tuple[int, ...]] = []
        wanted: list[bool] = []
        for part in parts:
            sequence, width = part.sequence, part.n_pending + len(part.draft)
            part.start = len(tokens)
            tokens += sequence.tokens[sequence.n_decoded : sequence.n_decoded + part.n_pending]
            tokens += part.draft.tokens.tolist()
            positions += range(sequence.n_decoded, sequence.n_decoded + width)
            slots += [(sequence.slot,)] * width
            wanted += [False] * (part.n_pending - 1) + [part.is_complete] * (1 + len(part.draft))
        started_s = perf_counter()
        try:
            self.context.decode(tokens, positions, slots, wanted)
        except CacheFullError:
            if not any(len(part.draft) for part in parts):
                raise
            for part in parts:
                part.draft = Draft.empty()
            self._decode(parts)
            return
        for part in parts:
            sequence = part.sequence
            if len(sequence.tokens) > sequence.n_prompt:
                sequence.stats.target_s += (perf_counter() - started_s) / len(parts)
            if not part.is_complete:
                sequence.n_decoded += part.n_pending

    # --- verify and commit ----------------------------------------------------------------------------------------

    def _verify(self, part: _Part) -> Verdict:
        sequence = part.sequence
        last = part.start + part.n_pending - 1

        def ends(choice: Choice) -> bool:
            return self.context.model.is_end(choice.id)

        try:
            return verify_coupled(
                part.draft,
                lambda node: self.context.logits(last + 1 + node),
                sequence.chooser.choose,
                sequence.tokens,
                len(sequence.tokens),
                ends,
            )
        except ValueError as error:  # a row of NaN: broken weights, or a kernel that overflowed
            raise GenerationError("cannot choose a token", why=str(error)) from error

    def _commit(self, part: _Part, verdict: Verdict) -> Emission:
        sequence, now_s = part.sequence, perf_counter()
        if len(sequence.tokens) == sequence.n_prompt:
            sequence.stats.prompt_s = now_s - sequence.started_s
            sequence.first_token_s = now_s
        sequence.tokens += [choice.id for choice in verdict.choices]
        self._keep(sequence, len(sequence.tokens) - 1)
        sequence.stats.count_round(len(part.draft), len(verdict.path), len(verdict.choices))
        sequence.stats.generation_s = perf_counter() - sequence.first_token_s
        if self.context.model.is_end(verdict.choices[-1].id):
            sequence.finish = "stop"
        elif sequence.remaining <= 0:
            sequence.finish = "length"
        return Emission(sequence, verdict.choices, len(verdict.path), part.draft.source)

    def _cancel(self, sequences: list[Sequence]) -> None:
        """After an aborted decode: back to what is known to be in the cache, and say who asked to stop."""
        for sequence in sequences:
            self._keep(sequence, sequence.n_decoded)
            if sequence.cancel.is_set():
                sequence.finish = "cancelled"

    def _keep(self, sequence: Sequence, length: int) -> None:
        """Cut the slot's cache to `length` tokens, or to none when this memory cannot be cut."""
        if self.context.truncate(sequence.slot, length):
            sequence.n_decoded = length
        else:
            self.context.forget(sequence.slot)
            sequence.n_decoded = 0
