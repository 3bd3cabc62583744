"""The scheduler: it gives slots to sequences and decides which tokens go into the next forward pass."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any

from edgespec.core.exactness import SCORED
from edgespec.engine.prefix_cache import PrefixCache, Saved, cut
from edgespec.engine.reading import LEAST, WIDE, ReadingCosts
from edgespec.engine.sequence import NO_SLOT, Scheduled, Sequence, State
from edgespec.engine.slots import LEFT_OUT, Slot
from edgespec.engine.turns import Turns
from edgespec.llama.context import Context

LEAST_SHARED = 16  # tokens of a prompt that are worth sharing with a running sequence
BETWEEN_STOPS = 2 * WIDE  # least tokens of a prompt to read before the next checkpoint


class Scheduler:
    """The waiting sequences and the `active` ones, which have a slot each.

    Passes that verify drafts have at most `most_rows` tokens. Passes are padded to `least_width` tokens, and rows with
    and without drafts attend to the same number of cells; 0 means neither. When a slot is reused, its content may be
    saved in up to `cache_bytes` of main memory.

    In an exact context each sequence has its own part of the KV cache, and llama.cpp computes those with different
    numbers of tokens one after the other. Generated tokens therefore never share a pass with prompts, and prompts never
    share a pass with each other. While some sequences generate, their passes alternate with passes that read a piece of
    one prompt. In any context an image has passes of its own, and so has a prompt whose log probabilities are wanted.
    """

    def __init__(self, context: Context, most_rows: int, cache_bytes: int = 0, least_width: int = 0) -> None:
        self.context, self.most_rows, self.least_width = context, most_rows, least_width
        self.active: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.slots = [Slot(number) for number in range(context.sequences)]
        self.cache = PrefixCache(context, self.slots, cache_bytes)
        self.costs = ReadingCosts()
        self._n_read = self._n_others = 0  # tokens of the last pass: of prompts, and all others
        self._held_up = 0  # tokens of prompts read since the last pass with generated tokens
        self._uses = 0
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
        n_free = len(self.slots) - len(self.active)
        admitted = [sequence for sequence in self.waiting if sequence.finish is None][:n_free]
        for sequence in admitted:
            self.waiting.remove(sequence)
            self._place(sequence)
            self.active.append(sequence)
        return admitted

    def remove(self, sequence: Sequence) -> None:
        """Free the slot of a sequence, or its place in the queue.

        The KV cache keeps the tokens of the sequence until the slot is reused, so that a later prompt can start from
        them.
        """
        if sequence not in self.active:
            self.waiting.remove(sequence)
            return
        self.active.remove(sequence)
        slot = self.slots[sequence.slot]
        slot.running, slot.tokens = None, sequence.tokens[: sequence.n_decoded]
        self._uses += 1
        slot.last_use = self._uses
        if sequence.stats.rounds and sequence.stats.cached_tokens < sequence.n_prompt // 2:
            self.cache.observe_read(sequence.n_prompt - sequence.stats.cached_tokens, sequence.stats.prompt_s)
        if not slot.tokens:
            slot.clear()

    def mark_cancelled(self) -> None:
        """Finish the sequences whose cancel flag is set."""
        for sequence in (*self.active, *self.waiting):
            if sequence.cancel.is_set() and sequence.finish is None:
                sequence.finish = "cancelled"

    def finished(self) -> list[Sequence]:
        """Return the sequences that are finished but not removed yet."""
        return [sequence for sequence in (*self.active, *self.waiting) if sequence.finish is not None]

    def describe(self) -> list[dict[str, Any]]:
        """Return the content and the activity of each slot as plain data."""
        return [
            {
                "id": slot.number,
                "is_processing": slot.running is not None,
                "n_tokens": len(slot.tokens),
                "n_prompt": slot.running.n_prompt if slot.running else 0,
                "n_decoded": slot.running.stats.generated_tokens if slot.running else 0,
            }
            for slot in self.slots
        ]

    def forget(self) -> None:
        """Forget all cached tokens, because the cache was used for something else or must not be reused."""
        self.cache.clear()
        for slot in self.slots:
            slot.clear()

    # --- states exchanged with other processes ---------------------------------------------------------------------

    def held(self, tokens: list[int]) -> tuple[Slot, State | None]:
        """Return the idle slot, or the saved slot with its state, that has the longest beginning in common with a
        text. Only the default set of adapters counts."""
        adapters = self.context.default_adapters
        found: list[tuple[Slot, State | None]] = [(Slot(NO_SLOT), None)]
        found += [(slot, None) for slot in self.slots if slot.running is None and self.cache.is_known(slot)]
        if saved := self.cache.holds(tokens, adapters):
            found.append((saved.slot, saved.state))
        return max(found, key=lambda one: one[0].common(tokens, adapters))

    def longest(self, prompt: list[int]) -> int:
        """Return how many tokens of a chat's next prompt are cached and need not be read."""
        adapters = self.context.default_adapters
        saved = self.cache.holds(prompt, adapters)
        slots = [*self.slots, *([saved.slot] if saved else [])]
        return max(slot.prefix(prompt, adapters, cuttable=self._cuttable) for slot in slots)

    def take_in(self, held: Slot, state: State) -> bool:
        """Load a state of another process into a slot. Returns False if no slot is free, or the state does not fit."""
        free = [slot for slot in self.slots if slot.running is None]
        if not free:
            return False
        slot = min(free, key=lambda slot: slot.last_use)
        self.cache.save(slot, 0, slot)
        # Clear the slot first: if restoring fails half-way, nothing may trust what the cache holds.
        slot.clear()
        self.context.forget(slot.number)
        if not self.context.restore(slot.number, state) or self.context.length(slot.number) != len(held.tokens):
            self.context.forget(slot.number)
            return False
        slot.tokens, slot.n_prompt = held.tokens, held.n_prompt
        slot.checkpoints, slot.adapters = held.checkpoints, self.context.default_adapters
        self._uses += 1
        slot.last_use = self._uses
        return True

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
            self._mark(sequence)
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

    def keep(self, sequence: Sequence, length: int) -> None:
        """Cut the slot's cache to `length` tokens; a memory that cannot be cut goes back to a checkpoint, or is
        emptied."""
        slot = self.slots[sequence.slot]
        if self.context.truncate(slot.number, length):  # the usual case, and a quick one
            sequence.n_decoded = length
            return
        places = sorted((place for place in slot.checkpoints if place <= length), reverse=True)
        sequence.n_decoded = next((place for place in places if cut(self.context, slot, place)), 0)
        if not sequence.n_decoded:
            self.context.forget(slot.number)

    # --- prompts that begin alike ---------------------------------------------------------------------------------

    def _place(self, sequence: Sequence) -> None:
        """Choose a slot for a sequence and fill it with the longest cached prefix of the prompt.

        The slot that holds this prefix is used if the prompt repeats all prompt tokens of this slot, so that at most an
        old answer is discarded. Otherwise the least recently used free slot gets a copy. If a running sequence is still
        reading a longer part of the same prompt, the new sequence waits for it. If a longer part was saved in main
        memory, it is restored.
        """
        sequence.started_s = sequence.first_token_s = perf_counter()
        shared = self.cache.shared(sequence.prompt, sequence.adapters)
        free = [slot for slot in self.slots if slot.running is None]
        slot = min(free, key=lambda slot: slot.last_use)
        source, length = self._longest(sequence, free)
        found = None
        if sequence.reuse == "all":
            found = self.cache.find(sequence.prompt, length, sequence.adapters)
        if source.is_repeated_in(sequence.prompt, sequence.adapters):
            slot = source
        elif source is not slot:
            _, own = self._longest(sequence, [slot])
            if length < own + self._least_copied:
                source, length = slot, own
        if not slot.is_repeated_in(sequence.prompt, sequence.adapters):
            self.cache.save(slot, length if slot is source else 0, source)
        slot.running, sequence.slot = sequence, slot.number
        if found is None or not self._restore(sequence, *found):
            self._begin(sequence, source, length)
        self._plan_stops(sequence, shared)
        sequence.shares = self._shared_prompt(sequence)

    def _restore(self, sequence: Sequence, saved: Saved, length: int) -> bool:
        """Load a saved prefix into a sequence's slot; returns whether this succeeded."""
        slot = self.slots[sequence.slot]
        slot.tokens, slot.n_prompt, slot.adapters = sequence.tokens, sequence.n_prompt, sequence.adapters
        done = self.cache.restore(saved, slot, length)
        sequence.n_decoded = sequence.stats.cached_tokens = length if done else 0
        return done

    @property
    def _least_copied(self) -> int:
        """The fewest tokens that are worth waiting for or copying. Between streams llama.cpp copies the whole cache."""
        return max(LEAST_SHARED, self.context.n_ctx // 128 if self.context.streams else 0)

    def _begin(self, sequence: Sequence, source: Slot, length: int) -> None:
        """Let a sequence's slot start with a prefix that is in the cache of `source`."""
        slot = self.slots[sequence.slot]
        if slot is not source:
            self.context.forget(slot.number)
            slot.checkpoints = {}
            if length:
                self._copy(source, slot, length)
        if not length or not cut(self.context, slot, length):
            self.context.forget(slot.number)
            slot.checkpoints, length = {}, 0
        slot.tokens, slot.n_prompt, slot.adapters = sequence.tokens, sequence.n_prompt, sequence.adapters
        sequence.n_decoded = sequence.stats.cached_tokens = length
        sequence.stops = [stop for stop in sequence.stops if stop - length >= BETWEEN_STOPS]

    def _copy(self, source: Slot, slot: Slot, length: int) -> None:
        if self._cuttable:
            self.context.copy(source.number, slot.number, 0, length)
            return
        # llama.cpp does not copy a recurrent state that was rolled back: save the state and restore it in the copy.
        state = source.checkpoints.get(length)
        if state is None:
            state = self.context.save(source.number, partial=True)
        self.context.copy(source.number, slot.number, 0, length)
        if not state.size or not self.context.restore(slot.number, state, partial=True):
            self.context.forget(slot.number)
        slot.checkpoints = {place: state for place, state in source.checkpoints.items() if place <= length}

    def _longest(self, sequence: Sequence, slots: list[Slot]) -> tuple[Slot, int]:
        """Return the slot with the longest usable prefix of a prompt, now or once its sequence has read it, and the
        number of its tokens; an empty slot if there is none."""
        usable = [slot for slot in slots if sequence.reuse == "all" or slot.running is not None]
        lengths = [(slot, self._prefix(sequence, slot)) for slot in usable]
        return max([(Slot(NO_SLOT), 0), *lengths], key=lambda found: found[1])

    def _prefix(self, sequence: Sequence, slot: Slot) -> int:
        if sequence.reuse == "nothing":
            return 0
        return slot.prefix(sequence.prompt, sequence.adapters, cuttable=self._cuttable)

    @property
    def _cuttable(self) -> bool:
        return bool(self.context.model.can_roll_back)

    def _shared_prompt(self, sequence: Sequence) -> tuple[Sequence, int] | None:
        """Return an earlier, unfinished sequence that reads the same tokens, such as another sample of one prompt, and
        these tokens."""
        before = self.active[: self.active.index(sequence)] if sequence in self.active else self.active
        slot, length = self._longest(sequence, [self.slots[other.slot] for other in before if other.finish is None])
        if slot.running is None or length < sequence.n_decoded + self._least_copied:
            return None
        return slot.running, length

    def _waits(self, sequence: Sequence) -> bool:
        """Return whether another sequence must first decode the shared prompt; if it has, copy its cells."""
        while sequence.shares is not None:
            other, length = sequence.shares
            slot = self.slots[other.slot]
            is_going_on = slot.running is other and other.finish is None
            if is_going_on and other.n_decoded < length:
                return True
            if not is_going_on or not self._cuttable:
                length = self._prefix(sequence, slot)
            if length > sequence.n_decoded and slot.running in (other, None):
                self._begin(sequence, slot, length)
            # If the other sequence ended too soon, a third one may have more of the prompt.
            sequence.shares = None if is_going_on else self._shared_prompt(sequence)
        return False

    # --- memories that cannot be cut ------------------------------------------------------------------------------

    def _plan_stops(self, sequence: Sequence, shared: int) -> None:
        """Choose the positions in a prompt where checkpoints are made.

        One is a little before the end of the prompt: an answer can be generated again from there, and a chat can
        continue even if its template leaves out a part of the answer. Another is after the first `shared` tokens,
        with which an earlier text begins, too.
        """
        if sequence.reuse == "running" or not self.cache.makes_checkpoints:
            return
        stops = sequence.n_prompt - LEFT_OUT, shared
        last, shared = (self._place_of_stop(sequence, stop) for stop in stops)
        at = sequence.n_decoded
        if at - max((*self.slots[sequence.slot].checkpoints, 0)) >= BETWEEN_STOPS > last - at:
            sequence.stops.append(at)
        for stop, end in ((shared, last - BETWEEN_STOPS), (last, last)):
            if at + BETWEEN_STOPS <= stop <= end:
                sequence.stops.append(at := stop)

    def _place_of_stop(self, sequence: Sequence, stop: int) -> int:
        """Return where to make a checkpoint instead of at `stop`: never within an image."""
        if not sequence.images or not 0 <= stop < sequence.n_prompt:
            return stop
        start, _ = sequence.part_at(stop)
        return start if start in sequence.images else stop

    def _mark(self, sequence: Sequence) -> None:
        """Make a checkpoint if a sequence has reached the position of its next one."""
        while sequence.stops and sequence.n_decoded >= sequence.stops[0]:
            stop, slot = sequence.stops.pop(0), self.slots[sequence.slot]
            if sequence.n_decoded == stop and sequence.finish is None:
                self.cache.mark(slot, stop, stop - max((*slot.checkpoints, 0)))
