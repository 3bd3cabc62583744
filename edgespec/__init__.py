"""Run GGUF models locally, with speculative decoding that preserves their output.

with edgespec.load("demo") as llm:
    for token in llm.generate("def quicksort(xs):", max_tokens=64, seed=7):
        print(token.text, end="", flush=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgespec.runtime.runtime import Runtime

__version__ = "0.2.0"
__all__ = ["__version__", "load"]


def load(model: str, **settings: Any) -> Runtime:
    """Load a target model (`"demo"` or a path) with the fields of `LoadSettings` as keywords.

    What makes CPU kernels exact is set for the whole process at every forward pass: models with other settings or
    types of weights may be loaded beside each other, but must not generate in two threads at once. For that, use
    processes (`edgespec.runtime.worker`).
    """
    from edgespec.errors import UsageError
    from edgespec.runtime.runtime import Runtime
    from edgespec.settings import LoadSettings

    unknown = [name for name in settings if name not in LoadSettings.__dataclass_fields__]
    if unknown:
        raise UsageError(
            f"unknown setting {unknown[0]}", hint=f"one of: {', '.join(LoadSettings.__dataclass_fields__)}"
        )
    return Runtime(LoadSettings(model, **settings))
