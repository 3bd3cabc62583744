"""What the KV cache of a slot holds, and how much of it the next prompt can use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.core.prefix import common_prefix
from edgespec.llama.kernels import NARROW

if TYPE_CHECKING:
    from edgespec.engine.sequence import Sequence

WIDE = NARROW + 1  # tokens of a pass from which on an exact context reads prompts
LEFT_OUT = 4  # tokens at the end of a prompt, as "<think>", that templates leave out once it is answered
LAST = 2  # tokens of a prompt that are always decoded

Reuse = Literal["nothing", "running", "prompts", "answers"]
"""The part of the cache that a prompt may use: nothing; prompts of sequences that are running; also those of finished
sequences; also what was generated, as a chat that continues does."""

Read = tuple[int, int]
"""A prompt, or the end of one, that was read at once: from where to where."""

State = NDArray[np.uint8]
"""What `Context.save` gives."""


class Prefix(NamedTuple):
    """The first `length` tokens of a prompt, which a cache holds; `reads` are those of the whole prompt then."""

    length: int
    reads: list[Read]


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence id of the KV cache: `tokens` are those it holds, or those of the sequence that is `running` in it.

    `reads` says how they came there: each prompt was read at once, and what lies between two reads, or behind the last
    one, was generated. In an exact context this decides about bits: a read of at least WIDE tokens takes wide passes, a
    shorter one and what is generated narrow ones, whose kernels agree among themselves and not with each other.

    **The rule.** Of a read, a prompt uses as much as it would read in the same way from the same place. Only a chat
    builds on generated tokens: it takes them as they are, and reads on from where it leaves them.
    """

    number: int
    tokens: list[int] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    running: Sequence | None = None
    last_use: int = 0
    checkpoints: dict[int, State] = field(default_factory=dict)

    def clear(self) -> None:
        """What the cache held is not known any more."""
        self.tokens, self.reads, self.last_use, self.checkpoints = [], [], 0, {}

    def places(self) -> list[int]:
        """Where a prompt can go on if this memory cannot be cut, or will be able to."""
        return [*self.checkpoints, *(self.running.stops if self.running else [len(self.tokens)])]

    def is_repeated_in(self, prompt: list[int]) -> bool:
        """Whether a prompt begins with all that was read here, so that it can lose no more than an answer."""
        n_read = min(self.reads[-1][1], len(self.tokens)) if self.reads else 0
        return n_read > 0 and common_prefix(self.tokens, prompt) >= n_read - LEFT_OUT

    def prefix(self, prompt: list[int], reuse: Reuse, *, exact: bool, cuttable: bool = True) -> Prefix:
        """What of a prompt need not be decoded again. Its last two tokens are: a pass over one would verify a draft."""
        if reuse == "nothing":
            return Prefix(0, [(0, len(prompt))])
        common = common_prefix(self.tokens, prompt)
        if self.running is not None and self.running.finish is not None:
            common = min(common, self.running.n_decoded)
        if cuttable:
            return self._prefix(common, len(prompt), reuse, exact=exact)
        for place in sorted(self.places(), reverse=True):
            if place <= common:
                found = self._prefix(place, len(prompt), reuse, exact=exact)
                if found.length == place:
                    return found
        return Prefix(0, [(0, len(prompt))])

    def _prefix(self, common: int, end: int, reuse: Reuse, *, exact: bool) -> Prefix:
        """The same for a prompt of `end` tokens that begins with `common` tokens of this slot."""
        reads = [read for read in self.reads if read[0] <= common]
        if not reads:
            return Prefix(0, [(0, end)])
        if reuse == "answers" and common > reads[-1][1]:
            return Prefix(min(common, max(end - LAST, reads[-1][1])), [*reads, (common, end)])
        if reuse != "answers":
            del reads[1:]
        start, read_end = reads.pop()
        n_shared = min(common, read_end) - start
        length = start + _read_alike(n_shared, read_end - start, end - start, exact=exact)
        return Prefix(max(length, reads[-1][1] if reads else 0), [*reads, (start, end)])


def _read_alike(n_shared: int, n_read: int, n_prompt: int, *, exact: bool) -> int:
    """How many of `n_shared` tokens that a read of `n_read` begins with are as a read of `n_prompt` would give them."""
    is_wide = exact and n_prompt >= WIDE
    if exact and is_wide != (n_read >= WIDE):
        n_shared = 0
    return min(n_shared, n_prompt - (WIDE if is_wide else LAST))
