"""Tiny models that can see: random projectors (mmproj files) for the models of `tiny_gguf`, and images."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tiny_gguf import CHATML, Value, _Weights, write_file, write_model

# The models with a projector: a usual one, one with M-RoPE, and one whose images are read in one pass.
SEEING = {"llama": "mlp", "qwen2vl": "qwen2vl_merger", "gemma3": "gemma3"}
SIDE, PATCH, WIDTH, TEXT_WIDTH = 64, 8, 32, 64


def write_seeing(folder: Path, architecture: str, *, seed: int = 0, **options: Any) -> Path:
    """Write a model with a projector next to it into a folder; returns the model's file."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata: dict[str, Value | None] = {"qwen2vl.rope.dimension_sections": [2, 3, 3, 0]}
    metadata = metadata if architecture == "qwen2vl" else {}
    options = {"chat_template": CHATML, "metadata": metadata, **options}
    write_projector(folder / "mmproj-F32.gguf", SEEING[architecture], seed=seed)
    return write_model(folder / "tiny.gguf", architecture, seed=seed, **options)


def write_projector(path: Path, kind: str, *, seed: int = 0, text_width: int = TEXT_WIDTH, **vision: Value) -> Path:
    """Write a random projector whose rows have `text_width` values; `vision` replaces entries of its metadata."""
    entries: dict[str, Value] = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": kind,
        "clip.use_gelu": True,
        "clip.vision.image_size": SIDE,
        "clip.vision.patch_size": PATCH,
        "clip.vision.embedding_length": WIDTH,
        "clip.vision.feed_forward_length": 2 * WIDTH,
        "clip.vision.block_count": 2,
        "clip.vision.attention.head_count": 2,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.projection_dim": text_width,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
    }
    entries |= {f"clip.vision.{name}": value for name, value in vision.items()}
    weights = _Weights(seed, 0.0)
    weights.add("v.patch_embd.weight", (WIDTH, 3, PATCH, PATCH), 0.2)
    weights.add("v.position_embd.weight", ((SIDE // PATCH) ** 2, WIDTH), 0.5)
    for layer in range(2):
        block = f"v.blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            weights.matrix(f"{block}.{name}.weight", WIDTH, WIDTH, 1.5)
            weights.add(f"{block}.{name}.bias", (WIDTH,), 0.1)
        for name, n_out, n_in in (("ffn_up", 2 * WIDTH, WIDTH), ("ffn_down", WIDTH, 2 * WIDTH)):
            weights.matrix(f"{block}.{name}.weight", n_out, n_in, 1.5)
            weights.add(f"{block}.{name}.bias", (n_out,), 0.1)
        for name in ("ln1", "ln2"):
            weights.norm(f"{block}.{name}.weight", WIDTH)
            weights.add(f"{block}.{name}.bias", (WIDTH,), 0.1)
    weights.norm("v.post_ln.weight", WIDTH)
    weights.add("v.post_ln.bias", (WIDTH,), 0.1)
    match kind:
        case "qwen2vl_merger":
            weights.add("v.patch_embd.weight.1", (WIDTH, 3, PATCH, PATCH), 0.2)
            weights.tensors.pop("v.position_embd.weight")
            _add_mlp(weights, 4 * WIDTH, text_width)
        case "gemma3":
            entries["clip.vision.projector.scale_factor"] = 2
            weights.add("mm.input_projection.weight", (WIDTH, text_width), 0.5)
            weights.norm("mm.soft_emb_norm.weight", WIDTH)
        case "gemma4v":  # positions are two tables, of columns and of rows
            entries["clip.vision.projector.scale_factor"] = 2
            weights.tensors.pop("v.position_embd.weight")
            weights.add("v.position_embd.weight", (2, SIDE, WIDTH), 0.5)
            weights.matrix("mm.input_projection.weight", text_width, WIDTH, 1.0)
        case _:
            _add_mlp(weights, WIDTH, text_width)
    return write_file(path, entries, weights.tensors)


def _add_mlp(weights: _Weights, width: int, text_width: int) -> None:
    for number, n_out, n_in in ((0, width, width), (2, text_width, width)):
        weights.matrix(f"mm.{number}.weight", n_out, n_in, 3.0)
        weights.add(f"mm.{number}.bias", (n_out,), 0.1)


def picture(seed: int = 0, width: int = 96, height: int = 64, format: str = "PNG") -> bytes:
    """Return the file of an image of random blocks."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    made = io.BytesIO()
    Image.fromarray(blocks).resize((width, height), Image.Resampling.BILINEAR).save(made, format)
    return made.getvalue()
