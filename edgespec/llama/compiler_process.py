"""The process that compiles constraints for `compiler.Compiler`: it may crash, run out of memory or be killed.

It reads one JSON object per line and answers each with one. The main thread only reads, so that the process ends as
soon as its parent is gone, also in the middle of a compilation.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from edgespec.errors import UsageError
from edgespec.llama.constraint import AMBIGUOUS, compiled, first_mask_error, parser_limits, readable
from edgespec.settings import CONSTRAINTS

# llguidance recurses: what fits into this stack also fits into that of the engine (`grammar.STACK_BYTES`).
STACK_BYTES = 4 << 20
MEMORY_BYTES = 1 << 30  # of addresses: the interpreter and its libraries take 200 MB
WALKS, WALK_BYTES, WALK_S = 3, 128, 0.25
READY = {"ready": True}


class _Bytes:
    """A vocabulary of the 256 bytes and an end token: the first mask can be computed without a model."""

    tokens = (*(bytes([byte]) for byte in range(256)), b"\xff</s>")  # \xff marks a special token
    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    is_tokenizer_wrapper = True

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def main() -> None:
    """Answer until the parent is gone."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # nothing but replies may get there
    _bound()
    asked = queue.SimpleQueue[Any]()
    threading.stack_size(STACK_BYTES)
    threading.Thread(target=_serve, args=(asked, replies), daemon=True).start()
    for line in sys.stdin.buffer:
        asked.put(json.loads(line))
    os._exit(0)


def _bound() -> None:
    """Ctrl-C is for the parent. A crash is a result: it must not leave a core file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(ValueError, OSError):  # a lower limit is set already
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _serve(asked: queue.SimpleQueue[Any], replies: Any) -> None:
    # "Any" of the vocabulary: its protocol asks for attributes that llguidance never reads.
    vocabulary: Any = _Bytes()
    tokenizer = LLTokenizer(vocabulary)
    reply: dict[str, Any] = READY
    while True:
        print(json.dumps(reply), file=replies, flush=True)
        question = asked.get()
        _limit_cpu(question.pop("cpu_s"))
        try:
            reply = _reply(tokenizer, **question)
        finally:
            _limit_cpu(0)


def _limit_cpu(seconds: float) -> None:
    """Let the system end this process when it has used more than these seconds of processor time; 0 removes the limit.

    Processor time rather than the clock, so that a busy machine refuses nothing that an idle one accepts. Windows has
    no such timer: there only the parent's limit applies.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _reply(tokenizer: LLTokenizer, kind: Any, text: str, name: str) -> dict[str, Any]:
    what = f"cannot use {name or f'this {CONSTRAINTS[kind]}'}"
    try:
        grammar = compiled(kind, text, name)
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
        if said := first_mask_error(matcher) or _walk_error(matcher):
            return {"refused": [what, said, ""]}
        return {"grammar": grammar}
    except UsageError as error:
        return {"refused": [error.what, error.why, error.hint]}
    except MemoryError:
        return {"failed": "memory"}
    except BaseException:  # a panic of llguidance is no Exception
        return {"refused": [what, "llguidance fails on it", ""]}


def _walk_error(matcher: LLMatcher) -> str:
    """Why masks would take too long or fail, found by writing texts that the constraint allows; or an empty string.

    The rows of an ambiguous grammar grow with the text: so many bytes take less than 10 ms of usual constraints, even
    of those with thousands of rules, and half a second of `e ::= e e | "a" | ""`. One text that works is enough.
    """
    for seed in range(WALKS):
        walker, chosen, began_s, said = matcher.deep_copy(), random.Random(seed), time.thread_time(), ""
        for _ in range(WALK_BYTES):
            mask = walker.compute_bitmask()
            allowed = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
            if allowed and not walker.is_error():
                walker.try_consume_tokens([chosen.choice(allowed)])
            if walker.is_error():
                said = readable(walker.get_error())
            elif time.thread_time() - began_s > WALK_S:
                said = AMBIGUOUS
            if said or not allowed:
                break
        if not said:
            return ""
    return said


if __name__ == "__main__":
    main()
