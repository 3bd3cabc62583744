"""A model of a server, which is asked like one on this machine."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import Completion, TokenEvent
from edgespec.remote.connection import Connection
from edgespec.remote.fleet import POLL_S, Arrived, Put
from edgespec.remote.wire import Partial, body_of, events, messages_of
from edgespec.runtime.options import DraftingOptions, drafting_changes
from edgespec.runtime.stream import Events, closed_error
from edgespec.settings import LoadSettings, Message, Request
from edgespec.text.printable import one_line

if TYPE_CHECKING:
    from edgespec.core.policy.policy import PolicyVerdict

PROBE_S = 1.0  # between questions to a lost server
MOST_COUNTS = 64  # prompts whose length is remembered
FOREIGN = {
    "description": "a model of another server",
    "draft_model": None,
    "drafters": ["unknown"],
    "pace": "auto",
    "strict": False,
    "fast": False,
    "exact": True,
    "rounding": None,
    "width_class": None,
    "measured_depth": None,
    "made_exact_by": "",
}


class RemoteEngine(Closable):
    """The model `settings.model` of a server. If it is "": the first model in `also` that the server has, or its first.

    Raises UsageError if the URL is not an inference server, or it has no such model; GenerationError if the server
    cannot be reached, also later, and in the middle of an answer. It can be asked again then. Drafting settings are
    sent with each request if they differ from the defaults.

    Attributes:
        models: the names of all models of the server.
        texts_depend_on: the settings and properties of the model that texts depend on.
        is_own: the server is edgespec's, and knows all fields of a request.
    """

    def __init__(
        self,
        url: str,
        key: str = "",
        settings: LoadSettings | None = None,
        cancel: CancelFlag | None = None,
        *,
        also: Sequence[str] = (),
    ) -> None:
        self.settings = settings or LoadSettings("")
        self.url, self.notes = url, list[str]()
        self._counts: dict[tuple[tuple[Message, ...], str], int] = {}  # of messages and arguments of the template
        self._bytes: dict[int, bytes] = {}
        self._running: dict[int, str] = {}  # the server's ids of answers, by the `id` of their requests
        self.is_closed = False
        self.connection = Connection(url, key)
        try:
            self.models, props = self.connection.wait_for(self._introduction(also), cancel)
            self._about, self.texts_depend_on = self._read(props)
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        """End all answers; the server keeps its model."""
        self.is_closed = True
        self.connection.close()

    # --- what the server has ------------------------------------------------------------------------------------------

    async def _introduction(self, also: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        """Return the names of all models, and the properties of the chosen one."""
        listed = await self.connection.ask("GET", "/v1/models")
        models = [model for model in listed.get("data") or () if isinstance(model, dict)]
        names = [name for model in models if (name := str(model.get("id", ""))) and name == one_line(name)]
        if not names:
            raise self.connection.stranger("it lists no models")
        name = self.settings.model or next((name for name in also if name in names), names[0])
        if name not in names:
            raise UsageError(f"{self.url} has no model {name!r}", hint=f"it has {', '.join(names)}")
        self.settings = replace(self.settings, model=name)
        props = await self.connection.ask("GET", "/props", model=name)
        if props.get("is_sleeping"):  # this loads the model
            await self.connection.ask("POST", "/tokenize", {"model": name, "content": ""})
            props = await self.connection.ask("GET", "/props", model=name)
        return names, props

    def _read(self, props: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """Return `describe`, and what texts depend on, from the properties of a model."""
        name = self.settings.model
        try:
            generation = props["default_generation_settings"]
            self.n_slots = max(1, int(props["total_slots"]))
            n_ctx = int(generation["n_ctx"])
            own = props.get("edgespec") or {}
            self.is_own = bool(own)
            about = {"server": self.url, "models": self.models, "model": name, "sequences": self.n_slots}
            self.has_chat_template = bool(props.get("chat_template"))
            if not self.is_own:
                return FOREIGN | about | {"ctx_size": n_ctx}, {"model": name, "served by": "another program"}
            told = {"system": str(props["system_prompt"])} if "system_prompt" in props else {}
            self.defaults = _defaults(generation["params"]) | told
            depend_on = own.pop("texts_depend_on")
            told = {key: one_line(value) if isinstance(value, str) else value for key, value in own.items()}
            return FOREIGN | told | about | {"ctx_size": n_ctx}, depend_on
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self.connection.stranger(f"its description of the model cannot be read ({error!r})") from error

    defaults: Mapping[str, Any] = MappingProxyType({"repeat_limit": 0})  # which other programs do not have
    """The settings of requests that the server uses by default, by the names of their fields."""

    # --- what a worker has --------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return what the server has loaded, as plain data."""
        return dict(self._about)

    def draft_with(self, **changes: Unpack[DraftingOptions]) -> None:
        """Ask the server to draft in another way from the next answer on. Raises UsageError."""
        wanted = drafting_changes(changes)
        if wanted.get("spec_tree", 1) != 1:
            raise UsageError("spec-tree is up to the server")
        self.settings = replace(self.settings, **wanted)

    def keep_state(
        self, messages: Sequence[Message], file: Path, most_bytes: int, within_s: float = 60.0, template: str = ""
    ) -> int:
        """Write nothing: the KV cache stays on the server."""
        return 0

    def recall_state(self, messages: Sequence[Message], file: Path, template: str = "") -> int:
        return 0

    def pace_verdicts(self, request: Request) -> list[PolicyVerdict]:
        """Return nothing: a server does not report why drafters are active."""
        return []

    def forget(self) -> None:
        """Do nothing: the cache of a server is for all its clients."""

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

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token in an answer with log-probabilities."""
        return self._bytes.get(token, b"")

    def token_text(self, token: int) -> str:
        """Return the text of a token in an answer with log-probabilities; a part of a character is U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    # --- answers ------------------------------------------------------------------------------------------------------

    def submit(self, request: Request, cancel: CancelFlag | None = None) -> Generator[TokenEvent, None, None]:
        """Ask for an answer, and yield its events; closing the generator ends the answer on the server.

        Setting `cancel` ends the answer early. Raises EdgespecError; before a GenerationError comes an event with the
        finish reason "error".
        """
        for _, event in self.stream([request], cancel):
            if isinstance(event, EdgespecError):
                raise event
            yield event

    def stream(self, requests: Iterable[Request], cancel: CancelFlag | None = None) -> Events:
        """Ask for several answers at once, and yield the events of each with the index of its request.

        An error in place of an event is the reason why this request fails. Otherwise as `submit`.
        """
        if self.is_closed:
            raise closed_error()
        asked, has_waited, ending = [*requests], False, set[int]()
        made = [Partial(self._counts.get((request.messages, request.template), 0)) for request in asked]
        arrived: queue.SimpleQueue[tuple[int, Arrived]] = queue.SimpleQueue()
        answers = {number: self.begin(each, partial(_put, arrived, number)) for number, each in enumerate(asked)}
        try:
            while answers and not (arrived.empty() and all(answer.done() for answer in answers.values())):
                if cancel is not None and cancel.is_set():
                    for number in answers:
                        yield number, TokenEvent(-1, "", finish_reason="cancelled", stats=made[number].stats)
                    return
                if cancel is not None and cancel.ends_reasoning:
                    ending |= self._end_reasoning(each for each in asked if id(each) not in ending)
                try:
                    number, event = arrived.get(timeout=POLL_S)
                except queue.Empty:
                    continue
                if event is None and not has_waited:
                    has_waited = True
                    self.notes.append(f"{self.url} is busy: waiting for it")
                    yield number, TokenEvent(-1, "")  # so that the reader shows the note now
                elif isinstance(event, TokenEvent):
                    made[number].add(event)
                    yield number, event
                elif event is not None:
                    if isinstance(event, GenerationError):
                        yield number, TokenEvent(-1, "", finish_reason="error", stats=made[number].stats)
                    yield number, event
                if isinstance(event, EdgespecError) or (event is not None and event.is_last):
                    del answers[number]
        finally:
            for answer in answers.values():
                answer.cancel()

    def _end_reasoning(self, requests: Iterable[Request]) -> set[int]:
        """Ask the server to end the reasoning of answers that have begun. Return the `id` of their requests."""
        begun = {number: self._running[number] for number in map(id, requests) if self._running.get(number)}
        for name in begun.values():
            body = {"id": name, "action": "reasoning_end", "model": self.settings.model}
            self.connection.submit(self.connection.ask("POST", "/v1/chat/completions/control", body))
        return {*begun}

    # --- what a fleet asks of a member ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.url

    def begin(self, request: Request, put: Put) -> Future[None]:
        """Ask for an answer, and pass its events to `put`."""
        return self.connection.submit(self._deliver(request, put))

    def recover(self) -> Future[None]:
        """Ask the server again and again until it answers."""

        async def recovered() -> None:
            while True:
                await asyncio.sleep(PROBE_S)
                with suppress(EdgespecError):
                    await self.connection.ask("GET", "/health")
                    return

        return self.connection.submit(recovered())

    @property
    def drafting(self) -> dict[str, Any]:
        """The drafting settings that differ from the defaults, as fields of a request."""
        usual, wanted = LoadSettings(""), self.settings
        drafting = {"spec_type": wanted.spec_type, "pace": wanted.pace, "draft_n_max": wanted.spec_draft_n_max}
        return {name: value for name, value in drafting.items() if value not in (None, "auto", usual.draft_n_max)}

    # --- in the loop of the connection --------------------------------------------------------------------------------

    async def _deliver(self, request: Request, put: Put) -> None:
        """Pass the events of an answer to `put`; the last one has `is_last`, or is an error."""
        try:
            async with aclosing(self._generate(request, lambda: put(None))) as answer:
                async for event in answer:
                    put(event)
        except EdgespecError as error:
            put(error)
        except Exception as error:
            put(GenerationError(f"unexpected error while asking {self.url}", why=f"{type(error).__name__}: {error}"))

    async def _generate(self, request: Request, waiting: Callable[[], None]) -> AsyncGenerator[TokenEvent, None]:
        """Yield the events of an answer; closing the generator ends the answer on the server. Raises EdgespecError."""
        path, body = body_of(request, is_own=self.is_own)
        body = self.drafting | body | {"model": self.settings.model}  # settings of the request take precedence
        seen = set[int]()

        number = id(request)
        named = partial(self._running.__setitem__, number)
        try:
            async with aclosing(events(self.connection.stream(path, body, waiting), named)) as answer:
                async for event in answer:
                    if request.logprobs is not None:
                        seen |= {event.id, *(id for id, _ in event.top_logprobs)}
                        if event.is_last:
                            await self._learn(seen - {-1} - self._bytes.keys())
                    yield event
        finally:
            self._running.pop(number, None)

    async def _learn(self, ids: Collection[int]) -> None:
        """Ask the server for the bytes of these tokens."""
        if not ids:
            return
        body = {"model": self.settings.model, "tokens": [*ids], "with_pieces": True}
        pieces = (await self.connection.ask("POST", "/detokenize", body)).get("pieces") or ()
        for id, piece in zip(ids, pieces, strict=False):
            self._bytes[id] = piece.encode() if isinstance(piece, str) else bytes(piece)


def _put(arrived: queue.SimpleQueue[tuple[int, Arrived]], number: int, event: Arrived) -> None:
    arrived.put((number, event))


def token_bytes(engines: Sequence[RemoteEngine], token: int) -> bytes:
    """Return the bytes of a token in an answer with log-probabilities of one of the engines."""
    return next((data for engine in engines if (data := engine.token_bytes(token))), b"")


def _defaults(params: Mapping[str, Any]) -> dict[str, Any]:
    others = {"max_tokens", "verify", "repeat_limit"}
    known = {field.name for field in fields(SamplingSettings)} | others
    found = {name: value for name, value in params.items() if name in known}
    biases = found.get("logit_bias") or ()
    found["logit_bias"] = tuple((int(id), float("-inf") if bias is None else float(bias)) for id, bias in biases)
    SamplingSettings(**{name: value for name, value in found.items() if name not in others})
    return found
