"""HTTP for the application: uvicorn without output on the terminal, and with limits of time for clients."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG = 1024  # connections that wait to be accepted
REQUEST_S = 60.0  # for the head of a connection's next request to arrive
SENT = 2**18  # bytes that the system keeps for a client that does not read
FINISH_S = 100  # for answers to finish when the server is stopped; docs/server.md gives systemd 120 seconds
READ_S = 20.0  # for a client to continue reading, once a buffer of 64 KB is full


class Protocol(H11Protocol):
    """A connection, which is closed if its client sends no request or reads no answer for too long."""

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

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def _wait(self) -> None:
        """Limit the time until the head of the next request has arrived."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(REQUEST_S, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class Server(uvicorn.Server):
    """A server that leaves signals to the program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def uvicorn_server(app: Any) -> uvicorn.Server:
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
        timeout_keep_alive=30,
        timeout_graceful_shutdown=FINISH_S,
        backlog=BACKLOG,
    )
    return Server(config)
