"""A model of a server, which is asked like one on this machine."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, fields, replace
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from edgespec.cancel import CancelFlag
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError, GenerationError, LostError, UsageError
from edgespec.events import Completion, FinishReason, TokenEvent
from edgespec.llm.fleet import Arrived, Put
from edgespec.llm.info import ModelInfo
from edgespec.llm.notes import Notes
from edgespec.llm.shared import SharedModel
from edgespec.llm.stream import Loop, Stream
from edgespec.remote.connection import POLL_S, Connection, base_url
from edgespec.remote.wire import Partial, body_of, events, messages_of
from edgespec.settings import MAX_SEQUENCES, LoadSettings, Message, Request
from edgespec.text.printable import one_line

if TYPE_CHECKING:
    from edgespec.core.policy.policy import PolicyVerdict

PROBE_S = 1.0  # between questions to a lost server
MOST_COUNTS = 64  # prompts whose length is remembered


class RemoteModel(SharedModel):
    """The model `settings.model` of a server. If it is "": the first model in `also` that the server has, or its first.

    Raises UsageError if the URL is not an inference server, or it has no such model; GenerationError if the server
    cannot be reached, also later, and in the middle of an answer. It can be asked again then. Drafting settings are
    sent with each request if they differ from the defaults.

    Attributes:
        texts_depend_on: the settings and properties of the model that texts depend on.
        is_own: the server is edgespec's, and knows all fields of a request.
    """

    restarts = False
    usual = LoadSettings("")
    own_settings: Mapping[str, object] = MappingProxyType({"repeat_limit": 0})  # which other programs do not have

    def __init__(
        self,
        url: str,
        key: str = "",
        settings: LoadSettings | None = None,
        cancel: CancelFlag | None = None,
        *,
        also: Sequence[str] = (),
    ) -> None:
        self._settings = settings or LoadSettings("")
        self.url, self.notes = base_url(url), Notes()
        self._counts: dict[tuple[tuple[Message, ...], str], int] = {}  # of messages and arguments of the template
        self._bytes: dict[int, bytes] = {}
        self.loop: _Answers = _Answers(self)
        self.connection = Connection(self.url, key)
        try:
            self._info, self.texts_depend_on = self.connection.wait_for(self._introduction(also), cancel)
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        """End all answers; the server keeps its model."""
        self.loop.shut()
        self.connection.close()

    # --- what the server has ------------------------------------------------------------------------------------------

    async def _introduction(self, also: Sequence[str]) -> tuple[ModelInfo, Mapping[str, object]]:
        """Return the description of the chosen model, and what texts depend on."""
        listed = await self.connection.ask("GET", "/v1/models")
        models = [model for model in listed.get("data") or () if isinstance(model, dict)]
        names = [name for model in models if (name := str(model.get("id", ""))) and name == one_line(name)]
        if not names:
            raise self.connection.stranger("it lists no models")
        name = self._settings.model or next((name for name in also if name in names), names[0])
        if name not in names:
            raise UsageError(f"{self.url} has no model {name!r}", hint=f"it has {', '.join(names)}")
        self._settings = replace(self._settings, model=name)
        props = await self.connection.ask("GET", "/props", model=name)
        if props.get("is_sleeping"):  # this loads the model
            await self.connection.ask("POST", "/tokenize", {"model": name, "content": ""})
            props = await self.connection.ask("GET", "/props", model=name)
        return self._described(props, names)

    def _described(self, props: Mapping[str, Any], models: Sequence[str]) -> tuple[ModelInfo, Mapping[str, Any]]:
        """Return the description of a model from its properties, and what texts depend on."""
        name, foreign = self._settings.model, {"description": "a model of another server", "drafters": ["unknown"]}
        try:
            generation, own = props["default_generation_settings"], props.get("edgespec") or {}
            self.is_own = bool(own)
            facts = {
                "model": name,
                "ctx_size": int(generation["n_ctx"]),
                "sequences": max(1, int(props["total_slots"])),
                "has_chat_template": bool(props.get("chat_template")),
                "server": self.url,
                "models": [*models],
            }
            if not self.is_own:
                return ModelInfo.from_json(foreign | facts), {"model": name, "served by": "another program"}
            system = {"system": str(props["system_prompt"])} if "system_prompt" in props else {}
            self.own_settings = _defaults(generation["params"]) | system
            return ModelInfo.from_json(own | facts), own["texts_depend_on"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self.connection.stranger(f"its description of the model cannot be read ({error!r})") from error

    @property
    def room(self) -> int:
        return MAX_SEQUENCES  # the server has a queue

    # --- questions ----------------------------------------------------------------------------------------------------

    def call(self, name: str, *args: object, **keywords: object) -> NoReturn:
        raise UsageError(f"{self.url} cannot be asked this", why=f"{name} is for models of this machine")

    def pace_verdicts(self, request: Request) -> list[PolicyVerdict]:
        """Return nothing: a server does not report why drafters are active."""
        return []

    def check_settings(self, request: Request) -> None:
        """Check the settings with a request for no tokens. Raises UsageError."""
        asked = replace(request, prompt="", messages=(Message("user", "x"),), max_tokens=0, lenient=True)
        Completion.of(self.submit(asked))

    def count(self, messages: Sequence[Message], template: str = "") -> int:
        """Return the number of prompt tokens of these messages."""
        key = (tuple(messages), template)
        if key not in self._counts:
            if len(self._counts) >= MOST_COUNTS:
                del self._counts[next(iter(self._counts))]
            self._counts[key] = self.connection.wait_for(self._count(*key))
        return self._counts[key]

    async def _count(self, messages: Sequence[Message], template: str) -> int:
        body = {"model": self.settings.model, "messages": messages_of(messages), "count": True}
        body |= json.loads(template or "{}")
        found = await self.connection.ask("POST", "/apply-template", body)
        if "n_tokens" in found:
            return int(found["n_tokens"])
        body = {"content": found.get("prompt"), "add_special": True, "parse_special": True}
        return len((await self.connection.ask("POST", "/tokenize", body)).get("tokens") or ())

    def tokenize(self, request: Request) -> list[int]:
        """Return nothing: the server checks a prompt when it is asked for the answer."""
        return []

    def token_ids(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return a text as ids. Raises EdgespecError."""
        body = {"content": text, "add_special": add_special, "parse_special": parse_special}
        found = self.connection.ask("POST", "/tokenize", body | {"model": self.settings.model})
        return list(self.connection.wait_for(found).get("tokens") or ())

    def token_bytes(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the bytes of tokens in answers with log-probabilities; of other tokens nothing."""
        return [self._bytes.get(token, b"") for token in tokens]

    # --- answers ------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.url

    def begin(self, request: Request, put: Put, named: Callable[[str], None] = lambda id: None) -> Future[None]:
        """Ask for an answer, and pass its events to `put`, and the id that the server gives it to `named`."""
        return self.connection.submit(self._deliver(request, put, named))

    def tokens_of_prompt(self, request: Request) -> int:
        """Return the number of tokens of a prompt, if it was counted, else 0."""
        return self._counts.get((request.messages, request.template), 0)

    def end_reasoning(self, answer: str) -> None:
        """Ask the server to end the reasoning of the answer with this id."""
        body = {"id": answer, "action": "reasoning_end", "model": self.settings.model}
        self.connection.submit(self.connection.ask("POST", "/v1/chat/completions/control", body))

    def recover(self, error: LostError) -> Future[None]:
        """Ask the server again and again until it answers. The future raises UsageError if it has another model."""

        async def recovered() -> None:
            depend_on: Mapping[str, object] | None = None
            while depend_on is None:
                await asyncio.sleep(PROBE_S)
                with suppress(EdgespecError):
                    _, depend_on = await self._introduction(())
            if depend_on != self.texts_depend_on:
                raise UsageError("it has another model now", hint="run the same command again")

        return self.connection.submit(recovered())

    # --- in the loop of the connection --------------------------------------------------------------------------------

    async def _deliver(self, request: Request, put: Put, named: Callable[[str], None]) -> None:
        """Pass the events of an answer to `put`; the last one has `is_last`, or is an error."""
        try:
            async with aclosing(self._generate(request, lambda: put(None), named)) as answer:
                async for event in answer:
                    put(event)
        except EdgespecError as error:
            put(error)
        except Exception as error:
            put(GenerationError(f"unexpected error while asking {self.url}", why=f"{type(error).__name__}: {error}"))

    async def _generate(
        self, request: Request, waiting: Callable[[], None], named: Callable[[str], None]
    ) -> AsyncGenerator[TokenEvent, None]:
        """Yield the events of an answer; closing the generator ends the answer on the server. Raises EdgespecError."""
        path, body = body_of(request, is_own=self.is_own)
        body = self.drafting | body | {"model": self.settings.model}  # settings of the request take precedence
        seen = set[int]()
        async with aclosing(events(self.connection.stream(path, body, waiting), named)) as answer:
            async for event in answer:
                if request.logprobs is not None:
                    seen |= {event.id, *(id for id, _ in event.top_logprobs)}
                    if event.is_last:
                        await self._learn(seen - {-1} - self._bytes.keys())
                yield event

    async def _learn(self, ids: Collection[int]) -> None:
        """Ask the server for the bytes of these tokens."""
        if not ids:
            return
        body = {"model": self.settings.model, "tokens": [*ids], "with_pieces": True}
        pieces = (await self.connection.ask("POST", "/detokenize", body)).get("pieces") or ()
        for id, piece in zip(ids, pieces, strict=False):
            self._bytes[id] = piece.encode() if isinstance(piece, str) else bytes(piece)


@dataclass(slots=True, eq=False)
class _Open:
    """An answer of the server that is not over.

    Attributes:
        made: the statistics until now.
        begun: the request to the server, which cancels the answer.
        id: the id that the server gave it.
    """

    stream: Stream
    number: int
    cancel: CancelFlag
    made: Partial
    begun: Future[None] = field(default_factory=Future)
    id: str = ""
    is_told_to_answer: bool = False

    def named(self, id: str) -> None:
        self.id = id


class _Answers(Loop):
    """Asks a server for answers. The thread of the connection queues their events, and a turn hears one of them."""

    def __init__(self, model: RemoteModel) -> None:
        super().__init__()
        self._model, self._numbers = model, count()
        self._open: dict[int, _Open] = {}
        self._arrived: queue.SimpleQueue[tuple[int, Arrived]] = queue.SimpleQueue()
        self._has_waited = False

    def add(self, stream: Stream, number: int, what: Request, cancel: CancelFlag) -> None:
        answer = _Open(stream, number, cancel, Partial(self._model.tokens_of_prompt(what)))
        id = next(self._numbers)
        self._open[id] = answer  # before its first event, which another thread may hear
        answer.begun = self._model.begin(what, lambda event: self._arrived.put((id, event)), answer.named)
        if id not in self._open:  # another thread has removed it meanwhile
            answer.begun.cancel()

    def turn(self) -> None:
        has_news = False
        for id, answer in [*self._open.items()]:
            if answer.cancel.is_set():
                has_news = True
                self._remove(id)
                answer.stream.put(answer.number, self._end(answer, "cancelled"))
            elif answer.cancel.ends_reasoning and answer.id and not answer.is_told_to_answer:
                answer.is_told_to_answer = True
                self._model.end_reasoning(answer.id)
        if not has_news:
            with suppress(queue.Empty):
                self._hear(*self._arrived.get(timeout=POLL_S))

    def settle(self) -> None:
        for id, answer in [*self._open.items()]:
            if answer.stream.is_closed:
                self._remove(id)

    def _hear(self, id: int, event: Arrived) -> None:
        if id not in self._open:
            return
        answer = self._open[id]
        if event is None:
            if not self._has_waited:
                self._has_waited = True
                self._model.notes.add(f"{self._model.url} is busy: waiting for it")
                answer.stream.put(answer.number, TokenEvent(-1, ""))  # so that the reader shows the note now
            return
        if isinstance(event, GenerationError):
            answer.stream.put(answer.number, self._end(answer, "error"))
        if isinstance(event, TokenEvent):
            answer.made.add(event)
            self.stats = event.stats or self.stats
        if isinstance(event, EdgespecError) or event.is_last:
            self._remove(id)
        answer.stream.put(answer.number, event)

    def _remove(self, id: int) -> None:
        self._open.pop(id).begun.cancel()

    def _end(self, answer: _Open, reason: FinishReason) -> TokenEvent:
        """Return the last event of an answer that the server did not end."""
        self.stats = answer.made.stats
        return TokenEvent(-1, "", finish_reason=reason, stats=self.stats)


def token_bytes(models: Sequence[RemoteModel], token: int) -> bytes:
    """Return the bytes of a token in an answer with log-probabilities of one of the models."""
    return next((data for model in models if (data := model.token_bytes([token])[0])), b"")


def _defaults(params: Mapping[str, Any]) -> dict[str, Any]:
    others = {"max_tokens", "verify", "repeat_limit"}
    known = {field.name for field in fields(SamplingSettings)} | others
    found = {name: value for name, value in params.items() if name in known}
    biases = found.get("logit_bias") or ()
    found["logit_bias"] = tuple((int(id), float("-inf") if bias is None else float(bias)) for id, bias in biases)
    SamplingSettings(**{name: value for name, value in found.items() if name not in others})
    return found
