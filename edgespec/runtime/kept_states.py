"""The KV cache of chats in files, so that another process can continue a chat without reading it again.

A file has the content of a slot: its tokens and the state of the KV cache after them. It is used
only if it is complete (it ends with a digest) and exactly valid here: `facts` are all that the bits of a state depend
on.

    a line of JSON with the facts, the tokens and the sizes of the states | states | digest of all that
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from time import perf_counter

import numpy as np

from edgespec.core.prefix import common_prefix
from edgespec.engine.engine import Engine
from edgespec.engine.sequence import State
from edgespec.engine.slot import Slot
from edgespec.files.bounded_folder import BoundedFolder, used
from edgespec.files.optional_files import is_there, report
from edgespec.llama.context import Context
from edgespec.llama.library import available_memory_bytes, build_id

LEAST_KEPT = 128  # tokens; reading fewer takes no time
LEAST_NEW = 64  # tokens since the file was written
BYTES_PER_S = 4e8  # of the disk, until its speed is measured
SHARE = 1 / 2  # of the time that reading the tokens takes
NO_TIME = -1
MEMORY_SHARE = 3 / 4  # of the free memory, for a copy of a state

VERSION = 4  # of the file
MOST_HEADER = 1 << 25  # bytes
CHUNK = 1 << 24
DIGEST = 32

log = logging.getLogger(__name__)


class KeptStates:
    """Writes and reads the files. After an error the tokens are read again, which costs time only.

    Attributes:
        gives_way: returns True if the engine has other work; then writing stops.
    """

    gives_way: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, engine: Engine) -> None:
        self._slots, self._context = engine.slots, engine.context
        self._bytes_per_s = BYTES_PER_S
        self._written: dict[Path, list[int]] = {}  # tokens

    def keep(self, tokens: list[int], file: Path, most_bytes: int, within_s: float) -> int:
        """Write what a slot holds of this text, if that saves time.

        The files of the folder have at most `most_bytes`. Returns the number of bytes written, or NO_TIME if writing
        takes longer than `within_s`.
        """
        slot, state = self._slots.held(tokens)
        if common_prefix(slot.tokens, tokens) < LEAST_KEPT:
            return 0
        n_tokens, before = len(slot.tokens), self._written.get(file, []) if is_there(file) else []
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
            report(file, error)
            return 0
        self._measure(n_bytes, started_s)
        self._written[file] = [*slot.tokens]
        return n_bytes

    def recall(self, prompt: list[int], file: Path) -> int:
        """Load what a file has of this prompt into a slot, if that saves time; return the number of its tokens."""
        n_held = self._slots.longest(prompt)

        def wants(slot: Slot, n_bytes: int) -> bool:
            slot.adapters = self._context.default_adapters  # they are among the facts
            self._written[file] = slot.tokens
            length = self._length(slot, prompt)
            if length - n_held < LEAST_KEPT or n_bytes > MEMORY_SHARE * available_memory_bytes():
                return False
            return self._is_worth(length - n_held, n_bytes, SHARE)

        started_s = perf_counter()
        try:
            found = read(file, facts_of(self._context), wants)
        except OSError as error:
            report(file, error)
            return 0
        except DamagedStateError as error:
            log.debug("the state in %s cannot be used: %s", file, error)
            self._written.pop(file, None)
            BoundedFolder(file.parent, 0).remove(file)
            return 0
        if found is None or not self._slots.take_in(*found):
            return 0
        slot, state = found
        self._measure(state.nbytes, started_s)
        used(file)
        return self._length(slot, prompt)

    def _length(self, slot: Slot, prompt: list[int]) -> int:
        can_cut = bool(self._context.model.can_roll_back)
        return slot.prefix(prompt, self._context.default_adapters, cuttable=can_cut)

    def _is_worth(self, n_tokens: int, n_bytes: int, share: float) -> bool:
        return 0 < n_bytes / self._bytes_per_s <= share * n_tokens * self._slots.cache.read_s

    def _measure(self, n_bytes: int, started_s: float) -> None:
        rate = n_bytes / max(1e-9, perf_counter() - started_s)
        self._bytes_per_s = 0.5 * self._bytes_per_s + 0.5 * rate


class DamagedStateError(Exception):
    """The file is damaged or incomplete."""


def facts_of(context: Context) -> dict[str, object]:
    """Return all that the bits of a state, and its layout in a file, depend on."""
    return {
        "version": VERSION,
        "build": build_id(),
        "context": context.fingerprint,
        "cells": [context.n_ctx, context.n_batch, context.sequences],
    }


def write(
    folder: BoundedFolder, file: Path, facts: dict[str, object], slot: Slot, state: State, is_over: Callable[[], bool]
) -> int:
    """Write the content of `slot`, whose memory is `state`, to a file; returns the number of bytes.

    Raises OSError; TimeoutError if `is_over` returns True meanwhile.
    """
    # Of the checkpoints only the last is kept: an answer can be generated again from there.
    states = {0: state} | dict(sorted(slot.checkpoints.items())[-1:])
    header = {
        "facts": facts,
        "tokens": [*map(int, slot.tokens)],
        "n_prompt": slot.n_prompt,
        "states": [[place, one.nbytes] for place, one in states.items()],
    }
    parts = [memoryview(json.dumps(header).encode() + b"\n"), *(one.data for one in states.values())]
    n_bytes = sum(part.nbytes for part in parts) + DIGEST
    digest = blake2b(digest_size=DIGEST)
    with folder.writing(file, n_bytes) as opened:
        for part in parts:
            for start in range(0, len(part), CHUNK):
                if is_over():
                    raise TimeoutError(f"no time to write {file.name}")
                digest.update(part[start : start + CHUNK])
                opened.write(part[start : start + CHUNK])
        opened.write(digest.digest())
    return n_bytes


def read(file: Path, facts: dict[str, object], wants: Callable[[Slot, int], bool]) -> tuple[Slot, State] | None:
    """Read a file; None if it is not valid here, or not wanted.

    `wants` is asked with the tokens and the remaining size before the states are read. Raises OSError,
    DamagedStateError.
    """
    with file.open("rb") as opened:
        line = opened.readline(MOST_HEADER)
        try:
            header = json.loads(line)
            if header["facts"] != json.loads(json.dumps(facts)):
                return None
            sizes = {int(place): int(size) for place, size in header["states"]}
            slot = Slot(0, [*map(int, header["tokens"])], int(header["n_prompt"]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise DamagedStateError(f"its header cannot be read ({error})") from error
        n_bytes, digest = sum(sizes.values()), blake2b(line, digest_size=DIGEST)
        if len(line) + n_bytes + DIGEST != file.stat().st_size or 0 not in sizes or min(sizes.values()) < 0:
            raise DamagedStateError("it is cut off")
        slot.checkpoints = dict.fromkeys(sizes.keys() - {0}, np.empty(0, np.uint8))
        if not wants(slot, n_bytes):
            return None
        states = {place: np.fromfile(opened, np.uint8, size) for place, size in sizes.items()}
        for state in states.values():
            digest.update(state.data)
        if opened.read() != digest.digest():
            raise DamagedStateError("its digest is another one")
        slot.checkpoints = {place: state for place, state in states.items() if place}
        return slot, states[0]
