"""Tiny Gemma 4 models and their assistants, which read the caches of the last two layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tiny_gguf import CHATML, Value, Weights, model_metadata, replaced, write_file

LAYERS, WIDTH, ASSISTANT_WIDTH = 4, 64, 96
HEADS, KV_HEADS, HEAD, NARROW = 4, 2, 64, 32  # heads are narrow in layers with a window, which are the even ones
WINDOW, N_FF, ASSISTANT_N_FF = 48, 1024, 64


def write_gemma4(
    path: Path, *, knows_bigrams: bool = False, seed: int = 1, metadata: Mapping[str, Value | None] | None = None
) -> Path:
    """A Gemma 4 of four layers: a random one, or one whose layers add nothing, so that its next token depends on the
    last one alone."""
    weights, entries = _drawn(WIDTH, seed, is_silent=knows_bigrams), _described("gemma4", WIDTH)
    return write_file(path, replaced(entries, metadata), weights)


def write_assistant(
    path: Path,
    *,
    knows_bigrams: bool = False,
    seed: int = 2,
    metadata: Mapping[str, Value | None] | None = None,
    tensors: Mapping[str, Weights | None] | None = None,
) -> Path:
    """An assistant for the models of `write_gemma4`: a random one, or one that predicts as one that `knows_bigrams`."""
    random = np.random.default_rng(seed)
    weights = _drawn(ASSISTANT_WIDTH, seed, ASSISTANT_N_FF, is_silent=knows_bigrams)
    for layer in range(LAYERS):
        for name in ("attn_k", "attn_k_norm", "attn_v"):
            del weights[f"blk.{layer}.{name}.weight"]
        weights[f"blk.{layer}.layer_output_scale.weight"] = np.ones(1, np.float32)
    output = weights.pop("output.weight")
    before = random.standard_normal((ASSISTANT_WIDTH, 2 * WIDTH), np.float32) / np.float32(math.sqrt(2 * WIDTH))
    after = random.standard_normal((WIDTH, ASSISTANT_WIDTH), np.float32) / np.float32(math.sqrt(ASSISTANT_WIDTH))
    if knows_bigrams:
        target = _drawn(WIDTH, 1, is_silent=True)
        before = np.eye(ASSISTANT_WIDTH, 2 * WIDTH, dtype=np.float32)
        before[WIDTH:] = 0  # the token alone; the mean of squares is then over more numbers
        output[:, :WIDTH] = target["output.weight"] * target["output_norm.weight"]
        weights["output_norm.weight"] = np.full(ASSISTANT_WIDTH, math.sqrt(WIDTH / ASSISTANT_WIDTH), np.float32)
    weights |= {"token_embd.weight": output, "nextn.pre_projection.weight": before}
    weights["nextn.post_projection.weight"] = after
    entries = _described("gemma4-assistant", ASSISTANT_WIDTH, ASSISTANT_N_FF)
    own = {"embedding_length_out": WIDTH, "nextn_predict_layers": LAYERS, "attention.shared_kv_layers": LAYERS}
    entries |= {f"gemma4-assistant.{key}": value for key, value in own.items()}
    return write_file(path, replaced(entries, metadata), replaced(weights, tensors))


def _described(architecture: str, width: int, n_ff: int = N_FF) -> dict[str, Value]:
    entries = model_metadata("llama", width=width, n_layers=LAYERS, prefix=architecture)
    own: dict[str, Value] = {
        "feed_forward_length": n_ff, "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": HEAD,
        "attention.key_length_swa": NARROW, "attention.value_length_swa": NARROW, "rope.dimension_count_swa": NARROW,
        "attention.sliding_window": WINDOW, "attention.sliding_window_pattern": [True, False] * (LAYERS // 2),
        "rope.freq_base_swa": 10000.0, "embedding_length_per_layer_input": 0,
    }  # fmt: skip
    entries["tokenizer.chat_template"] = CHATML
    return entries | {f"{architecture}.{key}": value for key, value in own.items()}


def _drawn(width: int, seed: int, n_ff: int = N_FF, *, is_silent: bool) -> dict[str, Weights]:
    """Random weights of a Gemma 4 of this width."""
    random, weights = np.random.default_rng(seed), dict[str, Weights]()

    def add(name: str, *shape: int, gain: float = 1.0) -> None:
        drawn = random.standard_normal(shape) * gain / math.sqrt(shape[-1])
        weights[f"{name}.weight"] = drawn.astype(np.float32)

    def add_norm(name: str, n: int) -> None:
        weights[f"{name}.weight"] = random.uniform(0.8, 1.2, n).astype(np.float32)

    n_vocab = len(model_metadata("llama")["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    add("token_embd", n_vocab, width, gain=3.0)
    add("output", n_vocab, width, gain=3.0)
    add_norm("output_norm", width)
    weights["rope_freqs.weight"] = np.ones(HEAD // 2, np.float32)
    for layer in range(LAYERS):
        block, size = f"blk.{layer}", HEAD if layer % 2 else NARROW
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            add_norm(f"{block}.{norm}", width)
        for norm in ("attn_q_norm", "attn_k_norm"):
            add_norm(f"{block}.{norm}", size)
        add(f"{block}.attn_q", HEADS * size, width)
        add(f"{block}.attn_k", KV_HEADS * size, width)
        add(f"{block}.attn_v", KV_HEADS * size, width)
        add(f"{block}.attn_output", width, HEADS * size, gain=0 if is_silent else 1)
        add(f"{block}.ffn_gate", n_ff, width)
        add(f"{block}.ffn_up", n_ff, width)
        add(f"{block}.ffn_down", width, n_ff, gain=0 if is_silent else 1)
    return weights
