"""An MCP server, to which a separate process talks (`host.py`), within limits of time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Literal, TypedDict

import psutil

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.processes.child import Limits, Meter, running
from edgespec.text.printable import one_line
from edgespec.tools.config import ServerConfig

START_S = 60.0  # npx and uvx may download the server first
CALL_S = 300.0
LEAVE_S = 3.0  # for a server to end before it is killed
LOOK_S = 0.05
# Of the process that parses the messages: memory, and processor time within WINDOW_S. A server that floods it exceeds
# one of them.
LIMITS, WINDOW_S = Limits(cpu_s=30.0, memory_bytes=512 << 20), 60.0
EXCEEDED = {"time": "it sends messages without end", "memory": "it sends more than fits into memory"}
STDERR_PIECE, STDERR_S = 1 << 16, 0.005  # reading no faster keeps a flood from taking a processor
MOST_WORDS = 300

State = Literal["starting", "ready", "failed", "closed"]


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a call as text. `left_out` counts the characters of its end that were not passed on; `how` is
    "cancelled" or "failed" if there is no result of the tool."""

    text: str
    is_error: bool = False
    left_out: int = 0
    how: Literal["", "cancelled", "failed"] = ""


class ToolDescription(TypedDict):
    """A tool as the process of its server describes it; `problem` is the reason why it cannot be used."""

    name: str
    description: str
    parameters: dict[str, object]
    problem: str


class _Result(TypedDict):
    text: str
    is_error: bool
    left_out: int


class ToolServer(Closable):
    """A server that runs, or has failed (`problem`). `tools` are the objects of `host.py` once it is ready.

    Several threads may use it. Each wait has a limit.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config, self.call_s, self.limits = config, CALL_S, LIMITS
        self.state: State = "failed" if config.problem else "closed"
        self.problem = config.problem
        self.tools: list[ToolDescription] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._changed = threading.Condition()
        self._replies: dict[int, _Result | None] = {}  # None: not there yet
        self._n_calls = 0

    def start(self) -> None:
        """Start the server again if it does not run, without waiting until it is ready."""
        if self.config.problem or self.state in ("starting", "ready"):
            return
        self.state, self.problem, self._replies = "starting", "", {}
        try:
            process = subprocess.Popen(
                running("edgespec.tools.host"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=os.name == "posix",  # Ctrl-C and the end of the terminal are for the chat
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:
            self._fail(f"its process cannot be started: {error}")
            return
        self._process = process
        self._words = deque[bytes](maxlen=1)
        assert process.stdout is not None and process.stderr is not None
        errors = threading.Thread(target=self._keep_words, args=(process.stderr,), daemon=True)
        for thread in (
            errors,
            threading.Thread(target=self._listen, args=(process, process.stdout, errors), daemon=True),
            threading.Thread(target=self._watch, args=(process,), daemon=True),
        ):
            thread.start()
        self._send(self.config.as_json())

    def wait(self, cancel: CancelFlag) -> None:
        """Wait until the server is ready or has failed, or `cancel` is set."""
        until_s = time.monotonic() + START_S
        with self._changed:
            while self.state == "starting" and not cancel.is_set():
                if time.monotonic() > until_s:
                    self._fail(f"it was not ready after {START_S:.0f} seconds")
                self._changed.wait(LOOK_S)
        if self.state == "failed" and self._process is not None:
            _kill(self._process)

    def call(self, tool: str, arguments: Mapping[str, object], cancel: CancelFlag) -> Reply:
        """Call a tool, and wait for its result."""
        until_s = time.monotonic() + self.call_s
        with self._changed:
            if self.state != "ready":
                return self._no_reply()
            self._n_calls += 1
            number = self._n_calls
            self._replies[number] = None
        self._send({"id": number, "tool": tool, "arguments": dict(arguments)})
        with self._changed:
            while (reply := self._replies[number]) is None:
                if self.state != "ready":
                    return self._no_reply()
                if cancel.is_set() or time.monotonic() > until_s:
                    break
                self._changed.wait(LOOK_S)
            del self._replies[number]
        if reply is not None:
            return Reply(reply["text"], reply["is_error"], reply["left_out"])
        self._send({"cancel": number})
        if cancel.is_set():
            return Reply("", how="cancelled")
        return Reply(f"no reply after {self.call_s:.0f} seconds", is_error=True, how="failed")

    def close(self) -> None:
        """End the server, at once if it does not end by itself."""
        self.leave()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVE_S)
            _kill(self._process)

    def leave(self) -> None:
        """Ask the server to end, without waiting for it."""
        if self._process is not None:
            self.state = "closed"
            with suppress(OSError):  # of what it has not read
                if self._process.stdin is not None:
                    self._process.stdin.close()

    # --- the process --------------------------------------------------------------------------------------------------

    def _send(self, message: Mapping[str, object]) -> None:
        stdin = self._process.stdin if self._process else None
        with suppress(OSError, ValueError):  # it has ended, which `_listen` notices
            if stdin is not None:
                stdin.write(json.dumps(message).encode() + b"\n")
                stdin.flush()

    def _listen(self, process: subprocess.Popen[bytes], replies: IO[bytes], errors: threading.Thread) -> None:
        why = ""
        for line in replies:
            message = json.loads(line)
            why = str(message.get("failed", ""))
            with self._changed:
                if "tools" in message:
                    self.tools, self.state = message["tools"], "ready"
                elif message.get("id") in self._replies:
                    self._replies[message["id"]] = message
                self._changed.notify_all()
        errors.join(1.0)  # a process that the server has started may still hold its stderr
        said = one_line(b"".join(self._words).decode("utf-8", "replace"))[-MOST_WORDS:]
        self._end(process, "; ".join(filter(None, (why or "its process has ended", said))))

    def _keep_words(self, stderr: IO[bytes]) -> None:
        """Read what the server and its client write to stderr, and keep the last line."""
        with stderr:
            rest = b""
            while piece := os.read(stderr.fileno(), STDERR_PIECE):
                lines = [line for line in (rest + piece)[-STDERR_PIECE:].split(b"\n") if line.strip()]
                rest = lines[-1] if lines and not piece.endswith(b"\n") else b""
                self._words.extend(lines)
                time.sleep(STDERR_S)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """End a process that exceeds a limit."""
        whole = Meter(process.pid)
        while process.poll() is None:
            recent, until_s = Meter(process.pid), time.monotonic() + WINDOW_S
            while process.poll() is None and time.monotonic() < until_s:
                exceeded = whole.exceeded(Limits(memory_bytes=self.limits.memory_bytes))
                if exceeded := exceeded or recent.exceeded(Limits(cpu_s=self.limits.cpu_s)):
                    self._end(process, EXCEEDED[exceeded])
                time.sleep(LOOK_S)

    def _end(self, process: subprocess.Popen[bytes], why: str) -> None:
        """End a process, which may have been replaced by another one."""
        if process is self._process:
            self._fail(why)
        _kill(process)

    def _fail(self, why: str) -> None:
        with self._changed:
            if self.state in ("starting", "ready"):
                self.state, self.problem = "failed", why
            self._changed.notify_all()

    def _no_reply(self) -> Reply:
        return Reply(f"the server {self.config.name} has failed: {self.problem}", is_error=True, how="failed")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    started: list[psutil.Process] = []
    with suppress(psutil.Error):
        started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in started:
        with suppress(psutil.Error):
            child.kill()
    process.wait()
