"""The scheduler: it decides which sequences take part in the next forward pass, and with which tokens."""

from __future__ import annotations

from collections import deque
from time import perf_counter

from edgespec.core.exactness import SCORED
from edgespec.engine.reading import LEAST, ReadingCosts
from edgespec.engine.sequence import Scheduled, Sequence
from edgespec.engine.slots import Slots
from edgespec.engine.turns import Turns


class Scheduler:
    """The waiting sequences and the `active` ones, which have a slot each.

    Passes that verify drafts have at most `most_rows` tokens.

    In an exact context each sequence has its own part of the KV cache, and llama.cpp computes those with different
    numbers of tokens one after the other. Generated tokens therefore never share a pass with prompts, and prompts never
    share a pass with each other. While some sequences generate, their passes alternate with passes that read a piece of
    one prompt. In any context an image shares no pass, and neither does a prompt whose log probabilities are wanted.
    """

    def __init__(self, slots: Slots, most_rows: int) -> None:
        self.slots, self.context, self.most_rows = slots, slots.context, most_rows
        self.active: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.costs = ReadingCosts()
        self._n_read = self._n_others = 0  # tokens of the last pass: of prompts, and all others
        self._held_up = 0  # tokens of prompts read since the last pass with generated tokens
        self._turns = Turns()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, whose prompt has at least one token, until a slot is free.

        A sequence that may not generate any token is read into the KV cache, if a later prompt may use it or its log
        probabilities are wanted; otherwise it is finished at once and needs no slot.
        """
        sequence.n_prompt = sequence.stats.prompt_tokens = len(sequence.tokens)
        is_read = sequence.reuse == "all" or sequence.is_scoring
        is_kept = is_read and sequence.n_prompt < self.context.n_ctx
        sequence.max_tokens = min(sequence.max_tokens, self.context.n_ctx - sequence.n_prompt)
        if sequence.max_tokens < 0 or (sequence.max_tokens == 0 and not is_kept):
            sequence.finish = "length"
        self.waiting.append(sequence)

    def admit(self) -> list[Sequence]:
        """Give free slots to the waiting sequences, first come first served; returns those that got one."""
        if not self.waiting:  # as in most steps; `schedule` looks for cancelled ones, too
            return []
        self.mark_cancelled()
        n_free = len(self.slots.all) - len(self.active)
        admitted = [sequence for sequence in self.waiting if sequence.finish is None][:n_free]
        for sequence in admitted:
            self.waiting.remove(sequence)
            sequence.started_s = sequence.first_token_s = perf_counter()
            self.slots.place(sequence)
            sequence.shares = self._shared_prompt(sequence)
            self.active.append(sequence)
        return admitted

    def remove(self, sequence: Sequence) -> None:
        """Free the slot of a sequence, or its place in the queue."""
        if sequence not in self.active:
            self.waiting.remove(sequence)
            return
        self.active.remove(sequence)
        self.slots.release(sequence)

    def mark_cancelled(self) -> None:
        """Finish the sequences whose cancel flag is set."""
        for sequence in (*self.active, *self.waiting):
            if sequence.cancel.is_set() and sequence.finish is None:
                sequence.finish = "cancelled"

    def finished(self) -> list[Sequence]:
        """Return the sequences that are finished but not removed yet."""
        return [sequence for sequence in (*self.active, *self.waiting) if sequence.finish is not None]

    # --- passes ---------------------------------------------------------------------------------------------------

    def schedule(self) -> list[Scheduled]:
        """Choose the tokens of each sequence that go into the next pass.

        Sequences with few tokens to decode come first, and among them those with the fewest steps, so that each
        gets its turn even if a pass has no room for all. Prompts fill the remaining room. While other sequences
        generate, only a small piece of a prompt is read at a time, so that reading does not stall them. In an exact
        context with several sequences, a pass has either a piece of one prompt or generated tokens.
        """
        self.mark_cancelled()
        for sequence in self.active:
            self.slots.mark(sequence)
        going_on = [sequence for sequence in self.active if sequence.finish is None and not self._waits(sequence)]
        sequences = sorted(self._turns.next_of(going_on), key=lambda one: (len(one.tokens) - one.n_decoded, one.round))
        prompts = [sequence for sequence in sequences if sequence.is_prefill]
        generating = [sequence for sequence in sequences if not sequence.is_prefill]
        room = self.context.n_batch
        most = min(room, self.costs.most) if generating else room
        # Apart: either one piece of one prompt or all generated tokens, never both. Reading goes first until about
        # `most` tokens of prompts were read since the last pass with generated tokens.
        are_apart = self.context.exact and len(sequences) > 1
        if are_apart or any(one.is_at_image or one.is_scoring for one in prompts):
            piece = max(LEAST, self._piece(prompts[0], most)) if prompts else 0
            reads = piece and (not generating or not self._held_up or self._held_up + piece <= most)
            sequences, room = (prompts[:1], room) if reads else (generating, self.most_rows)
        scheduled = []
        self._n_read = self._n_others = 0
        for sequence in sequences:
            n_left = len(sequence.tokens) - sequence.n_decoded
            if sequence.is_prefill:
                n_pending = self._piece(sequence, min(room, most - self._n_read))
                self._n_read += n_pending
            else:
                n_pending = min(room, n_left)
                self._n_others += n_pending
            if n_pending:
                is_complete = n_pending == n_left and sequence.max_tokens > 0 and not sequence.is_scoring
                scheduled.append(Scheduled(sequence, n_pending, is_complete))
                room -= n_pending
        if self._n_others:
            self._held_up = 0
        elif generating:
            self._held_up += max(LEAST, self._n_read)
        return scheduled

    def _piece(self, sequence: Sequence, most: int) -> int:
        """Return how many tokens of a prompt to read now, at most up to its next checkpoint. An image is one piece."""
        at = sequence.n_decoded
        _, end = sequence.part_at(at)
        if sequence.is_at_image:
            return end - at
        n_left = min([end, *sequence.stops[:1]]) - at
        return max(0, min(n_left, SCORED if sequence.is_scoring else most))

    def observe(self, seconds: float) -> None:
        """Record the time of the last pass."""
        self.costs.observe(self._n_read, self._n_others, seconds)

    # --- prompts that begin alike ---------------------------------------------------------------------------------

    def _shared_prompt(self, sequence: Sequence) -> tuple[Sequence, int] | None:
        """Return an earlier, unfinished sequence that reads the same tokens, such as another sample of one prompt, and
        these tokens."""
        before = self.active[: self.active.index(sequence)] if sequence in self.active else self.active
        slots = [self.slots.of(other) for other in before if other.finish is None]
        slot, length = self.slots.longest_of(sequence, slots)
        if slot.running is None or length < sequence.n_decoded + self.slots.least_copied:
            return None
        return slot.running, length

    def _waits(self, sequence: Sequence) -> bool:
        """Return whether another sequence must first decode the shared prompt; if it has, copy its cells."""
        while sequence.shares is not None:
            other, length = sequence.shares
            slot = self.slots.of(other)
            is_going_on = slot.running is other and other.finish is None
            if is_going_on and other.n_decoded < length:
                return True
            if not is_going_on or not self.slots.are_cuttable:
                length = self.slots.prefix(sequence, slot)
            if length > sequence.n_decoded and slot.running in (other, None):
                self.slots.begin(sequence, slot, length)
            # If the other sequence ended too soon, a third one may have more of the prompt.
            sequence.shares = None if is_going_on else self._shared_prompt(sequence)
        return False
