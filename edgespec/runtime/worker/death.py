"""Why a worker process died, in words for the user, and how to start again."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from edgespec.errors import EdgespecError, GenerationError, LostError, OutOfMemoryError
from edgespec.llama.device_lost import GPU_FAILED, GPU_HINT
from edgespec.llama.workers import LOST, LOST_HINT
from edgespec.llm.info import ModelInfo
from edgespec.settings import LoadSettings

LEAST_CTX = 512  # tokens: less is no conversation


class WorkerDiedError(LostError):
    """The worker process has ended; with `out_of_memory`, a smaller model or context may help."""

    is_crash = True

    def __init__(
        self, what: str, *, why: str = "", hint: str = "", out_of_memory: bool = False, lost_workers: bool = False
    ) -> None:
        super().__init__(what, why=why, hint=hint)
        self.out_of_memory, self.lost_workers = out_of_memory, lost_workers


class LoadingStoppedError(EdgespecError):
    """The cancel flag was set before the model was loaded."""


class NoReplyError(GenerationError):
    """The worker process has not replied in time: it is busy, or it hangs."""

    def __init__(self) -> None:
        super().__init__("the model does not reply", why="it is busy", hint="try again later")


@dataclass(frozen=True, slots=True)
class Remedy:
    """A way to start again: a label for a menu, and the settings."""

    label: str
    settings: LoadSettings


def remedies(settings: LoadSettings, info: ModelInfo, *, error: Exception | None = None) -> list[Remedy]:
    """Return ways to load a model again: with the same settings, and with less.

    `info` is that of the model, or empty if it was never loaded. The same settings are first, or last if memory
    ran out.
    """
    same, less = Remedy("Load again", settings), []
    if lost_workers(settings, error):
        return [same]
    half = (settings.ctx_size or info.ctx_size) // 2
    if half >= LEAST_CTX:
        shorter = replace(settings, ctx_size=half, ctx_size_draft=min(settings.ctx_size_draft, half))
        less.append(Remedy(f"Use half the context ({half} tokens)", shorter))
    if settings.draft_model or info.draft_model:
        plainer = replace(settings, draft_model=None, spec_type=settings.without_draft)
        less.append(Remedy("Load no draft model", plainer))
    layers = settings.gpu_layers // 2 if isinstance(settings.gpu_layers, int) else 0
    if info.offloaded and layers != settings.gpu_layers:
        less.append(Remedy(f"Put {layers or 'no'} layers on the GPU", replace(settings, gpu_layers=layers)))
    is_short_of_memory = getattr(error, "out_of_memory", isinstance(error, OutOfMemoryError))
    return [*less, same] if is_short_of_memory else [same, *less]


def lost_workers(settings: LoadSettings, error: Exception | None) -> bool:
    """True if the error is about RPC workers, which may come back."""
    return bool(settings.rpc) and isinstance(error, GenerationError) and error.lost_workers


def explained(code: int | None, said: Sequence[str]) -> WorkerDiedError:
    """Return the error for a process that ended with `code` (minus a signal's number) after printing these lines."""
    name = _WINDOWS.get(code or 0, "")
    with suppress(ValueError):
        name = name or signal.Signals(-(code or 0)).name
    words = [line.strip() for line in said if line.strip()]
    for lost, hint in ((LOST, LOST_HINT), (GPU_FAILED, GPU_HINT)):
        if found := [line.partition(lost)[2].strip() for line in words if lost in line]:
            no_memory = bool(_NO_MEMORY.search(found[0]))
            return WorkerDiedError(
                lost.rstrip(":"), why=found[0], hint=hint, out_of_memory=no_memory, lost_workers=lost == LOST
            )
    last = words[-1].removeprefix("what():").strip() if words else ""  # C++ prints this for an uncaught exception
    # Python and C++ report a lack of memory by an exception, which ends the process in one of these ways.
    if name == "memory" or (name in ("", "SIGABRT") and any(_NO_MEMORY.search(line) for line in words)):
        return WorkerDiedError(_ENDED, why="memory ran out", hint=_LESS, out_of_memory=True)
    if name == "SIGKILL":
        why = "by the system because memory ran out, or by hand"
        return WorkerDiedError("the model process was killed", why=why, hint=_LESS, out_of_memory=True)
    if name == "SIGABRT":
        failed = next((line for line in words if "GGML_ASSERT" in line), last)
        return WorkerDiedError("llama.cpp aborted", why=failed or "an internal check failed", hint=_AGAIN)
    if name in _CRASHES:
        return WorkerDiedError("llama.cpp crashed", why=_CRASHES[name], hint=_AGAIN)
    why = f"it received {name}" if name else last or ("" if code is None else f"it exited with code {code}")
    return WorkerDiedError(_ENDED, why=why, hint=_AGAIN)


def hung() -> WorkerDiedError:
    """The error for a process that was ended because it gave no sign of life."""
    return WorkerDiedError(
        "the model process was ended", why="it was stopped or hung, and gave no sign of life", hint=_AGAIN
    )


_ENDED = "the model process has ended"
_AGAIN = "restart it; if that does not help, try another model file or another build of llama-cpp-python"
_LESS = "restart it with less: a smaller context, no draft model, or a smaller model"
_CRASHES = {
    "SIGSEGV": "it accessed invalid memory",
    "SIGBUS": "the model file may have been changed or removed while it was in use",
    "SIGFPE": "an arithmetic error",
    "SIGILL": "this build uses instructions that the processor does not support",
}
_WINDOWS = {  # exit codes, and the signals of other systems that mean the same
    3: "SIGABRT",  # how abort() ends in older runtimes
    0xC0000409: "SIGABRT",
    0xC0000005: "SIGSEGV",
    0xC0000006: "SIGBUS",  # a page of a mapped file cannot be read
    0xC000001D: "SIGILL",
    0xC0000017: "memory",
    0xC000012D: "memory",
}
_NO_MEMORY = re.compile(
    r"bad_alloc|out of memory|OutOf\w*Memory|(cannot|failed to) allocate|MemoryError", re.IGNORECASE
)
