"""Reads documents of all kinds, within limits of size, time and memory."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import astuple
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.documents.document import MOST_TEXT_BYTES, Document, Span
from edgespec.documents.files import first_bytes, read_bytes
from edgespec.documents.texts import check_size, lines_of, rows_of, text_of
from edgespec.errors import UsageError
from edgespec.extras import check_extra
from edgespec.processes.child import Child, Limits, held, running
from edgespec.text.figures import size_of

MOST_BYTES = {"pdf": 100 << 20, "docx": 100 << 20, "html": 16 << 20}  # of kinds that a child process reads
KINDS = {
    ".pdf": "pdf",
    ".docx": "docx",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".csv": "table",
    ".tsv": "table",
}
PAGE_S = 20.0  # processor time for a page, or for all of a document without pages
WHOLE_S = 600.0
STUCK_S = 120.0  # for a child that gets no processor time at all
MEMORY_BYTES = 1 << 30

Said = Callable[[str], None]
"""A callback that gets the name of the document that is read, and the page."""


def kind_of(name: str, start: bytes = b"") -> str:
    """Return the kind of a document with this name and these first bytes; "" is plain text."""
    return "pdf" if start.startswith(b"%PDF-") else KINDS.get(Path(name.lower()).suffix, "")


def unit_of(name: str) -> str:
    """Return what a range chooses in a document with this name."""
    return {"pdf": "page", "table": "row"}.get(kind_of(name), "line")


def read_file(
    name: str, path: Path, span: Span | None = None, said: Said = lambda what: None, cancel: CancelFlag | None = None
) -> Document:
    """Read a file, or some of its pages, rows or lines. Raises UsageError, also once `cancel` is set."""
    kind = kind_of(path.name, first_bytes(name, path, 8))
    if kind not in MOST_BYTES:
        return from_text(name, read_bytes(name, path, MOST_TEXT_BYTES), kind, span)
    where = {"path": str(path.absolute()), "most": MOST_BYTES[kind]}
    return reader().read(name, kind, where, span, said=said, cancel=cancel)


def read_data(name: str, data: bytes, kind: str, limit_s: float) -> Document:
    """Read a document that is in memory. Raises UsageError."""
    if kind not in MOST_BYTES:
        return from_text(name, data, kind)
    check_size(name, len(data), MOST_BYTES[kind])
    return reader().read(name, kind, {"data": base64.b64encode(data).decode()}, limit_s=limit_s)


def from_text(name: str, data: bytes, kind: str = "", span: Span | None = None) -> Document:
    """Return plain text or a table as a document. Raises UsageError."""
    return (rows_of if kind == "table" else lines_of)(name, text_of(name, data), span)


@cache
def reader() -> DocumentReader:
    """Return the reader of this process."""
    return DocumentReader()


class DocumentReader(Closable):
    """Reads documents in a child process, one at a time. Several threads may call `read`."""

    def __init__(self, *, page_s: float = PAGE_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._page_s, self._memory_bytes = page_s, memory_bytes
        self._lock = threading.Lock()
        self.child = Child(running("edgespec.documents.parsing"), "read documents")

    def close(self) -> None:
        """End the child; `read` starts a new one."""
        with self._lock:
            self.child.close()

    def read(
        self,
        name: str,
        kind: str,
        where: Mapping[str, object],
        span: Span | None = None,
        *,
        limit_s: float = WHOLE_S,
        said: Said = lambda what: None,
        cancel: CancelFlag | None = None,
    ) -> Document:
        """Return the text of a document. `where` has its path or its data. Raises UsageError, GenerationError."""
        check_extra("documents", f"reading {name}")
        question = {"name": name, "kind": kind, "span": span and astuple(span), **where}
        until_s = monotonic() + limit_s
        said(name)

        def limits() -> Limits:
            return Limits(min(self._page_s, until_s - monotonic()), STUCK_S, self._memory_bytes)

        def heard(page: str) -> Limits:
            said(f"{name}, {page}")
            return limits()

        with held(self._lock, cancel):
            reply: Mapping[str, Any] = {"failed": "time"}
            if limit_s > 0:
                reply = self.child.ask(json.dumps(question).encode(), limits(), cancel, heard)
        if "text" in reply:
            return Document(name, reply["text"], reply["about"])
        if "refused" in reply:
            what, why, hint = reply["refused"]
            raise UsageError(what, why=why, hint=hint)
        why = {
            "time": "it takes too long",
            "memory": f"it takes more than {size_of(self._memory_bytes)} of memory",
            "clock": f"the process that reads it got no processor time for {STUCK_S:g} s",
        }.get(reply["failed"], "the process that read it crashed")
        hint = "choose some of its pages, such as 1-20 after its name" if kind == "pdf" else ""
        raise UsageError(f"{name} cannot be read", why=why, hint=hint)
