"""The number types of a KV cache, and which of them a model can have."""

from __future__ import annotations

from edgespec.errors import UsageError
from edgespec.settings import CACHE_TYPES, CacheType


def cache_type(name: str, head_size: int) -> CacheType:
    """Return the cache type with this name. Raises UsageError if it cannot store heads of this size."""
    found = CACHE_TYPES.get(name)
    if found is None:
        raise UsageError(f"unknown KV cache type {name}", hint=f"one of: {', '.join(CACHE_TYPES)}")
    if head_size % found.block:
        raise UsageError(
            f"a {name} KV cache does not fit this model",
            why=f"it stores {found.block} values at a time, and the attention heads have {head_size}",
            hint="use f16",
        )
    return found
