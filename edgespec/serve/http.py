"""HTTP for the application: uvicorn without output on the terminal, and with limits of time for clients."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.applications import Starlette

BACKLOG = 1024  # connections that wait to be accepted
REQUEST_S = 60.0  # for the head of a request to arrive, from the start of a connection or from the first byte
IDLE_S = 330  # between two requests; if a client's pool kept a connection longer, its next request could be lost
SENT = 2**18  # bytes that the system keeps for a client that does not read
FINISH_S = 100  # for answers to finish when the server is stopped; docs/server.md gives systemd 120 seconds
READ_S = 20.0  # for a client to continue reading, once a buffer of 64 KB is full
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # of what a connection needs
PAUSE_S = 0.5  # after which connections may be accepted again, less than asyncio's second
WARNED_EVERY_S = 60.0


class Protocol(H11Protocol):
    """A connection, which is closed if its client sends no request or reads no answer for too long."""

    _is_idle = False
    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._waiting, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self._is_idle = False
            self._wait()
        super().data_received(data)

    def on_response_complete(self) -> None:
        super().on_response_complete()  # starts a timer of IDLE_S
        self._is_idle = not self.conn.trailing_data[0]
        if not self._is_idle:
            self._wait()
        elif self._waiting is not None:
            self._waiting.cancel()

    def _wait(self) -> None:
        """Limit the time until the head of the next request has arrived."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(REQUEST_S, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class Listener(socket.socket):
    """A listening socket that accepts nothing for a moment once the process has run out of file descriptors.

    asyncio stops listening for a second then, but still tries to accept all connections that wait, and starts to listen
    again as many times.
    """

    _closed_until_s = 0.0

    def accept(self) -> tuple[socket.socket, object]:
        if monotonic() < self._closed_until_s:
            raise BlockingIOError
        try:
            return super().accept()
        except OSError as error:
            if error.errno in SHORT:
                self._closed_until_s = monotonic() + PAUSE_S
            raise


class Server(uvicorn.Server):
    """A server that leaves signals to the program. `warn` is called at most once a minute while no connection can be
    accepted."""

    def __init__(self, config: uvicorn.Config, warn: Callable[[str], None]) -> None:
        super().__init__(config)
        self._warn, self._warned_s = warn, -inf

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._handle)
        listeners: list[socket.socket] = [Listener(fileno=each.dup().detach()) for each in sockets or ()]
        await super().startup(listeners)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Handle an error of the event loop."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in SHORT and "socket" in context):
            loop.default_exception_handler(context)
        elif monotonic() - self._warned_s > WARNED_EVERY_S:
            self._warned_s = monotonic()
            self._warn(
                f"no more connections can be accepted until others end: {error.strerror} "
                "(raise the limit of open files, ulimit -n)"
            )


def uvicorn_server(app: Starlette, warn: Callable[[str], None] = lambda text: None) -> uvicorn.Server:
    """Return the HTTP server of an application."""
    # An answer that is cut off because the server stops is not an error.
    logging.getLogger("uvicorn.error").addFilter(lambda record: "CancelledError" not in str(record.exc_info))
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level=logging.ERROR,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=FINISH_S,
        backlog=BACKLOG,
    )
    return Server(config, warn)
