"""A Hydra head in PyTorch (2402.05109): a small network for each token of a draft, told the tokens before it.

From the target's final state h after token P, and the embeddings E of tokens P + 1 .. P + k, network k says what token
P + k + 1 is: `output (h + down_k silu(up_k [h; norm E(P + 1); ..; norm E(P + k)]))`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone uses
from torch import Tensor

from edgespec.training.batches import Batch
from edgespec.training.heads import Weights

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Hydra:
    """`heads` networks of one hidden layer that is as wide as the target."""

    width: int
    heads: int
    vocab: int

    @property
    def deepest(self) -> int:
        return self.heads

    def depth(self, done: float) -> int:
        return self.heads  # which share nothing but the output

    def tensors(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {"embd_norm": (self.width,)}
        for k in range(self.heads):
            found[f"head.{k}.up"] = (self.width, (k + 2) * self.width)
            found[f"head.{k}.down"] = (self.width, self.width)
        return found | {"output": (self.vocab, self.width)}

    def initial(self, output: Tensor, output_norm: Tensor, rms: Tensor, seed: int = 0) -> Weights:
        generator = torch.Generator().manual_seed(seed)
        weights: Weights = {"embd_norm": torch.ones(self.width)}
        for name, size in self.tensors().items():
            if ".up" in name:
                weights[name] = torch.randn(size, generator=generator) * size[1] ** -0.5
            elif ".down" in name:
                weights[name] = torch.zeros(size)
        return weights | {"output": output.float().clone()}

    def drafts(
        self, weights: Weights, embedding: Tensor, batch: Batch, depth: int, dropout: float = 0.0
    ) -> Iterator[Tensor]:
        n_anchors = batch.is_text.shape[2]
        state, tokens = batch.hidden[:, :n_anchors], batch.texts.tokens
        texts = torch.arange(len(tokens), device=tokens.device)[:, None]
        anchors = batch.texts.start[:, None] + torch.arange(n_anchors, device=tokens.device)
        seen = [state]
        for k in range(depth):
            following = tokens[texts, (anchors + 1 + k).clamp(max=tokens.shape[1] - 1)]
            embedded = F.embedding(following, embedding).float()
            seen.append(F.rms_norm(embedded, (self.width,), weights["embd_norm"], EPS))
            inner = F.silu(F.linear(F.dropout(torch.cat(seen, -1), dropout), weights[f"head.{k}.up"]))
            yield F.linear(state + F.linear(inner, weights[f"head.{k}.down"]), weights["output"])
