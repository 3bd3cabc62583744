"""Bounds in this build's CPU kernels, within which a token's logits do not depend on the other tokens of its pass.

scripts/llama/kernels.h names the kernels. Builds by others have no bounds, and GPUs have other kernels.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from llama_cpp._ggml import libggml

from edgespec.core.exactness import WIDE
from edgespec.llama.backends import variant_name
from edgespec.llama.library import CPU_LIBRARY, api, build_flags, library_path

ADDITIONS = 6
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


def interleaves() -> bool:
    """Return whether this build interleaves weights and has its own flash attention: then products with weights and
    attention give a token the same bits in passes of every width."""
    library = cpu_library()
    return have_bounds() and bool(ctypes.c_int32.in_dll(library, "edgespec_interleaves").value)


@contextmanager
def llama_cpp_layouts() -> Iterator[None]:
    """Load models in this block with all the layouts of llama.cpp, and none of this build, for comparisons."""
    switch = ctypes.c_int32.in_dll(cpu_library(), "edgespec_interleaves")
    before, switch.value = switch.value, 0
    try:
        yield
    finally:
        switch.value = before


def repacking_helps(types: Iterable[str], *, exact: bool) -> bool:
    """Return whether weights of these types should be repacked where this build can.

    Always if it interleaves them. Otherwise not if some of them then round rows of a pass differently from single rows
    although passes must be `exact`. AMX keeps its layout in any case: its kernels differ too, but prompts would lose
    most of their speed without them.
    """
    flags = build_flags()
    if interleaves() or "AMX_INT8 = 1" in flags:
        return True
    repacked = repacked_types().intersection(types)
    alike = next((names for flag, names in _REPACKED_ALIKE.items() if f"{flag} = 1" in flags), "").split()
    return not exact or repacked.issubset(alike)


def repacked_types() -> frozenset[str]:
    """Weight types that this build may copy into another layout (`use_extra_bufts`).

    After `kind_of` in scripts/llama/interleaved.cpp, which comes first, and `ggml_repack_get_optimal_repack_type` and
    `qtype_has_amx_kernels` in ggml-cpu.
    """
    if interleaves():
        return _INTERLEAVED
    flags = set(re.findall(r"(\w+) = 1", build_flags()))
    used = flags & _REPACKED.keys() if "REPACK" in flags else flags & {"AMX_INT8"}
    return frozenset(name for flag in used for name in _REPACKED[flag].split())


_OF_32 = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")
_OF_256 = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
_INTERLEAVED = frozenset({"F16", "BF16", *_OF_32, *_OF_256})
_REPACKED = {
    "AVX2": "Q4_0 Q4_K IQ4_NL MXFP4",
    "AVX512": "Q2_K",
    "AMX_INT8": "Q4_0 Q4_1 Q8_0 Q4_K Q5_K Q6_K IQ4_XS",
    "DOTPROD": "Q4_0 Q4_K Q5_K Q6_K Q8_0 IQ4_NL MXFP4",
}


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
