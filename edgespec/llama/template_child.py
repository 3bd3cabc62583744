"""Render chat templates in a separate process, which may be killed.

A chat template is a program that somebody else wrote. Jinja's sandbox keeps the program away from the machine, but does
not bound its time and its memory: `{{ 'x' * 10**10 }}` is a valid template. `rendering.py` starts this module as a
child process and watches the child.

A request and its reply are one line of JSON each.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import signal
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Seconds after which the child ends by itself, if the parent has died and can no longer end the child.
ALONE_S = 90


class _GenerationTag(Extension):
    """Ignore `{% generation %}`, with which Hugging Face's templates mark the text to train on."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it like this

    def parse(self, parser: Parser) -> list[nodes.Node]:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def main() -> None:
    """Answer requests on stdin until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    at_start = _virtual_bytes()
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        for line in sys.stdin:
            # A thread of C code ends the process, also while a long operation holds the interpreter's lock.
            faulthandler.dump_traceback_later(ALONE_S, exit=True, file=nowhere)
            request = json.loads(line)
            _limit_memory(at_start, request["memory_bytes"])
            reply = _reply(request)
            faulthandler.cancel_dump_traceback_later()
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


def _reply(request: dict[str, Any]) -> dict[str, str]:
    """The prompt, or else what failed: "parse", "size" or "memory" (both limits), or "render"."""
    failed = "parse"
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
    """A template in the environment of Transformers, for which chat templates are written."""
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


def _limit_memory(at_start: int, more_bytes: int) -> None:
    """Let an allocation fail that would take the process beyond the limit. Only Linux can do so; elsewhere the parent
    ends the process shortly after it has passed the limit."""
    if at_start:
        import resource

        with suppress(ValueError, OSError):
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (at_start + more_bytes, hard))


def _virtual_bytes() -> int:
    """The size of the address space of this process; 0 where Linux does not report the size."""
    try:
        n_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0
    return n_pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
