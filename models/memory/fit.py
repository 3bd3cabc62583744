"""Whether models fit into this machine's memory, before they are loaded or even downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

from edgespec.errors import EdgespecError
from edgespec.gguf_file.header import Header
from edgespec.models.memory.defaults import usual_context
from edgespec.models.memory.estimate import Plan, estimate
from edgespec.text.figures import size_of

# What a model takes beside its weights, as long as nothing but their size is known: its context, and buffers.
CONTEXT_SHARE, CONTEXT_BYTES = 0.1, 400_000_000
TIGHT = 0.85  # of the memory: other programs take some, too

_GPU_QUESTION = "from edgespec.llama.library import gpus; print(sum(gpu.free_bytes for gpu in gpus()))"


def room_bytes(in_use_bytes: int = 0) -> int:
    """The memory for a model: what is free here and on GPUs, and what the one in use takes."""
    from edgespec.llama.library import api, available_memory_bytes

    on_gpus = _gpu_bytes() if api.llama_supports_gpu_offload() else 0
    return available_memory_bytes() + on_gpus + in_use_bytes


def needed_by(header: Header) -> int:
    """The memory that a model takes with the default context; 0 if that is unknown."""
    try:
        return estimate(Plan(header, n_ctx=usual_context(header))).total
    except (EdgespecError, ArithmeticError, LookupError):
        return 0


def needed_by_size(size_bytes: int) -> int:
    """About the memory that a model with a file of this size takes."""
    return round(size_bytes * (1 + CONTEXT_SHARE)) + CONTEXT_BYTES


def fit_of(needed: int, room: int) -> str:
    """Whether a model that takes `needed` bytes has room, in a few words; empty if one of the two is unknown (0)."""
    if not needed or not room:
        return ""
    if needed <= TIGHT * room:
        return "fits in memory"
    if needed <= room:
        return "just fits in memory"
    return f"too large for memory (about {size_of(needed)}, {size_of(room)} free)"


@cache
def _gpu_bytes() -> int:
    """Free memory of all GPUs, asked in a process of its own: asking takes some of it."""
    asked = subprocess.run(
        [sys.executable, "-P", "-c", _GPU_QUESTION],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONSAFEPATH": "1"},
    )
    return int(asked.stdout) if asked.stdout.strip().isdigit() else 0
