"""The compute backends of a portable build of llama.cpp.

In such a build each backend is a separate library, and there is a CPU backend for each set of CPU instructions (a
variant). In other builds the backends are linked in, and there is nothing to choose.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from llama_cpp._ggml import libggml, libggml_base_path

from edgespec.errors import EdgespecError, UsageError

VARIANT = "EDGESPEC_CPU_VARIANT"
"""The environment variable that chooses a variant, for tests and comparisons."""
LEFT_OUT: list[str] = []
"""The backends of this build that cannot be used here, such as "vulkan" without Vulkan's loader or a driver."""
_VARIANT_PREFIX = "ggml-cpu-"
_DAMAGED = "install llama-cpp-python again (docs/install.md)"


def load_backends(folder: Path = libggml_base_path) -> Path | None:
    """Load the backends of a portable build, and return the library of the CPU variant; None for other builds.

    Raises UsageError if this processor cannot run the variant that the environment asks for, or any of them, and
    EdgespecError if the variant cannot be loaded. A GPU backend whose driver is missing is left out.
    """
    libggml.ggml_backend_reg_count.restype = ctypes.c_size_t
    variants = {variant_name(path): path for path in sorted(folder.glob(f"*{_VARIANT_PREFIX}*"))}
    if not variants or libggml.ggml_backend_reg_count():
        return None
    try:
        scores = {name: ctypes.CDLL(str(path)).ggml_backend_score() for name, path in variants.items()}
    except OSError as error:
        raise EdgespecError(f"a part of llama.cpp cannot be loaded: {error}", hint=_DAMAGED) from None
    usable = [name for name, score in scores.items() if score]
    wanted = os.environ.get(VARIANT, "")
    if wanted and wanted not in usable:
        raise UsageError(
            f"{VARIANT}={wanted}: {'this processor cannot run it' if wanted in scores else 'there is no such variant'}",
            hint=f"this processor runs {', '.join(sorted(usable, key=scores.__getitem__))}",
        )
    if not usable:
        raise UsageError(
            "this processor can run none of the CPU variants of this llama.cpp",
            why=f"there are {', '.join(variants)}",
            hint="install a build for this processor (docs/install.md)",
        )
    if sys.platform == "win32":  # else Windows opens a dialog where Vulkan's loader is missing
        ctypes.windll.kernel32.SetErrorMode(1)  # SEM_FAILCRITICALERRORS
    chosen = variants[wanted or max(usable, key=scores.__getitem__)]
    for path in sorted(folder.glob("*ggml-*")):
        if path not in variants.values():
            try:
                is_usable = _register(path)
            except OSError:
                is_usable = False
            if not is_usable:
                LEFT_OUT.append(path.stem.rpartition("ggml-")[2])
    if not _register(chosen):
        raise EdgespecError(f"a part of llama.cpp cannot be loaded: {chosen}", hint=_DAMAGED)
    return chosen


def _register(path: Path) -> bool:
    """Register the backend of a library, if it has one. Return False if this backend cannot be used here.

    Raises OSError if the library cannot be loaded.

    `ggml_backend_load` would do the same, but on Windows it fails if the path is not ASCII.
    """
    library = ctypes.CDLL(str(path))
    if not hasattr(library, "ggml_backend_init"):
        return True
    library.ggml_backend_init.restype = ctypes.c_void_p
    backend = library.ggml_backend_init()
    if backend:
        libggml.ggml_backend_register(ctypes.c_void_p(backend))
    return bool(backend)


def variant_name(library: Path) -> str:
    """Return the name of a CPU variant from the name of its library, such as "zen4" of libggml-cpu-zen4.so."""
    return library.stem.partition(_VARIANT_PREFIX)[2]
