"""The KV cache of chats in files, so that another process can continue a chat without reading it again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from edgespec.core.prefix import common_prefix
from edgespec.engine.engine import Engine
from edgespec.engine.kept_state import DamagedStateError, facts_of, read, write
from edgespec.engine.slots import Slot
from edgespec.files.bounded_folder import BoundedFolder, used
from edgespec.llama.library import available_memory_bytes

LEAST_KEPT = 128  # tokens; reading fewer takes no time
LEAST_NEW = 64  # tokens since the file was written
BYTES_PER_S = 4e8  # of the disk, until its speed is measured
SHARE = 1 / 2  # of the time that reading the tokens takes
NO_TIME = -1
MEMORY_SHARE = 3 / 4  # of the free memory, for a copy of a state

log = logging.getLogger(__name__)


class KeptStates:
    """Writes and reads the files. After an error the tokens are read again, which costs time only.

    Attributes:
        gives_way: returns True if the engine has other work; then writing stops.
    """

    gives_way: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, engine: Engine) -> None:
        self._scheduler, self._context = engine.scheduler, engine.context
        self._bytes_per_s = BYTES_PER_S
        self._written: dict[Path, list[int]] = {}  # tokens

    def keep(self, tokens: list[int], file: Path, most_bytes: int, within_s: float) -> int:
        """Write what a slot holds of this text, if that saves time.

        The files of the folder have at most `most_bytes`. Returns the number of bytes written, or NO_TIME if writing
        takes longer than `within_s`.
        """
        slot, state = self._scheduler.held(tokens)
        if common_prefix(slot.tokens, tokens) < LEAST_KEPT:
            return 0
        n_tokens, before = len(slot.tokens), self._written.get(file, []) if file.exists() else []
        n_new = n_tokens - common_prefix(before, slot.tokens)
        n_bytes = self._context.saved_bytes(slot.number) if state is None else state.nbytes
        if n_new < LEAST_NEW or not self._is_worth(n_new, n_bytes, 1.0):
            return 0
        if not self._is_worth(n_tokens, n_bytes, SHARE) or n_bytes > MEMORY_SHARE * available_memory_bytes():
            return 0
        state = self._context.save(slot.number) if state is None else state
        started_s = perf_counter()
        if not state.size:
            return 0
        folder, facts = BoundedFolder(file.parent, most_bytes), facts_of(self._context)

        def is_over() -> bool:
            return perf_counter() - started_s > within_s or self.gives_way()

        try:
            n_bytes = write(folder, file, facts, slot, state, is_over)
        except TimeoutError:
            return NO_TIME
        except OSError as error:
            log.debug("a state is not kept: %s", error)
            return 0
        self._measure(n_bytes, started_s)
        self._written[file] = [*slot.tokens]
        return n_bytes

    def recall(self, prompt: list[int], file: Path) -> int:
        """Load what a file has of this prompt into a slot, if that saves time; return the number of its tokens."""
        n_held = self._scheduler.longest(prompt)

        def wants(slot: Slot, n_bytes: int) -> bool:
            self._written[file] = slot.tokens
            length = self._length(slot, prompt)
            if length - n_held < LEAST_KEPT or n_bytes > MEMORY_SHARE * available_memory_bytes():
                return False
            return self._is_worth(length - n_held, n_bytes, SHARE)

        started_s = perf_counter()
        try:
            found = read(file, facts_of(self._context), wants)
        except FileNotFoundError:
            return 0
        except (OSError, DamagedStateError) as error:
            log.debug("the state in %s cannot be used: %s", file, error)
            self._written.pop(file, None)
            BoundedFolder(file.parent, 0).remove(file)
            return 0
        if found is None or not self._scheduler.take_in(*found):
            return 0
        slot, state = found
        self._measure(state.nbytes, started_s)
        used(file)
        return self._length(slot, prompt)

    def _length(self, slot: Slot, prompt: list[int]) -> int:
        can_cut = bool(self._context.model.can_roll_back)
        return slot.prefix(prompt, "answers", exact=self._context.exact, cuttable=can_cut).length

    def _is_worth(self, n_tokens: int, n_bytes: int, share: float) -> bool:
        return 0 < n_bytes / self._bytes_per_s <= share * n_tokens * self._scheduler.cache.read_s

    def _measure(self, n_bytes: int, started_s: float) -> None:
        rate = n_bytes / max(1e-9, perf_counter() - started_s)
        self._bytes_per_s = 0.5 * self._bytes_per_s + 0.5 * rate
