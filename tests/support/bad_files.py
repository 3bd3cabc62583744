"""Model files that are bad in one way each, and what their refusal says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import tiny_gguf
from tiny_gguf import write_model


def empty(path: Path) -> None:
    path.touch()


def directory(path: Path) -> None:
    path.mkdir()


def text(path: Path) -> None:
    path.write_text("this is no model\n", encoding="utf-8")


def safetensors(path: Path) -> None:
    path.write_bytes(b"\x40\0\0\0\0\0\0\0" + b'{"weight":{"dtype":"F32"}}')


def truncated_header(path: Path) -> None:
    write_model(path, "llama")
    path.write_bytes(path.read_bytes()[:3000])


def truncated_data(path: Path) -> None:
    write_model(path, "llama")
    path.write_bytes(path.read_bytes()[:-1000])


def wrong_version(path: Path) -> None:
    tiny_gguf.raw_file(path, version=b"\x09\0\0\0")


def huge_counts(path: Path) -> None:
    tiny_gguf.raw_file(path, n_entries=1 << 40, n_tensors=1 << 40)


def tensor_outside(path: Path) -> None:
    tiny_gguf.raw_file(path, tensors=[tiny_gguf.raw_tensor("token_embd.weight", (64, 4), offset=1 << 41)])


def unknown_architecture(path: Path) -> None:
    write_model(path, "llama", metadata={"general.architecture": "llama9"})


def vocabulary_only(path: Path) -> None:
    tiny_gguf.write_vocabulary(path)


def embedding_only(path: Path) -> None:
    tiny_gguf.write_embedding_model(path)


def projector(path: Path) -> None:
    tiny_gguf.write_file(path, {"general.architecture": "clip"}, {"v.patch_embd.weight": np.zeros((8, 8), np.float32)})


def adapter(path: Path) -> None:
    write_model(path, "llama", metadata={"general.type": "adapter"})


def missing_part(path: Path) -> None:
    first, second = tiny_gguf.write_split(path.parent)
    second.unlink()
    first.rename(path)


def missing_tensor(path: Path) -> None:
    """Well-formed, and found out by llama.cpp itself."""
    write_model(path, "llama", tensors={"blk.1.ffn_up.weight": None})


def heads_that_cannot_be_shared(path: Path) -> None:
    """Well-formed, and found out by llama.cpp itself."""
    write_model(path, "llama", metadata={"llama.attention.head_count_kv": 3})


def unknown_tokenizer(path: Path) -> None:
    """Well-formed, and found out by llama.cpp itself."""
    write_model(path, "llama", metadata={"tokenizer.ggml.pre": "no such thing"})


def endless_tokenizer(path: Path) -> None:
    """llama.cpp would look for ever for a token that begins with one of these bytes."""
    write_model(path, "llama", metadata={"tokenizer.ggml.model": "rwkv"})


def aborting_tokenizer(path: Path) -> None:
    """llama.cpp aborts when it is asked for the text of such a token."""
    write_model(path, "gemma", metadata={"tokenizer.ggml.model": "bert"})


BAD_FILES: dict[Callable[[Path], None], str] = {
    empty: "is empty",
    directory: "is a directory",
    text: "not a GGUF file",
    safetensors: "safetensors",
    truncated_header: "incomplete",
    truncated_data: "incomplete",
    wrong_version: "version 9",
    huge_counts: "1,099,511,627,776",
    tensor_outside: "starts at offset",
    unknown_architecture: "is no architecture of this llama.cpp",
    vocabulary_only: "only a vocabulary",
    embedding_only: "an embedding model",
    projector: "a vision projector",
    adapter: "a LoRA adapter",
    missing_part: "parts",
    missing_tensor: "ffn_up",
    heads_that_cannot_be_shared: "attn_k.weight",
    unknown_tokenizer: "no such thing",
    endless_tokenizer: "it has no token for the byte 0",
    aborting_tokenizer: "llama.cpp crashed in a trial load, while reading the tokenizer ('bert')",
}


def written(write: Callable[[Path], None], folder: Path) -> Path:
    path = folder / ("tiny-00001-of-00002.gguf" if write is missing_part else f"{write.__name__}.gguf")
    write(path)
    return path
