"""The application: which path leads where, what is counted and logged, and what errors become."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from edgespec.errors import EdgespecError
from edgespec.serve import native
from edgespec.serve.anthropic import MessageObject, count_tokens, message_call
from edgespec.serve.chat import Call, Piece, line, pieces
from edgespec.serve.errors import ApiError, anthropic_body, api_error, body_for, unavailable
from edgespec.serve.fields import Fields, object_of
from edgespec.serve.guard import Guard, Rules
from edgespec.serve.metrics import Metrics
from edgespec.serve.openai import chat_call, chat_objects, text_call, text_objects
from edgespec.serve.pool import Limits, Pool
from edgespec.serve.responses import ResponseObject, error_event, response_call
from edgespec.serve.served import STATE_S, Served
from edgespec.serve.sse import ClientLeft, EventStream, error_response, named_event, while_connected
from edgespec.serve.threads import in_thread
from edgespec.settings import shown

CLOSE_S = 15.0  # for all models to be closed

log = logging.getLogger(__name__)

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

    async def pieces(self, request: Request, model: Served, call: Call) -> AsyncGenerator[Piece, None]:
        """What the answers of a call consist of, counted."""
        record: dict[str, Any] = request.scope["record"]
        async with aclosing(self.pool.answers(model, call.requests)) as events:
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
    return Starlette(
        routes=routes, lifespan=lifespan, middleware=[Middleware(Guard, rules)], exception_handlers=handlers
    )


def _endpoint(server: Server, path: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        started_s = perf_counter()
        try:
            response = await handler(server, request)
        except (ApiError, EdgespecError) as error:
            told = error if isinstance(error, ApiError) else api_error(error)
            response = error_response(told, body_for(request.scope["path"], told))
            del told  # or it would be kept by what it has passed, and with it the body, until the next collection
        except ClientLeft:
            response = Response(status_code=499)
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
    where = f"{request.method} {shown(request.url.path)}"
    told = ApiError(error.status_code, f"{where}: {error.detail}", type="not_found_error", headers=error.headers)
    return error_response(told)


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("unexpected %s", type(error).__name__, exc_info=error)
    told = f"unexpected {type(error).__name__}"
    return error_response(ApiError(500, told, type="server_error", headers={"x-should-retry": "false"}))


# --- endpoints --------------------------------------------------------------------------------------------------------


class Written(Protocol):
    """The answers to a call as the objects of a format, whole or in chunks; closing the latter closes `pieces`."""

    async def whole(self, pieces: AsyncIterator[Piece]) -> dict[str, Any]: ...

    def events(self, pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[dict[str, Any], None]: ...


def _answering(
    read: Callable[[Mapping[str, Any], Served], Call],
    write: Callable[[Call, Mapping[str, Any], Served], Written],
    **style: Any,
) -> Handler:
    """An endpoint of a format: how it reads a body, writes answers, and streams them."""

    async def handler(server: Server, request: Request) -> Response:
        body = object_of(request.scope["body"])
        name = _model_of(body)

        @asynccontextmanager
        async def begun() -> AsyncIterator[tuple[Written, AsyncGenerator[Piece, None]]]:
            async with server.pool.lend(name) as model:
                call = await server.read(request, partial(read, body, model))
                server.begin(request, call)
                async with aclosing(server.pieces(request, model, call)) as found:
                    yield write(call, body, model), found

        async def whole() -> dict[str, Any]:
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


def _asking(question: Callable[[Mapping[str, Any], Served], Awaitable[Any]]) -> Handler:
    """An endpoint with a body that a model answers at once."""

    async def handler(server: Server, request: Request) -> Response:
        body = object_of(request.scope["body"])

        async def answered() -> Any:
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
MESSAGES: dict[str, Any] = {"done": b"", "event": named_event, "error": anthropic_body}
RESPONSES: dict[str, Any] = {"done": b"", "event": named_event, "error": error_event, "first_error": ApiError.body}

ROUTES: list[tuple[str, tuple[str, ...], Handler]] = [
    ("POST", ("/v1/chat/completions", "/chat/completions"), _answering(chat_call, chat_objects)),
    ("POST", ("/v1/completions", "/completions"), _answering(text_call, text_objects)),
    ("POST", ("/v1/messages",), _answering(message_call, MessageObject, **MESSAGES)),
    ("POST", ("/v1/messages/count_tokens",), _asking(count_tokens)),
    ("POST", ("/v1/responses", "/responses"), _answering(response_call, ResponseObject, **RESPONSES)),
    ("GET", ("/v1/models", "/models"), _models),
    ("GET", ("/v1/models/{name:path}",), _a_model),
    ("POST", ("/tokenize",), _asking(native.tokenize)),
    ("POST", ("/detokenize",), _asking(native.detokenize)),
    ("POST", ("/apply-template",), _asking(native.apply_template)),
    ("GET", ("/health", "/v1/health"), _health),
    ("GET", ("/props",), _props),
    ("GET", ("/slots",), _slots),
    ("GET", ("/metrics",), _metrics),
]
