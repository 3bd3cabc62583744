"""The process that compiles constraints for `compiler.Compiler`: it may crash, run out of memory or be killed."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from edgespec.llama.child import answer
from edgespec.llama.constraint import AMBIGUOUS, compiled, first_mask_error, parser_limits, readable

# llguidance recurses: what fits into this stack also fits into that of the engine (`grammar.STACK_BYTES`).
STACK_BYTES = 4 << 20
ADDRESS_BYTES = 1 << 30  # the interpreter and its libraries take 200 MB
WALKS, WALK_BYTES, WALK_S = 3, 128, 0.25
_NAMES_TOKENS = re.compile("unknown special token|Token range")


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


class _Trial:
    """Compiles constraints for a vocabulary."""

    def __init__(self, special: Mapping[str, int]) -> None:
        # "Any" of the vocabulary: its protocol asks for attributes that llguidance never reads.
        vocabulary: Any = _Vocabulary(special)
        self._ids = [*vocabulary.byte_ids, *special.values()]
        self._tokenizer = LLTokenizer(vocabulary)

    def error(self, grammar: str) -> str:
        """Return why a compiled constraint cannot be used, or an empty string."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=parser_limits())
        return first_mask_error(matcher) or _walk_error(matcher, self._ids)


def main() -> None:
    """Answer until the parent is gone."""
    if os.name == "posix":
        import resource

        os.nice(10)  # the model that other answers wait for comes first
        with suppress(ValueError, OSError):  # a lower limit is set already
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    trial = lru_cache(2)(lambda special: _Trial(dict(special)))
    trial(())
    answer(lambda question, report: _reply(trial, **question), stack_bytes=STACK_BYTES)


def _reply(trial: Callable[[Any], _Trial], kind: Any, text: str, special: Mapping[str, int] | None) -> dict[str, str]:
    try:
        grammar = compiled(kind, text)
        said = trial(tuple((special or {}).items())).error(grammar)
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
