"""Check if models fit into this machine's memory, before they are loaded or even downloaded."""

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

# The memory for context and buffers, in addition to the weights, if only the size of the weights is known.
CONTEXT_SHARE, CONTEXT_BYTES = 0.1, 400_000_000
TIGHT = 0.85  # of the memory: other programs take some, too

_GPU_QUESTION = "from edgespec.llama.library import gpus; print(sum(gpu.free_bytes for gpu in gpus()))"


def room_bytes(in_use_bytes: int = 0) -> int:
    """Return the memory for a model: free main memory and GPU memory, and the memory of the model in use."""
    from edgespec.llama.library import api, available_memory_bytes

    on_gpus = _gpu_bytes() if api.llama_supports_gpu_offload() else 0
    return available_memory_bytes() + on_gpus + in_use_bytes


def needed_by(header: Header) -> int:
    """Return the memory that a model takes with the default context; 0 if unknown."""
    try:
        return estimate(Plan(header, n_ctx=usual_context(header))).total
    except (EdgespecError, ArithmeticError, LookupError):
        return 0


def needed_by_size(size_bytes: int) -> int:
    """Estimate the memory that a model with a file of this size takes."""
    return round(size_bytes * (1 + CONTEXT_SHARE)) + CONTEXT_BYTES


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
