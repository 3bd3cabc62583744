"""A client of the page's endpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from serving import Serving

from edgespec.page.chats import Chats

View = dict[str, Any]


@dataclass
class PageClient:
    """What the page in a browser would send to a server."""

    server: Serving
    chats: Chats

    def get(self, path: str, status: int = 200, headers: Mapping[str, str] | None = None, **query: str) -> View:
        with self.server.client() as client:
            response = client.get(f"/page/{path}", params=query, headers=headers)
        assert response.status_code == status, response.text
        return dict(response.json())

    def post(self, path: str, status: int = 200, **body: Any) -> View:
        return dict(self.server.posted(f"/page/{path}", body, status))

    @contextmanager
    def stream(self, path: str = "answer", **body: Any) -> Iterator[Iterator[View]]:
        """Yield the events of an answer as they come; leaving the block closes the connection."""
        with self.server.client() as client, client.stream("POST", f"/page/{path}", json=body) as response:
            assert response.status_code == 200, response.read()
            yield (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))

    def answer(self, path: str = "answer", **body: Any) -> list[View]:
        """Return all events of an answer."""
        with self.stream(path, **body) as events:
            return list(events)

    def ask(self, text: str, chat: str | None = None, **more: Any) -> View:
        """Send a message, and return the chat as it is then."""
        settings = {"temp": "0", "max-tokens": "12"} | more.pop("settings", {})
        events = self.answer(chat=chat, text=text, settings=settings, **more)
        assert events[-1]["type"] == "end", events[-1]
        return self.get("chat", id=events[-1]["chat"]["id"])


def of(events: list[View], kind: str) -> list[View]:
    """Return the events of a kind."""
    return [event for event in events if event["type"] == kind]


def text_of(events: list[View]) -> str:
    return "".join(event["text"] for event in of(events, "token"))
