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
    """The tensors of one layer whose attention reads `n_inputs` numbers."""
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


def eagle31(ids: list[int], seed: int = 0) -> Tensors:
    """The same with a norm for each of the three layers that it reads."""
    random = np.random.default_rng([seed, 2])
    return eagle3(ids, seed) | {f"fc_norm.{number}.weight": drawn(random, (WIDTH,)) for number in range(3)}


def peagle(ids: list[int], n_vocab: int, *, n_layers: int = 3, seed: int = 0, has_more: bool = False) -> Tensors:
    """A P-EAGLE head of several layers with its own embeddings; `has_more` adds the norms and biases that attention
    may have, and the unused norms of vLLM."""
    random = np.random.default_rng([seed, 3])
    tensors = eagle3(ids, seed, prefix="layers.0.")
    for number in range(n_layers):
        prefix, n_inputs = f"layers.{number}.", WIDTH if number else 2 * WIDTH
        tensors |= layer(prefix, n_inputs, seed + number, qk_norm=has_more)
        if has_more:
            tensors[f"{prefix}hidden_norm.weight"] = drawn(random, (WIDTH,))
            biased = [f"{prefix}self_attn.{part}_proj" for part in "qkvo"] + [f"{prefix}mlp.gate_proj"]
            tensors |= {f"{name}.bias": drawn(random, tensors[f"{name}.weight"].shape[:1]) - 1 for name in biased}
    tensors["mask_hidden"] = random.standard_normal((1, 1, 3 * WIDTH)).astype(np.float32)
    return tensors | {"embed_tokens.weight": random.standard_normal((n_vocab, WIDTH)).astype(np.float32)}


def write_head(folder: Path, settings: Mapping[str, Any], tensors: Tensors, *, bf16: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    write_safetensors(folder / "model.safetensors", tensors, bf16=bf16)
    return folder


class Reference:
    """An EAGLE-3, EAGLE-3.1 or P-EAGLE head as its authors define it."""

    def __init__(self, settings: Mapping[str, Any], tensors: Tensors) -> None:
        self._settings, self._n_layers = settings, int(settings.get("num_hidden_layers", 1))
        self._weights = {
            name.replace("midlayer.", "layers.0."): values.astype(np.float64) for name, values in tensors.items()
        }

    def states(self, features: NDArray[Any]) -> NDArray[Any]:
        """The states [n, D] of a target's features [n, 3 D]."""
        if "fc_norm.0.weight" in self._weights:
            parts = np.split(features, 3, axis=-1)
            features = np.concatenate([self._norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)], -1)
        if "input_norm.weight" in self._weights:
            features = self._norm(features, "input_norm")
        states: NDArray[Any] = features @ self._weights["fc.weight"].T
        return states

    def masked(self) -> NDArray[Any]:
        """The state [D] of a place whose token is not known yet."""
        state: NDArray[Any] = self.states(self._weights["mask_hidden"].reshape(1, -1))[0]
        return state

    def run(self, embeddings: NDArray[Any], states: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Run the head on embeddings and states [n, D] at the positions 0, 1, ...; returns the logits [n, V'] and the
        states [n, D] with which the next tokens are decoded."""
        normed = self._norm(states, "layers.0.hidden_norm")
        hidden = normed if self._settings.get("norm_before_residual") else states
        x = np.concatenate([self._norm(embeddings, "layers.0.input_layernorm"), normed], -1)
        for number in range(self._n_layers):
            name = f"layers.{number}"
            if number:
                x = self._norm(hidden, f"{name}.input_layernorm")
            hidden = hidden + self._attention(x, f"{name}.self_attn")
            inner = self._norm(hidden, f"{name}.post_attention_layernorm")
            gate = self._product(inner, f"{name}.mlp.gate_proj")
            inner = gate / (1 + np.exp(-gate)) * self._product(inner, f"{name}.mlp.up_proj")
            hidden = hidden + self._product(inner, f"{name}.mlp.down_proj")
        output = self._norm(hidden, "norm")
        return output @ self._weights["lm_head.weight"].T, output if self._settings.get("norm_output") else hidden

    def _norm(self, x: NDArray[Any], name: str) -> NDArray[Any]:
        scale = self._weights[f"{name}.weight"] / np.sqrt(
            (x**2).mean(-1, keepdims=True) + self._settings["rms_norm_eps"]
        )
        normed: NDArray[Any] = x * scale
        return normed

    def _product(self, x: NDArray[Any], name: str) -> NDArray[Any]:
        product: NDArray[Any] = x @ self._weights[f"{name}.weight"].T + self._weights.get(f"{name}.bias", 0)
        return product

    def _attention(self, x: NDArray[Any], name: str) -> NDArray[Any]:
        n, size = len(x), WIDTH // HEADS
        q, k, v = (self._product(x, f"{name}.{part}_proj").reshape(n, -1, size) for part in "qkv")
        if f"{name}.q_norm.weight" in self._weights:
            q, k = self._norm(q, f"{name}.q_norm"), self._norm(k, f"{name}.k_norm")
        q, k = self._rotated(q), self._rotated(k)
        k, v = (np.repeat(each, HEADS // KV_HEADS, axis=1) for each in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / size**0.5 + np.triu(np.full((n, n), -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return self._product(np.einsum("hij,jhd->ihd", shares, v).reshape(n, -1), f"{name}.o_proj")

    def _rotated(self, x: NDArray[Any]) -> NDArray[Any]:  # [n, heads, size], by halves
        size, frequencies, scale = x.shape[-1], *self._frequencies(x.shape[-1])
        angles = (np.arange(len(x))[:, None] * frequencies)[:, None, :]
        first, second = x[..., : size // 2], x[..., size // 2 :]
        cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def _frequencies(self, size: int) -> tuple[NDArray[Any], float]:
        """The rotary frequencies, and the factor of queries and keys, as transformers scales them."""
        base, scaling = self._settings["rope_theta"], self._settings.get("rope_scaling") or {}
        frequencies: NDArray[Any] = base ** -(np.arange(0, size, 2) / size)
        if not scaling:
            return frequencies, 1.0
        factor = scaling["factor"]
        if scaling["rope_type"] == "linear":
            return frequencies / factor, 1.0
        assert scaling["rope_type"] == "yarn"
        trained = scaling["original_max_position_embeddings"]
        low, high = (size * np.log(trained / (turns * 2 * np.pi)) / (2 * np.log(base)) for turns in (32, 1))
        low, high = max(np.floor(low), 0), min(np.ceil(high), size - 1)
        kept = 1 - np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
        return frequencies * kept + frequencies / factor * (1 - kept), 1 + 0.1 * np.log(factor)
