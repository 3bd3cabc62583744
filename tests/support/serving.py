"""A server on a port of this machine, in this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from edgespec.cli.commands.serve import uvicorn_server
from edgespec.runtime.worker import Worker
from edgespec.serve.app import make_app
from edgespec.serve.guard import Rules
from edgespec.serve.pool import Pool, Served
from edgespec.settings import Request


@dataclass(slots=True)
class Serving:
    """The server, its model, and what it has logged."""

    url: str
    served: Served
    records: list[Mapping[str, Any]]
    notes: list[str]

    def client(self, **options: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60, **options)


@contextmanager
def serving(worker: Worker, *, rules: Rules | None = None, queue: int = 64, name: str = "demo") -> Iterator[Serving]:
    """Serve a loaded model."""
    found: list[Served] = []
    records: list[Mapping[str, Any]] = []
    notes: list[str] = []

    def open_pool() -> Pool:
        found.append(Served(name, worker, Request(), notes.append))
        return Pool(found, queue)

    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = uvicorn_server(make_app(open_pool, rules or Rules(), records.append))
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield Serving(f"http://127.0.0.1:{sock.getsockname()[1]}", found[0], records, notes)
        finally:
            server.should_exit = True
            thread.join(30)
