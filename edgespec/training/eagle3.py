"""EAGLE-3 and EAGLE-1 heads in PyTorch (arXiv 2503.01840, 2401.15077), computed as in llama.cpp's graph `eagle3`.

At cell P the head takes the embedding of token P + 1 and g_P, which is fused from the target's features at P, and
predicts token P + 2. In the next step of a draft, g is the state that this step computed. An EAGLE-3 head's features
are the inputs of three layers. An EAGLE-1 head reads the target's final state, which is unknown in prompts: zero there.
Letters in shapes: B texts, L tokens each, A anchors (cells where a draft may begin), D width, V' the head's vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone uses
from torch import Tensor

from edgespec.gguf_file.head_check import FINAL_STATE, READS
from edgespec.gguf_file.header import Header
from edgespec.training.batches import Batch
from edgespec.training.heads import UNSURE, Drafted, Metadata, Weights
from edgespec.training.layers import LayerShape, feed_forward, fuse, norm, rotate, rows_at, split_heads

DEEPER_AT = (0.0, 0.4, 0.7, 0.85)  # fractions of the time after which the loss covers one more token of a draft


@dataclass(frozen=True, slots=True)
class Eagle3(LayerShape):
    """One layer that continues from its own states."""

    kind = "eagle3"

    def sizes(self, layer: int) -> dict[str, int]:
        return LayerShape.sizes(self, layer) | {"inputs": 2 * self.width, "read": self.n_read}

    def metadata(self, target: Header, layers: Sequence[int]) -> Metadata:
        # llama.cpp reads three times as many numbers
        return LayerShape.metadata(self, target, layers) | {"target_hidden_size": self.n_read // 3}

    def initial(self, output: Tensor, output_norm: Tensor, rms: Tensor, seed: int = 0) -> Weights:
        weights = self._random(seed)
        for name in ("blk.0.attn_output", "blk.0.ffn_down"):
            weights[name] *= 0.5
        fuse(weights, rms)
        weights["output"], weights["output_norm"] = output.float().clone(), UNSURE * output_norm.float()
        return weights

    @property
    def n_read(self) -> int:
        """The number of features of a token that `fc` takes."""
        return 3 * self.width

    @property
    def deepest(self) -> int:
        return len(DEEPER_AT)

    def depth(self, done: float) -> int:
        return sum(done >= share for share in DEEPER_AT)

    def drafts(
        self, weights: Weights, embedding: Tensor, batch: Batch, depth: int, dropout: float = 0.0
    ) -> Iterator[Drafted]:
        for state in unroll(weights, self, embedding, batch, depth, dropout):
            yield Drafted(logits(weights, self, state))


@dataclass(frozen=True, slots=True)
class Eagle1(Eagle3):
    """Reads the final state instead of the inputs of three layers."""

    kind = "eagle1"

    @property
    def n_read(self) -> int:
        """llama.cpp needs a multiple of three, quantisation one of 32; features that are too many are zero."""
        return 96 * -(-self.width // 96)

    def metadata(self, target: Header, layers: Sequence[int]) -> Metadata:
        return Eagle3.metadata(self, target, (0, 0, 0))

    def own_metadata(self) -> Metadata:
        return {READS: FINAL_STATE}


def unroll(
    weights: Weights, shape: Eagle3, embedding: Tensor, batch: Batch, depth: int, dropout: float = 0.0
) -> Iterator[Tensor]:
    """Yield `depth` states float[B, A, D] at the anchors, for `logits`.

    Step j drafts token P + 2 + j after the text's own tokens; from step 1 on, the head's own states replace the
    target's features. The paper calls this training-time test.
    """
    n_anchors = int(batch.anchors.max())
    features = F.pad(batch.inputs, (shape.n_read - batch.inputs.shape[-1], 0))
    fused = F.linear(features, weights["fc"])[:, :-1]
    cells = torch.arange(fused.shape[1], device=fused.device)
    anchors = batch.start[:, None] + torch.arange(n_anchors, device=fused.device)  # [B, A]
    keys_in = _joined(weights, shape, F.embedding(batch.tokens[:, 1:], embedding).to(fused.dtype), fused)
    keys_in = F.dropout(keys_in, dropout)
    k = rotate(split_heads(F.linear(keys_in, weights["blk.0.attn_k"]), shape.kv_heads), cells[None], shape.rope_base)
    v = split_heads(F.linear(keys_in, weights["blk.0.attn_v"]), shape.kv_heads)
    hidden = (cells[None, None] > anchors[:, :, None])[:, None]  # [B, 1, A, L - 1]: cells after an anchor
    state = rows_at(fused, anchors)
    own: list[tuple[Tensor, Tensor]] = []
    for step in range(depth):
        embedded = F.embedding(rows_at(batch.tokens, anchors + 1 + step), embedding).to(state.dtype)
        joined = F.dropout(_joined(weights, shape, embedded, state), dropout)
        positions = anchors + step
        if step:
            own_k = split_heads(F.linear(joined, weights["blk.0.attn_k"]), shape.kv_heads)
            own_v = split_heads(F.linear(joined, weights["blk.0.attn_v"]), shape.kv_heads)
            own.append((rotate(own_k, positions, shape.rope_base), own_v))
        q = rotate(split_heads(F.linear(joined, weights["blk.0.attn_q"]), shape.heads), positions, shape.rope_base)
        attended = _attend(q, k, v, hidden, own)
        state = state + F.linear(attended, weights["blk.0.attn_output"])
        state = state + feed_forward(weights, shape, 0, state, dropout)
        yield state


def logits(weights: Weights, shape: Eagle3, state: Tensor) -> Tensor:
    """Logits float[..., V'] of states [..., D]."""
    return F.linear(norm(state, weights["output_norm"], shape), weights["output"])


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, own: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention of each anchor to the cells up to it and to the states of its own draft, [B, A, H d]."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    own = [(own_k.repeat_interleave(groups, 1), own_v.repeat_interleave(groups, 1)) for own_k, own_v in own]
    scores = (q @ k.transpose(-1, -2)).masked_fill(hidden, -torch.inf)
    scores = torch.cat([scores, *((q * own_k).sum(-1, keepdim=True) for own_k, _ in own)], dim=-1)
    share = (scores.float() * q.shape[-1] ** -0.5).softmax(-1).to(v.dtype)
    n_cells = k.shape[2]
    mixed = share[..., :n_cells] @ v
    for index, (_, own_v) in enumerate(own):
        mixed = mixed + share[..., n_cells + index, None] * own_v
    return mixed.transpose(1, 2).flatten(-2)


def _joined(weights: Weights, shape: Eagle3, embedded: Tensor, g: Tensor) -> Tensor:
    tokens = norm(embedded, weights["blk.0.attn_norm"], shape)
    return torch.cat((tokens, norm(g, weights["blk.0.attn_norm_2"], shape)), dim=-1)
