"""Bounds in this build's CPU kernels, within which a token's logits do not depend on the other tokens of its pass.

scripts/llama/kernels.h names the kernels. Builds by others have no bounds, and GPUs have other kernels.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from llama_cpp._ggml import libggml

from edgespec.core.exactness import WIDE
from edgespec.llama.backends import variant_name
from edgespec.llama.library import CPU_LIBRARY, api, build_flags, library_path, repacked_types

ADDITIONS = 5
"""The version of scripts/llama in a build that has the bounds."""

NEVER = 2**31 - 1


class Bounds(NamedTuple):
    """Fewest rows from which a pass uses other kernels; scripts/llama/kernels.h describes them."""

    sgemm_float: int
    sgemm_quant: int
    tiled: int
    split_kv: int  # cells, not rows
    #: 1 if edgespec's kernels are used
    own: int
    flash: int


STOCK = Bounds(2, 2, 8, 512, 0, NEVER)
"""The bounds of llama.cpp's kernels."""
# llamafile's kernels sum quantised weights of other types as for single rows, but not on ARM, nor with AVX alone
_SGEMM_DIFFERS = {"IQ4_NL"}
# Repacked types whose kernels for one row and for several give the same bits. The first of these instructions that the
# build has decides which kernels are used. Those for ARM were compared under qemu, compiled with GCC and with Clang.
_REPACKED_ALIKE = {
    "AVX2": "Q4_0",
    "MATMUL_INT8": "Q4_0 Q8_0 IQ4_NL MXFP4",  # Q6_K differs with Clang
    "DOTPROD": "Q4_0 Q4_K Q5_K IQ4_NL MXFP4",  # Q8_0 differs with GCC
}


def have_bounds() -> bool:
    """Return whether this build of llama.cpp has the bounds."""
    return _bounds is not None


def described_build() -> str:
    """Return the version of llama-cpp-python, its CPU variant, and whether its kernels are exact."""
    kernels = "exact kernels" if have_bounds() else "without edgespec's exact kernels"
    variant = f", CPU variant {variant_name(CPU_LIBRARY)}" if CPU_LIBRARY else ""
    return f"llama-cpp-python {version('llama-cpp-python')}{variant}, {kernels}"


def fast_bounds(types: Iterable[str]) -> Bounds:
    """Return llama.cpp's bounds, with edgespec's faster kernels, which have the bits of single rows.

    Below 24 rows these are faster than llama.cpp's tiled kernels, which all K- and IQ-quants have.
    """
    has_own = "AVX2 = 1" in build_flags() and not any(name.startswith(("IQ1", "IQ2", "IQ3")) for name in types)
    return STOCK._replace(tiled=24 if has_own else STOCK.tiled, own=1)


def exact_bounds(types: Iterable[str], *, flash: bool = False) -> Bounds:
    """Return the bounds that make narrow passes over weights of these types exact.

    With `flash`, wide passes of a context without flash attention use it.
    """
    sgemm_differs = "AVX2 = 1" not in build_flags() or _SGEMM_DIFFERS.intersection(types)
    sgemm_quant = WIDE if sgemm_differs else 2
    return Bounds(WIDE, sgemm_quant, WIDE, NEVER, 1, WIDE if flash else NEVER)


def use(bounds: Bounds) -> None:
    """Set the bounds for all later decodes of this process, in all threads: no thread may set other bounds, decode with
    them or load a model while another one decodes."""
    global _used
    if bounds != _used and _bounds is not None:
        _used = bounds
        _bounds[0][:], _bounds[1].value = bounds[:-1], bounds[-1]


def repacking_helps(types: Iterable[str], *, exact: bool) -> bool:
    """Return whether weights of these types should be repacked where this build can.

    Not if some of them then round rows of a pass differently from single rows although passes must be `exact`, and not
    if they are K-quants on x86: for single tokens llama.cpp's kernels for repacked K-quants are up to a tenth faster,
    but for prompts they are slower than its other ones, and for drafts slower than edgespec's. AMX keeps its layout in
    any case: its kernels differ too, but prompts would lose most of their speed without them.
    """
    flags = build_flags()
    if "AMX_INT8 = 1" in flags:
        return True
    repacked = repacked_types().intersection(types)
    if have_bounds() and "AVX2 = 1" in flags and any(name.endswith("_K") for name in repacked):
        return False
    alike = next((names for flag, names in _REPACKED_ALIKE.items() if f"{flag} = 1" in flags), "").split()
    return not exact or repacked.issubset(alike)


def cpu_library() -> Any:
    """Return the loaded CPU backend, or None. The backend of a build that is not portable is looked up in the library
    that depends on it: loading the backend by name would give another copy."""
    if os.name == "nt" and not CPU_LIBRARY:  # a lookup in a library does not search its dependencies there
        path = Path(library_path()).with_name("ggml-cpu.dll")
        return ctypes.CDLL(str(path)) if path.exists() else None
    return ctypes.CDLL(str(CPU_LIBRARY)) if CPU_LIBRARY else libggml


def _find() -> tuple[Any, Any] | None:
    """Return the array of bounds in the loaded CPU backend and the one in llama.cpp's library, or None."""
    library = cpu_library()
    try:
        if library is None or ctypes.c_int32.in_dll(library, "edgespec_version").value != ADDITIONS:
            return None
        bounds = (ctypes.c_int32 * (len(STOCK) - 1)).in_dll(library, "edgespec_kernel_bounds")
        return bounds, ctypes.c_int32.in_dll(api._lib, "edgespec_flash_rows")
    except ValueError:
        return None


_bounds = _find()
_used = STOCK
