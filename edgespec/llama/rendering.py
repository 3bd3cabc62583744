"""Render chat templates within limits of time, memory and length, in a child process that runs this module.

A chat template is a program that somebody else wrote. Jinja's sandbox keeps the program away from the machine, but does
not bound its time and its memory: `{{ 'x' * 10**10 }}` is a valid template. No limit inside the process of the model
would be complete: a single operation of Python, such as a power of integers or the text of nested lists, can take hours
or all of the memory, and cannot be interrupted.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Mapping
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, TypedDict

from edgespec.closable import Closable
from edgespec.errors import GenerationError
from edgespec.processes.child import Child, Limits, answer, limit_addresses, running
from edgespec.text.figures import size_of

if TYPE_CHECKING:
    from jinja2 import Template, nodes
    from jinja2.parser import Parser

# Processor time, which a busy machine does not use up. The largest templates take about a tenth of a second.
TIME_S = 3.0
# The clock's time, for a child that gets no processor time at all.
STUCK_S = 60.0
# A conversation of n characters as JSON may take MEMORY_FACTOR * n bytes and LENGTH_FACTOR * n characters more.
MEMORY_BYTES, MEMORY_FACTOR = 256 << 20, 40
# Beyond this limit on Linux, an allocation fails at once; the parent looks at the memory in use only now and then.
ADDRESS_BYTES = 8 << 30
LENGTH, LENGTH_FACTOR = 1_000_000, 8
# Templates test these variables. As in Transformers they are none, and not undefined, if they are not given.
_NOT_GIVEN = {"tools": None, "tool_choice": None, "functions": None, "function_call": None}
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
        self.child = Child(running("edgespec.llama.rendering"), "render chat templates")
        self._refused: dict[str, str] = {}  # templates that exceeded a limit, with the reason

    def start(self) -> None:
        """Start the child now, so that it is ready when the first prompt is to be rendered."""
        with self._lock:
            self.child.start()

    def close(self) -> None:
        """End the child; `render` starts a new one."""
        with self._lock:
            self.child.close()

    def render(self, template: str, variables: Mapping[str, object]) -> str:
        """Return the text that a template makes of these variables, which must be JSON. Raises TemplateFailedError,
        and GenerationError if the child does not run."""
        n = len(given := json.dumps(variables))
        memory_bytes, characters = self._memory_bytes + MEMORY_FACTOR * n, LENGTH + LENGTH_FACTOR * n
        question = f'{{"template": {json.dumps(template)}, "variables": {given}, "characters": {characters}}}'
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


# --- the child --------------------------------------------------------------------------------------------------------


class _Request(TypedDict):
    template: str
    variables: dict[str, object]
    characters: int


def _reply(request: _Request) -> dict[str, str]:
    """Return the prompt, or what failed: "parse", "render", "size" or "memory". The last two are limits."""
    failed = "parse"
    try:
        template = _parsed(request["template"])
        failed = "render"
        text, n_left = io.StringIO(), request["characters"]
        for piece in template.generate(_NOT_GIVEN | _dates() | request["variables"]):
            n_left -= len(piece)
            if n_left < 0:
                return {"failed": "size", "why": ""}
            text.write(piece)
        return {"prompt": text.getvalue()}
    except (MemoryError, SystemError):  # CPython raises the latter where a frame cannot be allocated
        return {"failed": "memory", "why": ""}
    except RecursionError:
        return {"failed": failed, "why": "it is nested too deeply"}
    except Exception as error:  # a template may raise anything
        return {"failed": failed, "why": str(error)}


def _dates() -> dict[str, str]:
    """Return today's date in the variables that templates read, each in the format of the templates that read it. The
    first two are those of llama.cpp."""
    now = datetime.now()
    return {"date_string": f"{now:%d %b %Y}", "datetime": f"{now:%b %d %Y}", "current_date": f"{now:%Y-%m-%d}"}


@lru_cache(maxsize=16)
def _parsed(text: str) -> Template:
    """Parse a template in the environment of Transformers, for which chat templates are written."""
    from jinja2 import BaseLoader, TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import SandboxedEnvironment

    class GenerationTag(Extension):
        """Ignore `{% generation %}`, with which Hugging Face's templates mark the text to train on."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it like this

        def parse(self, parser: Parser) -> list[nodes.Node]:
            parser.stream.skip(1)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON without the escapes for HTML that Jinja's own filter adds."""
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
            default=list,  # of the results of other filters
        )

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    # Transformers has the immutable one. Here templates may change lists and objects, as some do to collect messages:
    # the lists and objects are copies, made for each prompt.
    environment = SandboxedEnvironment(
        loader=BaseLoader(), trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment.from_string(text)


if __name__ == "__main__":
    _parsed("")  # import Jinja before the first question
    limit_addresses(ADDRESS_BYTES)
    answer(lambda request, report: _reply(request))
