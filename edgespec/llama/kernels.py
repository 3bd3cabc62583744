"""Bounds in this build's CPU kernels, within which a token's logits do not depend on the other tokens of its pass.

scripts/llama/kernels.h names the kernels. Builds made elsewhere have no bounds, and GPUs have other kernels.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llama_cpp._ggml import libggml

from edgespec.core.exactness import WIDE
from edgespec.llama.library import build_flags, library_path, repacked_types

Bounds = tuple[int, int, int, int, int]

STOCK: Bounds = (2, 2, 8, 512, 0)
"""The bounds of llama.cpp's kernels."""
FAST: Bounds = (2, 2, 8, 512, 1)
"""The same, with edgespec's faster kernels where they do not change any bits."""
_SGEMM_DIFFERS = {"IQ4_NL"}  # for other quantised types llamafile's kernels sum as for single rows, without a bound
_REPACKED_ALIKE = {"Q4_0"}  # repacked kernels for one row and for several give the same bits


def have_bounds() -> bool:
    """Return whether this build of llama.cpp has the bounds."""
    return _bounds is not None


def exact_bounds(types: Iterable[str]) -> Bounds:
    """Return the bounds that make narrow passes over weights of these types exact."""
    sgemm_quant = WIDE if _SGEMM_DIFFERS.intersection(types) else 2
    return (WIDE, sgemm_quant, WIDE, 2**31 - 1, 1)


def use(bounds: Bounds) -> None:
    """Set the bounds for all later decodes of this process, in all threads: no thread may set other bounds while
    another one decodes."""
    global _used
    if bounds != _used and _bounds is not None:
        _bounds[:] = _used = bounds


def repacking_differs(types: Iterable[str]) -> bool:
    """Return whether rows of weights of these types round differently from single rows once this build has repacked
    them.

    AMX keeps its layout: its kernels differ too, but prompts would lose most of their speed without them.
    """
    return "AMX_INT8 = 1" not in build_flags() and bool(repacked_types().intersection(types) - _REPACKED_ALIKE)


def _find() -> Any:
    """Return the array of bounds in the loaded CPU backend. It is looked up in the library that depends on it: loading
    the backend by name would give another copy."""
    library: Any = libggml
    if os.name == "nt":  # a lookup in a library does not search its dependencies there
        path = Path(library_path()).with_name("ggml-cpu.dll")
        if not path.exists():
            return None
        library = ctypes.CDLL(str(path))
    try:
        return (ctypes.c_int32 * len(STOCK)).in_dll(library, "edgespec_kernel_bounds")
    except ValueError:
        return None


_bounds = _find()
_used = STOCK
