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


def write_block_drafter(
    path: Path,
    kind: str,
    *,
    seed: int = 0,
    knows_bigrams: bool = False,
    block: int = 6,
    n_layers: int = 2,
    layers: tuple[int, ...] = (1, 2, 3),
    draft_tokens: list[int] | None = None,
    has_vocabulary: bool = True,
    architecture: str = "llama",
    metadata: Mapping[str, Value | None] | None = None,
    tensors: Mapping[str, Weights | None] | None = None,
) -> Path:
    """A random "dflash", "dspark" or "dflash2" head of width 64 for a model of `tiny_gguf` of this architecture, which
    drafts blocks of `block` tokens. `draft_tokens` are the ids that it can draft, all without. The Markov head of a
    "dspark" that `knows_bigrams` predicts as the target of `write_bigram` does, and its layers nothing."""
    width, head, random = 64, 16, np.random.default_rng(seed)
    model = model_metadata(architecture, n_layers=4)
    drawn = model_tensors(architecture, model)
    n_vocab = len(embedded := drawn["token_embd.weight"])
    if has_vocabulary:
        vocabulary = {key: value for key, value in model.items() if key.startswith("tokenizer.")}
    else:
        vocabulary = {"tokenizer.ggml.model": "no_vocab", "dflash.vocab_size": n_vocab}
    entries: dict[str, Value] = {
        "general.architecture": "dflash",
        "general.name": f"tiny {kind}",
        "dflash.context_length": 2048,
        "dflash.embedding_length": width,
        "dflash.block_count": n_layers,
        "dflash.feed_forward_length": 128,
        "dflash.attention.head_count": 4,
        "dflash.attention.head_count_kv": 2,
        "dflash.attention.key_length": head,
        "dflash.attention.value_length": head,
        "dflash.attention.layer_norm_rms_epsilon": 1e-5,
        "dflash.rope.dimension_count": head,
        "dflash.rope.freq_base": 10000.0,
        "dflash.block_size": block,
        "dflash.target_layers": list(layers),
        **vocabulary,
        "tokenizer.ggml.mask_token_id": n_vocab - 3,
    }
    n_rows = n_vocab if draft_tokens is None else len(draft_tokens)
    shapes: dict[str, tuple[int, ...]] = {"fc": (width, len(layers) * width)}
    vectors = {"enc.output_norm": width, "output_norm": width}
    for layer in range(n_layers):
        at = f"blk.{layer}"
        shapes |= {f"{at}.attn_{name}": (n * head, width) for name, n in (("q", 4), ("k", 2), ("v", 2))}
        shapes |= {f"{at}.attn_output": (width, 4 * head), f"{at}.ffn_gate": (128, width), f"{at}.ffn_up": (128, width)}
        shapes[f"{at}.ffn_down"] = (width, 128)
        vectors |= {f"{at}.attn_norm": width, f"{at}.ffn_norm": width}
        vectors |= {f"{at}.attn_q_norm": head, f"{at}.attn_k_norm": head}
    if draft_tokens is not None:
        shapes["output"] = (n_rows, width)
    if kind == "dspark":
        shapes |= {"markov_w1": (n_vocab, 8), "markov_w2": (n_rows, 8), "conf_proj": (1, width + 8)}
    weights: dict[str, Weights] = {}
    if kind == "dflash2":
        kernel, group = 3, 16
        entries |= {"dflash.conv_kernel_size": kernel, "dflash.conv_group_size": group}
        entries |= {"dflash.selector_rank": 8, "dflash.selector_top_k": 5}
        shapes |= {"selector_predecessor": (n_vocab, 8), "selector_successor": (n_vocab, 8)}
        shapes["selector_hidden"] = (8, width)
        for name in (f"blk.{layer}.{part}_conv" for layer in range(n_layers) for part in ("attn", "ffn")):
            shapes[f"{name}_proj"] = (2 * kernel * width // group, width)
            weights[f"{name}_base"] = (random.standard_normal((2, kernel, width)) / 2).astype(np.float32)
    for name, shape in shapes.items():
        scale = 3.0 if name.startswith(("markov", "selector", "output")) else 1.0
        weights[f"{name}.weight"] = (scale * random.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32)
    weights |= {f"{name}.weight": np.ones(size, np.float32) for name, size in vectors.items()}
    if knows_bigrams:
        normed = embedded / np.sqrt((embedded**2).mean(axis=1, keepdims=True) + 1e-5) * drawn["output_norm.weight"]
        weights |= {"markov_w1.weight": normed.astype(np.float32), "markov_w2.weight": drawn["output.weight"]}
        weights["output.weight"] = np.zeros_like(drawn["output.weight"])
        del weights["conf_proj.weight"]
    if draft_tokens is not None:
        weights["d2t"] = np.array(draft_tokens, np.int64)
    return write_file(path, replaced(entries, metadata), replaced(weights, tensors))


def write_peagle(
    path: Path,
    *,
    seed: int = 0,
    block: int = 6,
    n_layers: int = 2,
    layers: tuple[int, ...] = (1, 2, 3),
    draft_tokens: list[int] | None = None,
    metadata: Mapping[str, Value | None] | None = None,
    tensors: Mapping[str, Weights | None] | None = None,
) -> Path:
    """A random P-EAGLE head of width 64 for a `llama` of `tiny_gguf` with four layers, which drafts `block` tokens in a
    pass. `draft_tokens` are the ids that it can draft, all without."""
    width, size, random = 64, 16, np.random.default_rng(seed)
    n_vocab = len(model_metadata("llama")["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    ids = [*range(n_vocab)] if draft_tokens is None else draft_tokens
    own: dict[str, Value] = {
        "context_length": 2048,
        "embedding_length": width,
        "block_count": n_layers,
        "feed_forward_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": size,
        "rope.freq_base": 10000.0,
        "vocab_size": n_vocab,
        "target_layers": list(layers),
        "target_hidden_size": width,
        "block_size": block,
    }
    entries: dict[str, Value] = {"general.architecture": "edgespec-peagle", "general.name": "tiny peagle"}
    entries |= {f"edgespec-peagle.{key}": value for key, value in own.items()}
    entries |= {"tokenizer.ggml.model": "no_vocab", "tokenizer.ggml.mask_token_id": n_vocab - 3}
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (n_vocab, width), "output": (len(ids), width)}
    shapes["fc"] = (width, len(layers) * width)
    vectors = {"output_norm": width, "blk.0.attn_norm_2": width, "mask_state": width}
    for number in range(n_layers):
        at, n_inputs = f"blk.{number}", width if number else 2 * width
        shapes |= {f"{at}.attn_{name}": (n * size, n_inputs) for name, n in (("q", 4), ("k", 2), ("v", 2))}
        shapes |= {f"{at}.attn_output": (width, 4 * size), f"{at}.ffn_gate": (128, width), f"{at}.ffn_up": (128, width)}
        shapes[f"{at}.ffn_down"] = (width, 128)
        vectors |= {f"{at}.attn_norm": width, f"{at}.ffn_norm": width}
    weights: dict[str, Weights] = {
        f"{name}.weight": (random.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32)
        for name, shape in shapes.items()
    }
    weights |= {f"{name}.weight": np.ones(n, np.float32) for name, n in vectors.items()}
    weights["d2t"] = np.array(ids, np.int64)
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
