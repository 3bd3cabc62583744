"""The application: which path leads where, what is counted and logged, and what errors become."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from edgespec.batch.known import Known
from edgespec.runtime.asynchronous import AsyncStream
from edgespec.serve import known, native
from edgespec.serve.anthropic import MessageObject, count_tokens, message_call
from edgespec.serve.chat import Call, Piece, line, pieces
from edgespec.serve.completion import CompletionObject, completion_call
from edgespec.serve.errors import ApiError, anthropic_body, body_for, error_for, no_route, unavailable, unexpected
from edgespec.serve.fields import Fields, object_of
from edgespec.serve.guard import Guard, Rules
from edgespec.serve.metrics import Metrics
from edgespec.serve.names import COMPLETION_NAMES, MESSAGE_NAMES, RESPONSE_NAMES, TEXT_NAMES, Names, names_in, sent_as
from edgespec.serve.openai import chat_call, chat_objects, text_call, text_objects
from edgespec.serve.pool import Limits, Pool
from edgespec.serve.responses import ResponseObject, error_event, response_call
from edgespec.serve.served import STATE_S, Served
from edgespec.serve.sse import ClientLeft, EventStream, error_response, named_event, while_connected
from edgespec.serve.threads import in_thread

CLOSE_S = 15.0  # for all models to be closed


Log = Callable[[Mapping[str, Any]], None]
"""Called with a record of each request that has ended, as plain data."""


@dataclass(slots=True)
class Server:
    """What all requests share."""

    pool: Pool
    metrics: Metrics
    log: Log
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    async def read(self, request: Request, work: Callable[[], Call]) -> Call:
        """What is read of a body; of a large one, which takes long, in a thread, and one at a time."""
        if not request.scope["is_large"]:
            return work()
        return await in_thread(work, "reads a request", self.reading)

    def begin(self, request: Request, call: Call) -> None:
        """Note what of a request will be in its record."""
        request.scope["record"] = {"model": call.model, "stream": call.stream} | (
            {"notes": call.notes} if call.notes else {}
        )

    async def pieces(self, request: Request, call: Call, events: AsyncStream) -> AsyncGenerator[Piece, None]:
        """What the answers of a call consist of, counted."""
        record: dict[str, Any] = request.scope["record"]
        async for piece in pieces(call, events):
            if piece.end is not None:
                self.metrics.count(piece.end.stats, piece.end.reason)
                stats = piece.end.stats
                for name, count in (
                    ("prompt_tokens", stats.prompt_tokens),
                    ("cached_tokens", stats.cached_tokens),
                    ("tokens", piece.end.n_tokens),
                    ("draft_tokens", stats.proposed),
                    ("accepted_tokens", stats.accepted),
                ):
                    record[name] = record.get(name, 0) + count
            yield piece


Handler = Callable[[Server, Request], Awaitable[Response]]


def make_app(open_pool: Callable[[], Pool], rules: Rules, log: Log = lambda record: None) -> Starlette:
    """The ASGI application. `open_pool` is called in its event loop; the pool is closed when the application ends."""
    server = Server(Pool([], dict, Limits(), print), Metrics(), log)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        server.pool = open_pool()
        yield
        with suppress(TimeoutError):  # processes that do not end by themselves do so when their parent has
            async with asyncio.timeout(CLOSE_S):
                await server.pool.close()

    routes = [
        Route(path, _endpoint(server, path, handler), methods=[method])
        for method, paths, handler in ROUTES
        for path in paths
    ]
    handlers: Mapping[Any, Any] = {HTTPException: _http_error, Exception: _unexpected}
    guard = Middleware(Guard, rules, routes)
    return Starlette(routes=routes, lifespan=lifespan, middleware=[guard], exception_handlers=handlers)


def _endpoint(server: Server, path: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        started_s = perf_counter()
        try:
            response = await handler(server, request)
        except ClientLeft:
            response = Response(status_code=499)
        except Exception as error:
            told = error_for(error)
            response = error_response(told, body_for(request.scope["path"], told))
            del told  # Its traceback would keep the body in memory until the next garbage collection.
        return _Recorded(response, lambda status: _record(server, request, path, status, perf_counter() - started_s))

    return endpoint


class _Recorded(Response):
    """A response that is counted when it has been sent, with the status that was."""

    def __init__(self, response: Response, record: Callable[[int], None]) -> None:
        self._response, self._record = response, record
        self.background = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status = 499  # unless anything is sent

        async def noticing(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._response(scope, receive, noticing)
        finally:
            self._record(status)


def _record(server: Server, request: Request, path: str, status: int, seconds: float) -> None:
    server.metrics.requests[path, status] += 1  # of the route, of which there are few
    what = {"event": "request", "method": request.method, "path": request.scope["path"]}
    what |= {"status": status, "seconds": round(seconds, 3)}
    server.log(what | request.scope.get("record", {}))


async def _http_error(request: Request, error: HTTPException) -> Response:
    """No such path, or not with this method."""
    path, headers = request.scope["path"], error.headers or {}
    methods = headers.get("Allow", "").split(", ") if error.status_code == 405 else []
    told = no_route(request.method, path, methods)
    return error_response(told, body_for(path, told))


async def _unexpected(request: Request, error: Exception) -> Response:
    told = unexpected(error)
    return error_response(told, body_for(request.scope["path"], told))


# --- endpoints --------------------------------------------------------------------------------------------------------


class Written(Protocol):
    """The answers to a call as the objects of a format, whole or in chunks; closing the latter closes `pieces`."""

    async def whole(self, pieces: AsyncIterator[Piece]) -> Any: ...

    def events(self, pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[dict[str, Any], None]: ...


def _answering(
    read: Callable[[Mapping[str, Any], Served], Call],
    write: Callable[[Call, Mapping[str, Any], Served], Written],
    names: Names,
    **style: Any,
) -> Handler:
    """An endpoint of a format: how it reads a body, writes answers, and streams them. `names` are its names for the
    fields of a chat."""

    async def handler(server: Server, request: Request) -> Response:
        body = object_of(request.scope["body"])
        name = _model_of(body)

        @asynccontextmanager
        async def begun() -> AsyncIterator[tuple[Written, AsyncGenerator[Piece, None]]]:
            with sent_as(names_in(body, names)):
                async with server.pool.lend(name) as model:
                    call = await server.read(request, partial(read, body, model))
                    server.begin(request, call)
                    with server.pool.submit(model, call.requests) as events:
                        yield write(call, body, model), server.pieces(request, call, events)

        async def whole() -> Any:
            async with begun() as (answer, found):
                return await answer.whole(found)

        async def chunks() -> AsyncGenerator[dict[str, Any], None]:
            async with begun() as (answer, found), aclosing(answer.events(found)) as events:
                async for event in events:
                    yield event

        if Fields(body).flag("stream"):
            return EventStream(chunks(), **style)
        return _json(await while_connected(request.receive, whole()))

    return handler


def _asking(
    question: Callable[[Mapping[str, Any], Served], Awaitable[Any]], fields: Known, names: Names = MappingProxyType({})
) -> Handler:
    """An endpoint with a body that a model answers at once; `fields` are those that the body may have."""

    async def handler(server: Server, request: Request) -> Response:
        body = object_of(request.scope["body"])
        if notes := Fields(body, fields).notes:
            request.scope["record"] = {"notes": notes}

        async def answered() -> Any:
            with sent_as(names_in(body, names)):
                async with server.pool.lend(_model_of(body)) as model:
                    return await question(body, model)

        return _json(await while_connected(request.receive, answered()))

    return handler


def _model_of(body: Mapping[str, Any]) -> str:
    return Fields({"model": body.get("model")}).text("model")


async def _models(server: Server, request: Request) -> Response:
    return _json({"object": "list", "data": [native.model(place) for place in await server.pool.places()]})


async def _a_model(server: Server, request: Request) -> Response:
    return _json(native.model(await server.pool.place(request.path_params["name"])))


async def _health(server: Server, request: Request) -> Response:
    return _json({"status": "ok"})


async def _props(server: Server, request: Request) -> Response:
    place = await server.pool.place(request.query_params.get("model", ""))
    try:
        async with asyncio.timeout(STATE_S):
            return _json(await in_thread(partial(native.props, place), "reads a file"))  # of the model
    except TimeoutError as error:
        raise unavailable("the file of the model cannot be read in time", code="no_reply") from error


async def _slots(server: Server, request: Request) -> Response:
    return _json(await native.slots(await server.pool.place(request.query_params.get("model", ""))))


async def _metrics(server: Server, request: Request) -> Response:
    cache = Counter[str]()
    living = [place.living for place in await server.pool.places()]
    for counts in await asyncio.gather(*(model.prefix_cache() for model in living if model)):
        cache.update(counts)
    text = server.metrics.text(server.pool, cache)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _json(value: Any) -> Response:
    return Response(line(value), media_type="application/json")


# how these formats stream
COMPLETION: dict[str, Any] = {"done": b""}
MESSAGES: dict[str, Any] = {"done": b"", "event": named_event, "error": anthropic_body}
RESPONSES: dict[str, Any] = {"done": b"", "event": named_event, "error": error_event, "first_error": ApiError.body}

ROUTES: list[tuple[str, tuple[str, ...], Handler]] = [
    ("POST", ("/v1/chat/completions", "/chat/completions"), _answering(chat_call, chat_objects, {})),
    ("POST", ("/v1/completions",), _answering(text_call, text_objects, TEXT_NAMES)),
    (
        "POST",
        ("/completion", "/completions"),
        _answering(completion_call, CompletionObject, COMPLETION_NAMES, **COMPLETION),
    ),
    ("POST", ("/v1/messages",), _answering(message_call, MessageObject, MESSAGE_NAMES, **MESSAGES)),
    ("POST", ("/v1/messages/count_tokens",), _asking(count_tokens, known.MESSAGES, MESSAGE_NAMES)),
    (
        "POST",
        ("/v1/responses", "/responses"),
        _answering(response_call, ResponseObject, RESPONSE_NAMES, **RESPONSES),
    ),
    ("GET", ("/v1/models", "/models"), _models),
    ("GET", ("/v1/models/{name:path}",), _a_model),
    ("POST", ("/tokenize",), _asking(native.tokenize, known.TOKENIZE)),
    ("POST", ("/detokenize",), _asking(native.detokenize, known.DETOKENIZE)),
    ("POST", ("/apply-template",), _asking(native.apply_template, known.APPLY_TEMPLATE)),
    ("GET", ("/health", "/v1/health"), _health),
    ("GET", ("/props",), _props),
    ("GET", ("/slots",), _slots),
    ("GET", ("/metrics",), _metrics),
]
