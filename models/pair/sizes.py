"""The relative sizes of the models of a pair, and what each takes, from their headers."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from edgespec.gguf_file.head_check import NETWORKS
from edgespec.gguf_file.header import Header
from edgespec.text.figures import percent

USUAL_RATIO = (5, 10)  # a draft this many times smaller than its target works best, as a rule of thumb
_F32 = 4


@dataclass(frozen=True, slots=True)
class RelativeSize:
    """A draft's size relative to its target's; `str()` compares it with the rule of thumb.

    `times_smaller` counts parameters; `cost_ratio` is the approximate cost of a draft token in passes of the target, by
    the weights that both read.
    """

    times_smaller: float
    cost_ratio: float
    is_same_file: bool = False

    @property
    def slows_down(self) -> bool:
        """True if the draft is larger, or as large without smaller weights: it costs more than it can gain."""
        return self.times_smaller < 1 or (self.times_smaller == 1 and self.cost_ratio >= 1)

    def __str__(self) -> str:
        if self.slows_down:
            relation = "larger than" if self.times_smaller < 1 else "as large as"
            return f"{'the same file as' if self.is_same_file else relation} the target: it would slow decoding down"
        if self.times_smaller == 1:
            return (
                "as many parameters as the target, with smaller weights: a draft pass reads "
                f"{percent(self.cost_ratio)} as much"
            )
        low, high = USUAL_RATIO
        ratio = f"{self.times_smaller:.1f}" if self.times_smaller < high else f"{self.times_smaller:.0f}"
        if self.times_smaller < low:
            return f"only {ratio} times smaller than the target: {low} to {high} times is best"
        return f"{ratio} times smaller than the target"


def relative_size(target: Header, draft: Header) -> RelativeSize:
    """Return the size of `draft` relative to `target`; vocabularies are ignored."""
    return RelativeSize(
        target.n_params / max(1, draft.n_params),
        read_bytes(draft) / max(1, read_bytes(target)),
        os.path.realpath(target.path) == os.path.realpath(draft.path),
    )


def read_bytes(header: Header) -> int:
    """Return the approximate bytes of the weights that a pass over one token reads.

    It reads only active experts, and hardly any of the embedding unless that is the output, too. Of a Hydra or Medusa
    head it reads one network, which numpy multiplies in F32.
    """
    if header.architecture in NETWORKS:
        networks = sum(math.prod(tensor.shape) for name, tensor in header.tensors.items() if name.startswith("head."))
        return _F32 * (header.n_params - networks + networks // header.number("block_count", 1))
    used, n_experts = header.number("expert_used_count"), header.number("expert_count")
    has_output = "output.weight" in header.tensors
    n_bytes = 0
    for name, tensor in header.tensors.items():
        if "_exps." in name and 0 < used < n_experts:
            n_bytes += tensor.size_bytes * used // n_experts
        elif name != "per_layer_token_embd.weight" and not (name == "token_embd.weight" and has_output):
            n_bytes += tensor.size_bytes
    return n_bytes
