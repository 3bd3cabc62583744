"""A slot of the KV cache, and how much of its content another prompt can use."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgespec.core.images import whole
from edgespec.core.prefix import common_prefix
from edgespec.engine.sequence import Sequence, State
from edgespec.llama.adapters import AdapterSet

LEFT_OUT = 4  # tokens at the end of a prompt that templates leave out in the next turn, such as "<think>"


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence id of the KV cache and the tokens that it holds."""

    number: int
    #: The tokens in the cache, or those of the sequence that is running.
    tokens: list[int] = field(default_factory=list)
    #: The length of the last prompt; the tokens after it were generated.
    n_prompt: int = 0
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
        self.tokens, self.n_prompt, self.last_use, self.checkpoints = [], 0, 0, {}

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
        n_read = min(self.n_prompt, len(self.tokens))
        return n_read > 0 and self.common(prompt, adapters) >= n_read - LEFT_OUT

    def prefix(self, prompt: list[int], adapters: AdapterSet = (), *, cuttable: bool = True) -> int:
        """Return how many tokens of a prompt need not be decoded again, now or once the running sequence has read them.

        A memory that is not `cuttable` can be continued only after certain numbers of tokens (`places`).
        """
        most = len(prompt) - 1  # the last token is always decoded, because its logits are needed
        length = whole(prompt, min(self.common(prompt, adapters), most))  # an image is used as a whole or not at all
        if self.running is not None and self.running.finish is not None:  # it will not read the rest of its prompt
            length = min(length, self.running.n_decoded)
        if cuttable:
            return length
        return max((place for place in self.places() if place <= length), default=0)
