"""Render chat templates within limits of time, memory and length, in a child process (`template_child.py`).

No limit inside this process would be complete: a single operation of Python, such as a power of integers or the text of
nested lists, can take hours or all of the memory, and cannot be interrupted.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

from edgespec.closable import Closable
from edgespec.errors import GenerationError
from edgespec.llama.child import Child, Limits, running
from edgespec.text.figures import size_of

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
    """Return the renderer of this process: one child is enough for all models."""
    return Renderer()


class Renderer(Closable):
    """Renders templates in a child process, one at a time. Several threads may call `render`."""

    def __init__(self, *, time_s: float = TIME_S, stuck_s: float = STUCK_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._time_s, self._stuck_s, self._memory_bytes = time_s, stuck_s, memory_bytes
        self._lock = threading.Lock()
        self.child = Child(running("edgespec.llama.template_child"), "render chat templates")
        self._refused: dict[str, str] = {}  # templates that exceeded a limit, with the reason

    def start(self) -> None:
        """Start the child now, so that it is ready when the first prompt is to be rendered."""
        with self._lock:
            self.child.start()

    def close(self) -> None:
        """End the child; `render` starts a new one."""
        with self._lock:
            self.child.close()

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Return the text that a template makes of these variables, which must be JSON. Raises TemplateFailedError,
        and GenerationError if the child does not run."""
        n = len(given := json.dumps(variables))
        memory_bytes, characters = self._memory_bytes + MEMORY_FACTOR * n, LENGTH + LENGTH_FACTOR * n
        limits = f'"memory_bytes": {memory_bytes}, "characters": {characters}'
        question = f'{{"template": {json.dumps(template)}, "variables": {given}, {limits}}}'
        with self._lock:
            if template in self._refused:
                raise TemplateFailedError("limit", self._refused[template])
            reply = self.child.ask(question.encode("ascii"), Limits(self._time_s, self._stuck_s, memory_bytes))
            if "prompt" in reply:
                return str(reply["prompt"])
            exceeded = {
                "time": f"it takes more than {self._time_s:g} s to render",
                "memory": f"it takes more than {size_of(memory_bytes)} of memory to render",
                "size": f"it makes a prompt of more than {characters:,} characters",
                "crash": "the process that rendered it crashed",
            }
            failed = reply["failed"]
            if failed in ("time", "memory") and n < SHORT:
                self._refused[template] = exceeded[failed]
        if failed == "clock":  # this says nothing about the template: another one would get no time either
            raise GenerationError(
                "cannot render the chat template",
                why=f"the process that renders it got no processor time for {self._stuck_s:g} s",
                hint="try again later",
            )
        if failed in exceeded:
            raise TemplateFailedError("limit", exceeded[failed])
        raise TemplateFailedError(failed, reply["why"])
