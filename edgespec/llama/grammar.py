"""Constraints of an answer: grammars, JSON schemas and regular expressions, as masks over a model's tokens.

A matcher of llguidance has a state; here it follows any prefix it is asked about.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from typing import TypeVar
from weakref import WeakValueDictionary

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.llamacpp import lltokenizer_from_vocab
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.prefix import common_prefix
from edgespec.errors import UsageError
from edgespec.llama.child import NotWaitedForError, acquire
from edgespec.llama.compiler import Compilers
from edgespec.llama.constraint import AMBIGUOUS, first_mask_error, parser_limits, readable
from edgespec.llama.model import Model
from edgespec.settings import CONSTRAINTS, Constraint, Request

REMEMBERED = 64  # compiled ones, and as many refusals
# More than the trial has (compiler_process.py): a grammar that did not exhaust the stack there does not do so here.
STACK_BYTES = 16 << 20
# Processor time of the masks of an answer: for all of them, and in addition for each. A mask usually takes .1 ms.
MASKS_S, MASK_S = 0.5, 0.02

# Processor time that all answers together may take beyond MASK_S a mask: at first, and then in each second. Without
# this limit, a series of slow constraints, each within the limits of its answer, would still hold up all others.
SHARED_S, SHARED_RATE = 4.0, 0.25

Made = TypeVar("Made")


class Allowance:
    """Seconds that refill at a constant rate, up to the number at the start."""

    def __init__(self, most_s: float = SHARED_S, rate: float = SHARED_RATE) -> None:
        self._most_s, self._rate = most_s, rate
        self._left_s, self._refilled_s = most_s, time.monotonic()

    def take(self, seconds: float) -> bool:
        """Take some; False if fewer are left."""
        now_s = time.monotonic()
        self._left_s = min(self._most_s, self._left_s + self._rate * (now_s - self._refilled_s))
        self._refilled_s = now_s
        self._left_s = max(0.0, self._left_s - seconds)
        return self._left_s > 0


class Grammars(Closable):
    """Compiles constraints for a model's vocabulary. The first one takes a second if the vocabulary is large.

    Safe to use from several threads. Each constraint is first compiled in another process, which it may crash.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._compilers = Compilers(lambda: self._special)
        self._tokenizer: LLTokenizer | None = None
        self._lock, self._building = threading.Lock(), threading.Lock()
        self._turns: WeakValueDictionary[tuple[Constraint, bytes], _Turn] = WeakValueDictionary()
        self._shared = Allowance()
        self._known: OrderedDict[tuple[Constraint, bytes], LLMatcher | UsageError] = OrderedDict()

    def must_compile(self, request: Request) -> bool:
        """True if the request has a new constraint, for which `matcher` may take seconds."""
        with self._lock:
            return request.constraint is not None and _key(*request.constraint) not in self._known

    def matcher(self, kind: Constraint, text: str, cancel: CancelFlag | None = None) -> LLMatcher:
        """The compiled constraint, for `GrammarConstraint`; seconds may pass if it is new. Raises UsageError, saying
        what is wrong in the text or which limit it exceeds, NotWaitedForError once `cancel` is set."""
        key = _key(kind, text)
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
        with turn.taken(cancel):  # several requests may have the same new constraint
            with self._lock:
                known = self._known.get(key)
                if known is not None:
                    self._known.move_to_end(key)
            if known is None:
                try:
                    known = self._compiled(kind, text, cancel)
                except NotWaitedForError:
                    raise
                except UsageError as error:
                    known = error
                self._remember(key, known)
        if isinstance(known, UsageError):
            raise UsageError(known.what, why=known.why, hint=known.hint)
        return known

    def constraint(
        self, kind: Constraint, text: str, start: int, matcher: LLMatcher | None = None
    ) -> GrammarConstraint:
        """A constraint for the tokens of a sequence from `start` on; `matcher` if it was compiled before."""
        matcher = matcher or self.matcher(kind, text)
        return GrammarConstraint(
            matcher.deep_copy(),
            kind,
            start,
            self._model.n_vocab,
            lambda why: self._failed(kind, text, why),
            self._shared,
        )

    def close(self) -> None:
        """End the processes that compile."""
        self._compilers.close()

    def _compiled(self, kind: Constraint, text: str, cancel: CancelFlag | None) -> LLMatcher:
        grammar = self._compilers.compiled(kind, text, "", cancel)
        with self._building:
            matcher, said = _with_deep_stack(lambda: self._built(grammar))
        if said:
            raise UsageError(f"cannot use this {CONSTRAINTS[kind]}", why=said)
        return matcher

    def _built(self, grammar: str) -> tuple[LLMatcher, str]:
        """The matcher, and why it cannot be used, if there is a reason. llguidance releases the interpreter lock for
        nearly all of this: other threads continue."""
        matcher = LLMatcher(self._llguidance, grammar, log_level=0, limits=parser_limits())
        began_s = time.thread_time()
        said = first_mask_error(matcher)
        return matcher, said or (AMBIGUOUS if time.thread_time() - began_s > MASKS_S else "")

    def _remember(self, key: tuple[Constraint, bytes], known: LLMatcher | UsageError) -> None:
        with self._lock:
            self._known[key] = known
            for kind in (LLMatcher, UsageError):
                same = [key for key, other in self._known.items() if isinstance(other, kind)]
                for oldest in same[:-REMEMBERED]:
                    del self._known[oldest]

    def _failed(self, kind: Constraint, text: str, why: str) -> None:
        """An answer under this constraint has failed. Refuse the constraint from now on if there is a reason to; else
        compile it again when it is needed: copies of a matcher share the states of their lexer, and its errors."""
        key = _key(kind, text)
        if why:
            what = f"cannot use this {CONSTRAINTS[kind]}"
            self._remember(key, UsageError(what, why=f"it has slowed down all answers before: {why}"))
        else:
            with self._lock:
                self._known.pop(key, None)

    @cached_property
    def _special(self) -> dict[str, int]:
        """The ids of special tokens that a grammar can name, by name. The first of equal names counts."""
        model, found = self._model, dict[str, int]()
        for token in range(model.n_vocab):
            if model.is_special(token):
                text = model.token_bytes(token, special=True).decode("utf-8", "replace")
                if text.startswith("<") and text.endswith(">"):
                    found.setdefault(text, token)
        return found

    @property
    def _llguidance(self) -> LLTokenizer:
        if self._tokenizer is None:
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # one a token, in llama_cpp
                self._tokenizer = lltokenizer_from_vocab(
                    self._model.vocabulary_handle, eos_token=list(self._model.end_tokens)
                )
        return self._tokenizer


class _Turn:
    """One thread at a time compiles a constraint; the others then find it compiled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, cancel: CancelFlag | None) -> Iterator[None]:
        acquire(self._lock, cancel)
        try:
            yield
        finally:
            self._lock.release()


class GrammarConstraint:
    """Which tokens may follow a prefix, for `core.choose`. Raises UsageError where the grammar becomes too much work,
    or a dead end. `failed` is then called, with the reason if masks have taken long."""

    def __init__(
        self,
        matcher: LLMatcher,
        kind: Constraint,
        start: int,
        n_vocab: int,
        failed: Callable[[str], None],
        shared: Allowance,
    ) -> None:
        self._matcher, self._kind, self._start, self._n_vocab = matcher, kind, start, n_vocab
        self._failed, self._shared = failed, shared
        self._read: list[int] = []
        self._spent_s, self._n_masks = 0.0, 0

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_]:
        """bool[V]: which ids may follow `tokens`, prompt and answer; at the end of the grammar, end tokens. All after a
        prefix that does not match: its distribution is never sampled, but block verification reads it."""
        with self._budget():
            if not self._go_to(tokens):
                return np.ones(self._n_vocab, np.bool_)
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check()
        return np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)

    def forced(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that must follow `tokens`, in the vocabulary's usual spelling; empty where there is a choice."""
        with self._budget():
            return self._matcher.compute_ff_tokens() if self._go_to(tokens) else []

    def _go_to(self, tokens: Sequence[int]) -> bool:
        """Advance the matcher to the end of these tokens; whether they match."""
        answer = list(tokens[self._start :])
        agreed = common_prefix(self._read, answer)
        if agreed < len(self._read):
            self._matcher.rollback(len(self._read) - agreed)
        n_read = agreed + self._matcher.try_consume_tokens(answer[agreed:])
        self._read = answer[:n_read]
        self._check()
        return n_read == len(answer)

    @contextmanager
    def _budget(self) -> Iterator[None]:
        """Count the processor time of this block. Raises UsageError where masks take too long: all answers wait for
        each. Time is no part of what is sampled: an answer either ends here or has the text that it always has."""
        began_s = time.thread_time()
        try:
            yield
        except UsageError as error:
            self._failed(error.why if self._spent_s + time.thread_time() - began_s > MASKS_S else "")
            raise
        took_s = time.thread_time() - began_s
        self._spent_s += took_s
        self._n_masks += 1
        has_time = took_s <= MASK_S or self._shared.take(took_s - MASK_S)
        if not has_time or self._spent_s > MASKS_S + MASK_S * self._n_masks:
            self._failed(AMBIGUOUS)
            raise UsageError(f"this {CONSTRAINTS[self._kind]} failed", why=AMBIGUOUS)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(f"this {CONSTRAINTS[self._kind]} failed", why=readable(self._matcher.get_error()))


def _key(kind: Constraint, text: str) -> tuple[Constraint, bytes]:
    return kind, sha256(text.encode("utf-8", "surrogatepass")).digest()


def _with_deep_stack(call: Callable[[], Made]) -> Made:
    """The result of a call in a thread with a stack of `STACK_BYTES`, whatever the caller's is."""
    done = Future[Made]()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    with _STACK:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="grammar", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    return done.result()


_STACK = threading.Lock()  # the size is a setting of the whole process
