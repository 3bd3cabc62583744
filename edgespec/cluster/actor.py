"""The actor on a node: it loads the model in a worker process and answers requests. This module does not use Ray."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Generic, TypeVar

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, GenerationError, LostError, ModelNotFoundError, UsageError
from edgespec.events import TokenEvent
from edgespec.gguf_file.model_check import check_model
from edgespec.llm.fleet import Fleet
from edgespec.llm.info import ModelInfo
from edgespec.llm.notes import Notes
from edgespec.models.names.spec import NotFetchedError, resolve
from edgespec.models.text_facts import text_facts
from edgespec.runtime.worker import Worker
from edgespec.runtime.worker.restarted import RestartedWorker
from edgespec.settings import AUTO_DRAFT, LoadSettings, Request

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ActorReply(Generic[Value]):
    """The reply to the driver: a value or an error, and new notes of the worker.

    Ray would wrap an error that is raised, so it is returned.
    """

    value: Value | EdgespecError
    notes: tuple[str, ...] = ()

    def result(self) -> Value:
        """Return the value, or raise the error."""
        if isinstance(self.value, EdgespecError):
            raise self.value
        return self.value


@dataclass(frozen=True, slots=True)
class Survey:
    """The properties of a node before a model is loaded."""

    build: str  #: the build of llama.cpp
    threads: int  #: how many threads a model gets
    has_gpu: bool  #: this build can use a GPU
    missing: tuple[str, ...]  #: models that have to be downloaded


def survey(settings: LoadSettings) -> ActorReply[Survey]:
    """Return the properties of this node, or ModelNotFoundError if there is no such model."""
    from edgespec.llama import library

    missing = []
    try:
        for spec in filter(None, (settings.model, settings.draft_model)):
            try:
                spec == AUTO_DRAFT or resolve(spec)
            except NotFetchedError:
                missing.append(spec)
    except EdgespecError as error:
        return ActorReply(error)
    size_bytes = library.library_path().stat().st_size
    build = f"llama-cpp-python {version('llama-cpp-python')}, {size_bytes:,} bytes, {library.build_flags()}"
    return ActorReply(Survey(build, library.default_threads(), library.supports_gpu(), tuple(missing)))


class Actor:
    """A model on this node. `introduce` downloads `missing` models and loads it. A worker that dies is restarted."""

    def __init__(self, settings: LoadSettings, missing: Sequence[str] = ()) -> None:
        self._settings, self._missing = settings, missing
        self._cancel = CancelFlag()
        self._model: Fleet | None = None
        self._loading = asyncio.Lock()
        # The worker process would import the main module, which is Ray's.
        vars(sys.modules["__main__"]).pop("__file__", None)
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to the number of CPUs of the actor

    async def ping(self) -> None:
        """Do nothing: a reply shows that the actor runs."""

    async def introduce(self) -> ActorReply[tuple[dict[str, object], ModelInfo]]:
        """Load the model, and return what texts depend on, and its description."""

        async def introduced() -> tuple[dict[str, object], ModelInfo]:
            model = await self._ready()
            header = await asyncio.to_thread(lambda: check_model(resolve(self._settings.model).path))
            return text_facts(header, self._settings), model.info

        return await self._told(introduced)

    async def check_settings(self, request: Request) -> ActorReply[None]:
        async def checked() -> None:
            await asyncio.to_thread((await self._ready()).check_settings, request)

        return await self._told(checked)

    async def answer(self, request: Request) -> ActorReply[list[TokenEvent]]:
        """Return the events of an answer, or LostError if the model cannot be loaded."""

        async def answered() -> list[TokenEvent]:
            events: list[TokenEvent] = []
            try:
                async for event in (await self._ready()).submit(request):
                    events.clear() if event.is_anew else events.append(event)
            except EdgespecError as error:
                if isinstance(error, UsageError | GenerationError):
                    raise
                raise LostError(error.what, why=error.why, hint=error.hint) from error
            return events

        return await self._told(answered)

    async def close(self) -> None:
        """End the worker, which saves its measurements first."""
        self._cancel.set()
        if self._model is not None:
            await asyncio.to_thread(self._model.close)

    async def _told(self, work: Callable[[], Awaitable[Value]]) -> ActorReply[Value]:
        try:
            value: Value | EdgespecError = await work()
        except EdgespecError as error:
            value = error
        return ActorReply(value, tuple(self._model.notes.take()) if self._model else ())

    async def _ready(self) -> Fleet:
        """Return the model. Raises EdgespecError."""
        async with self._loading:
            if self._model is None:
                self._model = await asyncio.to_thread(self._opened)
            return self._model

    def _opened(self) -> Fleet:
        if self._missing:
            _download(self._missing, with_draft=self._settings.uses_draft)
        notes = Notes()
        open = partial(Worker, self._settings, None, self._cancel)
        worker = RestartedWorker(open, self._cancel, notes)
        return Fleet([worker], worker.info.sequences, notes=notes)


def _download(specs: Sequence[str], *, with_draft: bool) -> None:
    """Download models. Raises ModelNotFoundError."""
    command = [sys.executable, "-m", "edgespec", "pull", "--quiet", *([] if with_draft else ["--no-draft"]), *specs]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        why = " ".join(done.stderr.split())[-300:]
        raise ModelNotFoundError(f"{', '.join(specs)} could not be downloaded", why=why)
