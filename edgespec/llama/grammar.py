"""Constraints of an answer, which are grammars, JSON schemas or regular expressions, as masks over a model's tokens.

A matcher of llguidance follows one text. Here it is moved to the prefix of each question, forwards or backwards.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from weakref import WeakValueDictionary

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.llamacpp import lltokenizer_from_vocab
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.prefix import common_prefix
from edgespec.errors import UsageError
from edgespec.llama.compiler import quick_compiler
from edgespec.llama.constraint import AMBIGUOUS, first_mask_error, parser_limits, readable
from edgespec.llama.model import LlamaModel
from edgespec.processes.child import NotWaitedForError, held
from edgespec.settings import CONSTRAINTS, Constraint, Request

REMEMBERED = 64  # compiled constraints, and the same number of refused ones
# More than in the trial (`compiler.STACK_BYTES`), so that a grammar that fits into the stack there also fits here.
STACK_BYTES = 16 << 20
# Limits of the processor time for the masks of an answer: in total, and in addition for each mask. A mask usually takes
# 0.1 ms.
MASKS_S, MASK_S = 0.5, 0.02

# Processor time that all answers together may take beyond MASK_S a mask: at first, and then in each second. Without
# this limit, a series of slow constraints, each within the limits of its answer, would still hold up all others.
SHARED_S, SHARED_RATE = 4.0, 0.25


class Allowance:
    """Seconds that refill at a constant rate, up to the number at the start."""

    def __init__(self, most_s: float = SHARED_S, rate: float = SHARED_RATE) -> None:
        self._most_s, self._rate = most_s, rate
        self._left_s, self._refilled_s = most_s, time.monotonic()

    def take(self, seconds: float) -> bool:
        """Take some seconds. Return False if none are left after that."""
        now_s = time.monotonic()
        self._left_s = min(self._most_s, self._left_s + self._rate * (now_s - self._refilled_s))
        self._refilled_s = now_s
        self._left_s = max(0.0, self._left_s - seconds)
        return self._left_s > 0


class Grammars(Closable):
    """Compiles constraints for a model's vocabulary. The first constraint takes a second if the vocabulary is large.

    Several threads may use it. Each constraint is first compiled in another process, since compiling may crash.
    """

    def __init__(self, model: LlamaModel) -> None:
        self._model, self.n_vocab = model, model.n_vocab
        self._compiler = quick_compiler(lambda: self._special)
        self._lock = threading.Lock()
        # A thread that compiles a constraint holds its lock, while others wait for the result.
        self._turns: WeakValueDictionary[tuple[Constraint, bytes], threading.Lock] = WeakValueDictionary()
        self.allowance = Allowance()  # shared by all answers
        self._known: OrderedDict[tuple[Constraint, bytes], LLMatcher | UsageError] = OrderedDict()

    def must_compile(self, request: Request) -> bool:
        """True if the request has a new constraint, for which `matcher` may take seconds."""
        with self._lock:
            return request.constraint is not None and _key(*request.constraint) not in self._known

    def matcher(self, kind: Constraint, text: str, cancel: CancelFlag | None = None) -> LLMatcher:
        """Return the compiled constraint for `GrammarConstraint`. A new constraint may take seconds. Raises UsageError,
        which says what is wrong in the text or which limit it exceeds, and NotWaitedForError once `cancel` is set."""
        key = _key(kind, text)
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with held(turn, cancel):  # several requests may have the same new constraint
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
            raise known.reworded()  # each with a traceback of its own
        return known

    def constraint(
        self, kind: Constraint, text: str, start: int, matcher: LLMatcher | None = None
    ) -> GrammarConstraint:
        """Return a constraint for the tokens of a sequence from `start` on. `matcher` is given if it was compiled
        before."""
        return GrammarConstraint(self, (matcher or self.matcher(kind, text)).deep_copy(), kind, text, start)

    def continued(
        self, kind: Constraint, text: str, matcher: LLMatcher, begun: Sequence[str | int], start: int
    ) -> GrammarConstraint | None:
        """Return a constraint of what follows a text, for the tokens of a sequence from `start` on; None if no answer
        begins with this text. Special tokens in it are given as ids."""
        copy = matcher.deep_copy()
        for part in begun:
            ids = [part] if isinstance(part, int) else self._llguidance.greedy_tokenize(part)
            if copy.try_consume_tokens(ids) < len(ids):
                return None
        return GrammarConstraint(self, copy, kind, text, start)

    def close(self) -> None:
        """End the processes that compile."""
        self._compiler.close()

    def _compiled(self, kind: Constraint, text: str, cancel: CancelFlag | None) -> LLMatcher:
        grammar = self._compiler.compiled(kind, text, "", cancel)
        with _STACK, ThreadPoolExecutor(1, "grammar") as thread:
            before = threading.stack_size(STACK_BYTES)
            try:
                built = thread.submit(self._built, grammar)  # starts the thread
            finally:
                threading.stack_size(before)
        matcher, said = built.result()
        if said:
            raise UsageError(f"cannot use this {CONSTRAINTS[kind]}", why=said, field=kind)
        return matcher

    def _built(self, grammar: str) -> tuple[LLMatcher, str]:
        """Return the matcher, and why it cannot be used, or an empty string. llguidance releases the interpreter's lock
        for nearly all of this work, so that other threads continue."""
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

    def failed(self, kind: Constraint, text: str, why: str) -> None:
        """Handle an answer that failed under this constraint. With a reason, refuse the constraint from now on.
        Without, compile it again when it is needed: copies of a matcher share the state of their lexer, and so its
        errors."""
        key = _key(kind, text)
        if why:
            what = f"cannot use this {CONSTRAINTS[kind]}"
            self._remember(key, UsageError(what, why=f"it has slowed down all answers before: {why}", field=kind))
        else:
            with self._lock:
                self._known.pop(key, None)

    @cached_property
    def _special(self) -> dict[str, int]:
        """The ids of special tokens that a grammar can name, by name. If names are equal, the first one counts."""
        model, found = self._model, dict[str, int]()
        for token in range(model.n_vocab):
            if model.is_special(token):
                text = model.token_bytes(token, special=True).decode("utf-8", "replace")
                if text.startswith("<") and text.endswith(">"):
                    found.setdefault(text, token)
        return found

    @cached_property
    def _llguidance(self) -> LLTokenizer:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of llama_cpp, for each token
            return lltokenizer_from_vocab(self._model.vocabulary_handle, eos_token=list(self._model.end_tokens))


class GrammarConstraint:
    """The tokens that may follow a prefix, for `core.choose`. Raises UsageError if masks take too long, or if nothing
    can follow, and reports that to `grammars`."""

    is_narrow = True

    def __init__(self, grammars: Grammars, matcher: LLMatcher, kind: Constraint, text: str, start: int) -> None:
        self._grammars, self._matcher, self._kind, self._text, self._start = grammars, matcher, kind, text, start
        self._n_vocab = grammars.n_vocab
        self._read: list[int] = []
        self._spent_s, self._n_masks = 0.0, 0

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_]:
        """Return bool[V], True for ids that may follow `tokens` (prompt and answer); at the end of the grammar, for end
        tokens. All are True after a prefix that does not match: no token is sampled there, but block verification reads
        the distribution."""
        with self._budget():
            if not self._go_to(tokens):
                return np.ones(self._n_vocab, np.bool_)
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check()
        return np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)

    def forced(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens that must follow `tokens`, in the vocabulary's usual spelling; none if there is a
        choice."""
        with self._budget():
            return self._matcher.compute_ff_tokens() if self._go_to(tokens) else []

    def is_over(self, tokens: Sequence[int]) -> bool:
        """Return whether `tokens` end with a whole text, or with one that does not match."""
        with self._budget():
            return not self._go_to(tokens) or self._matcher.is_accepting()

    def _go_to(self, tokens: Sequence[int]) -> bool:
        """Move the matcher to the end of these tokens. Return whether they match."""
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
        """Count the processor time of this block. Raises UsageError if masks take too long, since all answers wait for
        each mask. Time never changes what is sampled: an answer either fails here or has the same text as always."""
        began_s = time.thread_time()
        try:
            yield
        except UsageError as error:
            why = error.why if self._spent_s + time.thread_time() - began_s > MASKS_S else ""
            self._grammars.failed(self._kind, self._text, why)
            raise
        took_s = time.thread_time() - began_s
        self._spent_s += took_s
        self._n_masks += 1
        has_time = took_s <= MASK_S or self._grammars.allowance.take(took_s - MASK_S)
        if not has_time or self._spent_s > MASKS_S + MASK_S * self._n_masks:
            self._grammars.failed(self._kind, self._text, AMBIGUOUS)
            raise UsageError(f"this {CONSTRAINTS[self._kind]} failed", why=AMBIGUOUS)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(f"this {CONSTRAINTS[self._kind]} failed", why=readable(self._matcher.get_error()))


def _key(kind: Constraint, text: str) -> tuple[Constraint, bytes]:
    return kind, sha256(text.encode("utf-8", "surrogatepass")).digest()


_STACK = threading.Lock()  # the size of new threads' stacks is a setting of the whole process
