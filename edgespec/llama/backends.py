"""The compute backends of a portable build of llama.cpp.

Such a build has libraries of their own for the backends, among them one for each level of CPU instructions (a variant).
Other builds have their backends inside, and nothing to choose.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from llama_cpp._ggml import libggml, libggml_base_path

from edgespec.errors import UsageError

VARIANT = "EDGESPEC_CPU_VARIANT"
"""The environment variable that chooses a variant, for tests and comparisons."""
_CPU = "ggml-cpu-"


def load_backends(folder: Path = libggml_base_path) -> Path | None:
    """Load the backends of a portable build, and return the library of the CPU variant; None for other builds.

    Raises UsageError if this processor cannot run the variant that the environment asks for, or any of them.
    """
    libggml.ggml_backend_reg_count.restype = ctypes.c_size_t
    variants = {variant_name(path): path for path in sorted(folder.glob(f"*{_CPU}*"))}
    if not variants or libggml.ggml_backend_reg_count():
        return None
    scores = {name: ctypes.CDLL(str(path)).ggml_backend_score() for name, path in variants.items()}
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
    chosen = variants[wanted or max(usable, key=scores.__getitem__)]
    libggml.ggml_backend_load.restype = ctypes.c_void_p
    others = [path for path in sorted(folder.glob("*ggml-*")) if path not in variants.values()]
    for path in [*others, chosen]:
        if hasattr(ctypes.CDLL(str(path)), "ggml_backend_init"):
            libggml.ggml_backend_load(str(path).encode())
    return chosen


def variant_name(library: Path) -> str:
    """Return the name of a CPU variant from the name of its library, such as "zen4" of libggml-cpu-zen4.so."""
    return library.stem.partition(_CPU)[2]
