"""An MCP server that does one thing wrong, without the `mcp` package: `python hostile_tool_server.py KIND`."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

TOOL = {"name": "look", "description": "Look.", "inputSchema": {"type": "object"}}
NOTE = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n' * 100
FOREVER = 1000.0


def send(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def flood(write: Callable[[str], object], text: str) -> None:
    while True:
        write(text)


def tools(kind: str) -> dict[str, Any]:
    """Return the list of tools: its kind, or tools that are named after what they do wrong."""
    large = {"type": "object", "title": "x" * 10**5}
    wrong: dict[str, dict[str, Any]] = {
        "no name": {"tools": [{"name": 5}]},
        "no schema": {"tools": [TOOL | {"inputSchema": "x"}]},
        "odd": {
            "tools": [TOOL | {"inputSchema": large}, TOOL | {"name": "see"}, *[TOOL | {"name": "a b\x1b[2J"}] * 5000]
        },
        "pages": {"tools": [TOOL], "nextCursor": "more"},
    }
    return wrong.get(kind, {"tools": [TOOL | {"name": name} for name in ("look", *CALLS)]})


CALLS = ("wrong_id", "wrong_result", "no_json", "error", "picture", "flood")


def call(kind: str, id: int) -> None:
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": id}
    if kind == "wrong_id":
        send(reply | {"id": 9999, "result": {"content": []}})
    elif kind == "wrong_result":
        send(reply | {"result": {"content": "x"}})
    elif kind == "no_json":
        sys.stdout.write("{{{\n")
        sys.stdout.flush()
    elif kind == "error":
        send(reply | {"error": {"code": -32000, "message": "out of\x1b[2J order"}})
    elif kind == "picture":
        parts: list[dict[str, Any]] = [
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            {"type": "resource_link", "name": "report", "uri": "file:///report.txt"},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
        ]
        send(reply | {"result": {"content": parts}})
    elif kind == "flood":
        flood(sys.stdout.write, NOTE)
    else:
        send(reply | {"result": {"content": [{"type": "text", "text": "seen"}]}})


def main(kind: str) -> None:
    if kind == "hangs":
        time.sleep(FOREVER)
    if kind == "deaf":
        for name in ("SIGTERM", "SIGHUP", "SIGINT"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
    if kind == "one line":
        flood(sys.stdout.write, "x" * 2**16)
    for line in sys.stdin:
        message = json.loads(line)
        id, method = message.get("id"), message.get("method")
        if method == "initialize":
            about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            send({"jsonrpc": "2.0", "id": id, "result": about | {"serverInfo": {"name": "h", "version": "1"}}})
            if kind == "stderr":
                threading.Thread(target=flood, args=(sys.stderr.write, "e" * 2**16), daemon=True).start()
        elif method == "tools/list":
            send({"jsonrpc": "2.0", "id": id, "result": tools(kind)})
        elif method == "tools/call":
            call(message["params"]["name"], id)
        elif id is not None:
            send({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "unknown"}})
    if kind == "deaf":
        time.sleep(FOREVER)


if __name__ == "__main__":
    main(sys.argv[1])
