"""The application: routes, endpoints, counts and the log of requests."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route as HttpRoute

from edgespec import plugins
from edgespec.core.stats import Stats
from edgespec.errors import UsageError
from edgespec.llm.stream import Stream
from edgespec.requests import known_fields
from edgespec.requests.bad_input import BadInputError, JsonObject, wrong
from edgespec.requests.documents import has_documents
from edgespec.requests.fields import Fields, object_of
from edgespec.requests.known_fields import Known
from edgespec.serve import native, ollama_models
from edgespec.serve.anthropic import MessageObject, count_call, message_call
from edgespec.serve.chat import Call, End, Format, Writer, line
from edgespec.serve.completion import CompletionObject, completion_call, infill_call
from edgespec.serve.embeddings import (
    EmbeddingsObject,
    NativeEmbeddingObject,
    OllamaEmbeddingObject,
    OllamaEmbedObject,
    RerankObject,
    Room,
    VectorsObject,
)
from edgespec.serve.errors import Names, error_for, names_in, sent_as, unavailable
from edgespec.serve.guard import Rules, check_may_load, guards
from edgespec.serve.metrics import Log, Metrics, Recorder
from edgespec.serve.native import counting
from edgespec.serve.ollama import OllamaChatObject, OllamaObject, ollama_chat, ollama_generate, unloads
from edgespec.serve.openai import ChatObject, TextObject, chat_call, text_call
from edgespec.serve.pool import Place, Pool
from edgespec.serve.responses import ResponseObject, response_call
from edgespec.serve.served import STATE_S, Served
from edgespec.serve.sse import ClientLeft, EventStream, HeldAnswer, error_response, while_connected
from edgespec.serve.threads import in_thread
from edgespec.settings import shown

CLOSE_S = 15.0  # for all models to be closed

Made = TypeVar("Made")


@dataclass(slots=True)
class Server:
    """The state that all requests share."""

    pool: Pool
    metrics: Metrics
    log: Log
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    documents: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    listing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    vectors: Room = field(default_factory=Room)
    running: dict[str, Stream] = field(default_factory=dict)  # answers that are generated, by their ids

    @contextmanager
    def known(self, id: str, events: Stream) -> Iterator[None]:
        """Within this block, requests can refer to an answer by its id."""
        if not id:  # of a format without ids
            yield
            return
        self.running[id] = events
        try:
            yield
        finally:
            self.running.pop(id, None)

    async def read(self, request: Request, body: JsonObject, work: Callable[[], Made]) -> Made:
        """Read a body into a call. Large bodies and documents take long, so they are read in threads, one at a time."""
        is_large, look = request.scope["is_large"], partial(has_documents, body)
        if await in_thread(look, "looks for documents", self.reading) if is_large else look():
            return await in_thread(work, "reads documents", self.documents)
        return await in_thread(work, "reads a request", self.reading) if is_large else work()

    def count(self, request: Request, end: End) -> None:
        """Count an answer that has ended."""
        stats, record = end.stats, request.scope["record"]
        self.metrics.count(stats, end.reason)
        for name, count in (
            ("prompt_tokens", stats.prompt_tokens),
            ("cached_tokens", stats.cached_tokens),
            ("tokens", end.n_tokens),
            ("draft_tokens", stats.proposed),
            ("accepted_tokens", stats.accepted),
        ):
            record[name] = record.get(name, 0) + count


Handler = Callable[[Server, Request], Awaitable[Response]]


Route = tuple[str, tuple[str, ...], Handler]
"""A method, the paths of an endpoint, and the endpoint."""


def make_app(
    open_pool: Callable[[], Pool], rules: Rules, log: Log = lambda record: None, more: Sequence[Route] = ()
) -> Starlette:
    """Return the ASGI application, with `more` endpoints, of which those for the same path are used in place of its
    own. It calls `open_pool` in its event loop, and closes the pool when it ends."""
    server = Server(Pool([], dict, print), Metrics(), log)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        server.pool = open_pool()
        yield
        with suppress(TimeoutError):  # processes that do not end by now will end after their parent
            async with asyncio.timeout(CLOSE_S):
                await server.pool.close()

    served = [*more, *ROUTES, *_added_formats()]
    routes = [
        HttpRoute(path, _endpoint(server, handler), methods=[m]) for m, paths, handler in served for path in paths
    ]
    middleware = [Middleware(Recorder, server.metrics, log), *guards(rules, routes)]
    return Starlette(routes=routes, lifespan=lifespan, middleware=middleware)


def _added_formats() -> Iterator[Route]:
    """Yield the endpoints of other packages. One that cannot be used is left out, with a warning."""
    for name in plugins.added(plugins.FORMATS):
        try:
            format = plugins.load(plugins.FORMATS, name, Format)
        except UsageError as error:
            logging.getLogger("edgespec").warning("the format %s", error.line)
        else:
            yield "POST", format.paths, _answering(format.read, format.writer)


def _endpoint(server: Server, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(server, request)
        except ClientLeft:
            return Response(status_code=499)
        except Exception as error:
            return error_response(error_for(error), request.scope)

    return endpoint


# --- endpoints --------------------------------------------------------------------------------------------------------


def _answering(read: Callable[[JsonObject, Served], Call], style: type[Writer]) -> Handler:
    """Return the endpoint of a format, which reads bodies, and writes answers in this `style`."""

    async def handler(server: Server, request: Request) -> Response:
        body = object_of(request.scope["body"])
        fields = Fields(body)
        name = fields.text("model")

        @asynccontextmanager
        async def begun() -> AsyncIterator[tuple[Writer, Stream]]:
            with sent_as(names_in(body, style.names)):
                async with server.pool.lend(name) as model:
                    call = await server.read(request, body, partial(read, body, model.called(name)))
                    request.scope["record"] |= {"model": call.model, "stream": call.stream}
                    request.scope["record"] |= {"notes": call.notes} if call.notes else {}
                    if call.dialect is not None and (call.dialect.reasoning or call.dialect.messages):
                        call.opened = await model.opened(call.requests[0], call.dialect)
                    writer = style(call, body)
                    with server.pool.submit(model, call.requests) as events, server.known(writer.id, events):
                        yield writer, events

        async def whole() -> object:
            async with begun() as (writer, events):
                async for index, event in events:
                    for piece in writer.read(index, event):
                        writer.take(piece)
                        if piece.end is not None:
                            server.count(request, piece.end)
                return writer.whole()

        async def chunks() -> AsyncGenerator[JsonObject, None]:
            async with begun() as (writer, events):
                async for index, event in events:
                    for piece in writer.read(index, event):
                        if piece.end is not None:
                            server.count(request, piece.end)
                        for chunk in writer.chunks(piece):
                            yield chunk
                for chunk in writer.rest():
                    yield chunk

        if fields.flag("stream", style.streams):
            return EventStream(chunks(), style)
        return json_response(await while_connected(request.receive, whole()))

    return handler


def _pooling(style: type[VectorsObject]) -> Handler:
    """Return the endpoint of a format for vectors or scores."""

    async def handler(server: Server, request: Request) -> Response:
        body, record = object_of(request.scope["body"]), request.scope["record"]
        name = Fields(body).text("model")

        async def whole(until_sent: ExitStack) -> str:
            started_ns, stats = perf_counter_ns(), Stats()
            with sent_as(names_in(body, style.names(body))):
                async with server.pool.lend(name) as model:
                    loaded_ns = perf_counter_ns() - started_ns
                    call = await server.read(request, body, partial(style, body, model.called(name)))
                    call.loaded_ns = loaded_ns
                    record.update(model=call.model, texts=len(call.inputs.texts))
                    record.update({"notes": call.notes} if call.notes else {})
                    until_sent.enter_context(server.vectors.held(call.n_values))
                    with server.pool.submit(model, [call.inputs]) as events:
                        async for _, event in events:
                            if event.is_last:
                                stats = event.stats or stats
                                break
                            call.take(np.frombuffer(event.vector, np.float32))
                            await asyncio.sleep(0)  # writing thousands of vectors takes seconds
                    server.metrics.count_texts(style.kind, len(call.inputs.texts), stats)
                    record["prompt_tokens"] = stats.prompt_tokens
                    return call.whole(stats)

        with ExitStack() as until_sent:
            text = await while_connected(request.receive, whole(until_sent))
            return HeldAnswer(text, until_sent.pop_all().close)

    return handler


def _asking(
    question: Callable[[JsonObject, Served], Awaitable[object]],
    fields: Known,
    names: Names = MappingProxyType({}),
) -> Handler:
    """Return an endpoint that asks a model something that it answers without generating. `fields` are the known fields
    of the body."""

    async def handler(server: Server, request: Request) -> Response:
        body = object_of(request.scope["body"])
        if notes := Fields(body, fields).notes:
            request.scope["record"]["notes"] = notes

        async def answered() -> object:
            with sent_as(names_in(body, names)):
                async with server.pool.lend(Fields(body).text("model")) as model:
                    return await question(body, model)

        return json_response(await while_connected(request.receive, answered()))

    return handler


async def _models(server: Server, request: Request) -> Response:
    found = [one for place in await server.pool.places() for one in native.models(place)]
    return json_response({"object": "list", "data": found})


async def _a_model(server: Server, request: Request) -> Response:
    name = request.path_params["name"]
    found = native.models(await server.pool.place(name))
    return json_response(next((one for one in found if one["id"] == name), found[0]))


async def _control(server: Server, request: Request) -> Response:
    """End the reasoning of an answer, as llama.cpp's server does."""
    fields = Fields(object_of(request.scope["body"]))
    id, action = fields.text("id"), fields.take("action")
    if action != "reasoning_end":
        raise wrong("action", "be reasoning_end", action)
    if not id or (events := server.running.get(id)) is None:
        return json_response({"success": False, "message": f"no answer with the id {shown(id)} is being generated"})
    events.end_reasoning()
    return json_response({"success": True})


def _always(value: object) -> Handler:
    async def handler(server: Server, request: Request) -> Response:
        return json_response(value)

    return handler


async def root(server: Server, request: Request) -> Response:
    """Say that the server runs."""
    return PlainTextResponse("edgespec is running\n")


def _describing(describe: Callable[[Place], object]) -> Handler:
    async def handler(server: Server, request: Request) -> Response:
        return json_response(await _from_files(partial(describe, await _place(server, request))))

    return handler


async def _slots(server: Server, request: Request) -> Response:
    return json_response(await native.slots(await _place(server, request)))


async def _tokenizer_info(server: Server, request: Request) -> Response:
    check_may_load(request.headers)
    async with server.pool.lend((await _place(server, request)).offer.name) as model:
        return json_response(native.tokenizer_info(model))


def _place(server: Server, request: Request) -> Awaitable[Place]:
    return server.pool.place(request.query_params.get("model", ""))


async def _metrics(server: Server, request: Request) -> Response:
    cache = Counter[str]()
    living = [place.living for place in await server.pool.places()]
    for counts in await asyncio.gather(*(model.prefix_cache() for model in living if model)):
        cache.update(counts)
    text = server.metrics.text(server.pool, cache)
    started = {"Process-Start-Time-Unix": str(server.metrics.started_s)}
    return PlainTextResponse(text, headers=started, media_type="text/plain; version=0.0.4")


# --- Ollama's endpoints -----------------------------------------------------------------------------------------------


def _ollama(answering: Handler, style: type[OllamaChatObject | OllamaEmbedObject]) -> Handler:
    """Return one of Ollama's endpoints, in which a request without a prompt only loads or unloads its model."""

    async def handler(server: Server, request: Request) -> Response:
        body = object_of(request.scope["body"])
        if body.get(style.prompt) or body.get("images"):
            return await answering(server, request)
        name, is_unloaded = Fields(body).text("model"), unloads(body)

        async def loaded() -> object:
            if is_unloaded:
                model = await server.pool.unload(name)
            else:
                async with server.pool.lend(name) as served:
                    model = served.name
                if isinstance(keep_s := body.get("keep_alive"), int | float) and keep_s > 0:
                    server.pool.keep(model, keep_s)
            request.scope["record"]["model"] = model
            return style.loaded(name or model, is_unloaded=is_unloaded)

        return json_response(await while_connected(request.receive, loaded()))

    return handler


async def _tags(server: Server, request: Request) -> Response:
    return await _listed(server, await server.pool.places(), ollama_models.listed)


async def _running(server: Server, request: Request) -> Response:
    return await _listed(server, [place for place in await server.pool.places() if place.living], ollama_models.running)


async def _show(server: Server, request: Request) -> Response:
    fields = Fields(object_of(request.scope["body"]), known_fields.OLLAMA_SHOW)
    name = fields.text("model") or fields.text("name")
    if not name:
        raise BadInputError("model is missing", "model")
    place = await server.pool.place(name)
    return json_response(await _from_files(partial(ollama_models.shown, place)))


async def _listed(
    server: Server, places: Sequence[Place], describe: Callable[[Place], dict[str, object] | None]
) -> Response:
    found = await _from_files(lambda: [*filter(None, map(describe, places))], server.listing)
    return json_response({"models": found})


# --- all endpoints ----------------------------------------------------------------------------------------------------


async def _from_files(work: Callable[[], Made], room: asyncio.Semaphore | None = None) -> Made:
    """Return what `work` reads from files of models. It runs in a thread, with `room` when there is room for one.
    Raises ApiError if it takes too long."""
    try:
        async with asyncio.timeout(STATE_S):
            return await in_thread(work, "reads the heads of models", room)
    except TimeoutError as error:
        raise unavailable("the files of the models cannot be read in time", code="no_reply") from error


def json_response(value: object) -> Response:
    """Return a value as JSON."""
    return Response(line(value), media_type="application/json")


def _both(path: str) -> tuple[str, ...]:
    return f"/v1{path}", path


ROUTES: list[Route] = [
    ("POST", _both("/chat/completions"), _answering(chat_call, ChatObject)),
    ("POST", ("/v1/completions",), _answering(text_call, TextObject)),
    ("POST", ("/completion", "/completions"), _answering(completion_call, CompletionObject)),
    ("POST", ("/infill",), _answering(infill_call, CompletionObject)),
    ("POST", ("/v1/messages",), _answering(message_call, MessageObject)),
    ("POST", ("/v1/messages/count_tokens",), _asking(counting(count_call), known_fields.MESSAGES, MessageObject.names)),
    ("POST", _both("/chat/completions/control"), _control),
    ("POST", _both("/chat/completions/input_tokens"), _asking(counting(chat_call), known_fields.CHAT)),
    (
        "POST",
        _both("/responses/input_tokens"),
        _asking(counting(response_call), known_fields.RESPONSES, ResponseObject.names),
    ),
    ("POST", _both("/responses"), _answering(response_call, ResponseObject)),
    ("GET", ("/v1/models", "/v1/models/", "/models", "/models/"), _models),
    ("GET", ("/v1/models/{name:path}",), _a_model),
    ("POST", ("/api/chat",), _ollama(_answering(ollama_chat, OllamaChatObject), OllamaChatObject)),
    ("POST", ("/api/generate",), _ollama(_answering(ollama_generate, OllamaObject), OllamaObject)),
    ("POST", ("/api/embed",), _ollama(_pooling(OllamaEmbedObject), OllamaEmbedObject)),
    ("POST", ("/api/embeddings",), _ollama(_pooling(OllamaEmbeddingObject), OllamaEmbeddingObject)),
    ("POST", ("/v1/embeddings",), _pooling(EmbeddingsObject)),
    ("POST", ("/embedding", "/embeddings"), _pooling(NativeEmbeddingObject)),
    ("POST", ("/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking"), _pooling(RerankObject)),
    ("POST", ("/api/show",), _show),
    ("GET", ("/api/tags",), _tags),
    ("GET", ("/api/ps",), _running),
    ("GET", ("/api/version",), _always({"version": ollama_models.VERSION})),
    ("POST", ("/tokenize",), _asking(native.tokenize, known_fields.TOKENIZE)),
    ("POST", ("/detokenize",), _asking(native.detokenize, known_fields.DETOKENIZE)),
    ("GET", ("/tokenizer_info",), _tokenizer_info),
    ("POST", ("/apply-template",), _asking(native.apply_template, known_fields.APPLY_TEMPLATE)),
    ("POST", ("/pace",), _asking(native.pace, {**known_fields.TEXT, **known_fields.CHAT})),
    ("GET", _both("/health"), _always({"status": "ok"})),
    ("GET", ("/",), root),
    ("GET", ("/props",), _describing(native.props)),
    ("GET", ("/slots",), _slots),
    ("GET", ("/lora-adapters",), _describing(native.adapters)),
    ("GET", ("/metrics",), _metrics),
]
