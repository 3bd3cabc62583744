"""Reads PDF files with pypdf."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator

from pypdf import PdfReader
from pypdf.errors import DependencyError

from edgespec.documents.document import MOST_TEXT_BYTES, Document, Span, extent
from edgespec.errors import UsageError
from edgespec.text.figures import counted

PARTS = "choose some of its pages, such as 1-20 after its name"

logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns about each flaw of a file


def read(name: str, data: bytes, span: Span | None, report: Callable[[str], None]) -> Document:
    """Return the text of the pages, each after a mark with its number. Raises UsageError. `report` is called before
    each page."""
    if b"%PDF-" not in data[:1024]:
        raise UsageError(f"{name} is not a PDF file", why="it does not begin with %PDF")
    reader = _opened(name, data)
    n_pages = len(reader.pages)
    if not n_pages:
        raise UsageError(f"{name} has no pages")
    chosen = (span or Span(1, None)).within(name, "page", n_pages)
    texts = list(_texts(name, reader, range(chosen.first, (chosen.last or n_pages) + 1), report))
    n_empty = sum(not text for text in texts)
    about = extent("page", n_pages, chosen)
    if n_empty == len(texts):
        hint = "recognise its text first, for example with ocrmypdf"
        raise UsageError(f"{name} has no text", why=f"{about}, which may be scanned", hint=hint)
    marked = (f"[page {number}]\n{text}".rstrip() for number, text in enumerate(texts, chosen.first))
    return Document(name, "\n\n".join(marked), about + (f", {n_empty:,} without text" if n_empty else ""))


def _texts(name: str, reader: PdfReader, numbers: range, report: Callable[[str], None]) -> Iterator[str]:
    n_left, n_failed = MOST_TEXT_BYTES, 0
    for number in numbers:
        report(f"page {number:,} of {numbers[-1]:,}")
        try:
            text = reader.pages[number - 1].extract_text().strip()
        except MemoryError:
            raise
        except Exception:  # of several pages, a damaged one counts as one without text
            n_failed += 1
            if n_failed == len(numbers):
                raise
            text = ""
        n_left -= len(text)
        if n_left < 0:
            n_read = counted(number - numbers[0] + 1, "page")
            why = f"{n_read} have more than {MOST_TEXT_BYTES >> 20} MB"
            raise UsageError(f"{name} has too much text", why=why, hint=PARTS)
        yield text


def _opened(name: str, data: bytes) -> PdfReader:
    """Open a file. One that is encrypted without a password, which only forbids changes, is decrypted."""
    what = f"{name} is encrypted"
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UsageError(what, why="it needs a password", hint="save it without one")
    except DependencyError:
        hint = "save it without encryption, or install the Python package cryptography"
        raise UsageError(what, why="with AES", hint=hint) from None
    return reader
