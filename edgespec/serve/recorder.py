"""The counts and the log of requests."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.requests.bad_input import JsonObject
from edgespec.serve.metrics import Metrics

Log = Callable[[JsonObject], None]
"""Called with a record of each request that has ended, as plain data."""


class Recorder:
    """Counts and logs each request after its answer was sent, refused requests too."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log: Log) -> None:
        self._app, self._metrics, self._log = app, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s, status = perf_counter(), 499  # unless anything is sent
        scope["record"] = dict[str, object]()

        async def noticing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noticing)
        finally:
            self._metrics.requests[scope.get("route_path", "other"), status] += 1
            about = {"event": "request", "method": scope["method"], "path": scope["path"], "status": status}
            self._log(about | {"seconds": round(perf_counter() - started_s, 3)} | scope["record"])
