"""Server-sent events, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edgespec.serve.chat import Writer, line
from edgespec.serve.errors import ApiError, body_for, error_for

FIRST_S = 5.0  # how long an error may still be an HTTP status
PING_S = 15.0
PIECE = 2**16  # bytes; a connection keeps as many before the next piece waits for the client

Chunk = Mapping[str, Any]
Made = TypeVar("Made")


class ClientLeft(Exception):  # noqa: N818 - nothing went wrong
    """The client has closed the connection."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Made]) -> Made:
    """Return the result of `work`. When the client leaves, cancel the work and raise ClientLeft."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
        # The traceback of an error would refer to the tasks, and so keep a body in memory until the next collection.
        del task, gone


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends chunks as they are generated, in the style of a format. An error before the first chunk is sent as an HTTP
    status, a later one as an event."""

    def __init__(self, chunks: AsyncGenerator[Chunk, None], style: type[Writer]) -> None:
        self._chunks, self._style = chunks, style
        self.status_code, self.background = 200, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientLeft, OSError):
            await while_connected(receive, self._send(scope, receive, send))

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = self._next()
        try:
            await asyncio.wait({task}, timeout=FIRST_S)
            if task.done() and (error := _error(task)) is not None:
                await error_response(error, scope)(scope, receive, send)
                return
            headers = [(b"content-type", self._style.media_type.encode()), (b"cache-control", b"no-store")]
            headers.append((b"x-accel-buffering", b"no"))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while True:
                while not (await asyncio.wait({task}, timeout=PING_S))[0]:
                    await _write(send, self._style.ping)
                if (error := _error(task)) is not None:
                    await _write(send, self._style.event(self._style.error(error)) + self._style.done)
                    break
                event = task.result()
                if event is None:
                    await _write(send, self._style.done)
                    break
                task = self._next()
                await _write(send, event)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._chunks.aclose()

    def _next(self) -> asyncio.Task[bytes | None]:
        """Generate and encode the next chunk in one task, so that errors of both are handled in the same way."""

        async def step() -> bytes | None:
            chunk = await anext(self._chunks, None)
            return None if chunk is None else self._style.event(chunk)

        return asyncio.create_task(step())


class HeldAnswer(Response):
    """A large answer, sent piece by piece as the client reads it. `release` is called once it is sent, or the client
    has left."""

    media_type = "application/json"

    def __init__(self, content: str, release: Callable[[], object]) -> None:
        super().__init__(content)
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for start in range(0, len(self.body), PIECE):
                await _write(send, bytes(self.body[start : start + PIECE]))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._release()


def error_response(error: ApiError, scope: Scope) -> Response:
    """Return an error in the style of the endpoint."""
    return Response(line(body_for(scope["path"], error)), error.status, error.headers, "application/json")


def _error(task: asyncio.Task[bytes | None]) -> ApiError | None:
    """Return the error with which a task ended, if any. Every error is sent: a stream without one would look like a
    whole answer."""
    error = task.exception()
    return None if error is None else error_for(error)


def _write(send: Send, data: bytes) -> Awaitable[None]:
    return send({"type": "http.response.body", "body": data, "more_body": True})
