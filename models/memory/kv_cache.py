"""The size of a token in a KV cache, from the header alone."""

from __future__ import annotations

import math

from edgespec.gguf_file.header import Header
from edgespec.settings import CACHE_TYPES


def values_per_token(header: Header) -> tuple[int, int]:
    """Return the number of values that a token adds to the key and value caches of all layers.

    As in llama.cpp, layers that share the cache of earlier layers add nothing. Layers that predict further tokens add
    nothing, because they are not run. With latent attention (MLA) the values are a part of the keys.
    """
    unused = header.number("attention.shared_kv_layers") + header.number("nextn_predict_layers")
    n_layers = max(0, header.number("block_count") - unused)
    k = v = 0
    for layer in range(n_layers):
        keys = header.tensors.get(f"blk.{layer}.attn_k.weight")
        if keys is not None:
            k += math.prod(keys.shape[1:])
            v += math.prod(header.tensors.get(f"blk.{layer}.attn_v.weight", keys).shape[1:])
    if not k:  # the matrix of the keys has other outputs, too
        heads = header.head_counts("attention.head_count_kv") or header.head_counts("attention.head_count")
        k, v = (sum(heads[:n_layers]) * size for size in header.head_sizes)
    return (k, 0) if header.number("attention.key_length_mla") else (k, v)


def bytes_per_token(header: Header, cache_type_k: str = "f16", cache_type_v: str = "f16") -> float:
    """Return the bytes of a token in caches of these types."""
    k, v = values_per_token(header)
    return k * _value_bytes(cache_type_k) + v * _value_bytes(cache_type_v)


def _value_bytes(cache_type: str) -> float:
    return CACHE_TYPES[cache_type].block_bytes / CACHE_TYPES[cache_type].block
