"""Measure models of published shapes that have random weights: passes, drafts of the MTP block, load time and memory.

    python scripts/lab/bench_shapes.py Qwen3.5-0.8B Qwen3.5-4B
    python scripts/lab/bench_shapes.py --repeat 9 -t 4 Qwen3.5-9B

The files are made in a temporary folder, one at a time. Their types are those of Q4_K_M: Q4_K, and Q6_K for the
embeddings and for half of the matrices `ffn_down`. What such a model writes has no meaning, so it says nothing about
accepted drafts, but its passes cost what those of the trained model cost.

The table on stdout, in Markdown, has the size of the file, the seconds until it is loaded, the main memory, the time of
a pass over one token, passes over several tokens in units of it, and the time of a draft token of the MTP block in the
same unit: with the whole output matrix, and with the rows of 32,768 tokens (`edgespec/llama/trimmed_output.py`).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

import gguf
import numpy as np
from numpy.typing import NDArray

from edgespec.bench.measure import machine
from edgespec.runtime import drafting
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings

WIDTHS = (1, 2, 3, 4, 8)
Q4_K, Q6_K, F32 = (gguf.GGMLQuantizationType[name] for name in ("Q4_K", "Q6_K", "F32"))
SPREAD = {Q4_K: 190, Q6_K: 1369}  # of the numbers of a block whose scale is 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model of the architecture `qwen35`, from its published configuration."""

    width: int
    n_ff: int
    layers: int
    heads: int
    kv_heads: int
    value_heads: int  # of the layers with a gated delta net
    is_tied: bool  # the output is the matrix of the embeddings
    head: int = 256
    key_heads: int = 16
    state: int = 128
    vocab: int = 248_320


SHAPES = {
    "Qwen3.5-0.8B": Shape(1024, 3584, 24, 8, 2, 16, is_tied=True),
    "Qwen3.5-4B": Shape(2560, 9216, 32, 16, 4, 32, is_tied=True),
    "Qwen3.5-9B": Shape(4096, 12288, 32, 16, 4, 32, is_tied=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure models of published shapes that have random weights")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"{', '.join(SHAPES)}; all without")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("-t", type=int, default=0, help="threads")
    args = parser.parse_args()
    if unknown := {*args.shapes}.difference(SHAPES):
        parser.error(f"unknown shape: {', '.join(sorted(unknown))}")
    print(f"{machine()['cpu']}, {args.t or os.cpu_count()} threads\n")
    passes = [f"{width}{', ms' if width == 1 else ''}" for width in WIDTHS]
    columns = ["model", "file, GB", "load, s", "memory, GB", *passes, "draft, whole output", "draft, trimmed"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in args.shapes or SHAPES:
        print(f"| {' | '.join([name, *measured(SHAPES[name], args)])} |", flush=True)


def measured(shape: Shape, args: argparse.Namespace) -> list[str]:
    """Return the cells of a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write(path, shape)
        costs, loaded_s, memory = [], 0.0, 0.0
        for whole in (True, False):
            with patch.object(drafting, "trimmed_output", lambda *args: None) if whole else nullcontext():
                settings = LoadSettings(
                    str(path), spec_type="mtp", spec_draft_n_max=7, ctx_size=2048, threads=args.t, store=False,
                    gpu_layers=0,
                )  # fmt: skip
                started_s = perf_counter()
                with Runtime(settings) as llm:
                    loaded_s, memory = perf_counter() - started_s, resident()
                    costs.append(llm.measure_costs(WIDTHS, repeat=args.repeat))
        size = path.stat().st_size
    target, drafts = costs[-1]["target"], [each["step"]["mtp"] / each["target"]["1"] for each in costs]
    ratios = [f"{target[str(width)] / target['1']:.2f}" for width in WIDTHS[1:]]
    first = [f"{size / 1e9:.2f}", f"{loaded_s:.1f}", f"{memory / 1e9:.2f}", f"{1000 * target['1']:.1f}"]
    return [*first, *ratios, *(f"{draft:.3f}" for draft in drafts)]


def resident() -> float:
    """Return the bytes of main memory that the process uses."""
    import psutil

    return float(psutil.Process().memory_info().rss)


def write(path: Path, shape: Shape) -> None:
    """Write a model of this shape, with an MTP block behind its layers."""
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_block_count(shape.layers + 1)
    for key, value in {
        "context_length": 262_144, "embedding_length": shape.width, "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.heads, "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head, "attention.value_length": shape.head, "full_attention_interval": 4,
        "rope.dimension_count": shape.head // 4, "ssm.conv_kernel": 4, "ssm.state_size": shape.state,
        "ssm.group_count": shape.key_heads, "ssm.time_step_rank": shape.value_heads,
        "ssm.inner_size": shape.value_heads * shape.state, "nextn_predict_layers": 1,
    }.items():  # fmt: skip
        writer.add_uint32(f"qwen35.{key}", value)
    writer.add_float32("qwen35.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("qwen35.rope.freq_base", 1e7)
    writer.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
    visible = [chr(number) for number in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*visible, *(f"token{number}" for number in range(shape.vocab - 257)), "<|end|>"])
    writer.add_array("tokenizer.ggml.token_type", [1] * (shape.vocab - 1) + [3])
    writer.add_array("tokenizer.ggml.merges", ["a b"])
    writer.add_eos_token_id(shape.vocab - 1)
    for name, data, kind in tensors(shape):
        writer.add_tensor(name, data, raw_dtype=None if kind == F32 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(shape: Shape) -> Iterator[tuple[str, NDArray[np.uint8] | NDArray[np.float32], int]]:
    """Yield names, data and types of all tensors."""
    random = np.random.default_rng(0)

    def matrix(name: str, n_in: int, n_out: int, kind: int = Q4_K) -> tuple[str, NDArray[np.uint8], int]:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (n_out * n_in // elements, size), np.uint8)
        scale = 1 / SPREAD[kind] / n_in**0.5
        if kind == Q4_K:  # a scale and a least value, both times numbers of six bits
            blocks[:, :4] = np.array([scale, 7.5 * scale], np.float16).view(np.uint8)
        else:
            blocks[:, -2:] = np.array([scale], np.float16).view(np.uint8)
        return f"{name}.weight", blocks.reshape(n_out, -1), kind

    def vector(name: str, *lengths: int, value: float = 1.0) -> tuple[str, NDArray[np.float32], int]:
        return name, np.full(lengths, value, np.float32), F32

    width, values, keys = shape.width, shape.value_heads * shape.state, shape.key_heads * shape.state
    yield matrix("token_embd", width, shape.vocab, Q6_K)
    yield vector("output_norm.weight", width)
    if not shape.is_tied:
        yield matrix("output", width, shape.vocab, Q6_K)
    for layer in range(shape.layers + 1):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "post_attention_norm"):
            yield vector(f"{block}.{norm}.weight", width)
        if layer % 4 == 3 or layer == shape.layers:
            yield matrix(f"{block}.attn_q", width, 2 * shape.heads * shape.head)
            yield matrix(f"{block}.attn_k", width, shape.kv_heads * shape.head)
            yield matrix(f"{block}.attn_v", width, shape.kv_heads * shape.head, Q6_K)
            yield matrix(f"{block}.attn_output", shape.heads * shape.head, width)
            for norm in ("attn_q_norm", "attn_k_norm"):
                yield vector(f"{block}.{norm}.weight", shape.head)
        else:
            yield matrix(f"{block}.attn_qkv", width, 2 * keys + values)
            yield matrix(f"{block}.attn_gate", width, values)
            yield vector(f"{block}.ssm_conv1d.weight", 2 * keys + values, 4, value=0.5)
            yield vector(f"{block}.ssm_dt.bias", shape.value_heads)
            yield vector(f"{block}.ssm_a", shape.value_heads, value=-1)
            yield matrix(f"{block}.ssm_alpha", width, shape.value_heads)
            yield matrix(f"{block}.ssm_beta", width, shape.value_heads)
            yield vector(f"{block}.ssm_norm.weight", shape.state)
            yield matrix(f"{block}.ssm_out", values, width)
        yield matrix(f"{block}.ffn_gate", width, shape.n_ff)
        yield matrix(f"{block}.ffn_up", width, shape.n_ff)
        yield matrix(f"{block}.ffn_down", shape.n_ff, width, Q6_K if layer % 2 else Q4_K)
    block = f"blk.{shape.layers}.nextn"
    yield matrix(f"{block}.eh_proj", 2 * width, width)
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        yield vector(f"{block}.{norm}.weight", width)


if __name__ == "__main__":
    main()
