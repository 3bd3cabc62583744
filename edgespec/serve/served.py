"""A loaded model of the server: its properties, and its answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from edgespec.dialects.dialect import Dialect
from edgespec.dialects.history import as_sent
from edgespec.dialects.templates import dialect_with, mark_texts
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.paths import file_facts
from edgespec.gguf_file.adapters import parse_adapters
from edgespec.gguf_file.chat_templates import chat_templates
from edgespec.gguf_file.header import read_header
from edgespec.runtime.worker import NoReplyError, Worker
from edgespec.serve.errors import ApiError, unavailable
from edgespec.serve.threads import in_thread
from edgespec.settings import LoadSettings, Request

REPLY_S = 60.0  # for a question with a long text
STATE_S = 10.0  # for a question to the engine, which may have to finish a forward pass first
FIGURES_S = 3.0  # for a question with an older reply to fall back on
MOST_ASKING = 8  # questions to a worker at a time, each in a thread

Made = TypeVar("Made")


class Served:
    """A model in a worker process, and its `name` for clients.

    `defaults` are settings that requests leave out, `system` is the system prompt of chats without a system message.
    `seed` is that of requests without a seed; None: a random one for each. A model may be made in any thread, and is
    used in the thread of one event loop.
    """

    def __init__(
        self,
        name: str,
        worker: Worker,
        defaults: Request,
        note: Callable[[str], None],
        system: str = "",
        seed: int | None = None,
    ) -> None:
        self.name, self.worker, self.defaults, self._note, self.system = name, worker, defaults, note, system
        self.seed = seed
        self.settings: LoadSettings = worker.settings
        self.info = worker.info
        self.created = int(time.time())
        self.n_open = 0
        self.notes_of_loading = [*worker.notes]
        info = self.info
        files = {"model": info.model, "draft_model": info.draft_model, "projector": info.projector}
        paths: dict[str, str | Path] = {role: file for role, file in files.items() if file}
        paths |= {"chat_template": str(Path(file).expanduser())} if (file := self.settings.chat_template_file) else {}
        paths |= {f"adapter {each.name}": each.path for each in parse_adapters(self.settings.lora)}
        self.files = {role: file_facts(Path(path)) for role, path in paths.items()}  # as they were loaded
        # A vocabulary in this process: the worker may be busy.
        self.vocabulary = vocabulary = worker.open_vocabulary()
        self.token_bytes = partial(vocabulary.token_bytes, special=True)
        header = read_header(info.model)
        self.templates = chat_templates(header, self.settings.chat_template, self.settings.chat_template_file)
        # Here and not later, since a hostile template takes seconds.
        both = (self.templates.of(has_tools=has_tools) for has_tools in (False, True))
        self._dialects = [dialect_with(vocabulary, template) for template in both]
        self._asking = asyncio.Semaphore(MOST_ASKING)
        self._prefix_cache: Mapping[str, int] = {}

    def dialect(self, *, has_tools: bool) -> Dialect:
        """Return the dialect of answers to requests with or without tools."""
        return self._dialects[has_tools]

    @cached_property
    def mark_texts(self) -> dict[int, str]:
        """The texts of the control tokens in the marks of the dialects, by their ids."""
        one, other = (mark_texts(dialect, self.vocabulary) for dialect in self._dialects)
        return one | other

    async def opened(self, request: Request, dialect: Dialect) -> str | None:
        """Return what the prompt of a request has begun of the answer in a dialect, as `Dialect.opened`."""
        last = as_sent(request.messages[-1:], dialect)[0]
        begun = last.content if last.role == "assistant" else ""
        given = replace(request, messages=request.messages[:-1]) if last.role == "assistant" else request
        try:
            prompt = await self.ask(lambda worker: worker.render(given))
        except UsageError:  # the template rejects these messages: others are sent
            return None
        return dialect.opened(prompt, begun)

    @property
    def n_ctx(self) -> int:
        return self.info.ctx_size

    @property
    def n_slots(self) -> int:
        return self.info.sequences

    def called(self, name: str) -> Served:
        """Return this model under the name in a request, after which there may be `:` and an adapter to use alone."""
        adapter = name.rpartition(":")[2]
        if name == self.name or adapter not in self.info.adapters:
            return self
        made = copy(self)
        made.name = f"{self.name}:{adapter}"
        made.defaults = replace(self.defaults, lora=((adapter, self.info.adapters[adapter] or 1.0),))
        return made

    @property
    def n_vocab(self) -> int:
        return self.vocabulary.n_vocab

    @property
    def generates(self) -> bool:
        """False for a model that makes vectors or scores."""
        return not self.info.pooling

    @property
    def ranks(self) -> bool:
        """True for a model that makes scores."""
        return self.info.pooling == "rank"

    def check_generates(self) -> None:
        """Raise ApiError if the model cannot answer."""
        if self.ranks:
            raise _unfit(f"{self.name} is a reranking model, which cannot generate text; POST /v1/rerank uses it")
        if not self.generates:
            raise _unfit(f"{self.name} is an embedding model, which cannot generate text; POST /v1/embeddings uses it")

    def check_embeds(self) -> None:
        """Raise ApiError if the model makes no vectors."""
        if self.ranks:
            raise _unfit(f"{self.name} is a reranking model, which makes no vectors; POST /v1/rerank uses it")
        if self.generates:
            raise _unfit(f"{self.name} generates text and makes no vectors; name an embedding model")

    def check_ranks(self) -> None:
        """Raise ApiError if the model cannot rank documents."""
        if not self.ranks:
            raise _unfit(f"{self.name} cannot rank documents; name a reranking model")

    @property
    def has_empty_texts(self) -> bool:
        """True if the tokenizer adds tokens to a text, so that even an empty one has a vector."""
        return bool(self.vocabulary.tokenize("", add_special=True))

    async def ask(self, question: Callable[[Worker], Made], within_s: float = REPLY_S) -> Made:
        """Ask the worker, which may have to finish a forward pass first. Raises ApiError if it takes too long."""
        asked = partial(question, self.worker.within(within_s))
        try:
            async with asyncio.timeout(within_s):
                return await in_thread(asked, f"asks {self.name}", self._asking)
        except (TimeoutError, NoReplyError) as error:
            raise unavailable(f"{self.name} has not replied in {within_s:.0f} seconds", code="no_reply") from error

    async def prefix_cache(self) -> Mapping[str, int]:
        """Return the figures of the prefix cache, or the last ones if the worker does not reply in time."""
        with suppress(EdgespecError, ApiError):
            if self.worker.is_alive and self.generates:
                self._prefix_cache = await self.ask(Worker.prefix_cache, FIGURES_S)
        return self._prefix_cache

    def show_notes(self) -> None:
        """Pass on new notes of the worker."""
        for note in self.worker.notes.take():
            self._note(note)

    async def close(self) -> None:
        """End the answers and the worker."""
        await in_thread(self.worker.close, f"closes {self.name}")
        self.vocabulary.close()


def _unfit(message: str) -> ApiError:
    return ApiError(400, message, param="model", code="model_not_supported")
