"""The prefix cache: saved states of the KV cache in main memory.

It holds the states of slots that were given to another prompt, and checkpoints of running sequences. A state is saved
or restored only if this takes much less time than reading its tokens again, by the measured speeds. The least recently
used states are dropped first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeVar

from edgespec.engine.sequence import State
from edgespec.engine.slot import LEFT_OUT, Slot
from edgespec.llama.adapters import AdapterSet
from edgespec.llama.context import Context

LEAST_SAVED = 8  # tokens; fewer are not saved
LEAST_LEFT = 64  # tokens of a restored state that are not used now; fewer are not kept for other prompts
MOST_CHECKPOINTS = 8  # for each slot
SAVE_SHARE, RESTORE_SHARE = 1 / 8, 1 / 2  # of the time that reading the tokens again would take
BYTES_PER_S = 2e9  # assumed until measured
FLOPS_PER_S, FLOPS_PER_S_OFFLOADED = 1e11, 1e13
LEAST_TIMED, LEAST_TIMED_BYTES = 32, 1 << 18
MOST_USELESS, STILL_SAVED = 8, 7  # after 8 states without a hit, only every seventh state is saved

Made = TypeVar("Made")


@dataclass(slots=True, eq=False)
class Saved:
    """A copy of a slot, and the state of its memory after the last token."""

    slot: Slot
    state: State
    is_used: bool = False

    @property
    def states(self) -> list[State]:
        return [self.state, *self.slot.checkpoints.values()]


class PrefixCache:
    """Saved states of at most `most_bytes`; the checkpoints of `slots` count too."""

    def __init__(self, context: Context, slots: Sequence[Slot], most_bytes: int) -> None:
        self._context, self._slots, self.most_bytes = context, slots, most_bytes
        self._saved: list[Saved] = []  # least recently used first
        self._bytes_per_s, self._token_s = BYTES_PER_S, 0.0
        self._can_cut = bool(context.model.can_roll_back)
        self._n_useless = self._n_skipped = 0
        self.hits, self.restored_tokens = 0, 0

    def describe(self) -> dict[str, int]:
        """Return the size in bytes and in states, and the number of hits."""
        return {
            "bytes": self.n_bytes,
            "limit_bytes": self.most_bytes,
            "states": len(self._saved),
            "checkpoints": sum(len(slot.checkpoints) for slot in self._slots),
            "hits": self.hits,
            "restored_tokens": self.restored_tokens,
        }

    @property
    def n_bytes(self) -> int:
        """The size of all states; checkpoints that several slots share count once."""
        states = [state for saved in self._saved for state in saved.states]
        states += [state for slot in self._slots for state in slot.checkpoints.values()]
        return sum({id(state): state.nbytes for state in states}.values())

    def clear(self) -> None:
        self._saved = []

    # --- states ---------------------------------------------------------------------------------------------------

    def save(self, slot: Slot, n_kept: int, source: Slot) -> None:
        """Save what a slot holds, before all but its first `n_kept` tokens are replaced by what `source` holds."""
        tokens, n_lost = slot.tokens, len(slot.tokens) - n_kept
        if not self.most_bytes or n_lost < LEAST_SAVED or not self.is_known(slot):
            return
        if self._can_cut and any(one.slot.common(tokens, slot.adapters) == len(tokens) for one in self._saved):
            return
        n_bytes = self._context.saved_bytes(slot.number)
        if not self._is_worth(n_lost, n_bytes, SAVE_SHARE) or self._is_in_vain():
            return
        if not self._has_room(n_bytes + sum(state.nbytes for state in slot.checkpoints.values()), [slot, source]):
            return
        state = self._timed(n_bytes, lambda: self._context.save(slot.number))
        if state.size:
            kept = replace(slot, tokens=[*tokens], checkpoints={**slot.checkpoints}, running=None)
            if self._can_cut:
                self._saved = [one for one in self._saved if not _begins(one.slot, kept)]
            self._saved.append(Saved(kept, state))

    def find(self, prompt: list[int], n_held: int, adapters: AdapterSet = ()) -> tuple[Saved, int] | None:
        """Return the saved state with the longest prefix of a prompt, and the number of its tokens, if it is worth
        restoring instead of using the `n_held` tokens that a slot has."""
        lengths = [(saved, saved.slot.prefix(prompt, adapters, cuttable=self._can_cut)) for saved in self._saved]
        best = max(lengths, key=lambda found: found[1], default=None)
        if best is None or not self._is_worth(best[1] - n_held, best[0].state.nbytes, RESTORE_SHARE):
            return None
        return best

    def holds(self, tokens: list[int], adapters: AdapterSet = ()) -> Saved | None:
        """Return the saved state that has most tokens in common with a text."""
        return max(self._saved, key=lambda saved: saved.slot.common(tokens, adapters), default=None)

    def restore(self, saved: Saved, slot: Slot, length: int) -> bool:
        """Load the first `length` tokens of a saved state into a slot, with its checkpoints; returns whether this
        succeeded."""
        held = saved.slot
        done = self._timed(saved.state.nbytes, lambda: self._context.restore(slot.number, saved.state))
        slot.checkpoints = {**held.checkpoints}
        if not done or not cut(self._context, slot, length):
            slot.checkpoints = {}
            return False
        self.hits += 1
        self.restored_tokens += length
        self._n_useless, self._n_skipped, saved.is_used = 0, 0, True
        if saved in self._saved:  # or else it went for what the slot held
            self._saved.remove(saved)
            if length < len(held.tokens) - LEAST_LEFT:
                self._saved.append(saved)  # others may need the rest
        self._has_room(0, [])  # the slot now holds its checkpoints too, and they count
        return True

    # --- checkpoints ----------------------------------------------------------------------------------------------

    @property
    def makes_checkpoints(self) -> bool:
        return self.most_bytes > 0 and not self._can_cut

    def shared(self, prompt: list[int], adapters: AdapterSet = ()) -> int:
        """Return how many tokens a prompt has in common with any slot or saved state; 0 if no checkpoints are made."""
        if not self.makes_checkpoints:
            return 0
        slots = (*self._slots, *(saved.slot for saved in self._saved))
        return max(slot.common(prompt, adapters) for slot in slots)

    def mark(self, slot: Slot, length: int, n_read: int) -> None:
        """Make a checkpoint after the `length` tokens that a slot holds; `n_read` of them were read since the last
        checkpoint."""
        n_bytes = self._context.saved_bytes(slot.number, partial=True)
        if not self._is_worth(n_read, n_bytes, SAVE_SHARE) or not self._has_room(n_bytes, []):
            return
        state = self._timed(n_bytes, lambda: self._context.save(slot.number, partial=True))
        if state.size:
            while len(slot.checkpoints) >= MOST_CHECKPOINTS:
                del slot.checkpoints[sorted(slot.checkpoints)[1]]  # the first may be of a common system prompt
            slot.checkpoints[length] = state

    # --- costs ----------------------------------------------------------------------------------------------------

    def observe_read(self, n_tokens: int, seconds: float) -> None:
        """Record that reading `n_tokens` of a prompt took `seconds`."""
        if n_tokens >= LEAST_TIMED:
            token_s = seconds / n_tokens
            self._token_s = token_s if not self._token_s else 0.8 * self._token_s + 0.2 * token_s

    @property
    def read_s(self) -> float:
        """Seconds to read one token of a prompt: measured, or estimated from the size of the model."""
        model = self._context.model
        flops_per_s = FLOPS_PER_S_OFFLOADED if model.is_offloaded else FLOPS_PER_S
        return self._token_s or 2 * model.n_params / flops_per_s

    def _is_worth(self, n_tokens: int, n_bytes: int, share: float) -> bool:
        return n_bytes > 0 and n_bytes / self._bytes_per_s <= share * n_tokens * self.read_s

    def _timed(self, n_bytes: int, copy: Callable[[], Made]) -> Made:
        started_s = perf_counter()
        made = copy()
        if n_bytes >= LEAST_TIMED_BYTES:
            rate = n_bytes / max(1e-9, perf_counter() - started_s)
            self._bytes_per_s = 0.8 * self._bytes_per_s + 0.2 * rate
        return made

    def is_known(self, slot: Slot) -> bool:
        """Return whether the memory of a slot holds exactly the tokens that the slot lists."""
        return self._context.length(slot.number) == len(slot.tokens)

    def _is_in_vain(self) -> bool:
        """Return whether to skip saving because recent states had no hit, as in a batch job; some are saved all the
        same."""
        self._n_skipped += self._n_useless >= MOST_USELESS
        return self._n_skipped % STILL_SAVED > 0

    def _has_room(self, n_bytes: int, keep: list[Slot]) -> bool:
        """Drop saved states, then checkpoints of idle slots, until `n_bytes` are free; returns False if they cannot be
        freed."""
        if n_bytes > self.most_bytes:
            return False
        while self.n_bytes + n_bytes > self.most_bytes:
            idle = [slot for slot in self._slots if slot.checkpoints and slot.running is None and slot not in keep]
            if self._saved:
                dropped = self._saved.pop(0)
                self._n_useless += not dropped.is_used and len(dropped.slot.tokens) >= LEAST_LEFT
            elif idle:
                min(idle, key=lambda slot: slot.last_use).checkpoints.popitem()
            else:
                return False
        return True


def cut(context: Context, slot: Slot, length: int) -> bool:
    """Cut a slot's memory to `length` tokens, or restore a checkpoint of this length; returns False if neither is
    possible."""
    state = slot.checkpoints.get(length)
    is_cut = context.length(slot.number) >= length and context.truncate(slot.number, length)
    if not is_cut and state is not None and context.restore(slot.number, state, partial=True):
        is_cut = context.truncate(slot.number, length)
    slot.checkpoints = {place: state for place, state in slot.checkpoints.items() if place <= length and is_cut}
    return is_cut


def _begins(beginning: Slot, slot: Slot) -> bool:
    """Return whether a slot begins with all of another one, except for the few last tokens that templates may leave
    out."""
    return beginning.common(slot.tokens, slot.adapters) >= len(beginning.tokens) - LEFT_OUT
