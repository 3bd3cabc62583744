"""Server-sent events, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edgespec.requests.bad_input import JsonObject
from edgespec.serve.chat import EventStyle, line
from edgespec.serve.errors import ApiError, body_for, drop_frames, error_for

FIRST_S = 5.0  # how long an error may still be an HTTP status
PING_S = 15.0
PIECE = 2**16  # bytes; a connection keeps as many before the next piece waits for the client

Made = TypeVar("Made")


class ClientLeft(Exception):  # noqa: N818 - nothing went wrong
    """The client has closed the connection."""


async def while_connected(receive: Receive, work: Coroutine[object, object, Made]) -> Made:
    """Return the result of `work`. When the client leaves, cancel the work and raise ClientLeft."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_cancel_when_left(receive, task))
    try:
        return await task
    except asyncio.CancelledError:
        if gone.done() and not gone.cancelled():
            raise ClientLeft from None
        raise
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _cancel_when_left(receive: Receive, task: asyncio.Task[object]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


class EventStream(Response):
    """Sends chunks as they are generated, in the style of a format. An error before the first chunk is sent as an HTTP
    status, a later one as an event."""

    def __init__(self, chunks: AsyncGenerator[JsonObject, None], style: type[EventStyle]) -> None:
        self._chunks, self._style = chunks, style
        self.status_code, self.background = 200, None
        self._sending = asyncio.Lock()
        self._has_begun = False
        self._sent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientLeft, OSError):
            await while_connected(receive, self._send(scope, receive, send))

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        pings = asyncio.create_task(self._ping(send))
        try:
            async with aclosing(self._chunks):
                while isinstance(event := await self._next(), bytes):
                    await self._write(send, event)
            if event is None:
                await self._write(send, self._style.done)
            elif self._has_begun:
                drop_frames(event)
                await self._write(send, self._style.event(self._style.error(event)) + self._style.done)
            else:
                pings.cancel()
                await error_response(event, scope)(scope, receive, send)
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            pings.cancel()
            await asyncio.gather(pings, return_exceptions=True)

    async def _next(self) -> bytes | ApiError | None:
        """Return the next chunk for the client; None after the last one. Every error is sent: a stream without one
        would look like a whole answer."""
        try:
            chunk = await anext(self._chunks, None)
            return None if chunk is None else self._style.event(chunk)
        except Exception as error:
            return error_for(error)

    async def _write(self, send: Send, data: bytes) -> None:
        """Send a part of the body, the first one after the headers."""
        async with self._sending:
            if not self._has_begun:
                headers = [(b"content-type", self._style.media_type.encode()), (b"cache-control", b"no-store")]
                headers.append((b"x-accel-buffering", b"no"))
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                self._has_begun = True
            await _write(send, data)
            self._sent_s = asyncio.get_running_loop().time()

    async def _ping(self, send: Send) -> None:
        """Send the headers if there is no chunk for some time, and pings while there are no chunks."""
        now_s = asyncio.get_running_loop().time
        await asyncio.sleep(FIRST_S)
        if not self._has_begun:
            await self._write(send, b"")
        while True:
            if (wait_s := self._sent_s + PING_S - now_s()) <= 0:
                await self._write(send, self._style.ping)
                wait_s = PING_S
            await asyncio.sleep(wait_s)


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
    drop_frames(error)
    return Response(line(body_for(scope["path"], error)), error.status, error.headers, "application/json")


def _write(send: Send, data: bytes) -> Awaitable[None]:
    return send({"type": "http.response.body", "body": data, "more_body": True})
