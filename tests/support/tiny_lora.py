"""Tiny LoRA adapters as real GGUF files, and models with the same changes in their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tiny_gguf import Value, Weights, replaced, write_file

from edgespec.gguf_file.header import read_header

ALPHA = 8.0
WEIGHTS = ("blk.0.attn_q.weight", "blk.0.ffn_down.weight", "blk.1.attn_v.weight", "blk.1.ffn_up.weight")


def write_adapter(
    path: str | Path,
    model: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    type: str = "F32",
    weights: Sequence[str] = WEIGHTS,
    metadata: Mapping[str, Value | None] | None = None,
    tensors: Mapping[str, Weights | None] | None = None,
) -> Path:
    """Write a random adapter for some weights of a model; same arguments, same bytes. `metadata` and `tensors` replace
    entries; None removes one."""
    entries: dict[str, Value] = {
        "general.architecture": read_header(model).architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": ALPHA,
    }
    pairs = {name: pair for name in weights for name, pair in _pair(name, model, seed, rank).items()}
    return write_file(path, replaced(entries, metadata), replaced(pairs, tensors), type=type)


def changes(model: Path, *, seed: int = 0, rank: int = 4, scale: float = 1.0) -> dict[str, Weights]:
    """Return what such an adapter adds to each weight."""
    found = {}
    for name in WEIGHTS:
        pair = _pair(name, model, seed, rank)
        found[name] = (scale * ALPHA / rank * (pair[f"{name}.lora_b"] @ pair[f"{name}.lora_a"])).astype(np.float32)
    return found


def _pair(name: str, model: Path, seed: int, rank: int) -> dict[str, Weights]:
    inner, outer = read_header(model).tensors[name].shape
    random = np.random.default_rng([seed, *name.encode()])
    a, b = random.normal(0, 0.2, (rank, inner)), random.normal(0, 0.2, (outer, rank))
    return {f"{name}.lora_a": a.astype(np.float32), f"{name}.lora_b": b.astype(np.float32)}
