"""Tiny random models as real GGUF files: a few hundred kilobytes each, loadable and deterministic by seed.

`write_model` gives every test the architecture it needs; `metadata` and `tensors` bend it out of shape on purpose.
`raw_file`, `raw_entry` and `raw_tensor` build byte by byte what no writer would.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np
from numpy.typing import NDArray

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma", "gemma3", "qwen2moe", "mamba")
RECURRENT = ("mamba",)  # llama.cpp takes no token back from their memory
HYBRID = ("lfm2", "qwen35", "nemotron_h")  # a recurrent layer, then one with attention; llama.cpp keeps old states
# A context of an F32 model whose rounding is so small that no choice of a test depends on it.
EXACT: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off", "threads": 1}
# Bytes as the control tokens of prompts with a gap, so that the vocabulary need not grow.
FILL = {f"tokenizer.ggml.fim_{name}_token_id": 19 + at for at, name in enumerate(("pre", "suf", "mid", "rep", "sep"))}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Value = str | int | float | bool | Sequence[str] | Sequence[bytes] | Sequence[int] | Sequence[float] | Sequence[bool]
Weights = NDArray[np.float32]
V = TypeVar("V")

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_MERGES = """Ġ Ġ|ĠĠ ĠĠ|d e|de f|Ġ s|e l|el f|r e|re t|u r|ret ur|retur n|i n|i f|o r|Ġ =|Ġ a|Ġ b|a n|t h|th e|Ġ the|o n
p r|in t|pr int|n o|no t|f or|Ġ x|i s|e r|a s|l e|le n|c l|cl as|clas s|Ġ 1|' '"""  # in order of rank
_PIECES = """▁▁ ▁▁▁▁ def ▁def return ▁return self in ▁in if ▁if for ▁for or an the ▁the print not re er on is as len ▁=
▁a ▁x"""


def write_model(
    path: str | Path,
    architecture: str,
    *,
    seed: int = 0,
    noise: float = 0.0,
    width: int = 64,
    n_layers: int = 2,
    n_ctx: int = 2048,
    type: str = "F32",
    chat_template: str | None = None,
    metadata: Mapping[str, Value | None] | None = None,
    tensors: Mapping[str, Weights | None] | None = None,
) -> Path:
    """Write a random model of `architecture` to `path`; same arguments, same bytes.

    `noise` disturbs the weights of the same seed, relatively: a model with a little of it is a fair draft for the one
    without. `type` is the ggml type of the matrices. `metadata` and `tensors` replace entries; None removes one.
    """
    entries = model_metadata(architecture, width=width, n_layers=n_layers, n_ctx=n_ctx)
    if chat_template is not None:
        entries["tokenizer.chat_template"] = chat_template
    weights = model_tensors(architecture, entries, seed=seed, noise=noise)
    return write_file(path, replaced(entries, metadata), replaced(weights, tensors), type=type)


def write_vocabulary(path: str | Path, architecture: str = "llama") -> Path:
    """A file with a vocabulary and no weights, as tokenizers are tested with."""
    return write_file(path, model_metadata(architecture), {})


def write_embedding_model(path: str | Path) -> Path:
    """The header of a BERT-like encoder, which makes vectors and cannot write."""
    entries = model_metadata("llama", prefix="bert") | {"bert.attention.causal": False, "bert.pooling_type": 1}
    return write_file(path, entries, {"token_embd.weight": np.zeros((_n_vocab(entries), 64), np.float32)})


def write_split(folder: str | Path, architecture: str = "llama", *, n_parts: int = 2, seed: int = 0) -> list[Path]:
    """A model in parts called `tiny-00001-of-0000N.gguf`, the first of which is to be loaded."""
    entries = model_metadata(architecture)
    weights = model_tensors(architecture, entries, seed=seed)
    write_file(Path(folder) / "tiny.gguf", entries, weights, split_max_tensors=math.ceil(len(weights) / n_parts))
    return sorted(Path(folder).glob("tiny-*.gguf"))


def write_file(
    path: str | Path,
    metadata: Mapping[str, Value],
    tensors: Mapping[str, Weights],
    *,
    type: str = "F32",
    split_max_tensors: int = 0,
) -> Path:
    """Write metadata and tensors (row length last, as numpy has it) as a GGUF file."""
    path = Path(path)
    architecture = str(metadata.get("general.architecture", ""))
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_max_tensors)
    if "general.architecture" not in metadata:
        writer.kv_data[0].clear()
    for key, value in metadata.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, values in tensors.items():
        kind = gguf.GGMLQuantizationType[type if _may_be_quantised(name, values, type) else "F32"]
        if kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, np.ascontiguousarray(values))
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    if tensors:
        writer.write_tensors_to_file()
    writer.close()
    return path


def model_metadata(
    architecture: str, *, width: int = 64, n_layers: int = 2, n_ctx: int = 2048, prefix: str = ""
) -> dict[str, Value]:
    """The metadata of a tiny model, vocabulary included; `prefix` renames the architecture."""
    entries: dict[str, Value] = {
        "context_length": n_ctx,
        "embedding_length": width,
        "block_count": n_layers,
        "feed_forward_length": 2 * width,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": width // 4,
        "rope.freq_base": 10000.0,
    }
    match architecture:
        case "qwen2moe":
            entries |= {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": width}
            entries |= {"expert_shared_feed_forward_length": width, "attention.head_count_kv": 4}
        case "mamba":
            entries |= {"attention.head_count": 0, "feed_forward_length": 0, "ssm.conv_kernel": 4}
            entries |= {"ssm.inner_size": 2 * width, "ssm.state_size": 16, "ssm.time_step_rank": 4}
            for key in ("attention.head_count_kv", "rope.dimension_count", "rope.freq_base"):
                del entries[key]
        case "lfm2" | "qwen35" | "nemotron_h":
            _describe_hybrid(entries, architecture, width, n_layers)
        case "gemma" | "gemma3":
            entries |= {"attention.key_length": width // 4, "attention.value_length": width // 4}
            if architecture == "gemma3":
                entries |= {"attention.sliding_window": 32, "rope.freq_base_swa": 10000.0}
    prefix = prefix or architecture
    general: dict[str, Value] = {"general.architecture": prefix, "general.name": f"tiny {architecture}"}
    vocabulary = _spm_vocabulary() if architecture.startswith("gemma") else _bpe_vocabulary()
    return general | {f"{prefix}.{key}": value for key, value in entries.items()} | vocabulary


def _describe_hybrid(entries: dict[str, Value], architecture: str, width: int, n_layers: int) -> None:
    """Odd layers have attention, even ones a short convolution, a gated delta net or Mamba-2."""
    kv_heads = [2 * (layer % 2) for layer in range(n_layers)]
    match architecture:
        case "lfm2":
            entries |= {"attention.head_count_kv": kv_heads, "shortconv.l_cache": 3}
        case "qwen35":
            entries |= {"full_attention_interval": 2, "rope.dimension_sections": [width // 32] * 4}
            entries |= {"attention.key_length": width // 4, "attention.value_length": width // 4}
            entries |= {"ssm.conv_kernel": 4, "ssm.inner_size": width, "ssm.state_size": width // 4}
            entries |= {"ssm.time_step_rank": 4, "ssm.group_count": 2}
        case "nemotron_h":
            entries |= {"attention.head_count_kv": kv_heads, "feed_forward_length": [0] * n_layers}
            entries |= {"attention.layer_norm_epsilon": 1e-5, "ssm.conv_kernel": 4, "ssm.inner_size": 2 * width}
            entries |= {"ssm.state_size": 16, "ssm.time_step_rank": 8, "ssm.group_count": 1}


def model_tensors(
    architecture: str, metadata: Mapping[str, Value], *, seed: int = 0, noise: float = 0.0
) -> dict[str, Weights]:
    """Random weights that fit the metadata, with logits of a standard deviation of about 3."""

    def size(key: str) -> int:
        value = metadata.get(f"{architecture}.{key}", 0)
        largest = max(value) if isinstance(value, list) else value  # one for each layer, 0 where there is none
        assert isinstance(largest, int)
        return largest

    weights = _Weights(seed, noise)
    width, n_ff, n_vocab = size("embedding_length"), size("feed_forward_length"), _n_vocab(metadata)
    embedding = weights.matrix("token_embd.weight", n_vocab, width, 3.0)
    embedding[_control_tokens(metadata)] *= 0.02
    weights.norm("output_norm.weight" if architecture != "lfm2" else "token_embd_norm.weight", width)
    if architecture != "gemma":  # whose output is tied to its embedding
        output = weights.matrix("output.weight", n_vocab, width, 3.0)
        output[_control_tokens(metadata)] *= 0.02
    for layer in range(size("block_count")):
        block = f"blk.{layer}"
        weights.norm(f"{block}.attn_norm.weight", width)
        if architecture == "mamba":
            _add_mamba(
                weights, block, width, size("ssm.inner_size"), size("ssm.state_size"), size("ssm.time_step_rank")
            )
            continue
        if architecture in HYBRID and layer % 2 == 0:
            _add_recurrent(weights, block, architecture, width)
        else:
            _add_attention(
                weights, block, architecture, width, size("attention.head_count"), size("attention.head_count_kv")
            )
        if architecture == "nemotron_h":  # whose feed-forward layers are separate
            continue
        weights.norm(f"{block}.{'post_attention' if architecture == 'qwen35' else 'ffn'}_norm.weight", width)
        if architecture == "qwen2moe":
            _add_experts(weights, block, width, size("expert_feed_forward_length"), size("expert_count"))
            continue
        weights.matrix(f"{block}.ffn_gate.weight", n_ff, width)
        weights.matrix(f"{block}.ffn_up.weight", n_ff, width)
        weights.matrix(f"{block}.ffn_down.weight", width, n_ff, 4.0 if architecture != "gemma" else 30.0)
        if architecture == "gemma3":
            weights.norm(f"{block}.post_ffw_norm.weight", width, 3.0)
    return weights.tensors


class _Weights:
    """Draws tensors by name, each from its own stream, so that leaving one out changes no other."""

    def __init__(self, seed: int, noise: float = 0.0) -> None:
        self.seed, self.noise = seed, noise
        self.tensors: dict[str, Weights] = {}

    def add(self, name: str, shape: tuple[int, ...], scale: float, mean: float = 0.0) -> Weights:
        stream = [self.seed, *name.encode()]
        drawn = np.random.default_rng(stream).standard_normal(shape) * scale
        drawn += np.random.default_rng([*stream, 1]).standard_normal(shape) * scale * self.noise
        self.tensors[name] = (mean + drawn).astype(np.float32)
        return self.tensors[name]

    def matrix(self, name: str, n_out: int, n_in: int, gain: float = 1.0) -> Weights:
        return self.add(name, (n_out, n_in), gain / math.sqrt(n_in))

    def norm(self, name: str, n: int, mean: float = 1.0) -> Weights:
        return self.add(name, (n,), 0.1, mean)


def _add_attention(weights: _Weights, block: str, architecture: str, width: int, n_head: int, n_head_kv: int) -> None:
    head = width // n_head
    gated = 2 if architecture == "qwen35" else 1  # its queries come with gates
    for name, n_out in (("q", gated * width), ("k", n_head_kv * head), ("v", n_head_kv * head)):
        weights.matrix(f"{block}.attn_{name}.weight", n_out, width, 1.5)
        if architecture in ("qwen2", "qwen2moe"):
            weights.add(f"{block}.attn_{name}.bias", (n_out,), 0.1)
        if architecture in ("qwen3", "gemma3", "lfm2", "qwen35") and name != "v":
            weights.norm(f"{block}.attn_{name}_norm.weight", head)
    weights.matrix(f"{block}.attn_output.weight", width, width, 3.0 if architecture != "gemma" else 20.0)
    if architecture == "gemma3":
        weights.norm(f"{block}.post_attention_norm.weight", width, 3.0)


def _add_experts(weights: _Weights, block: str, width: int, n_ff: int, n_experts: int) -> None:
    weights.matrix(f"{block}.ffn_gate_inp.weight", n_experts, width, 3.0)
    for name in ("gate", "up"):
        weights.add(f"{block}.ffn_{name}_exps.weight", (n_experts, n_ff, width), 1 / math.sqrt(width))
        weights.matrix(f"{block}.ffn_{name}_shexp.weight", n_ff, width)
    weights.add(f"{block}.ffn_down_exps.weight", (n_experts, width, n_ff), 4 / math.sqrt(n_ff))
    weights.matrix(f"{block}.ffn_down_shexp.weight", width, n_ff, 4.0)
    weights.add(f"{block}.ffn_gate_inp_shexp.weight", (width,), 0.3)


def _add_mamba(weights: _Weights, block: str, width: int, d_inner: int, d_state: int, dt_rank: int) -> None:
    weights.matrix(f"{block}.ssm_in.weight", 2 * d_inner, width, 2.0)
    weights.matrix(f"{block}.ssm_conv1d.weight", d_inner, 4)
    weights.add(f"{block}.ssm_conv1d.bias", (d_inner,), 0.1)
    weights.matrix(f"{block}.ssm_x.weight", dt_rank + 2 * d_state, d_inner)
    weights.matrix(f"{block}.ssm_dt.weight", d_inner, dt_rank)
    weights.add(f"{block}.ssm_dt.bias", (d_inner,), 0.5, -2.0)
    weights.tensors[f"{block}.ssm_a"] = -np.tile(np.arange(1, d_state + 1, dtype=np.float32), (d_inner, 1))
    weights.norm(f"{block}.ssm_d", d_inner)
    weights.matrix(f"{block}.ssm_out.weight", width, d_inner, 4.0)


def _add_recurrent(weights: _Weights, block: str, architecture: str, width: int) -> None:
    match architecture:
        case "lfm2":
            weights.matrix(f"{block}.shortconv.in_proj.weight", 3 * width, width, 1.5)
            weights.matrix(f"{block}.shortconv.conv.weight", width, 3)
            weights.matrix(f"{block}.shortconv.out_proj.weight", width, width, 3.0)
        case "qwen35":
            d_conv, head, n_heads = 2 * width, width // 4, 4
            weights.matrix(f"{block}.attn_qkv.weight", d_conv, width, 2.0)
            weights.matrix(f"{block}.attn_gate.weight", width, width, 2.0)
            weights.matrix(f"{block}.ssm_conv1d.weight", d_conv, 4, 2.0)
            for name in ("alpha", "beta"):
                weights.matrix(f"{block}.ssm_{name}.weight", n_heads, width)
            weights.add(f"{block}.ssm_dt.bias", (n_heads,), 0.5, -2.0)
            weights.tensors[f"{block}.ssm_a"] = -np.arange(1, n_heads + 1, dtype=np.float32)
            weights.norm(f"{block}.ssm_norm.weight", head)
            weights.matrix(f"{block}.ssm_out.weight", width, width, 3.0)
        case "nemotron_h":
            d_inner, d_state, n_heads = 2 * width, 16, 8
            d_conv = d_inner + 2 * d_state
            weights.matrix(f"{block}.ssm_in.weight", d_inner + d_conv + n_heads, width, 2.0)
            weights.matrix(f"{block}.ssm_conv1d.weight", d_conv, 4)
            weights.add(f"{block}.ssm_conv1d.bias", (d_conv,), 0.1)
            weights.add(f"{block}.ssm_dt.bias", (n_heads,), 0.5, -2.0)
            weights.tensors[f"{block}.ssm_a"] = -np.arange(1, n_heads + 1, dtype=np.float32)[:, None]
            weights.add(f"{block}.ssm_d", (n_heads, 1), 0.1, 1.0)
            weights.add(f"{block}.ssm_norm.weight", (1, d_inner), 0.1, 1.0)
            weights.matrix(f"{block}.ssm_out.weight", width, d_inner, 4.0)


def _bpe_vocabulary() -> dict[str, Value]:
    """Every byte, forty merges and three control tokens, byte-level as GPT-2 and Qwen have it."""
    tokens = [character for _, character in sorted(byte_characters().items())]
    merges = _MERGES.replace("\n", "|").split("|")
    tokens += [merge.replace(" ", "") for merge in merges]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens + control,
        "tokenizer.ggml.token_type": [_NORMAL] * len(tokens) + [_CONTROL] * len(control),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def _spm_vocabulary() -> dict[str, Value]:
    """SentencePiece with byte fallback, as Llama 2 and Gemma have it."""
    control = ["<unk>", "<s>", "</s>", "<start_of_turn>", "<end_of_turn>"]
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁", *map(chr, range(33, 127)), *_PIECES.split()]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": control + in_bytes + pieces,
        "tokenizer.ggml.scores": [0.0] * (len(control) + 256) + [-float(rank) for rank in range(len(pieces))],
        "tokenizer.ggml.token_type": [_UNKNOWN, *[_CONTROL] * 4, *[_BYTE] * 256, *[_NORMAL] * len(pieces)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }


def byte_characters() -> dict[int, str]:
    """The character for each byte in a byte-level vocabulary (GPT-2's `bytes_to_unicode`)."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + rank) for rank, byte in enumerate(hidden)}


def _n_vocab(metadata: Mapping[str, Value]) -> int:
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, Sequence)
    return len(tokens)


def _control_tokens(metadata: Mapping[str, Value]) -> list[int]:
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, Sequence)
    return [id for id, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN)]


def _may_be_quantised(name: str, values: Weights, type: str) -> bool:
    """llama.cpp wants vectors, routers and the small tensors of state-space models in F32."""
    kept = (
        "ssm_conv1d",
        "ssm_a",
        "ssm_d",
        "ssm_norm",
        "shortconv.conv",
        "ffn_gate_inp",
        "position_embd",
        "token_types",
    )
    block_size, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]]
    return values.ndim > 1 and not any(part in name for part in kept) and values.shape[-1] % block_size == 0


def _add(writer: Any, key: str, value: Value) -> None:
    if key == "general.alignment":
        assert isinstance(value, int)
        writer.add_custom_alignment(value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


def replaced(entries: Mapping[str, V], changes: Mapping[str, V | None] | None) -> dict[str, V]:
    """With these entries in place of those of the same name; None removes one."""
    return {key: value for key, value in {**entries, **(changes or {})}.items() if value is not None}


# --- byte by byte -----------------------------------------------------------------------------------------------------


def raw_string(text: bytes | str) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def raw_entry(key: bytes | str, type: int, payload: bytes) -> bytes:
    """One metadata entry; `type` is the gguf_type, `payload` the value's bytes."""
    return raw_string(key) + struct.pack("<I", type) + payload


def raw_tensor(name: bytes | str, shape: Sequence[int], type: int = 0, offset: int = 0) -> bytes:
    """One tensor's description; `shape` with the row length first, `type` the ggml_type."""
    return raw_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type, offset)


def raw_file(
    path: str | Path,
    *,
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    n_entries: int | None = None,
    n_tensors: int | None = None,
    magic: bytes = b"GGUF",
    version: bytes = struct.pack("<I", 3),
    data: bytes = b"",
) -> Path:
    """Write a file of these parts, with right counts unless they are given; data begin at the next multiple of 32."""
    counts = struct.pack(
        "<QQ", len(tensors) if n_tensors is None else n_tensors, len(entries) if n_entries is None else n_entries
    )
    header = magic + version + counts + b"".join(entries) + b"".join(tensors)
    Path(path).write_bytes(header + bytes(-len(header) % 32) + data)
    return Path(path)
