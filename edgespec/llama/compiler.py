"""Compiles constraints in child processes.

llguidance recurses over a grammar and has no limit of time: a hostile grammar would crash or block the process with the
model, and all of its answers. So each constraint is compiled in another process first, with limits of stack, processor
time and memory.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.errors import GenerationError, UsageError
from edgespec.llama.child import Child, Limits, held, running
from edgespec.llama.constraint import TOO_DEEP, constraint_text, is_text
from edgespec.settings import CONSTRAINTS, Constraint

QUICK_S, SLOW_S = 0.25, 2.0  # processor time: nearly all constraints take milliseconds
PATIENCE = 8  # by how much the time on the clock may be longer, on a busy machine
MEMORY_BYTES = 1 << 30
MOST_WAITING = 4  # for the slow compiler

SpecialTokens = Callable[[], Mapping[str, int]]
"""Returns the ids of a vocabulary's special tokens, which grammars in Lark can name."""


class Compiler(Closable):
    """Compiles constraints one at a time, each within `cpu_s` of processor time, while at most `most_waiting` others
    wait. Without `special` tokens a grammar may name any token."""

    def __init__(self, cpu_s: float, most_waiting: int | None = None, special: SpecialTokens | None = None) -> None:
        self._cpu_s, self._most_waiting, self._special = cpu_s, most_waiting, special
        self._limits = Limits(cpu_s, cpu_s * PATIENCE, MEMORY_BYTES)
        self._lock = threading.Lock()
        self._n_waiting = 0
        self.child = Child(running("edgespec.llama.compiler_process"), "compile constraints")

    def compiled(self, kind: Constraint, text: str, name: str = "", cancel: CancelFlag | None = None) -> str:
        """Return the constraint as llguidance's own grammar; `name` is the option. Raises UsageError, which says what
        is wrong or which limit is exceeded, and GenerationError if there is no process or too many constraints wait."""
        what = f"cannot use {name or f'this {CONSTRAINTS[kind]}'}"
        special = self._special() if self._special is not None and kind == "grammar" else None
        question = json.dumps({"kind": kind, "text": text, "special": special}).encode()
        if self._most_waiting is not None and self._n_waiting >= self._most_waiting:
            raise GenerationError("too many constraints wait to be compiled", hint="try again later")
        self._n_waiting += 1  # several threads may change it at once: it need not be exact
        try:
            with held(self._lock, cancel):
                reply = self.child.ask(question, self._limits, cancel)
        finally:
            self._n_waiting -= 1
        if "grammar" in reply:
            return str(reply["grammar"])
        if "refused" in reply:
            raise UsageError(what, why=reply["refused"])
        hint = "this is a limit of edgespec: use fewer, simpler or less nested rules"
        if reply["failed"] in ("time", "clock"):
            raise _TooSlowError(what, why=f"compiling it takes longer than {self._cpu_s:g} s", hint=hint)
        is_large = reply["failed"] == "memory"
        raise UsageError(what, why="compiling it takes too much memory" if is_large else TOO_DEEP, hint=hint)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self.child.close()


class Compilers(Closable):
    """A quick compiler for nearly all constraints and a slow one for the rest, so that a slow constraint never delays
    the others."""

    def __init__(self, special: SpecialTokens | None = None) -> None:
        self._quick = Compiler(QUICK_S, special=special)
        self._slow = Compiler(SLOW_S, MOST_WAITING, special)

    def compiled(self, kind: Constraint, text: str, name: str = "", cancel: CancelFlag | None = None) -> str:
        """Like `Compiler.compiled`."""
        try:
            return self._quick.compiled(kind, text, name, cancel)
        except _TooSlowError:
            return self._slow.compiled(kind, text, name, cancel)

    def close(self) -> None:
        """End both processes."""
        self._quick.close()
        self._slow.close()


class _TooSlowError(UsageError):
    """The limit of time."""


def settled(kind: Constraint, given: str) -> str:
    """Return a constraint, or the absolute path of the file that contains it. Raises UsageError if the constraint
    cannot be read or used."""
    if not given:
        return given
    with Compilers() as compilers:
        if is_text(kind, given):
            compilers.compiled(kind, given)
            return given
        compilers.compiled(kind, constraint_text(kind, given), f"the {CONSTRAINTS[kind]} in {given}")
    return str(Path(given).expanduser().absolute())
