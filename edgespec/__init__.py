"""Run GGUF models locally, with speculative decoding that preserves their output.

with edgespec.load("demo") as llm:
    for token in llm.generate("def quicksort(xs):", max_tokens=64, seed=7):
        print(token.text, end="", flush=True)

docs/python.md has more. `import edgespec` is fast: modules that need numpy or llama.cpp are imported when they are
first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgespec.cancel import CancelFlag
    from edgespec.core.sampling import SamplingSettings
    from edgespec.core.stats import Stats
    from edgespec.errors import (
        EdgespecError,
        FailedRowsError,
        GenerationError,
        ModelFileError,
        ModelNotFoundError,
        OutOfMemoryError,
        PairError,
        UsageError,
    )
    from edgespec.events import Completion, TokenEvent
    from edgespec.runtime.runtime import Runtime
    from edgespec.runtime.worker import Worker
    from edgespec.settings import LoadSettings, Message, Offload, Request, Switch

__version__ = "0.2.0"
__all__ = [
    "CancelFlag",
    "Completion",
    "EdgespecError",
    "FailedRowsError",
    "GenerationError",
    "LoadSettings",
    "Message",
    "ModelFileError",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "PairError",
    "Request",
    "Runtime",
    "SamplingSettings",
    "Stats",
    "TokenEvent",
    "UsageError",
    "Worker",
    "__version__",
    "load",
]

_MODULES = {
    "CancelFlag": "edgespec.cancel",
    "Completion": "edgespec.events",
    "LoadSettings": "edgespec.settings",
    "Message": "edgespec.settings",
    "Request": "edgespec.settings",
    "Runtime": "edgespec.runtime.runtime",
    "SamplingSettings": "edgespec.core.sampling",
    "Stats": "edgespec.core.stats",
    "TokenEvent": "edgespec.events",
    "Worker": "edgespec.runtime.worker",
}


def load(
    model: str,
    *,
    draft_model: str | None = None,
    spec_type: str = "auto",
    spec_draft_n_max: int | None = None,
    pace: str = "auto",
    spec_tree: int = 1,
    overlap: Switch = "auto",
    exact: bool = True,
    strict: bool = False,
    measure_rounding: bool = False,
    store: bool = True,
    corpus: str | None = None,
    ctx_size: int = 0,
    ctx_size_draft: int = 0,
    threads: int = 0,
    threads_draft: int = 0,
    threads_batch: int = 0,
    threads_batch_draft: int = 0,
    gpu_layers: Offload = "auto",
    gpu_layers_draft: Offload = "auto",
    rpc: Sequence[str] = (),
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    cache_type_k_draft: str | None = None,
    cache_type_v_draft: str | None = None,
    flash_attention: Switch = "auto",
    sequences: int = 1,
    must_fit: bool = False,
    cache_ram: int | None = None,
) -> Runtime:
    """Load a target model (`"demo"`, another name or a path); `LoadSettings` describes the other settings.

    The bounds that make CPU kernels exact are global, and set at every forward pass. So models with different settings
    or types of weights can be loaded in one process, but must not generate in two threads at the same time; use
    separate processes (`Worker`) for that. Raises ModelNotFoundError, ModelFileError, PairError, OutOfMemoryError,
    UsageError.
    """
    settings = locals()
    from edgespec.runtime.runtime import Runtime
    from edgespec.settings import LoadSettings

    return Runtime(LoadSettings(**settings))


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'edgespec' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES.get(name, "edgespec.errors")), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
