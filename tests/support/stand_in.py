"""A server of another program, which answers as llama.cpp's does, or fails in the way that a test wants."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from edgespec.serve.http import uvicorn_server

PROPS = {"default_generation_settings": {"n_ctx": 512}, "total_slots": 2, "chat_template": "yes"}
ENGINE_ERROR = {"error": {"message": "the model process was killed", "type": "server_error", "code": "engine_error"}}


@dataclass(slots=True)
class StandIn:
    """A server without a model, whose answers are the prompt and `text`.

    `fails` says how the next requests for answers fail: "busy", "lost" (in the middle), "engine", "late" (an error in
    the middle), "odd" (no chunks). The engine fails at prompts with the text `poison`, and connections end at prompts
    with the text `deadly`. If `is_gone`, the server no longer describes itself.
    """

    url: str = ""
    text: str = " and so on"
    fails: deque[str] = field(default_factory=deque)
    poison: str = ""
    deadly: str = ""
    props: dict[str, Any] = field(default_factory=lambda: dict(PROPS))
    bodies: list[dict[str, Any]] = field(default_factory=list)
    is_gone: bool = False

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        prompt = body.get("prompt") or body["messages"][-1]["content"]
        how = self.fails.popleft() if self.fails else ""
        how = "lost" if self.deadly and self.deadly in prompt else how
        if how == "busy":
            return JSONResponse({"error": {"message": "try again"}}, 503, {"Retry-After": "0"})
        if how == "engine" or (self.poison and self.poison in prompt):
            return JSONResponse(ENGINE_ERROR, 503)
        return StreamingResponse(self._chunks(prompt + self.text, how), media_type="text/event-stream")

    async def _chunks(self, text: str, how: str) -> AsyncIterator[str]:
        yield ": ping\n\n"
        words = text.split(" ")
        for index, word in enumerate(words):
            if index == 2 and how == "lost":
                raise ConnectionAbortedError  # ends the connection without an end of the body
            if index == 2 and how == "late":
                yield f"data: {json.dumps(ENGINE_ERROR)}\n\n"
                return
            said = (" " if index else "") + word
            yield "data: nonsense\n\n" if how == "odd" else _chunk({"delta": {"content": said}, "finish_reason": None})
        timings = {"prompt_n": 3, "cache_n": 1, "predicted_n": len(words), "predicted_ms": 20.0, "draft_n": 4}
        yield _chunk({"delta": {}, "finish_reason": "stop"}, timings=timings | {"draft_n_accepted": 3})
        yield "data: [DONE]\n\n"


def _chunk(choice: dict[str, Any], **more: Any) -> str:
    return f"data: {json.dumps({'choices': [choice], **more}, ensure_ascii=False)}\n\n"


@contextmanager
def stand_in(**how: Any) -> Iterator[StandIn]:
    """Run one on a port of this machine."""
    it = StandIn(**how)

    def told(value: Callable[[Any], Any]) -> Any:
        async def endpoint(request: Request) -> Response:
            if it.is_gone:
                return Response(status_code=404)
            return JSONResponse(value(await request.json() if request.method == "POST" else None))

        return endpoint

    routes = [
        Route("/v1/models", told(lambda _: {"data": [{"id": "other"}]})),
        Route("/props", told(lambda _: it.props)),
        Route("/health", told(lambda _: {"status": "ok"})),
        Route("/apply-template", told(lambda body: {"prompt": body["messages"][-1]["content"]}), methods=["POST"]),
        Route("/tokenize", told(lambda body: {"tokens": [0] * len(body["content"])}), methods=["POST"]),
        Route("/v1/chat/completions", it.answer, methods=["POST"]),
        Route("/v1/completions", it.answer, methods=["POST"]),
    ]
    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = uvicorn_server(Starlette(routes=routes))
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        it.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        try:
            yield it
        finally:
            server.should_exit = server.force_exit = True
            thread.join(30)
