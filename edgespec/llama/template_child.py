"""Render chat templates in a separate process, which may be killed.

A chat template is a program that somebody else wrote. Jinja's sandbox keeps the program away from the machine, but does
not bound its time and its memory: `{{ 'x' * 10**10 }}` is a valid template. `rendering.py` starts this module as a
child process and watches the child.
"""

from __future__ import annotations

import io
import json
import os
from contextlib import suppress
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgespec.llama.child import answer


class _GenerationTag(Extension):
    """Ignore `{% generation %}`, with which Hugging Face's templates mark the text to train on."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it like this

    def parse(self, parser: Parser) -> list[nodes.Node]:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _reply(request: dict[str, Any]) -> dict[str, str]:
    """Return the prompt, or what failed: "parse", "render", "size" or "memory". The last two are limits."""
    failed = "parse"
    _limit_memory(request["memory_bytes"])
    try:
        template = _parsed(request["template"])
        failed = "render"
        text, n_left = io.StringIO(), request["characters"]
        for piece in template.generate({**request["variables"], **_FUNCTIONS}):
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


@lru_cache(maxsize=16)
def _parsed(text: str) -> Template:
    """Parse a template in the environment of Transformers, for which chat templates are written."""
    environment = ImmutableSandboxedEnvironment(
        loader=BaseLoader(), trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    return environment.from_string(text)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the escapes for HTML that Jinja's own filter adds."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


_FUNCTIONS = {"raise_exception": _raise_exception, "strftime_now": lambda format: datetime.now().strftime(format)}


def _limit_memory(more_bytes: int) -> None:
    """Let an allocation fail that would take the process beyond the limit. Only Linux can do so; elsewhere the parent
    ends the process shortly after it has passed the limit."""
    if at_start := _bytes_at_start():
        import resource

        with suppress(ValueError, OSError):
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (at_start + more_bytes, hard))


@cache
def _bytes_at_start() -> int:
    """The size of the address space of this process when it got its first request; 0 where Linux does not report it."""
    try:
        n_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0
    return n_pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    answer(lambda request, report: _reply(request))
