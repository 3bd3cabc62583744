"""The models that are served, each in a worker process that is started again when it has died."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from edgespec.batch.vocabulary import Vocabulary
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError
from edgespec.events import TokenEvent
from edgespec.gguf_file.header import read_header
from edgespec.runtime.worker import Worker
from edgespec.serve.answers import Answers
from edgespec.serve.errors import ApiError, busy
from edgespec.serve.tools.formats import WORDS
from edgespec.settings import LoadSettings, Request


class Served:
    """A loaded model: its `name` for clients, and its answers. `defaults` has what a request leaves open."""

    def __init__(self, name: str, worker: Worker, defaults: Request, note: Callable[[str], None]) -> None:
        self.name, self.worker, self.defaults, self._note = name, worker, defaults, note
        self.settings: LoadSettings = worker.settings
        self.about = worker.describe()
        self.created = int(time.time())
        self.n_open = 0
        self._vocabulary = Vocabulary(Path(self.about["model"]))
        self.token_bytes = self._vocabulary.token_bytes
        self.token_bytes(0)  # loads it, here rather than between two answers
        self.template = str(read_header(self.about["model"]).metadata.get("tokenizer.chat_template", ""))
        self.control_ids = {word: id for word in WORDS if (id := self._vocabulary.control(word)) is not None}
        self._answers: Answers | None = None
        self._opening = asyncio.Lock()
        self._n_noted = 0

    @property
    def sampling(self) -> SamplingSettings:
        return self.defaults.sampling

    @property
    def n_ctx(self) -> int:
        return int(self.about["ctx_size"])

    @property
    def n_slots(self) -> int:
        return int(self.about["sequences"])

    async def answers(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, TokenEvent], None]:
        """The events of these answers, each with the index of its request; closing this cancels them."""
        ready = await self._ready()
        async with aclosing(ready.of(requests)) as events:
            async for event in events:
                yield event
        self._show_notes()

    async def ask(self, question: Callable[[Worker], Any]) -> Any:
        """What the worker says, which may have to finish a forward pass first."""
        await self._ready()
        return await asyncio.to_thread(question, self.worker)

    async def prefix_cache(self) -> dict[str, int]:
        """What its prefix cache says of itself; nothing if the worker has ended."""
        try:
            return dict(await asyncio.to_thread(Worker.prefix_cache, self.worker)) if self.worker.is_alive else {}
        except EdgespecError:
            return {}

    async def close(self) -> None:
        """End the answers and the worker."""
        if self._answers is not None:
            self._answers.close()
        self._vocabulary.close()
        await asyncio.to_thread(self.worker.close)

    async def _ready(self) -> Answers:
        """The answers of a worker that lives. Raises what loading raises."""
        async with self._opening:
            if not self.worker.is_alive:
                self._note(f"{self.name}: the worker has died; restarting it")
                if self._answers is not None:
                    self._answers.close()
                    self._answers = None
                await asyncio.to_thread(self.worker.close)
                self.worker, self._n_noted = await asyncio.to_thread(Worker, self.settings), 0
            if self._answers is None:
                self._answers = Answers(self.worker)
            self._show_notes()
            return self._answers

    def _show_notes(self) -> None:
        notes = self.worker.notes
        for note in notes[self._n_noted :]:
            self._note(note)
        self._n_noted = len(notes)


class Pool:
    """The models by their names, and how much may wait for them."""

    def __init__(self, served: Sequence[Served], max_waiting: int) -> None:
        self._served = {model.name: model for model in served}
        self._max_waiting = max_waiting
        self.is_closing = False

    @property
    def models(self) -> list[Served]:
        return list(self._served.values())

    def of(self, name: str) -> Served:
        """The model of that name, the first one for none. Raises ApiError."""
        found = self._served.get(name) if name else next(iter(self._served.values()))
        if found is None:
            raise ApiError(
                404,
                f"there is no model {name[:80]!r} here: {', '.join(self._served)}",
                type="not_found_error",
                param="model",
                code="model_not_found",
            )
        return found

    @property
    def load(self) -> tuple[int, int]:
        """How many answers are made, and how many wait."""
        processing = sum(min(model.n_open, model.n_slots) for model in self.models)
        return processing, sum(model.n_open for model in self.models) - processing

    async def answers(self, model: Served, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, TokenEvent], None]:
        """The answers of a model, if the queue has room for them. Raises ApiError, EdgespecError."""
        waiting = max(0, model.n_open + len(requests) - model.n_slots)
        if waiting > self._max_waiting and model.n_open:
            raise busy(self.load[1])
        model.n_open += len(requests)
        try:
            async with aclosing(model.answers(requests)) as events:
                async for event in events:
                    yield event
        finally:
            model.n_open -= len(requests)

    async def close(self) -> None:
        for model in self.models:
            try:
                await model.close()
            except EdgespecError as error:
                model._note(str(error))
