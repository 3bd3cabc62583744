"""The function `edgespec.load`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings

P = ParamSpec("P")


def _takes_settings(settings: Callable[P, LoadSettings]) -> Callable[[Callable[..., Runtime]], Callable[P, Runtime]]:
    """Return a decorator that gives a function the parameters of the settings, for type checkers and `help`."""

    def decorate(function: Callable[..., Runtime]) -> Callable[P, Runtime]:
        vars(function)["__signature__"] = inspect.signature(settings).replace(return_annotation="Runtime")
        return function

    return decorate


@_takes_settings(LoadSettings)
def load(*args: Any, **settings: Any) -> Runtime:
    """Load a target model (`"demo"`, another name or a path); `LoadSettings` describes the other settings.

    The bounds that make CPU kernels exact are global, and set at every forward pass. So models with different settings
    or types of weights can be loaded in one process, but must not generate in two threads at the same time; use
    separate processes (`Worker`) for that. Raises ModelNotFoundError, ModelFileError, PairError, OutOfMemoryError,
    UsageError.
    """
    return Runtime(LoadSettings(*args, **settings))
