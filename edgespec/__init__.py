"""Run GGUF models locally, with speculative decoding that preserves their output.

with edgespec.load("demo") as llm:
    print(llm.chat("What does os.walk do?", max_tokens=64))

docs/python.md has more. `import edgespec` is fast: modules that need numpy or llama.cpp are imported when they are
first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgespec.cancel import CancelFlag as CancelFlag
    from edgespec.core.sampling import SamplingSettings as SamplingSettings
    from edgespec.core.stats import Stats as Stats
    from edgespec.errors import EdgespecError as EdgespecError
    from edgespec.errors import FailedRowsError as FailedRowsError
    from edgespec.errors import GenerationError as GenerationError
    from edgespec.errors import ModelFileError as ModelFileError
    from edgespec.errors import ModelNotFoundError as ModelNotFoundError
    from edgespec.errors import OutOfMemoryError as OutOfMemoryError
    from edgespec.errors import PairError as PairError
    from edgespec.errors import UsageError as UsageError
    from edgespec.events import Completion as Completion
    from edgespec.events import TokenEvent as TokenEvent
    from edgespec.llm.info import ModelInfo as ModelInfo
    from edgespec.llm.model import Model as Model
    from edgespec.llm.stream import Answer as Answer
    from edgespec.remote.model import RemoteModel as RemoteModel
    from edgespec.runtime.runtime import Runtime as Runtime
    from edgespec.runtime.runtime import load as load
    from edgespec.runtime.worker import Worker as Worker
    from edgespec.runtime.worker import WorkerDiedError as WorkerDiedError
    from edgespec.settings import Image as Image
    from edgespec.settings import LoadSettings as LoadSettings
    from edgespec.settings import Message as Message
    from edgespec.settings import Request as Request

__version__ = "0.3.0"

_NAMES = {
    "edgespec.cancel": "CancelFlag",
    "edgespec.core.sampling": "SamplingSettings",
    "edgespec.core.stats": "Stats",
    "edgespec.errors": "EdgespecError FailedRowsError GenerationError ModelFileError ModelNotFoundError "
    "OutOfMemoryError PairError UsageError",
    "edgespec.events": "Completion TokenEvent",
    "edgespec.llm.info": "ModelInfo",
    "edgespec.llm.model": "Model",
    "edgespec.llm.stream": "Answer",
    "edgespec.remote.model": "RemoteModel",
    "edgespec.runtime.runtime": "Runtime load",
    "edgespec.runtime.worker": "Worker WorkerDiedError",
    "edgespec.settings": "Image LoadSettings Message Request",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'edgespec' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
