"""Which sequences run, in which slots, and how many of their tokens go into the next forward pass."""

from __future__ import annotations

from time import perf_counter

from edgespec.cancel import CancelFlag
from edgespec.core.prefix import common_prefix
from edgespec.core.sampler import Sampler
from edgespec.core.verify import VerifyRule
from edgespec.engine.sequence import Scheduled, Sequence, kind_of
from edgespec.llama.context import Context
from edgespec.llama.kernels import NARROW

LEAST_SHARED = 16  # tokens of a prompt that are worth waiting for
WIDE = NARROW + 1  # tokens of a pass from which on an exact context reads prompts


class Scheduler:
    """Sequences with a slot each. Passes that verify drafts have at most `most_rows` tokens.

    In an exact context a token's logits depend on its own sequence alone: what is generated never shares a pass with
    prompts, and these none with each other.
    """

    def __init__(self, context: Context, most_rows: int) -> None:
        self.context, self.most_rows = context, most_rows
        self.active: list[Sequence] = []
        self._free = list(range(context.sequences))

    @property
    def has_room(self) -> bool:
        """Whether another sequence can be added."""
        return bool(self._free)

    def add(
        self,
        tokens: list[int],
        sampler: Sampler,
        max_tokens: int,
        cancel: CancelFlag,
        *,
        rule: VerifyRule = "coupled",
        n_cached: int = 0,
    ) -> Sequence:
        """Admit a prompt of at least one token. `n_cached` tokens of it are in the cache of the free slot already."""
        room = self.context.n_ctx - len(tokens)
        kind = kind_of(rule, sampler.settings, is_constrained=sampler.constraint is not None)
        sequence = Sequence(self._free.pop(0), list(tokens), sampler, min(max_tokens, room), cancel, rule, kind)
        sequence.n_prompt = len(tokens)
        self.keep(sequence, min(n_cached, len(tokens) - 1))
        sequence.shares = self._shared_prompt(sequence)
        sequence.stats.prompt_tokens, sequence.stats.cached_tokens = len(tokens), sequence.n_decoded
        sequence.started_s = sequence.first_token_s = perf_counter()
        if sequence.max_tokens <= 0:
            sequence.finish = "length"
        self.active.append(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Give the slot back. The target's cache of it stays until the slot is used again."""
        self.active.remove(sequence)
        self._free.insert(0, sequence.slot)

    def schedule(self) -> list[Scheduled]:
        """What of each sequence goes into the next pass: those with little to decode first, long prompts fill up."""
        for sequence in self.active:
            if sequence.cancel.is_set() and sequence.finish is None:
                sequence.finish = "cancelled"
        going_on = [sequence for sequence in self.active if sequence.finish is None and not self._waits(sequence)]
        sequences = sorted(going_on, key=lambda sequence: len(sequence.tokens) - sequence.n_decoded)
        room = self.context.n_batch
        if self.context.exact and len(sequences) > 1:
            prefill = [sequence for sequence in sequences if sequence.is_prefill]
            sequences, room = (prefill[:1], room) if prefill else (sequences, self.most_rows)
        scheduled = []
        for sequence in sequences:
            n_left = len(sequence.tokens) - sequence.n_decoded
            n_pending = min(room, n_left)
            if self.context.exact and sequence.is_prefill and 0 < n_left - n_pending < WIDE:
                n_pending = n_left - WIDE  # so that the end of the prompt is read as the rest of it
            if n_pending:
                scheduled.append(Scheduled(sequence, n_pending, n_pending == n_left))
                room -= n_pending
        return scheduled

    def keep(self, sequence: Sequence, length: int) -> None:
        """Cut the slot's cache to `length` tokens, or to none when this memory cannot be cut."""
        if self.context.truncate(sequence.slot, length):
            sequence.n_decoded = length
        else:
            self.context.forget(sequence.slot)
            sequence.n_decoded = 0

    def reusable(self, n_shared: int, n_other: int, n_prompt: int) -> int:
        """How many of the first `n_shared` tokens of a prompt need not be decoded again where another prompt was that
        begins with them; `n_other` and `n_prompt` are their lengths.

        In an exact context they have to be the same bits: prompts are read in wide passes, with kernels that agree
        among themselves, or in a narrow one if they are short.
        """
        if not self.context.exact:
            return min(n_shared, n_prompt - 1)
        if (n_prompt < WIDE) != (n_other < WIDE):
            return 0
        return min(n_shared, n_prompt - (WIDE if n_prompt >= WIDE else 1))

    # --- prompts that begin alike ---------------------------------------------------------------------------------

    def _shared_prompt(self, sequence: Sequence) -> tuple[Sequence, int] | None:
        """The unfinished one of the sequences before it that begins with the same tokens, as a sample of one prompt."""
        if not self.context.model.can_roll_back:
            return None
        before = self.active[: self.active.index(sequence)] if sequence in self.active else self.active
        going_on = [other for other in before if other.finish is None]
        lengths = (
            (other, self.reusable(common_prefix(other.prompt, sequence.prompt), other.n_prompt, sequence.n_prompt))
            for other in going_on
        )
        other, length = max(lengths, key=lambda pair: pair[1], default=(sequence, 0))
        return (other, length) if length >= max(LEAST_SHARED, sequence.n_decoded + 1) else None

    def _waits(self, sequence: Sequence) -> bool:
        """Whether a prompt is still to be decoded by the sequence that shares it; takes it over once it is there."""
        if sequence.shares is None:
            return False
        other, length = sequence.shares
        if other.finish is None and other.n_decoded < length:
            return True
        if other.n_decoded < length:  # it ended too soon: perhaps another one has the same prompt
            sequence.shares = self._shared_prompt(sequence)
            return sequence.shares is not None
        sequence.shares = None
        if other in self.active:
            self.context.forget(sequence.slot)
            self.context.copy(other.slot, sequence.slot, 0, length)
            sequence.n_decoded = sequence.stats.cached_tokens = length
        return False
