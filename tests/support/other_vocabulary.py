"""A model whose tokens have other ids, or of which some are no tokens of the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

_PER_TOKEN = ("tokens", "scores", "token_type")


def permute_vocabulary(source: Path, destination: Path, renamed: float = 0.0, seed: int = 0) -> None:
    """Write a model with its normal tokens in another order; a share of them gets texts that no one uses."""
    reader = gguf.GGUFReader(source)
    fields = {name.removeprefix("tokenizer.ggml."): field for name, field in reader.fields.items()}
    types = np.array(fields["token_type"].contents())
    normal = np.flatnonzero(types == 1)
    random = np.random.default_rng(seed)
    order = np.arange(len(types))
    order[normal] = random.permutation(normal)  # new id -> old id
    writer = gguf.GGUFWriter(destination, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value: Any = field.contents()
        if name.removeprefix("tokenizer.ggml.") in _PER_TOKEN:
            value = [value[old] for old in order]
            if name.endswith(".tokens"):
                for new in normal[random.random(len(normal)) < renamed]:
                    if len(value[new]) > 1:
                        value[new] = f"\u0378{new}"
        kind = field.types[0]
        writer.add_key_value(name, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        data = tensor.data[order] if tensor.name in ("token_embd.weight", "output.weight") else tensor.data
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
