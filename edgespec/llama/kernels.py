"""This build's own CPU kernels, with which a token's logits do not depend on the other tokens of its pass.

scripts/llama/kernels.h describes them. Builds by others do not have them, and GPUs have other kernels.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from llama_cpp._ggml import libggml

from edgespec.llama.backends import variant_name
from edgespec.llama.library import CPU_LIBRARY, build_flags, library_path

ADDITIONS = 7
"""The version of scripts/llama in a build that has the kernels."""

INTERLEAVED = frozenset(
    {
        *("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_0", "Q5_1", "Q4_K", "Q4_0", "Q4_1", "Q3_K", "Q2_K", "Q2_0"),
        *("Q1_0", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "TQ1_0"),
        *("TQ2_0", "MXFP4", "NVFP4"),
    }
)
"""The types of weights that these kernels multiply."""
_REPACKED = {
    "AVX2": "Q4_0 Q4_K IQ4_NL MXFP4",
    "AVX512": "Q2_K",
    "AMX_INT8": "Q4_0 Q4_1 Q8_0 Q4_K Q5_K Q6_K IQ4_XS",
    "DOTPROD": "Q4_0 Q4_K Q5_K Q6_K Q8_0 IQ4_NL MXFP4",
}


def is_own_build() -> bool:
    """Return whether this build has the kernels, perhaps for other processors only."""
    return _switch is not None


def have_exact_kernels() -> bool:
    """Return whether this build has the kernels for this processor, which needs AVX2 or NEON."""
    return _switch is not None and bool(_switch.value)


def described_build() -> str:
    """Return the version of llama-cpp-python, its CPU variant, and whether its kernels are exact."""
    kernels = "exact kernels" if have_exact_kernels() else "without edgespec's exact kernels"
    variant = f", CPU variant {variant_name(CPU_LIBRARY)}" if CPU_LIBRARY else ""
    return f"llama-cpp-python {version('llama-cpp-python')}{variant}, {kernels}"


@contextmanager
def kernels_of_llama_cpp() -> Iterator[None]:
    """Load models and decode in this block with the kernels of llama.cpp, for comparisons."""
    if _switch is None:
        yield
        return
    before, _switch.value = _switch.value, 0
    try:
        yield
    finally:
        _switch.value = before


def repacked_types() -> frozenset[str]:
    """Weight types that this build may copy into another layout (`use_extra_bufts`).

    After `kind_of` in scripts/llama/interleaved.cpp, or `ggml_repack_get_optimal_repack_type` and
    `qtype_has_amx_kernels` in ggml-cpu.
    """
    if have_exact_kernels():
        return INTERLEAVED
    flags = set(re.findall(r"(\w+) = 1", build_flags()))
    used = flags & _REPACKED.keys() if "REPACK" in flags else flags & {"AMX_INT8"}
    return frozenset(name for flag in used for name in _REPACKED[flag].split())


def cpu_library() -> ctypes.CDLL | None:
    """Return the loaded CPU backend, or None. The backend of a build that is not portable is looked up in the library
    that depends on it: loading the backend by name would give another copy."""
    if os.name == "nt" and not CPU_LIBRARY:  # a lookup in a library does not search its dependencies there
        path = Path(library_path()).with_name("ggml-cpu.dll")
        return ctypes.CDLL(str(path)) if path.exists() else None
    built_in: ctypes.CDLL = libggml
    return ctypes.CDLL(str(CPU_LIBRARY)) if CPU_LIBRARY else built_in


def _find() -> ctypes.c_int32 | None:
    """Return the switch of the kernels in the loaded CPU backend, or None."""
    library = cpu_library()
    try:
        if library is None or ctypes.c_int32.in_dll(library, "edgespec_version").value != ADDITIONS:
            return None
        return ctypes.c_int32.in_dll(library, "edgespec_is_on")
    except ValueError:
        return None


_switch = _find()


# --- installing another build -----------------------------------------------------------------------------------------

# Shell commands that install another build of llama.cpp, in the syntax of this system's shell.


LLAMA_VERSION = version("llama-cpp-python").partition("+")[0]
"""The version of llama-cpp-python, without the part that marks edgespec's own wheels."""


def exact_build() -> str:
    """Return the command that installs llama.cpp with edgespec's kernels for this CPU."""
    home = checkout()
    if home is None:
        page = f"https://github.com/edgespec/edgespec/releases/expanded_assets/v{version('edgespec')}"
        return _pip(f"--find-links {page} llama-cpp-python=={LLAMA_VERSION}+edgespec.{ADDITIONS}")
    if os.name == "nt":
        return f'Remove-Item -Recurse "{home / ".venv"}"; {_script(home)} doctor'
    return f"rm -r {shlex.quote(str(home / '.venv'))} && {_script(home)} doctor"


def gpu_build(backend: str) -> str:
    """Return the command that builds llama.cpp with a GPU backend, such as "cuda"."""
    name, value = "CMAKE_ARGS", f"-DGGML_{backend.upper()}=on"
    command = _pip(f"--no-cache-dir llama-cpp-python=={LLAMA_VERSION}")
    if home := checkout():
        name, value, command = "EDGESPEC_BACKEND", backend, f"{_script(home)} doctor"
    return f'$env:{name} = "{value}"; {command}' if os.name == "nt" else f'{name}="{value}" {command}'


def checkout() -> Path | None:
    """Return the folder of the checkout whose own scripts made the environment that edgespec runs in, or None."""
    home = Path(sys.prefix).parent
    return home if (home / "scripts" / "edgespec").is_file() else None


def _script(home: Path) -> str:
    script = home / "scripts" / "edgespec"
    return f'& "{script}.cmd"' if os.name == "nt" else shlex.quote(str(script))


def _pip(arguments: str) -> str:
    python = f'& "{sys.executable}"' if os.name == "nt" else shlex.quote(sys.executable)
    return f"{python} -m pip install --force-reinstall --no-deps {arguments}"
