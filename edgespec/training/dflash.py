"""DFlash and DSpark heads in PyTorch (DFlash: arXiv 2602.06036), computed as in llama.cpp's graph `dflash`.

Such a head drafts a whole block in one pass. The block is the last token, followed by mask tokens; its place i has the
position of the token i after the last one. The block attends to keys and values that are computed from the target's
features of all tokens before the last one, and to its own earlier places: attention is causal, so that a shorter block
drafts the beginning of what a longer one drafts. Place i of a DSpark block predicts the token after place i. Its Markov
head adds a bias by the token at place i, which was drafted before, and its confidence head estimates how likely the
prediction is right. A DFlash block has neither, and place i predicts its own token: one place more for as many tokens.
Letters in shapes: B texts, L tokens each, A anchors, P places, D width, H attention heads of size d.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone uses
from torch import Tensor

from edgespec.gguf_file.head_check import MASK_TOKEN
from edgespec.gguf_file.header import Header
from edgespec.training.batches import Batch
from edgespec.training.heads import Drafted, Metadata, Weights
from edgespec.training.layers import LayerShape, feed_forward, fuse, norm, rotate, rows_at, split_heads

MARKOV_RANK = 64  # of a DSpark head
UNSURE = 0.1  # factor on the logits in the beginning, when a block knows less of the next token than other heads do


@dataclass(frozen=True, slots=True)
class DFlash(LayerShape):
    """`block` is the longest draft; `mask` is the token of the places that are to be drafted."""

    kind = "dflash"
    step_anchors: ClassVar[int] = 512  # each costs several times as much as in other heads, and steps have to be many
    block: int
    n_read: int
    mask: int

    @property
    def deepest(self) -> int:
        return self.block

    @property
    def n_places(self) -> int:
        """The number of places of the longest block."""
        return self.block + 1

    @classmethod
    def dimensions(cls, target: Header, vocab: int, block: int) -> dict[str, Any]:
        layer = super(DFlash, cls).dimensions(target, vocab, block)
        end = target.metadata.get("tokenizer.ggml.eos_token_id")
        return layer | {
            "kv_heads": layer["heads"],  # a block knows the text through its attention only: fewer would lose a part
            "block": block,
            "n_read": 3 * layer["width"],
            "mask": end if isinstance(end, int) else 0,  # nothing is drafted after it, so it is not needed for itself
        }

    def sizes(self, layer: int) -> dict[str, int]:
        return LayerShape.sizes(self, layer) | {"read": self.n_read}

    def metadata(self, target: Header, layers: Sequence[int]) -> Metadata:
        own = {"block_size": self.n_places, "attention.causal": True, "sample_from_anchor": self.n_places == self.block}
        return LayerShape.metadata(self, target, layers) | own

    def own_metadata(self) -> Metadata:
        return {MASK_TOKEN: self.mask}

    def initial(self, output: Tensor, output_norm: Tensor, rms: Tensor, seed: int = 0) -> Weights:
        """Each layer adds the last of the features that it attends to, with a little of the others."""
        weights = self._random(seed)
        for name in weights:
            if name.endswith(("attn_v", "attn_output")):
                weights[name] = 0.5 * (weights[name] * 0.5 + torch.eye(*weights[name].shape))
            elif name.endswith("ffn_down"):
                weights[name] *= 0.5
        fuse(weights, rms)
        weights["output"], weights["output_norm"] = output.float().clone(), UNSURE * output_norm.float()
        return weights

    def drafts(
        self, weights: Weights, embedding: Tensor, batch: Batch, depth: int, dropout: float = 0.0
    ) -> Iterator[Drafted]:
        states = self.states(weights, embedding, batch, depth + 1, dropout)
        for place in range(1, depth + 1):
            yield Drafted(F.linear(states[:, :, place], weights["output"]))

    def states(self, weights: Weights, embedding: Tensor, batch: Batch, n_places: int, dropout: float) -> Tensor:
        """The normed states [B, A, P, D] of the blocks at all anchors."""
        n_anchors, device = batch.is_text.shape[2], batch.tokens.device
        cells, places = (torch.arange(n, device=device) for n in (batch.inputs.shape[1] - 1, n_places))
        anchors = batch.start[:, None] + torch.arange(n_anchors, device=device)  # [B, A]
        positions = (anchors[..., None] + 1 + places).flatten(1)
        ids = torch.full((*anchors.shape, n_places), self.mask, device=device)
        ids[..., 0] = rows_at(batch.tokens, anchors + 1)
        state = F.embedding(ids, embedding).float().flatten(1, 2)  # [B, A P, D]
        fused = norm(F.linear(batch.inputs[:, :-1], weights["fc"]), weights["enc.output_norm"], self)
        hidden = (cells > anchors[..., None]).repeat_interleave(n_places, 1)[:, None]  # [B, 1, A P, L - 1]
        for layer in range(self.layers):
            name, normed = f"blk.{layer}.attn", norm(state, weights[f"blk.{layer}.attn_norm"], self)
            normed, seen = F.dropout(normed, dropout), F.dropout(fused, dropout)
            q = self._turned(weights, f"{name}_q", normed, positions)
            of_text = self._keys_and_values(weights, name, seen, cells[None])
            of_block = self._keys_and_values(weights, name, normed, positions)
            attended = _attend(q, of_text, of_block, hidden, n_places)
            state = state + F.linear(attended, weights[f"{name}_output"])
            state = state + feed_forward(weights, self, layer, state, dropout)
        return norm(state, weights["output_norm"], self).unflatten(1, (n_anchors, n_places))

    def _turned(self, weights: Weights, name: str, x: Tensor, positions: Tensor) -> Tensor:
        """Normed queries or keys [B, H, N, d] with rotary positions.

        llama.cpp pairs the number j of a head with the number j + d / 2. Their order does not matter for the products
        of queries and keys, so the pairs are put next to each other.
        """
        heads = norm(split_heads(F.linear(x, weights[name]), self.heads), weights[f"{name}_norm"], self)
        return rotate(heads.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2), positions, self.rope_base)

    def _keys_and_values(self, weights: Weights, name: str, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        values = split_heads(F.linear(x, weights[f"{name}_v"]), self.heads)
        return self._turned(weights, f"{name}_k", x, positions), values


@dataclass(frozen=True, slots=True)
class DSpark(DFlash):
    """`rank` is that of the Markov head, and `tokens` the size of the target's vocabulary."""

    kind = "dspark"
    rank: int
    tokens: int

    @property
    def n_places(self) -> int:
        return self.block

    @classmethod
    def dimensions(cls, target: Header, vocab: int, block: int) -> dict[str, Any]:
        own = {"rank": MARKOV_RANK, "tokens": target.n_vocab}
        return super(DSpark, cls).dimensions(target, vocab, block) | own

    def sizes(self, layer: int) -> dict[str, int]:
        return DFlash.sizes(self, layer) | {"rank": self.rank, "tokens": self.tokens}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return DFlash.tensors(self) | {"conf_proj": (1, self.width + self.rank)}

    def initial(self, output: Tensor, output_norm: Tensor, rms: Tensor, seed: int = 0) -> Weights:
        weights = DFlash.initial(self, output, output_norm, rms, seed)
        weights["markov_w1"] *= self.rank**0.5  # rows of tokens, not a matrix that keeps a scale
        for name in ("markov_w2", "conf_proj"):
            weights[name].zero_()
        return weights

    def drafts(
        self, weights: Weights, embedding: Tensor, batch: Batch, depth: int, dropout: float = 0.0
    ) -> Iterator[Drafted]:
        states = self.states(weights, embedding, batch, depth, dropout)
        anchors = batch.start[:, None] + torch.arange(states.shape[1], device=states.device)
        for place in range(depth):
            state = states[:, :, place]
            previous = F.embedding(rows_at(batch.tokens, anchors + 1 + place), weights["markov_w1"])
            logits = F.linear(state, weights["output"]) + F.linear(previous, weights["markov_w2"])
            # the confidence learns from the drafts, and the drafts do not learn to be easy to judge
            seen = torch.cat((state, previous), -1).detach()
            yield Drafted(logits, F.linear(seen, weights["conf_proj"])[..., 0])


def _attend(
    q: Tensor, of_text: tuple[Tensor, Tensor], of_block: tuple[Tensor, Tensor], hidden: Tensor, n_places: int
) -> Tensor:
    """Attention [B, A P, H d] of blocks to the keys and values of the text before them and of their earlier places."""
    (k, v), n_cells = of_text, of_text[0].shape[2]
    block_q, block_k, block_v = (x.unflatten(2, (-1, n_places)) for x in (q, *of_block))  # [B, H, A, P, d]
    later = torch.ones(n_places, n_places, dtype=torch.bool, device=q.device).triu(1)
    inside = (block_q @ block_k.transpose(-1, -2)).masked_fill(later, -torch.inf)
    scores = torch.cat(((q @ k.transpose(-1, -2)).masked_fill(hidden, -torch.inf), inside.flatten(2, 3)), -1)
    share = (scores.float() * q.shape[-1] ** -0.5).softmax(-1).to(v.dtype)
    mixed = share[..., n_cells:].unflatten(2, (-1, n_places)) @ block_v
    return (share[..., :n_cells] @ v + mixed.flatten(2, 3)).transpose(1, 2).flatten(-2)
