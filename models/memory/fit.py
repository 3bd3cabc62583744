"""Defaults of a context, and whether models fit into this machine's memory, before they are loaded or even downloaded,
with changes that would make them fit."""

from __future__ import annotations

import os
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from edgespec.core.exactness import CELLS
from edgespec.errors import EdgespecError
from edgespec.gguf_file.header import Header
from edgespec.models.memory.estimate import MemoryPlan, estimate
from edgespec.settings import CACHE_TYPES, LoadSettings, Switch
from edgespec.text.figures import size_of

# Models are often trained for more context than most answers need or most machines can hold.
DEFAULT_CTX_SIZE = 8192
# The memory for context and buffers, in addition to the weights, if only the size of the weights is known.
CONTEXT_SHARE, CONTEXT_BYTES = 0.1, 400_000_000
TIGHT = 0.85  # of the memory: other programs take some, too

_GPU_QUESTION = (
    "from edgespec.llama.library import gpus; print(sum(gpu.free_bytes for gpu in gpus() if not gpu.is_integrated))"
)


def room_bytes(in_use_bytes: int = 0) -> int:
    """Return the memory for a model: free main memory and GPU memory, and the memory of the model in use."""
    from edgespec.llama.library import available_memory_bytes

    return available_memory_bytes() + gpu_room_bytes() + in_use_bytes


def gpu_room_bytes() -> int:
    """Return the free memory of all GPUs that this build can use and that have their own."""
    from edgespec.llama.library import api

    return _gpu_bytes() if api.llama_supports_gpu_offload() else 0


def needed_by(header: Header) -> int:
    """Return the memory that a model takes with the default context; 0 if unknown."""
    try:
        return estimate(MemoryPlan(header, n_ctx=usual_context(header))).total
    except (EdgespecError, ArithmeticError, LookupError):
        return 0


def needed_by_size(size_bytes: int) -> int:
    """Estimate the memory that a model with a file of this size takes; 0 if the size is unknown (0)."""
    return round(size_bytes * (1 + CONTEXT_SHARE)) + CONTEXT_BYTES if size_bytes else 0


def fit_of(needed: int, room: int) -> str:
    """Say if a model that takes `needed` bytes fits into `room`; empty if one of the two is unknown (0)."""
    if not needed or not room:
        return ""
    if needed <= TIGHT * room:
        return "fits in memory"
    if needed <= room:
        return "just fits in memory"
    return f"too large for memory (about {size_of(needed)}, {size_of(room)} free)"


@cache
def _gpu_bytes() -> int:
    """Return the free memory of all GPUs, as a child process reports it: the query itself takes GPU memory."""
    asked = subprocess.run(
        [sys.executable, "-P", "-c", _GPU_QUESTION],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONSAFEPATH": "1"},
    )
    return int(asked.stdout) if asked.stdout.strip().isdigit() else 0


# Bits per weight in quantisations that most repositories offer, including scales and the larger tensors of a mix
QUANT_BITS = {"Q8_0": 8.5, "Q6_K": 6.6, "Q5_K_M": 5.7, "Q4_K_M": 4.9, "Q3_K_M": 4.0, "Q2_K": 3.2}
WORTHWHILE = 0.95  # of the current bits: a larger file is not a remedy


def largest_context(plan: MemoryPlan, free_bytes: int) -> int:
    """Return the largest context that fits into main memory; 0 if none fits.

    It is a multiple of 256, and at most the context that the model was trained for.
    """
    trained = plan.header.number("context_length") or plan.n_ctx
    choices = range(CELLS, trained + 1, CELLS)
    fitting = bisect_right(choices, free_bytes, key=lambda n_ctx: estimate(with_context(plan, n_ctx)).ram)
    return choices[fitting - 1] if fitting else 0


def what_would_fit(plan: MemoryPlan, free_bytes: int) -> list[str]:
    """Return changes with which the plan fits into main memory, each with the memory that the plan then takes.

    Empty if no change alone suffices.
    """
    return [f"{what}: {size_of(needed)}" for what, needed in _changes(plan, free_bytes) if needed <= free_bytes]


def _changes(plan: MemoryPlan, free_bytes: int) -> Iterator[tuple[str, int]]:
    """Yield possible changes, and the main memory needed with each; some may not suffice."""
    quantised = [(name, estimate(cached).ram) for name in ("q8_0", "q4_0") if (cached := _with_cache(plan, name))]
    for name, needed in [choice for choice in quantised if choice[1] <= free_bytes][:1]:
        yield f"a {name} KV cache (`cache_type_k={name}` `cache_type_v={name}`)", needed
    if plan.draft is not None:
        yield "no draft model (`spec_type=none`)", estimate(replace(plan, draft=None)).ram
    n_ctx = largest_context(plan, free_bytes)
    if 0 < n_ctx < plan.n_ctx:
        yield f"a context of {n_ctx} tokens (`ctx_size={n_ctx}`)", estimate(with_context(plan, n_ctx)).ram
    now, own = estimate(plan), estimate(replace(plan, draft=None))
    bits = 8 * plan.header.weights_bytes / max(1, plan.header.n_params)
    for quant, quant_bits in QUANT_BITS.items():
        needed = now.ram - int(own.weights * (1 - quant_bits / bits))
        if quant_bits < WORTHWHILE * bits and needed <= free_bytes:
            yield f"the same model in {quant} instead of {bits:.1f} bits per weight", needed
            return


def with_context(plan: MemoryPlan, n_ctx: int) -> MemoryPlan:
    """Return the plan with this context, also for the draft unless its context differs."""
    draft = plan.draft
    if draft is not None and draft.n_ctx == plan.n_ctx:
        draft = replace(draft, n_ctx=n_ctx)
    return replace(plan, n_ctx=n_ctx, draft=draft)


def _with_cache(plan: MemoryPlan, name: str) -> MemoryPlan | None:
    """Return the plan with keys and values in this type, also for the draft if it has the same types; None if not
    possible."""
    if plan.stores_scores or any(size % CACHE_TYPES[name].block for size in plan.header.head_sizes):
        return None
    draft, types = plan.draft, (plan.cache_type_k, plan.cache_type_v)
    if draft is not None and (draft.cache_type_k, draft.cache_type_v) == types:
        draft = _with_cache(draft, name)
        if draft is None:
            return None
    return replace(plan, cache_type_k=name, cache_type_v=name, draft=draft)


# --- defaults of a context --------------------------------------------------------------------------------------------


def usual_context(header: Header) -> int:
    """Return the default context size in tokens."""
    return min(header.number("context_length") or DEFAULT_CTX_SIZE, DEFAULT_CTX_SIZE)


def wanted_attention(settings: LoadSettings, *, exact: bool) -> Switch:
    """Return when a context uses flash attention: in an exact one always, unless the settings say otherwise."""
    return "on" if exact and settings.flash_attention == "auto" else settings.flash_attention
