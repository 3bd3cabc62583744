"""The slots of the KV cache: which cells a sequence starts from, and what is kept of them afterwards."""

from __future__ import annotations

from edgespec.engine.prefix_cache import PrefixCache, Saved, cut
from edgespec.engine.reading import WIDE
from edgespec.engine.sequence import NO_SLOT, Sequence, State
from edgespec.engine.slot import LEFT_OUT, Slot
from edgespec.llama.context import Context

LEAST_SHARED = 16  # tokens of a prompt that are worth sharing with a running sequence
BETWEEN_STOPS = 2 * WIDE  # least tokens of a prompt to read before the next checkpoint


class Slots:
    """All slots of a context. A slot keeps the tokens of a finished sequence until another sequence gets the slot; its
    content may then be saved in up to `cache_bytes` of main memory."""

    def __init__(self, context: Context, cache_bytes: int = 0) -> None:
        self.context = context
        self.all = [Slot(number) for number in range(context.sequences)]
        self.cache = PrefixCache(context, self.all, cache_bytes)
        self._uses = 0

    def of(self, sequence: Sequence) -> Slot:
        """Return the slot of a sequence that has one."""
        return self.all[sequence.slot]

    @property
    def free(self) -> list[Slot]:
        return [slot for slot in self.all if slot.running is None]

    @property
    def least_copied(self) -> int:
        """The fewest tokens that are worth waiting for or copying. Between streams llama.cpp copies the whole cache."""
        return max(LEAST_SHARED, self.context.n_ctx // 128 if self.context.streams else 0)

    @property
    def are_cuttable(self) -> bool:
        """True if the memory can be cut at any token, not only at checkpoints."""
        return bool(self.context.model.can_roll_back)

    def describe(self) -> list[dict[str, object]]:
        """Return the content and the activity of each slot as plain data."""
        return [
            {
                "id": slot.number,
                "is_processing": slot.running is not None,
                "n_tokens": len(slot.tokens),
                "n_prompt": slot.running.n_prompt if slot.running else 0,
                "n_decoded": slot.running.stats.generated_tokens if slot.running else 0,
            }
            for slot in self.all
        ]

    def forget(self) -> None:
        """Forget all cached tokens, because the cache was used for something else or must not be reused."""
        self.cache.clear()
        for slot in self.all:
            slot.clear()

    def release(self, sequence: Sequence) -> None:
        """Free the slot of a sequence. The KV cache keeps its tokens until the slot is used again, so that a later
        prompt can start from them."""
        slot, stats = self.of(sequence), sequence.stats
        slot.running, slot.tokens = None, sequence.tokens[: sequence.n_decoded]
        self._mark_use(slot)
        if stats.rounds and stats.cached_tokens < sequence.n_prompt // 2:
            self.cache.observe_read(sequence.n_prompt - stats.cached_tokens, stats.prompt_s)
        if not slot.tokens:
            slot.clear()

    def _mark_use(self, slot: Slot) -> None:
        self._uses += 1
        slot.last_use = self._uses

    def keep(self, sequence: Sequence, length: int) -> None:
        """Cut the slot's cache to `length` tokens; a memory that cannot be cut goes back to a checkpoint, or is
        emptied."""
        slot = self.of(sequence)
        if self.context.truncate(slot.number, length):  # the usual case, and a quick one
            sequence.n_decoded = length
            return
        places = sorted((place for place in slot.checkpoints if place <= length), reverse=True)
        sequence.n_decoded = next((place for place in places if cut(self.context, slot, place)), 0)
        if not sequence.n_decoded:
            self.context.forget(slot.number)

    # --- prompts that begin alike ---------------------------------------------------------------------------------

    def place(self, sequence: Sequence) -> None:
        """Choose a slot for a sequence and fill it with the longest cached prefix of the prompt.

        The slot that holds this prefix is used if the prompt repeats all prompt tokens of this slot, so that at most an
        old answer is discarded. Otherwise the least recently used free slot gets a copy. If a longer part was saved in
        main memory, it is restored.
        """
        shared = self.cache.shared(sequence.prompt, sequence.adapters)
        free = self.free
        slot = min(free, key=lambda slot: slot.last_use)
        source, length = self.longest_of(sequence, free)
        saved = None
        if sequence.reuse == "all":
            saved = self.cache.find(sequence.prompt, length, sequence.adapters)
        if source.is_repeated_in(sequence.prompt, sequence.adapters):
            slot = source
        elif source is not slot:
            _, own = self.longest_of(sequence, [slot])
            if length < own + self.least_copied:
                source, length = slot, own
        if not slot.is_repeated_in(sequence.prompt, sequence.adapters):
            self.cache.save(slot, length if slot is source else 0, source)
        slot.running, sequence.slot = sequence, slot.number
        slot.tokens, slot.n_prompt, slot.adapters = sequence.tokens, sequence.n_prompt, sequence.adapters
        if saved is None or not self._restore(sequence, *saved):
            self.begin(sequence, source, length)
        self._plan_stops(sequence, shared)

    def _restore(self, sequence: Sequence, saved: Saved, length: int) -> bool:
        """Load a saved prefix into a sequence's slot; returns whether this succeeded."""
        done = self.cache.restore(saved, self.of(sequence), length)
        sequence.n_decoded = sequence.stats.cached_tokens = length if done else 0
        return done

    def begin(self, sequence: Sequence, source: Slot, length: int) -> None:
        """Let a sequence's slot start with a prefix that is in the cache of `source`."""
        slot = self.of(sequence)
        if slot is not source:
            self.context.forget(slot.number)
            slot.checkpoints = {}
            if length:
                self._copy(source, slot, length)
        if not length or not cut(self.context, slot, length):
            self.context.forget(slot.number)
            slot.checkpoints, length = {}, 0
        sequence.n_decoded = sequence.stats.cached_tokens = length
        sequence.stops = [stop for stop in sequence.stops if stop - length >= BETWEEN_STOPS]

    def _copy(self, source: Slot, slot: Slot, length: int) -> None:
        if self.are_cuttable:
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

    def longest_of(self, sequence: Sequence, slots: list[Slot]) -> tuple[Slot, int]:
        """Return the slot with the longest usable prefix of a prompt, now or once its sequence has read it, and the
        number of its tokens; an empty slot if there is none."""
        usable = [slot for slot in slots if sequence.reuse == "all" or slot.running is not None]
        lengths = [(slot, self.prefix(sequence, slot)) for slot in usable]
        return max([(Slot(NO_SLOT), 0), *lengths], key=lambda pair: pair[1])

    def prefix(self, sequence: Sequence, slot: Slot) -> int:
        """Return how many tokens of a prompt need not be decoded again if the sequence starts from this slot."""
        if sequence.reuse == "nothing":
            return 0
        return slot.prefix(sequence.prompt, sequence.adapters, cuttable=self.are_cuttable)

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
        if at - max((*self.of(sequence).checkpoints, 0)) >= BETWEEN_STOPS > last - at:
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

    def mark(self, sequence: Sequence) -> None:
        """Make a checkpoint if a sequence has reached the position of its next one."""
        while sequence.stops and sequence.n_decoded >= sequence.stops[0]:
            stop, slot = sequence.stops.pop(0), self.of(sequence)
            if sequence.n_decoded == stop and sequence.finish is None:
                self.cache.mark(slot, stop, stop - max((*slot.checkpoints, 0)))

    # --- states exchanged with other processes ---------------------------------------------------------------------

    def held(self, tokens: list[int]) -> tuple[Slot, State | None]:
        """Return the idle slot, or the saved slot with its state, that has the longest beginning in common with a
        text. Only the default set of adapters counts."""
        adapters = self.context.default_adapters
        slots: list[tuple[Slot, State | None]] = [(Slot(NO_SLOT), None)]
        slots += [(slot, None) for slot in self.free if self.cache.is_known(slot)]
        if saved := self.cache.holds(tokens, adapters):
            slots.append((saved.slot, saved.state))
        return max(slots, key=lambda one: one[0].common(tokens, adapters))

    def longest(self, prompt: list[int]) -> int:
        """Return how many tokens of a chat's next prompt are cached and need not be read."""
        adapters = self.context.default_adapters
        saved = self.cache.holds(prompt, adapters)
        slots = [*self.all, *([saved.slot] if saved else [])]
        return max(slot.prefix(prompt, adapters, cuttable=self.are_cuttable) for slot in slots)

    def take_in(self, held: Slot, state: State) -> bool:
        """Load a state of another process into a slot. Returns False if no slot is free, or the state does not fit."""
        if not (free := self.free):
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
        self._mark_use(slot)
        return True
