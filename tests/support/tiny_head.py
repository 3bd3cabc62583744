"""Tiny draft heads as GGUF files, for the tiny models of `tiny_gguf`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tiny_gguf import CHATML, Value, Weights, model_metadata, model_tensors, replaced, write_file, write_model

SHARP = 200.0  # attention to one's own token and no other


def write_bigram(path: Path) -> Path:
    """A `llama` whose layers add nothing, so that its next token depends on the last one alone."""
    nothing = np.zeros((64, 64), np.float32), np.zeros((64, 128), np.float32)
    tensors: dict[str, Weights | None] = {}
    for layer in range(4):
        tensors |= {f"blk.{layer}.attn_output.weight": nothing[0], f"blk.{layer}.ffn_down.weight": nothing[1]}
    return write_model(path, "llama", n_layers=4, tensors=tensors, chat_template=CHATML)


def write_head(
    path: Path,
    *,
    seed: int = 0,
    knows_bigrams: bool = False,
    draft_tokens: list[int] | None = None,
    has_vocabulary: bool = True,
    layers: tuple[int, ...] = (1, 2, 3),
    reads_state: bool = False,
    n_vocab: int = 0,
    metadata: Mapping[str, Value | None] | None = None,
    tensors: Mapping[str, Weights | None] | None = None,
) -> Path:
    """An EAGLE-3 head of width 64 for a `llama` of `tiny_gguf` with four layers: a random one, or one that predicts as
    the target of `write_bigram` does. `draft_tokens` are the ids that it can draft, all without. One that `reads_state`
    is an EAGLE-1 head, for a target of any architecture with `n_vocab` tokens."""
    target = model_metadata("llama", n_layers=4)
    entries: dict[str, Value] = model_metadata("llama", n_layers=1, prefix="eagle3") | {
        "general.name": "tiny head",
        "eagle3.attention.head_count": 1,
        "eagle3.attention.head_count_kv": 1,
        "eagle3.rope.dimension_count": 64,
        "eagle3.norm_before_residual": True,
        "eagle3.target_layers": list(layers),
        "eagle3.target_hidden_size": 64,
    }
    drawn = model_tensors("llama", target, seed=seed)
    weights: dict[str, Weights] = {name: drawn[name] for name in ("output.weight", "output_norm.weight")}
    if draft_tokens is not None:
        weights["output.weight"] = weights["output.weight"][draft_tokens]
    if n_vocab:
        weights["output.weight"] = np.resize(weights["output.weight"], (n_vocab, 64))
    random = np.random.default_rng(seed)
    shapes = {"fc": (64, 66 if reads_state else 192)} | {f"blk.0.attn_{name}": (64, 128) for name in "qkv"}
    shapes |= {"blk.0.attn_output": (64, 64), "blk.0.ffn_gate": (128, 64), "blk.0.ffn_up": (128, 64)}
    for name, shape in (shapes | {"blk.0.ffn_down": (64, 128)}).items():
        weights[f"{name}.weight"] = (random.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32)
    for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
        weights[f"blk.0.{name}.weight"] = np.ones(64, np.float32)
    if knows_bigrams:
        token = np.hstack([np.eye(64), np.zeros((64, 64))]).astype(np.float32)
        weights |= {f"blk.0.attn_{name}.weight": SHARP * token for name in "qk"}
        weights |= {"blk.0.attn_v.weight": token, "blk.0.attn_output.weight": SHARP * np.eye(64, dtype=np.float32)}
        weights |= {name: np.zeros_like(weights[name]) for name in ("fc.weight", "blk.0.ffn_down.weight")}
    if reads_state:
        entries |= {"edgespec.head.reads": "final_state", "eagle3.target_hidden_size": 22}
    if not has_vocabulary or n_vocab:
        entries = {key: value for key, value in entries.items() if not key.startswith("tokenizer.")}
        entries |= {"tokenizer.ggml.model": "no_vocab", "eagle3.vocab_size": n_vocab or len(drawn["output.weight"])}
    if draft_tokens is not None:
        weights["d2t"] = np.array(draft_tokens, np.int64)
    return write_file(path, replaced(entries, metadata), replaced(weights, tensors))


def write_hydra(path: Path, **settings: Any) -> Path:
    """A Hydra head, as `write_networks` does."""
    return write_networks(path, "hydra", **settings)


def write_networks(
    path: Path,
    kind: str,
    *,
    seed: int = 0,
    knows_bigrams: bool = False,
    n_vocab: int = 0,
    metadata: Mapping[str, Value | None] | None = None,
    tensors: Mapping[str, Weights | None] | None = None,
) -> Path:
    """A "hydra" or "medusa" head of width 64 for a `llama` of `tiny_gguf`: a random one, or a Hydra head that predicts
    as the target of `write_bigram` does."""
    drawn, random = model_tensors("llama", model_metadata("llama", n_layers=4), seed=seed), np.random.default_rng(seed)
    output, n_networks = drawn["output.weight"] * drawn["output_norm.weight"], 3
    output = np.resize(output, (n_vocab or len(output), 64))
    weights: dict[str, Weights] = {"output.weight": output.astype(np.float32)}
    if kind == "hydra":
        weights["embd_norm.weight"] = np.ones(64, np.float32)
    for k in range(n_networks):
        up = random.standard_normal((64, (k + 2 if kind == "hydra" else 1) * 64)) / 8
        down = random.standard_normal((64, 64)) / 8
        if knows_bigrams:  # half of the embedding, as of large arguments silu keeps the positive ones
            up = np.zeros((64, (k + 2) * 64))
            up[:, -64:] = 20 * np.eye(64)
            down = SHARP * np.eye(64)
        weights[f"head.{k}.up.weight"] = up.astype(np.float32)
        weights[f"head.{k}.down.weight"] = down.astype(np.float32)
    weights["d2t"] = np.array(range(len(output)), np.int64)
    entries: dict[str, Value] = {
        "general.architecture": f"edgespec-{kind}",
        "tokenizer.ggml.model": "no_vocab",
        f"edgespec-{kind}.embedding_length": 64,
        f"edgespec-{kind}.block_count": n_networks,
        f"edgespec-{kind}.vocab_size": len(output),
        f"edgespec-{kind}.target_hidden_size": 64,
        f"edgespec-{kind}.attention.layer_norm_rms_epsilon": 1e-5,
    }
    return write_file(path, replaced(entries, metadata), replaced(weights, tensors))
