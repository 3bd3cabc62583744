"""EAGLE-3 and EAGLE-1 heads in PyTorch (arXiv 2503.01840, 2401.15077), computed as in llama.cpp's graph `eagle3`.

At cell P the head takes the embedding of token P + 1 and g_P, which is fused from the target's features at P, and
predicts token P + 2. In the next step of a draft, g is the state that this step computed. An EAGLE-3 head's features
are the inputs of three layers. An EAGLE-1 head reads the target's final state, which is unknown in prompts: zero there.
Letters in shapes: B texts, L tokens each, A anchors (cells where a draft may begin), D width, V' the head's vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone uses
from torch import Tensor

from edgespec.training.batches import Batch
from edgespec.training.heads import UNSURE, Shape, Weights

DEEPER_AT = (0.0, 0.4, 0.7, 0.85)  # fractions of the time after which the loss covers one more token of a draft


@dataclass(frozen=True, slots=True)
class Eagle3(Shape):
    """`vocab` is V'; `rope_base` and `eps` are the target's."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_base: float
    eps: float

    def tensors(self) -> dict[str, tuple[int, ...]]:
        q, kv, d = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.width
        return {
            "fc": (d, self.n_read),
            "blk.0.attn_norm": (d,),
            "blk.0.attn_norm_2": (d,),
            "blk.0.attn_q": (q, 2 * d),
            "blk.0.attn_k": (kv, 2 * d),
            "blk.0.attn_v": (kv, 2 * d),
            "blk.0.attn_output": (d, q),
            "blk.0.ffn_norm": (d,),
            "blk.0.ffn_gate": (self.ffn, d),
            "blk.0.ffn_up": (self.ffn, d),
            "blk.0.ffn_down": (d, self.ffn),
            "output_norm": (d,),
            "output": (self.vocab, d),
        }

    def initial(self, output: Tensor, output_norm: Tensor, rms: Tensor, seed: int = 0) -> Weights:
        """The first g is the last of the three inputs, with a little of the others. Dividing by `rms` gives all
        features the same weight: a few are a hundred times larger than the rest."""
        weights, n_read = self._random(seed), self.n_read
        for name in ("blk.0.attn_output", "blk.0.ffn_down"):
            weights[name] *= 0.5
        weights["fc"] = 0.3 * weights["fc"] + torch.eye(self.width, n_read).roll(n_read - self.width, 1)
        weights["fc"][:, n_read - len(rms) :] /= rms.clamp(min=1e-6)
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
    ) -> Iterator[Tensor]:
        for state in unroll(weights, self, embedding, batch, depth, dropout):
            yield logits(weights, self, state)


@dataclass(frozen=True, slots=True)
class Eagle1(Eagle3):
    """Reads the final state instead of the inputs of three layers."""

    @property
    def n_read(self) -> int:
        """llama.cpp needs a multiple of three, quantisation one of 32; features that are too many are zero."""
        return 96 * -(-self.width // 96)


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
    k = rotate(_heads(F.linear(keys_in, weights["blk.0.attn_k"]), shape.kv_heads), cells[None], shape.rope_base)
    v = _heads(F.linear(keys_in, weights["blk.0.attn_v"]), shape.kv_heads)
    hidden = (cells[None, None] > anchors[:, :, None])[:, None]  # [B, 1, A, L - 1]: cells after an anchor
    state = _rows(fused, anchors)
    own: list[tuple[Tensor, Tensor]] = []
    for step in range(depth):
        embedded = F.embedding(_rows(batch.tokens, anchors + 1 + step), embedding).to(state.dtype)
        joined = F.dropout(_joined(weights, shape, embedded, state), dropout)
        positions = anchors + step
        if step:
            own_k = _heads(F.linear(joined, weights["blk.0.attn_k"]), shape.kv_heads)
            own_v = _heads(F.linear(joined, weights["blk.0.attn_v"]), shape.kv_heads)
            own.append((rotate(own_k, positions, shape.rope_base), own_v))
        q = rotate(_heads(F.linear(joined, weights["blk.0.attn_q"]), shape.heads), positions, shape.rope_base)
        attended = _attend(q, k, v, hidden, own)
        state = state + F.linear(attended, weights["blk.0.attn_output"])
        state = state + _feed_forward(weights, F.dropout(_norm(state, weights["blk.0.ffn_norm"], shape), dropout))
        yield state


def logits(weights: Weights, shape: Eagle3, state: Tensor) -> Tensor:
    """Logits float[..., V'] of states [..., D]."""
    return F.linear(_norm(state, weights["output_norm"], shape), weights["output"])


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary positions over adjacent pairs: x [B, H, N, d], positions [B or 1, N]."""
    size = x.shape[-1]
    frequencies = base ** (-torch.arange(0, size, 2, device=x.device) / size)
    angles = (positions[..., None].float() * frequencies)[:, None]
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


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
    tokens = _norm(embedded, weights["blk.0.attn_norm"], shape)
    return torch.cat((tokens, _norm(g, weights["blk.0.attn_norm_2"], shape)), dim=-1)


def _feed_forward(weights: Weights, x: Tensor) -> Tensor:
    gate = F.silu(F.linear(x, weights["blk.0.ffn_gate"]))
    return F.linear(gate * F.linear(x, weights["blk.0.ffn_up"]), weights["blk.0.ffn_down"])


def _norm(x: Tensor, weight: Tensor, shape: Eagle3) -> Tensor:
    return F.rms_norm(x.float(), x.shape[-1:], weight, shape.eps)


def _heads(x: Tensor, heads: int) -> Tensor:
    """[B, N, H d] -> [B, H, N, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x [B, N, ...] at index [B, A]; the last row for an index beyond the end."""
    index = index.clamp(max=x.shape[1] - 1)
    batch = torch.arange(x.shape[0], device=x.device)[:, None]
    return x[batch, index]
