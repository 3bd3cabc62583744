"""A server on a port of this machine, in this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from edgespec.runtime.worker import Worker
from edgespec.serve.app import Route, make_app
from edgespec.serve.guard import Rules
from edgespec.serve.http import uvicorn_server
from edgespec.serve.pool import Offer, Pool
from edgespec.serve.served import Served
from edgespec.settings import Request


@dataclass(slots=True)
class Serving:
    """The server, its first model, and what it has logged."""

    url: str
    pool: Pool
    name: str
    records: list[Mapping[str, Any]]
    notes: list[str]

    @property
    def served(self) -> Served:
        found = self.pool._places[self.name].served
        assert found is not None
        return found

    def client(self, **options: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60, **options)

    def posted(self, path: str, body: Mapping[str, Any], status: int = 200) -> Any:
        """Post a body, and return the answer, which must have this status."""
        with self.client() as client:
            response = client.post(path, json=body)
        assert response.status_code == status, response.text
        return response.json()


def posted(server: Serving, path: str, status: int = 200, **body: Any) -> Any:
    """Post a body of these fields, as `Serving.posted`."""
    return server.posted(path, body, status)


@contextmanager
def serving(
    worker: Worker,
    *,
    rules: Rules | None = None,
    queue: int = 64,
    name: str = "demo",
    others: Sequence[Offer] = (),
    models_max: int = 4,
    idle_s: float | None = None,
    more: Sequence[Route] = (),
) -> Iterator[Serving]:
    """Serve a loaded model, and others when they are asked for, with `more` endpoints."""
    found: list[Pool] = []
    records: list[Mapping[str, Any]] = []
    notes: list[str] = []
    named = [Offer(name, worker.settings, Request(), idle_s), *others]

    def open_pool() -> Pool:
        pool = Pool(named, dict, notes.append, records.append, max_loaded=models_max, max_waiting=queue)
        pool.adopt(name, worker)
        found.append(pool)
        return pool

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as sock:
        server = uvicorn_server(make_app(open_pool, rules or Rules(), records.append, more))
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield Serving(f"http://127.0.0.1:{sock.getsockname()[1]}", found[0], name, records, notes)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
