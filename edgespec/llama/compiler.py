"""Compiles constraints in child processes.

llguidance recurses over a grammar and has no limit of time: a hostile grammar would crash or block the process with the
model, and all of its answers. So each constraint is compiled in another process first, with limits of stack, processor
time and memory. That process runs this module; it may crash, run out of memory or be killed.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.errors import GenerationError, UsageError
from edgespec.llama import constraint
from edgespec.processes.child import Child, Limits, answer, held, limit_addresses, running
from edgespec.settings import CONSTRAINTS, Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

QUICK_S, SLOW_S = 0.25, 2.0  # processor time: nearly all constraints take milliseconds
PATIENCE = 8  # by how much the time on the clock may be longer, on a busy machine
MEMORY_BYTES = 1 << 30
MOST_WAITING = 4  # for the slow compiler
# llguidance recurses: what fits into this stack also fits into that of the engine (`grammar.STACK_BYTES`).
STACK_BYTES = 4 << 20
ADDRESS_BYTES = 1 << 30  # the interpreter and its libraries take 200 MB
WALKS, WALK_BYTES, WALK_S = 3, 128, 0.25
_NAMES_TOKENS = re.compile("unknown special token|Token range")

SpecialTokens = Callable[[], Mapping[str, int]]
"""Returns the ids of a vocabulary's special tokens, which grammars in Lark can name."""


class Compiler(Closable):
    """Compiles constraints one at a time, each within `cpu_s` of processor time, while at most `most_waiting` others
    wait. A constraint that takes longer is compiled by `slower`, if there is one, so that it never delays the others.
    Without `special` tokens a grammar may name any token."""

    def __init__(
        self,
        cpu_s: float,
        special: SpecialTokens | None = None,
        most_waiting: float = inf,
        slower: Compiler | None = None,
    ) -> None:
        self._cpu_s, self._special, self._most_waiting, self._slower = cpu_s, special, most_waiting, slower
        self._limits = Limits(cpu_s, cpu_s * PATIENCE, MEMORY_BYTES)
        self._lock = threading.Lock()
        self._n_waiting = 0
        self.child = Child(running("edgespec.llama.compiler"), "compile constraints")

    def compiled(self, kind: Constraint, text: str, name: str = "", cancel: CancelFlag | None = None) -> str:
        """Return the constraint as llguidance's own grammar; `name` is the option. Raises UsageError, which says what
        is wrong or which limit is exceeded, and GenerationError if there is no process or too many constraints wait."""
        special = self._special() if self._special is not None and kind == "grammar" else None
        question = json.dumps({"kind": kind, "text": text, "special": special}).encode()
        if self._n_waiting >= self._most_waiting:
            raise GenerationError("too many constraints wait to be compiled", hint="try again later")
        self._n_waiting += 1  # several threads may change it at once: it need not be exact
        try:
            with held(self._lock, cancel):
                reply = self.child.ask(question, self._limits, cancel)
        finally:
            self._n_waiting -= 1
        if "grammar" in reply:
            return str(reply["grammar"])
        what = f"cannot use {name or f'this {CONSTRAINTS[kind]}'}"
        if "refused" in reply:
            raise UsageError(what, why=reply["refused"], field=kind)
        why = {"memory": "compiling it takes too much memory", "crash": constraint.TOO_DEEP}.get(reply["failed"])
        if why is None and self._slower is not None:
            return self._slower.compiled(kind, text, name, cancel)
        raise UsageError(
            what,
            why=why or f"compiling it takes longer than {self._cpu_s:g} s",
            hint="this is a limit of edgespec: use fewer, simpler or less nested rules",
            field=kind,
        )

    def close(self) -> None:
        """End the process, and that of the slower compiler."""
        with self._lock:
            self.child.close()
        if self._slower is not None:
            self._slower.close()


def quick_compiler(special: SpecialTokens | None = None) -> Compiler:
    """Return a quick compiler for nearly all constraints, with a slow one for the rest."""
    return Compiler(QUICK_S, special, slower=Compiler(SLOW_S, special, MOST_WAITING))


def settled(kind: Constraint, given: str) -> str:
    """Return a constraint, or the absolute path of the file that contains it. Raises UsageError if the constraint
    cannot be read or used."""
    if not given:
        return given
    with quick_compiler() as compiler:
        if constraint.is_text(kind, given):
            compiler.compiled(kind, given)
            return given
        compiler.compiled(kind, constraint.constraint_text(kind, given), f"the {CONSTRAINTS[kind]} in {given}")
    return str(Path(given).expanduser().absolute())


# --- the child --------------------------------------------------------------------------------------------------------


class _Vocabulary:
    """The 256 bytes, an end token and the special tokens of a model, so that masks can be computed without the model. A
    special token has the same id as in the model. All other ids have no text."""

    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, special: Mapping[str, int]) -> None:
        taken = set(special.values())
        free = [id for id in range(len(taken) + 257) if id not in taken]
        self.byte_ids, self.eos_token_id = dict(zip(free, range(256), strict=False)), free[256]
        self.special_token_ids = (*special.values(), self.eos_token_id)
        texts = {id: bytes([byte]) for id, byte in self.byte_ids.items()}
        # \xff marks a special token.
        texts |= {id: b"\xff" + text.encode() for text, id in (*special.items(), ("</s>", self.eos_token_id))}
        self.tokens = tuple(texts.get(id, b"") for id in range(max(texts) + 1))

    def __call__(self, text: str | bytes) -> list[int]:
        ids = [*self.byte_ids]
        return [ids[byte] for byte in (text.encode() if isinstance(text, str) else text)]


@lru_cache(2)
def _tokenizer(special: tuple[tuple[str, int], ...]) -> tuple[LLTokenizer, list[int]]:
    """Return the tokenizer of a model's special tokens, and the ids that a text may have."""
    from llguidance import LLTokenizer

    # "Any": the protocol of vocabularies asks for attributes that llguidance never reads.
    vocabulary: Any = _Vocabulary(dict(special))
    return LLTokenizer(vocabulary), [*vocabulary.byte_ids, *dict(special).values()]


def _reply(kind: Constraint, text: str, special: Mapping[str, int] | None) -> dict[str, str]:
    from llguidance import LLMatcher

    try:
        grammar = constraint.compiled(kind, text)
        tokenizer, ids = _tokenizer(tuple((special or {}).items()))
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=constraint.parser_limits())
        said = constraint.first_mask_error(matcher) or _walk_error(matcher, ids)
        if said and not (special is None and _NAMES_TOKENS.search(said)):  # the model will know the tokens
            return {"refused": said}
        return {"grammar": grammar}
    except ValueError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"failed": "memory"}
    except BaseException:  # a panic of llguidance is no Exception
        return {"refused": "llguidance fails on it"}


def _walk_error(matcher: LLMatcher, ids: Sequence[int]) -> str:
    """Return why masks would take too long or fail, or an empty string.

    This writes random texts that the constraint allows. One text that works is enough. The parser's state of an
    ambiguous grammar grows with the text: WALK_BYTES bytes take less than 10 ms with usual constraints, even if they
    have thousands of rules, and half a second with `e ::= e e | "a" | ""`.
    """
    for seed in range(WALKS):
        walker, chosen, began_s, said = matcher.deep_copy(), random.Random(seed), time.thread_time(), ""
        for _ in range(WALK_BYTES):
            mask = walker.compute_bitmask()
            allowed = [id for id in ids if mask[id // 8] >> id % 8 & 1]
            if allowed and not walker.is_error():
                walker.try_consume_tokens([chosen.choice(allowed)])
            if walker.is_error():
                said = constraint.readable(walker.get_error())
            elif time.thread_time() - began_s > WALK_S:
                said = constraint.AMBIGUOUS
            if said or not allowed:
                break
        if not said:
            return ""
    return said


if __name__ == "__main__":
    if os.name == "posix":
        os.nice(10)  # the model that other answers wait for comes first
    limit_addresses(ADDRESS_BYTES)
    _tokenizer(())  # before it is ready
    answer(lambda question, report: _reply(**question), stack_bytes=STACK_BYTES)
