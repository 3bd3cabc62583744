"""Tiny random encoders as GGUF files: models that make vectors of texts, or scores of pairs, and cannot write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiny_gguf import Value, Weights, _n_vocab, _Weights, write_file

MEAN, CLS, LAST, RANK = 1, 2, 3, 4
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SEP_ID = SPECIAL.index("[SEP]")
_WORDS = ("the", "cat", "dog", "sat", "on", "mat", "of", "and", "is", "paris", "rome", "capital", "france")
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3


def write_encoder(
    path: str | Path,
    architecture: str = "bert",
    *,
    pooling: int = MEAN,
    seed: int = 0,
    width: int = 64,
    n_layers: int = 2,
    n_ctx: int = 128,
    n_labels: int = 0,
    type: str = "F32",
    added: Mapping[str, Weights] | None = None,
) -> Path:
    """Write a random encoder: "bert" with learned positions, or "nomic-bert" with rotary ones and gates.

    With `n_labels` the file has a classification head with as many outputs, as rerankers have. `added` is added to
    weights.
    """
    about = {
        "context_length": n_ctx,
        "embedding_length": width,
        "block_count": n_layers,
        "feed_forward_length": 2 * width,
        "attention.head_count": 4,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.causal": False,
        "pooling_type": pooling,
        **({"rope.freq_base": 10000.0} if architecture == "nomic-bert" else {}),
    }
    vocabulary = _vocabulary()
    entries: dict[str, Any] = {"general.architecture": architecture, "general.name": f"tiny {architecture}"}
    entries |= {f"{architecture}.{key}": value for key, value in about.items()} | vocabulary
    if n_labels > 1:
        entries[f"{architecture}.classifier.output_labels"] = [f"label {number}" for number in range(n_labels)]
    weights = _tensors(architecture, seed, width, n_layers, _n_vocab(vocabulary), n_ctx, n_labels)
    more = {name: weights[name] + values for name, values in (added or {}).items()}
    return write_file(path, entries, weights | more, type=type)


def _tensors(
    architecture: str, seed: int, width: int, n_layers: int, n_tokens: int, n_ctx: int, n_labels: int
) -> dict[str, Weights]:
    weights, is_bert = _Weights(seed), architecture == "bert"

    def norm(name: str) -> None:
        weights.norm(f"{name}.weight", width)
        weights.add(f"{name}.bias", (width,), 0.1)

    def linear(name: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
        weights.matrix(f"{name}.weight", n_out, n_in, gain)
        if is_bert:
            weights.add(f"{name}.bias", (n_out,), 0.1)

    weights.matrix("token_embd.weight", n_tokens, width, 3.0)
    weights.matrix("token_types.weight", 2, width)
    if is_bert:
        weights.matrix("position_embd.weight", n_ctx, width)
    norm("token_embd_norm")
    for layer in range(n_layers):
        block = f"blk.{layer}"
        for name in "qkv":
            linear(f"{block}.attn_{name}", width, width, 1.5)
        linear(f"{block}.attn_output", width, width)
        norm(f"{block}.attn_output_norm")
        linear(f"{block}.ffn_up", 2 * width, width)
        if not is_bert:
            linear(f"{block}.ffn_gate", 2 * width, width)
        linear(f"{block}.ffn_down", width, 2 * width, 2.0)
        norm(f"{block}.layer_output_norm")
    if n_labels:
        for name, n_out in (("cls", width), ("cls.output", n_labels)):
            weights.matrix(f"{name}.weight", n_out, width)
            weights.add(f"{name}.bias", (n_out,), 0.1)
    return weights.tensors


def _vocabulary() -> dict[str, Value]:
    """WordPiece: pieces that begin a word have a mark, as llama.cpp's converter writes them."""
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = [f"\u2581{piece}" for piece in (*letters, *_WORDS)] + letters
    tokens = [*SPECIAL, *pieces]
    kinds = [_CONTROL, _UNKNOWN, *[_CONTROL] * 3, *[_NORMAL] * len(pieces)]
    ids = {"padding": 0, "unknown": 1, "bos": 2, "cls": 2, "seperator": 3, "mask": 4}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.token_type_count": 2,
        **{f"tokenizer.ggml.{name}_token_id": id for name, id in ids.items()},
    }
