"""A slot of the KV cache, and how much of its content the next prompt can use."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgespec.core.exactness import LAST, shared_read
from edgespec.core.images import end_of_part, whole
from edgespec.core.prefix import common_prefix
from edgespec.engine.sequence import Prefix, Read, Reuse, Sequence, State
from edgespec.llama.adapters import AdapterSet

LEFT_OUT = 4  # tokens at the end of a prompt that templates leave out in the next turn, such as "<think>"


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence id of the KV cache and the tokens that it holds.

    In an exact context, the bits of cached tokens depend on how the tokens were decoded. A read (see `reads`) of at
    least WIDE tokens takes wide passes; shorter reads and generated tokens take narrow passes. The kernels of wide
    passes agree with each other, and so do those of narrow passes, but the bits of a wide pass differ from those of a
    narrow one.

    **The rule.** A prompt uses a cached read only as far as it would read the same tokens in the same way from the same
    position. Only a chat uses generated tokens: the next prompt repeats the answer, and uses all tokens of the answer
    except the last one. The rest of this prompt is then read. So the position where the next read begins depends on the
    text of the chat alone. This position must not depend on how the answer ended, or on how many tokens had been
    decoded then: drafts change this number, and a read that begins elsewhere may have another width.

    Images divide a read into parts. Each part has its own width: an image is read as a whole, and the text before or
    after it like a prompt of its length.
    """

    number: int
    #: The tokens in the cache, or those of the sequence that is running.
    tokens: list[int] = field(default_factory=list)
    #: The prompts that were decoded at once; tokens between two reads, or after the last one, were generated.
    reads: list[Read] = field(default_factory=list)
    #: The token of an answer that was generated after `tokens` and is not in the cache.
    following: int | None = None
    #: The sequence that uses the slot now.
    running: Sequence | None = None
    #: A counter value: the least recently used slot has the smallest one.
    last_use: int = 0
    #: Saved states of memories that cannot be cut, by their number of tokens.
    checkpoints: dict[int, State] = field(default_factory=dict)
    #: The LoRA adapters with which the tokens were decoded.
    adapters: AdapterSet = ()

    def clear(self) -> None:
        """Forget all tokens, because the content of the cache is unknown."""
        self.tokens, self.reads, self.following, self.last_use, self.checkpoints = [], [], None, 0, {}

    def places(self) -> list[int]:
        """Return the positions from which a prompt can continue in a memory that cannot be cut, now or once they are
        read."""
        return [*self.checkpoints, *(self.running.stops if self.running else [len(self.tokens)])]

    def common(self, tokens: list[int], adapters: AdapterSet) -> int:
        """Return how many tokens this slot has in common with a text that is decoded with these adapters."""
        return common_prefix(self.tokens, tokens) if adapters == self.adapters else 0

    def is_repeated_in(self, prompt: list[int], adapters: AdapterSet = ()) -> bool:
        """Return whether a prompt begins with all prompt tokens of this slot: reusing the slot then discards only
        generated tokens."""
        n_read = min(self.reads[-1][1], len(self.tokens)) if self.reads else 0
        return n_read > 0 and self.common(prompt, adapters) >= n_read - LEFT_OUT

    def prefix(
        self, prompt: list[int], reuse: Reuse, adapters: AdapterSet = (), *, exact: bool, cuttable: bool = True
    ) -> Prefix:
        """Return the tokens of a prompt that need not be decoded again.

        The last two tokens of a prompt are always decoded: a pass over one token counts as verification.
        """
        if reuse == "nothing":
            return Prefix(0, [(0, len(prompt))])
        common = whole(prompt, self.common(prompt, adapters))
        repeats_all = common == len(self.tokens) and prompt[common : common + 1] == [self.following]
        generated = common if repeats_all else common - 1
        if self.running is not None and self.running.finish is not None:
            common, generated = (min(place, self.running.n_decoded) for place in (common, generated))
        if cuttable:
            return self._prefix(prompt, common, generated, reuse, exact=exact)
        for place in sorted(self.places(), reverse=True):
            if place <= common:
                found = self._prefix(prompt, place, place, reuse, exact=exact)
                if found.length == place:
                    return found
        return Prefix(0, [(0, len(prompt))])

    def _prefix(self, prompt: list[int], common: int, generated: int, reuse: Reuse, *, exact: bool) -> Prefix:
        """Return the usable prefix of a prompt, of which the first `common` tokens are those of this slot. Generated
        tokens may be used up to position `generated`."""
        end = len(prompt)
        reads = [read for read in self.reads if read[0] <= generated or not read[0]]
        if not reads:
            return Prefix(0, [(0, end)])
        if reuse == "answers" and generated > reads[-1][1]:
            return Prefix(min(generated, max(end - LAST, reads[-1][1])), [*reads, (generated, end)])
        if reuse != "answers":
            del reads[1:]
        start, read_end = reads.pop()
        length = self._shared(prompt, common, start, read_end, exact=exact)
        return Prefix(max(length, reads[-1][1] if reads else 0), [*reads, (start, end)])

    def _shared(self, prompt: list[int], common: int, start: int, read_end: int, *, exact: bool) -> int:
        """Return the position up to which a prompt can use the read from `start` to `read_end`."""
        first = start
        while True:
            own_end, end = end_of_part(self.tokens, start, read_end), end_of_part(prompt, start, len(prompt))
            if start < own_end == end <= common and end < len(prompt):
                start = end  # the same image, or the same text before an image
            elif start >= read_end or prompt[start] < 0:
                return start
            else:
                n_shared = min(common, own_end) - start
                length = start + shared_read(n_shared, own_end - start, end - start, exact=exact)
                return length if start == first else max(start, length)
