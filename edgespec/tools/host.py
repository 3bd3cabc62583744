"""The process between a chat and one MCP server: it runs the client of the `mcp` package.

A server is a stranger's program, and its messages are parsed before their size is known. In this process they cost the
chat neither memory nor time, and if the chat is killed, its end of the pipe closes and this process ends the server.

The first line from the parent is the server (`ServerConfig`), each further line a call `{"id": N, "tool": NAME,
"arguments": {...}}` or `{"cancel": N}`. The lines to the parent are `{"tools": [...]}` once, a result
`{"id": N, "text": ..., "is_error": ..., "left_out": N}` for each call, and `{"failed": WHY}` before the end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import httpx2
import psutil
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, CallToolResult, ContentBlock, Tool

from edgespec.files.proxies import client_options

if TYPE_CHECKING:
    from edgespec.tools.server import ToolDescription

MOST_TEXT = 1 << 18  # characters of a result that are passed on
MOST_TOOLS, MOST_PAGES = 256, 32
MOST_SCHEMA, MOST_DESCRIPTION = 1 << 15, 4_000  # characters of each tool
LEAVING_S = 6.0  # for the server to end by itself
CONNECT_S, READ_S = 30.0, 600.0  # of HTTP; the parent has the limit of a call
CLOSED = "Connection closed"  # the message of `mcp`
DEAF_TO = ("SIGINT", "SIGHUP", "SIGBREAK")


def main() -> None:
    """Serve the parent until it closes its end."""
    for name in DEAF_TO:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    logging.disable()  # stderr is for what the server says
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # nothing but replies may get there
    config = json.loads(sys.stdin.buffer.readline() or b"null")
    if config is not None:
        asyncio.run(_Host(config, replies).run())
    os._exit(0)  # the interpreter would wait for the thread that reads stdin


class _Host:
    def __init__(self, config: dict[str, Any], replies: TextIO) -> None:
        self._config, self._replies = config, replies
        self._calls: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Connect, and answer the questions of the parent. The end of its pipe cancels this task."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        questions = asyncio.Queue[dict[str, object]]()

        def listen() -> None:
            for line in sys.stdin.buffer:
                loop.call_soon_threadsafe(questions.put_nowait, json.loads(line))
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(task.cancel)
            _end_all(LEAVING_S)

        threading.Thread(target=listen, daemon=True).start()
        try:
            async with self._client() as client:
                self._send(tools=await _tools(client))
                while True:
                    self._take(client, await questions.get())
        except asyncio.CancelledError:
            return
        except BaseException as error:
            self._send(failed=_words(error))

    def _client(self) -> Client:
        config = self._config
        if config["url"]:
            timeout = httpx2.Timeout(CONNECT_S, read=READ_S)
            http = httpx2.AsyncClient(headers=config["headers"], timeout=timeout, **client_options(config["url"]))
            return Client(streamable_http_client(config["url"], http_client=http), cache=None)
        server = StdioServerParameters(
            command=config["command"],
            args=list(config["args"]),
            env=config["env"],
            cwd=config["cwd"],
            encoding_error_handler="replace",
        )
        return Client(stdio_client(server, errlog=sys.stderr), cache=None)

    def _take(self, client: Client, question: dict[str, Any]) -> None:
        if "cancel" in question:
            if (call := self._calls.get(question["cancel"])) is not None:
                call.cancel()
            return
        number = question["id"]
        call = asyncio.create_task(self._answer(client, number, question["tool"], question["arguments"]))
        self._calls[number] = call
        call.add_done_callback(lambda _: self._calls.pop(number, None))

    async def _answer(self, client: Client, number: int, tool: str, arguments: dict[str, object]) -> None:
        try:
            result = await client.call_tool(tool, arguments)
            text, is_error = _text(result), bool(result.is_error)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and error.message == CLOSED:  # servers use this code, too
                self._send(failed="it closed the connection")
                _end_all(0.0)
            text, is_error = error.message, True
        except Exception as error:
            text, is_error = f"the reply of the server is not valid: {_words(error)}", True
        self._send(id=number, text=text[:MOST_TEXT], is_error=is_error, left_out=max(0, len(text) - MOST_TEXT))

    def _send(self, **message: object) -> None:
        with suppress(OSError):  # the parent has ended
            print(json.dumps(message), file=self._replies, flush=True)


async def _tools(client: Client) -> list[ToolDescription]:
    """Return the tools of the server, each with what is wrong with it, if anything is."""
    found: list[ToolDescription] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += map(_described, page.tools)
        cursor = page.next_cursor
        if not cursor or len(found) >= MOST_TOOLS:
            break
    return found[:MOST_TOOLS]


def _described(tool: Tool) -> ToolDescription:
    schema = tool.input_schema
    is_large = len(json.dumps(schema)) > MOST_SCHEMA
    problem = f"its schema has more than {MOST_SCHEMA:,} characters" if is_large else ""
    return {
        "name": tool.name[:200],
        "description": (tool.description or "")[:MOST_DESCRIPTION],
        "parameters": {} if is_large else schema,
        "problem": problem,
    }


def _text(result: CallToolResult) -> str:
    """Return what a model can read of a result."""
    return "\n".join(map(_part, result.content)) or json.dumps(result.structured_content, ensure_ascii=False)


def _part(part: ContentBlock) -> str:
    if part.type == "text":
        return str(part.text)
    if part.type == "resource" and hasattr(part.resource, "text"):
        return str(part.resource.text)
    if part.type == "resource_link":
        return f"{part.name}: {part.uri}"
    kind = getattr(part, "mime_type", None) or part.type
    return f"[{kind}: only text can be passed on]"


def _words(error: BaseException) -> str:
    """Return an error as one line; of a group the first error in it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no program {Path(str(error.filename)).name}"
    said = f"{error}".partition("For further information visit")[0]  # of pydantic
    return " ".join(said.split())[:500] or type(error).__name__


def _end_all(within_s: float) -> None:
    """End this process and all that it has started, after some time to end by themselves."""
    time.sleep(within_s)
    with suppress(psutil.Error):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
    os._exit(1)


if __name__ == "__main__":
    main()
