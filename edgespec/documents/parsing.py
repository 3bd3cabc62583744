"""Reads one document after another in a child process, which runs this module.

A document may be made to crash, to hang or to fill the memory of the program that parses it, or to make it open other
files or addresses. The parent bounds time and memory of this process, and `_shut` keeps it from opening anything.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from edgespec.documents.document import MOST_TEXT_BYTES, Document, Span
from edgespec.documents.files import read_bytes
from edgespec.errors import UsageError
from edgespec.processes.child import answer, limit_addresses
from edgespec.text.printable import with_unix_line_ends

ADDRESS_BYTES = 8 << 30
MOST_CALLS = 10_000  # within each other
STACK_BYTES = 256 << 20
_STARTS = {"os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile"}
_is_shut = False


def _reply(question: Mapping[str, Any], report: Callable[[str], None]) -> dict[str, Any]:
    """Return the `text` of a document and its extent `about`, or `refused`: what, why and what to do."""
    name = question["name"]
    what, why, hint = f"{name} cannot be read", "", ""
    try:
        document = _document(name, question, report)
        return {"text": document.text, "about": document.about}
    except MemoryError:
        return {"failed": "memory"}
    except UsageError as error:
        what, why, hint = error.what, error.why, error.hint
    except RecursionError:
        why = "it is nested too deeply"
    except Exception as error:  # libraries raise anything for damaged files
        why = f"it may be damaged ({type(error).__name__}: {error})"[:300]
    return {"refused": (what, why, hint)}


def _document(name: str, question: Mapping[str, Any], report: Callable[[str], None]) -> Document:
    """Read a document. Only the libraries for its kind are imported."""
    if "data" in question:
        data = base64.b64decode(question["data"])
    else:
        data = read_bytes(name, Path(question["path"]), question["most"])
    if not data:
        raise UsageError(f"{name} is empty", why="0 bytes")
    read = import_module(f"edgespec.documents.{question['kind']}").read
    span = question["span"] and Span(*question["span"])
    with _shut():
        document = read(name, data, span, report)
    text = _cleaned(document.text)
    if len(text) > MOST_TEXT_BYTES:
        why, hint = f"it has more than {MOST_TEXT_BYTES >> 20} MB", "choose some of its lines, such as 1-500"
        raise UsageError(f"{name} has too much text", why=why, hint=f"{hint} after its name")
    return Document(name, text, document.about)


def _cleaned(text: str) -> str:
    """Return a text without control characters and single surrogates, which damaged fonts may produce."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", with_unix_line_ends(text))


@contextmanager
def _shut() -> Iterator[None]:
    """Within this block, open no file but those of Python's libraries, and no socket, and start no process."""
    global _is_shut
    _is_shut = True
    try:
        yield
    finally:
        _is_shut = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _is_shut:
        return
    if event in _STARTS or event.startswith(("socket.", "subprocess.")) or (event == "open" and not _reads(*arguments)):
        raise PermissionError(f"a document may not use {event}")


def _reads(path: object, mode: object, flags: int) -> bool:
    """Return whether a file is opened that is a part of Python's libraries, such as a table of characters."""
    is_library = isinstance(path, str) and os.path.realpath(path).startswith(_LIBRARIES)
    return is_library and not flags & (os.O_WRONLY | os.O_RDWR)


_LIBRARIES = tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in sys.path if folder)

if __name__ == "__main__":
    sys.addaudithook(_audit)
    sys.setrecursionlimit(MOST_CALLS)
    limit_addresses(ADDRESS_BYTES)
    answer(_reply, stack_bytes=STACK_BYTES)
