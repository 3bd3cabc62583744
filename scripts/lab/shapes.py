"""GGUF files of published shapes with random weights: models, and heads that draft for them.

The sizes are those of the published configurations: Qwen/Qwen3.5-{0.8B,4B,9B}, google/gemma-4-E4B-it and its assistant,
openai/gpt-oss-20b, LiquidAI/LFM2.5-1.2B-Instruct; an EAGLE-3 head has one layer of its target's width, and 32,000
tokens, as in AngelSlim/Qwen3-8B_eagle3.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edgespec.drafters.heads import HEADS

Q4_K, Q6_K, Q8_0, MXFP4, F32 = (gguf.GGMLQuantizationType[name] for name in ("Q4_K", "Q6_K", "Q8_0", "MXFP4", "F32"))
SPREAD = {Q4_K: 190, Q6_K: 1369, Q8_0: 73, MXFP4: 3}  # of the numbers of a block whose scale is 1
EAGLE_TOKENS = 32_000

Random = np.random.Generator


@dataclass(frozen=True, slots=True)
class Shape:
    """A model or head without its weights: the keys of its metadata after the architecture, and its tensors.

    Attributes:
        tensors: The tensors that are matrices, as sizes of rows, numbers of rows, types and numbers of experts.
        vectors: All others, as shapes and values.
        d2t: True if the file lists its tokens.
    """

    architecture: str
    vocab: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, int, int, int]]
    vectors: Mapping[str, tuple[tuple[int, ...], float]]
    d2t: bool = False

    def write(self, path: Path) -> None:
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in self.metadata.items():
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
            add.get(type(value), writer.add_array)(f"{self.architecture}.{key}", value)
        visible = [chr(number) for number in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list([*visible, *(f"token{number}" for number in range(self.vocab - 257)), "<|end|>"])
        writer.add_array("tokenizer.ggml.token_type", [1] * (self.vocab - 1) + [3])
        writer.add_array("tokenizer.ggml.merges", ["a b"])
        writer.add_eos_token_id(self.vocab - 1)
        for name, (n_in, n_out, kind, experts) in self.tensors.items():
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            rows = (experts, n_out) if experts else (n_out,)
            row = n_in if kind == F32 else n_in // elements * size
            dtype = np.dtype(np.float32 if kind == F32 else np.uint8)
            n_bytes = int(np.prod(rows)) * row * dtype.itemsize
            writer.add_tensor_info(f"{name}.weight", (*rows, row), dtype, n_bytes, None if kind == F32 else kind)
        small: dict[str, NDArray[Any]] = {
            name: np.full(shape, value, np.float32) for name, (shape, value) in self.vectors.items()
        }
        small |= {"d2t": np.arange(EAGLE_TOKENS, dtype=np.int64)} if self.d2t else {}
        for name, data in small.items():
            writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        random = np.random.default_rng(0)
        for n_in, n_out, kind, experts in self.tensors.values():  # one at a time: all may be more than the memory
            writer.write_tensor_data(_blocks(random, n_in, max(1, experts) * n_out, kind))
        for data in small.values():
            writer.write_tensor_data(data)
        writer.close()


def _blocks(random: Random, n_in: int, n_rows: int, kind: int) -> NDArray[Any]:
    """Return the rows of a matrix whose numbers have about the variance 1 / n_in."""
    scale = 1 / SPREAD[kind] / n_in**0.5 if kind in SPREAD else 0.0
    if kind == F32:
        return (random.standard_normal((n_rows, n_in), np.float32) / np.float32(n_in**0.5)).astype(np.float32)
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (n_rows * n_in // elements, size), np.uint8)
    if kind == Q4_K:  # a scale and a least value, both times numbers of six bits
        blocks[:, :4] = np.array([scale, 7.5 * scale], np.float16).view(np.uint8)
    elif kind == MXFP4:  # an exponent
        blocks[:, 0] = 127 + round(np.log2(scale))
    else:
        at = slice(0, 2) if kind == Q8_0 else slice(-2, None)
        blocks[:, at] = np.array([scale], np.float16).view(np.uint8)
    return blocks.reshape(n_rows, -1)


@dataclass(slots=True)
class _Parts:
    """The tensors of a shape while it is described."""

    tensors: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    vectors: dict[str, tuple[tuple[int, ...], float]] = field(default_factory=dict)

    def matrix(self, name: str, n_in: int, n_out: int, kind: int = Q4_K, experts: int = 0) -> None:
        self.tensors[name] = n_in, n_out, kind, experts

    def norms(self, block: str, size: int, *names: str) -> None:
        for name in names:
            self.vector(f"{block}.{name}.weight", size)

    def vector(self, name: str, *shape: int, value: float = 1.0) -> None:
        self.vectors[name] = shape, value

    def feed_forward(self, layer: int, width: int, n_ff: int) -> None:
        self.matrix(f"blk.{layer}.ffn_gate", width, n_ff)
        self.matrix(f"blk.{layer}.ffn_up", width, n_ff)
        self.matrix(f"blk.{layer}.ffn_down", n_ff, width, Q6_K if layer % 2 else Q4_K)

    def attention(self, block: str, width: int, queries: int, keys: int, kind: int = Q4_K) -> None:
        self.matrix(f"{block}.attn_q", width, queries, kind)
        self.matrix(f"{block}.attn_k", width, keys, kind)
        self.matrix(f"{block}.attn_v", width, keys, Q6_K if kind == Q4_K else kind)

    def head(self, kind: str, layers: int, sizes: Callable[[int], Mapping[str, int]], optional: Container[str]) -> None:
        """Add the tensors of a draft head, and those of its `optional` tensors."""
        for name, shape in HEADS[kind].shapes(layers, sizes, optional.__contains__).items():
            if len(shape) == 2:
                self.matrix(name.removesuffix(".weight"), *shape, Q8_0)
            else:
                self.vector(name, *shape)


@dataclass(frozen=True, slots=True)
class Models:
    """A target, whether it has an MTP block, and the heads that draft for it, by the names of their drafters."""

    target: Shape
    has_block: bool = False
    heads: Mapping[str, Shape] = field(default_factory=dict)


def qwen35(width: int, n_ff: int, layers: int, heads: int, kv_heads: int, value_heads: int, *, is_tied: bool) -> Shape:
    """A Qwen 3.5 with an MTP block: of four layers, three have a gated delta net of `value_heads`."""
    vocab, head, key_heads, state, parts = 248_320, 256, 16, 128, _Parts()
    values, keys = value_heads * state, key_heads * state
    parts.matrix("token_embd", width, vocab, Q6_K)
    parts.vector("output_norm.weight", width)
    if not is_tied:
        parts.matrix("output", width, vocab, Q6_K)
    for layer in range(layers + 1):
        block = f"blk.{layer}"
        parts.norms(block, width, "attn_norm", "post_attention_norm")
        if layer % 4 == 3 or layer == layers:
            parts.attention(block, width, 2 * heads * head, kv_heads * head)
            parts.matrix(f"{block}.attn_output", heads * head, width)
            parts.norms(block, head, "attn_q_norm", "attn_k_norm")
        else:
            parts.matrix(f"{block}.attn_qkv", width, 2 * keys + values)
            parts.matrix(f"{block}.attn_gate", width, values)
            parts.vector(f"{block}.ssm_conv1d.weight", 2 * keys + values, 4, value=0.5)
            parts.vector(f"{block}.ssm_dt.bias", value_heads)
            parts.vector(f"{block}.ssm_a", value_heads, value=-1)
            parts.matrix(f"{block}.ssm_alpha", width, value_heads)
            parts.matrix(f"{block}.ssm_beta", width, value_heads)
            parts.norms(block, state, "ssm_norm")
            parts.matrix(f"{block}.ssm_out", values, width)
        parts.feed_forward(layer, width, n_ff)
    parts.matrix(f"blk.{layers}.nextn.eh_proj", 2 * width, width)
    parts.norms(f"blk.{layers}.nextn", width, "enorm", "hnorm", "shared_head_norm")
    metadata = {
        "block_count": layers + 1, "context_length": 262_144, "embedding_length": width, "feed_forward_length": n_ff,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": head,
        "attention.value_length": head, "full_attention_interval": 4, "rope.dimension_count": head // 4,
        "ssm.conv_kernel": 4, "ssm.state_size": state, "ssm.group_count": key_heads,
        "ssm.time_step_rank": value_heads, "ssm.inner_size": values, "nextn_predict_layers": 1,
        "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e7, "rope.dimension_sections": [11, 11, 10, 0],
    }  # fmt: skip
    return Shape("qwen35", vocab, metadata, parts.tensors, parts.vectors)


_GEMMA_VOCAB, _GEMMA_HEAD, _GEMMA_NARROW, _GEMMA_WIDTH = 262_144, 512, 256, 2560


def _gemma4_metadata(width: int, n_ff: int, heads: int, windows: list[bool], shared: int) -> dict[str, object]:
    return {
        "block_count": len(windows), "context_length": 131_072, "embedding_length": width, "feed_forward_length": n_ff,
        "attention.head_count": heads, "attention.head_count_kv": 2, "attention.key_length": _GEMMA_HEAD,
        "attention.value_length": _GEMMA_HEAD, "attention.key_length_swa": _GEMMA_NARROW,
        "attention.value_length_swa": _GEMMA_NARROW, "rope.dimension_count": _GEMMA_HEAD,
        "rope.dimension_count_swa": _GEMMA_NARROW, "attention.sliding_window": 512,
        "attention.sliding_window_pattern": windows, "attention.shared_kv_layers": shared,
        "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4,
    }  # fmt: skip


def gemma4_e4b() -> Shape:
    """Gemma 4 E4B: 42 layers, every sixth without a window; the last 18 have no keys and values of their own."""
    layers, heads, per_layer, n_ff, width, parts = 42, 8, 256, 10_240, _GEMMA_WIDTH, _Parts()
    windows = [layer % 6 != 5 for layer in range(layers)]
    parts.matrix("token_embd", width, _GEMMA_VOCAB, Q6_K)
    parts.matrix("per_layer_token_embd", per_layer * layers, _GEMMA_VOCAB)
    parts.matrix("per_layer_model_proj", width, per_layer * layers)
    parts.vector("per_layer_proj_norm.weight", per_layer)
    parts.vector("output_norm.weight", width)
    parts.vector("rope_freqs.weight", _GEMMA_HEAD // 2)
    for layer, has_window in enumerate(windows):
        block, size = f"blk.{layer}", _GEMMA_NARROW if has_window else _GEMMA_HEAD
        parts.norms(block, width, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
        parts.norms(block, size, "attn_q_norm")
        if layer < layers - 18:
            parts.attention(block, width, heads * size, 2 * size)
            parts.norms(block, size, "attn_k_norm")
        else:
            parts.matrix(f"{block}.attn_q", width, heads * size)
        parts.matrix(f"{block}.attn_output", heads * size, width)
        parts.matrix(f"{block}.inp_gate", width, per_layer)
        parts.matrix(f"{block}.proj", per_layer, width)
        parts.vector(f"{block}.layer_output_scale.weight", 1)
        parts.feed_forward(layer, width, n_ff)
    metadata = _gemma4_metadata(width, n_ff, heads, windows, 18)
    metadata |= {"embedding_length_per_layer_input": per_layer, "final_logit_softcapping": 30.0}
    return Shape("gemma4", _GEMMA_VOCAB, metadata, parts.tensors, parts.vectors)


def gemma4_assistant() -> Shape:
    """The assistant of Gemma 4 E4B: four layers, the last of which has no window."""
    width, heads, n_ff, windows, parts = 256, 4, 2048, [True, True, True, False], _Parts()

    def sizes(layer: int) -> dict[str, int]:
        size = _GEMMA_NARROW if windows[layer] else _GEMMA_HEAD
        of_layer = {"head": size, "queries": heads * size, "ffn": n_ff, "pairs": _GEMMA_HEAD // 2}
        return of_layer | {"width": width, "target": _GEMMA_WIDTH, "both": 2 * _GEMMA_WIDTH, "tokens": _GEMMA_VOCAB}

    parts.head("assistant", len(windows), sizes, {"rope_freqs.weight"})
    metadata = _gemma4_metadata(width, n_ff, heads, windows, len(windows))
    metadata |= {"embedding_length_out": _GEMMA_WIDTH, "nextn_predict_layers": len(windows)}
    return Shape("gemma4-assistant", _GEMMA_VOCAB, metadata, parts.tensors, parts.vectors)


def gpt_oss_20b() -> Shape:
    """gpt-oss 20B: 24 layers with 32 experts, of which four are used."""
    width, n_ff, layers, heads, kv_heads, head, experts, vocab = 2880, 2880, 24, 64, 8, 64, 32, 201_088
    parts = _Parts()
    parts.matrix("token_embd", width, vocab, Q8_0)
    parts.matrix("output", width, vocab, Q8_0)
    parts.vector("output_norm.weight", width)
    for layer in range(layers):
        block = f"blk.{layer}"
        parts.norms(block, width, "attn_norm", "post_attention_norm")
        parts.attention(block, width, heads * head, kv_heads * head, Q8_0)
        parts.matrix(f"{block}.attn_output", heads * head, width, Q8_0)
        parts.matrix(f"{block}.ffn_gate_inp", width, experts, F32)
        for name in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
            parts.matrix(f"{block}.{name}", width, n_ff, MXFP4, experts)
            parts.vector(f"{block}.{name}.bias", experts, n_ff, value=0)
        parts.vector(f"{block}.attn_sinks.weight", heads, value=0)
        parts.vector(f"{block}.attn_output.bias", width, value=0)
        parts.vector(f"{block}.ffn_gate_inp.bias", experts, value=0)
        for name, size in (("q", heads * head), ("k", kv_heads * head), ("v", kv_heads * head)):
            parts.vector(f"{block}.attn_{name}.bias", size, value=0)
    metadata = {
        "block_count": layers, "context_length": 131_072, "embedding_length": width, "feed_forward_length": n_ff,
        "expert_feed_forward_length": n_ff, "expert_count": experts, "expert_used_count": 4,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": head,
        "attention.value_length": head, "attention.sliding_window": 128, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 150_000.0,
    }  # fmt: skip
    return Shape("gpt-oss", vocab, metadata, parts.tensors, parts.vectors)


def lfm25_1b() -> Shape:
    """LFM 2.5 1.2B: 16 layers, of which six have attention and the others a short convolution."""
    width, n_ff, layers, heads, kv_heads, head, vocab, parts = 2048, 8192, 16, 32, 8, 64, 65_536, _Parts()
    with_attention = (2, 5, 8, 10, 12, 14)
    parts.matrix("token_embd", width, vocab, Q6_K)
    parts.vector("token_embd_norm.weight", width)
    for layer in range(layers):
        block = f"blk.{layer}"
        parts.norms(block, width, "attn_norm", "ffn_norm")
        if layer in with_attention:
            parts.attention(block, width, heads * head, kv_heads * head)
            parts.matrix(f"{block}.attn_output", heads * head, width)
            parts.norms(block, head, "attn_q_norm", "attn_k_norm")
        else:
            parts.vector(f"{block}.shortconv.conv.weight", width, 3, value=0.5)
            parts.matrix(f"{block}.shortconv.in_proj", width, 3 * width)
            parts.matrix(f"{block}.shortconv.out_proj", width, width)
        parts.feed_forward(layer, width, n_ff)
    metadata = {
        "block_count": layers, "context_length": 128_000, "embedding_length": width, "feed_forward_length": n_ff,
        "attention.head_count": heads, "shortconv.l_cache": 3, "vocab_size": vocab,
        "attention.head_count_kv": [kv_heads * (layer in with_attention) for layer in range(layers)],
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e6,
    }  # fmt: skip
    return Shape("lfm2", vocab, metadata, parts.tensors, parts.vectors)


def eagle3(target: Shape, n_ff: int, heads: int, kv_heads: int, head: int) -> Shape:
    """An EAGLE-3 head: one layer, and its own output for 32,000 tokens; its embeddings are the target's."""
    width, layers, parts = target.metadata["embedding_length"], target.metadata["block_count"], _Parts()
    sizes = {
        "width": width, "read": 3 * width, "inputs": 2 * width, "queries": heads * head, "keys": kv_heads * head,
        "values": kv_heads * head, "ffn": n_ff, "drafts": EAGLE_TOKENS,
    }  # fmt: skip
    parts.head("eagle3", 1, lambda layer: sizes, {"output.weight"})
    metadata = {
        "block_count": 1, "context_length": 4096, "embedding_length": width, "feed_forward_length": n_ff,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": head,
        "attention.value_length": head, "attention.layer_norm_rms_epsilon": 1e-6, "rope.dimension_count": head,
        "rope.freq_base": 1e6, "target_layers": [2, layers // 2, layers - 3], "target_hidden_size": width,
    }  # fmt: skip
    return Shape("eagle3", target.vocab, metadata, parts.tensors, parts.vectors, d2t=True)


def _with_eagle3(target: Shape, n_ff: int, heads: int, kv_heads: int, head: int, **settings: Any) -> Models:
    return Models(target, heads={"eagle3": eagle3(target, n_ff, heads, kv_heads, head)}, **settings)


SHAPES = {
    "Qwen3.5-0.8B": Models(qwen35(1024, 3584, 24, 8, 2, 16, is_tied=True), has_block=True),
    "Qwen3.5-4B": Models(qwen35(2560, 9216, 32, 16, 4, 32, is_tied=True), has_block=True),
    "Qwen3.5-9B": _with_eagle3(qwen35(4096, 12_288, 32, 16, 4, 32, is_tied=False), 12_288, 32, 8, 128, has_block=True),
    "Gemma 4 E4B": Models(gemma4_e4b(), heads={"assistant": gemma4_assistant()}),
    "gpt-oss-20b": _with_eagle3(gpt_oss_20b(), 17_280, 64, 8, 64),
    "LFM2.5-1.2B": _with_eagle3(lfm25_1b(), 8192, 32, 8, 64),
}
