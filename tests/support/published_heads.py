"""Tiny random draft heads in the layouts in which they are published: config.json and a safetensors file."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH, HEADS, KV_HEADS, N_FF = 64, 4, 2, 96
Tensors = dict[str, NDArray[Any]]


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]], *, bf16: bool = False) -> Path:
    """Write a file; `bf16` stores floats as bfloat16, cutting their lower half off."""
    names = {"float32": "F32", "float16": "F16", "int64": "I64", "bool": "BOOL"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        is_cut = bf16 and values.dtype == np.float32
        raw = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes() if is_cut else values.tobytes()
        type = "BF16" if is_cut else names[values.dtype.name]
        header[name] = {"dtype": type, "shape": values.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    about = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(about)) + about + data)
    return path


def config(**changes: Any) -> dict[str, Any]:
    """The settings of a layer as transformers has them."""
    return {
        "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "num_hidden_layers": 1,
        "intermediate_size": N_FF, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 512,
    } | changes  # fmt: skip


def layer(prefix: str, n_inputs: int, seed: int = 0, *, qk_norm: bool = False) -> Tensors:
    """The tensors of one layer whose attention reads so many numbers."""
    random = np.random.default_rng(seed)
    size = WIDTH // HEADS
    shapes = {
        "self_attn.q_proj": (WIDTH, n_inputs), "self_attn.k_proj": (KV_HEADS * size, n_inputs),
        "self_attn.v_proj": (KV_HEADS * size, n_inputs), "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (N_FF, WIDTH), "mlp.up_proj": (N_FF, WIDTH), "mlp.down_proj": (WIDTH, N_FF),
        "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,),
    }  # fmt: skip
    shapes |= {f"self_attn.{part}_norm": (size,) for part in "qk" if qk_norm}
    return {f"{prefix}{name}.weight": drawn(random, shape) for name, shape in shapes.items()}


def drawn(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Random numbers: a matrix that keeps the size of what it is multiplied with, or a norm near 1."""
    values = random.standard_normal(shape)
    values = 1 + 0.2 * values if len(shape) == 1 else 1.5 * values / shape[-1] ** 0.5
    found: NDArray[np.float32] = values.astype(np.float32)
    return found


def eagle3(ids: list[int], seed: int = 0, *, prefix: str = "midlayer.") -> Tensors:
    """An EAGLE-3 head in the layout of its authors, whose output has these tokens; `d2t` has offsets."""
    random = np.random.default_rng([seed, 1])
    tensors = layer(prefix, 2 * WIDTH, seed) | {f"{prefix}hidden_norm.weight": drawn(random, (WIDTH,))}
    tensors |= {"fc.weight": drawn(random, (WIDTH, 3 * WIDTH)), "norm.weight": drawn(random, (WIDTH,))}
    tensors["lm_head.weight"] = drawn(random, (len(ids), WIDTH))
    return tensors | {"d2t": np.array(ids, np.int64) - np.arange(len(ids))}


def write_head(folder: Path, settings: Mapping[str, Any], tensors: Tensors, *, bf16: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    write_safetensors(folder / "model.safetensors", tensors, bf16=bf16)
    return folder


def eagle3_logits(
    settings: Mapping[str, Any], tensors: Tensors, embeddings: NDArray[Any], features: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Run an EAGLE-3 head as its authors define it, on embeddings [n, D] and a target's features [n, 3 D] at the
    positions 0, 1, ...; returns the logits [n, V'] and the next features [n, D]."""
    weights = {name.replace("midlayer.", ""): values.astype(np.float64) for name, values in tensors.items()}

    def norm(x: NDArray[Any], name: str) -> NDArray[Any]:
        scale = weights[f"{name}.weight"] / np.sqrt((x**2).mean(-1, keepdims=True) + settings["rms_norm_eps"])
        normed: NDArray[Any] = x * scale
        return normed

    def rotated(x: NDArray[Any]) -> NDArray[Any]:  # [n, heads, size], by halves
        size = x.shape[-1]
        frequencies = settings["rope_theta"] ** -(np.arange(0, size, 2) / size)
        angles = (np.arange(len(x))[:, None] * frequencies)[:, None, :]
        first, second = x[..., : size // 2], x[..., size // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    n, size = len(embeddings), WIDTH // HEADS
    if "input_norm.weight" in weights:
        features = norm(features, "input_norm")
    state = features @ weights["fc.weight"].T
    normed = norm(state, "hidden_norm")
    residual = normed if settings.get("norm_before_residual") else state
    x = np.concatenate([norm(embeddings, "input_layernorm"), normed], -1)
    q, k, v = ((x @ weights[f"self_attn.{part}_proj.weight"].T).reshape(n, -1, size) for part in "qkv")
    q, k = rotated(q), rotated(k)
    k, v = (np.repeat(each, HEADS // KV_HEADS, axis=1) for each in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / size**0.5 + np.triu(np.full((n, n), -np.inf), 1)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    attended = np.einsum("hij,jhd->ihd", shares, v).reshape(n, -1)
    hidden = residual + attended @ weights["self_attn.o_proj.weight"].T
    inner = norm(hidden, "post_attention_layernorm")
    gate = inner @ weights["mlp.gate_proj.weight"].T
    inner = gate / (1 + np.exp(-gate)) * (inner @ weights["mlp.up_proj.weight"].T)
    hidden = hidden + inner @ weights["mlp.down_proj.weight"].T
    return norm(hidden, "norm") @ weights["lm_head.weight"].T, hidden
