"""Render chat templates within limits of time, memory and length, in a child process (`template_child.py`).

No limit inside this process would be complete: a single operation of Python, such as a power of integers or the text of
nested lists, can take hours or all of the memory, and cannot be interrupted.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

from edgespec.closable import Closable
from edgespec.errors import GenerationError, told_as
from edgespec.llama.limits import LOOK_S, Limits, Meter
from edgespec.text.figures import size_of

# -P: a file jinja2.py in the folder edgespec is called from must not pass for jinja2.
CHILD = (sys.executable, "-P", "-X", "utf8", "-m", "edgespec.llama.template_child")
# Processor time, which a busy machine does not use up. The largest templates take about a tenth of a second.
TIME_S = 3.0
# The clock's time, for a child that gets no processor time at all.
STUCK_S = 60.0
# A conversation of n characters as JSON may take MEMORY_FACTOR * n bytes and LENGTH_FACTOR * n characters more.
MEMORY_BYTES, MEMORY_FACTOR = 256 << 20, 40
LENGTH, LENGTH_FACTOR = 1_000_000, 8
# A template that exceeds a limit with a conversation shorter than this is not tried again: others would wait for it.
SHORT = 16_384


class TemplateFailedError(Exception):
    """A template that was not rendered. `failed` is "parse", "render" or "limit"."""

    def __init__(self, failed: str, why: str) -> None:
        super().__init__(why)
        self.failed, self.why = failed, why


@cache
def renderer() -> Renderer:
    """The renderer of this process: one child is enough for all models."""
    made = Renderer()
    atexit.register(made.close)
    return made


class Renderer(Closable):
    """A child process that renders templates, started when there is something to render and after each failure.

    Several threads may call `render`; the child renders one template at a time.
    """

    def __init__(self, *, time_s: float = TIME_S, stuck_s: float = STUCK_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._time_s, self._stuck_s, self._memory_bytes = time_s, stuck_s, memory_bytes
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._refused: dict[str, str] = {}  # templates that exceeded a limit, with the reason

    def start(self) -> None:
        """Start the child now, so that the child is ready when the first prompt is to be rendered."""
        with self._lock:
            if self._child is None:
                self._child = _Child()

    def close(self) -> None:
        """End the child; `render` starts a new one."""
        with self._lock:
            self._end()

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Return the text that a template makes of these variables, which must be JSON. Raises TemplateFailedError,
        and GenerationError if the child does not run."""
        with self._lock:
            if template in self._refused:
                raise TemplateFailedError("limit", self._refused[template])
            n = len(given := json.dumps(variables))
            memory_bytes, characters = self._memory_bytes + MEMORY_FACTOR * n, LENGTH + LENGTH_FACTOR * n
            limits = f'"memory_bytes": {memory_bytes}, "characters": {characters}'
            request = f'{{"template": {json.dumps(template)}, "variables": {given}, {limits}}}\n'
            try:
                reply = self._asked(request.encode("ascii"), memory_bytes)
                if reply.get("failed") == "crash":  # perhaps somebody has ended the child, or memory was short
                    self._end()
                    reply = self._asked(request.encode("ascii"), memory_bytes)
            except TemplateFailedError as error:
                self._end()
                if n < SHORT:
                    self._refused[template] = error.why
                raise
            except BaseException:
                self._end()  # the child may still be rendering, and would answer the next request with this prompt
                raise
            if reply.get("failed") in ("crash", "memory"):
                self._end()
        if "prompt" in reply:
            return reply["prompt"]
        match reply["failed"]:
            case "size":
                raise TemplateFailedError("limit", f"it makes a prompt of more than {characters:,} characters")
            case "memory":
                raise TemplateFailedError("limit", _too_much_memory(memory_bytes))
            case "crash":
                raise TemplateFailedError("limit", "the process that rendered it crashed")
            case failed:
                raise TemplateFailedError(failed, reply["why"])

    def _asked(self, request: bytes, memory_bytes: int) -> dict[str, str]:
        child = self._child
        if child is None or child.process.poll() is not None:  # somebody else may have ended the child
            self._end()
            child = self._child = _Child()
        limits, meter = Limits(self._time_s, self._stuck_s, memory_bytes), Meter(child.process.pid)
        answer = child.ask(request)
        while True:
            with suppress(TimeoutError):
                line = answer.result(LOOK_S)
                break
            match meter.exceeded(limits):
                case "time":
                    raise TemplateFailedError("limit", f"it takes more than {self._time_s:g} s to render")
                case "memory":
                    raise TemplateFailedError("limit", _too_much_memory(memory_bytes))
                case "clock":  # which says nothing about the template: another one would get no time either
                    raise GenerationError(
                        "cannot render the chat template",
                        why=f"the process that renders it got no processor time for {self._stuck_s:g} s",
                        hint="try again later",
                    )
        reply: dict[str, str] = json.loads(line) if line else {"failed": "crash"}
        return reply

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


# glibc reserves 128 MB of addresses for each further thread that allocates: they would count as memory of the template.
_ARENAS = {"MALLOC_ARENA_MAX": "1"}


class _Child:
    """A running child process and a thread that waits for its answers."""

    def __init__(self) -> None:
        with told_as(GenerationError, "cannot start the process that renders chat templates"):
            self.process = subprocess.Popen(
                CHILD,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | _ARENAS,
            )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="template")

    def ask(self, request: bytes) -> Future[bytes]:
        """The reply to come: a line, which is empty if the child died."""
        return self._thread.submit(self._exchange, request)

    def _exchange(self, request: bytes) -> bytes:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(request)
            self.process.stdin.flush()
            return self.process.stdout.readline()
        except OSError:
            return b""

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.shutdown()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was not written yet cannot be written any more
                pipe.close()


def _too_much_memory(limit_bytes: int) -> str:
    return f"it takes more than {size_of(limit_bytes)} of memory to render"
