"""What the KV cache of a slot holds, and how much of it the next prompt can use."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgespec.core.exactness import LAST, shared_read
from edgespec.core.prefix import common_prefix
from edgespec.engine.prefix import Prefix, Read, Reuse, State
from edgespec.engine.sequence import Sequence

LEFT_OUT = 4  # tokens at the end of a prompt, as "<think>", that templates leave out once it is answered


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence id of the KV cache: `tokens` are those it holds, or those of the sequence that is `running` in it.

    `reads` says how the tokens were decoded: each read is a prompt that was decoded at once, and the tokens between two
    reads, or after the last read, were generated. `following` is the token of an answer that was generated after
    `tokens` and is not in the cache. In an exact context reads decide about bits: a read of at least WIDE tokens takes
    wide passes; shorter reads and generated tokens take narrow passes. The kernels of wide passes agree with each
    other, and so do those of narrow passes, but the bits of a wide pass differ from those of a narrow one.

    **The rule.** A prompt uses a read as far as it would read the same tokens in the same way from the same place. Only
    a chat uses generated tokens, namely all those of an answer that it repeats but the last one, and reads the rest of
    its prompt from there. So the place where the next read begins depends on the text of the chat alone. It must not
    depend on how the answer ended, or on how many tokens had been decoded at that moment: after a step with drafts
    these are other numbers than after a step without, and a read that begins elsewhere may have another width.
    """

    number: int
    tokens: list[int] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    following: int | None = None
    running: Sequence | None = None
    last_use: int = 0
    checkpoints: dict[int, State] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget what the cache held: its content is unknown."""
        self.tokens, self.reads, self.following, self.last_use, self.checkpoints = [], [], None, 0, {}

    def places(self) -> list[int]:
        """Where a prompt can go on if this memory cannot be cut, or will be able to."""
        return [*self.checkpoints, *(self.running.stops if self.running else [len(self.tokens)])]

    def is_repeated_in(self, prompt: list[int]) -> bool:
        """Whether a prompt begins with all that was read here, so that it can lose no more than an answer."""
        n_read = min(self.reads[-1][1], len(self.tokens)) if self.reads else 0
        return n_read > 0 and common_prefix(self.tokens, prompt) >= n_read - LEFT_OUT

    def prefix(self, prompt: list[int], reuse: Reuse, *, exact: bool, cuttable: bool = True) -> Prefix:
        """The tokens of a prompt that need not be decoded again.

        The last two tokens of a prompt are always decoded: a pass over one token counts as verification.
        """
        if reuse == "nothing":
            return Prefix(0, [(0, len(prompt))])
        common = common_prefix(self.tokens, prompt)
        repeats_all = common == len(self.tokens) and prompt[common : common + 1] == [self.following]
        generated = common if repeats_all else common - 1
        if self.running is not None and self.running.finish is not None:
            common, generated = (min(place, self.running.n_decoded) for place in (common, generated))
        if cuttable:
            return self._prefix(common, generated, len(prompt), reuse, exact=exact)
        for place in sorted(self.places(), reverse=True):
            if place <= common:
                found = self._prefix(place, place, len(prompt), reuse, exact=exact)
                if found.length == place:
                    return found
        return Prefix(0, [(0, len(prompt))])

    def _prefix(self, common: int, generated: int, end: int, reuse: Reuse, *, exact: bool) -> Prefix:
        """The same for a prompt of `end` tokens that begins with `common` tokens of this slot, and may use generated
        tokens up to the place `generated`."""
        reads = [read for read in self.reads if read[0] <= generated or not read[0]]
        if not reads:
            return Prefix(0, [(0, end)])
        if reuse == "answers" and generated > reads[-1][1]:
            return Prefix(min(generated, max(end - LAST, reads[-1][1])), [*reads, (generated, end)])
        if reuse != "answers":
            del reads[1:]
        start, read_end = reads.pop()
        n_shared = min(common, read_end) - start
        length = start + shared_read(n_shared, read_end - start, end - start, exact=exact)
        return Prefix(max(length, reads[-1][1] if reads else 0), [*reads, (start, end)])
