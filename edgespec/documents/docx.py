"""Reads DOCX files: mammoth writes them as HTML."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import NoReturn
from xml.parsers import expat
from zipfile import BadZipFile, ZipFile

import mammoth
from bs4 import BeautifulSoup

from edgespec.documents.document import Document, Span
from edgespec.documents.html import markdown_of
from edgespec.documents.texts import lines_of
from edgespec.errors import UsageError
from edgespec.text.figures import size_of

MOST_XML_BYTES = 64 << 20  # in the file once it is unpacked
MOST_PARTS = 10_000


def read(name: str, data: bytes, span: Span | None, report: Callable[[str], None]) -> Document:
    """Return a document as Markdown, without its images. Raises UsageError."""
    if data.startswith(b"\xd0\xcf\x11\xe0"):
        why, hint = "it is encrypted or an old .doc file", "save it as DOCX without a password"
        raise UsageError(f"{name} is not a DOCX file", why=why, hint=hint)
    try:
        _check(name, ZipFile(io.BytesIO(data)))
        html = mammoth.convert_to_html(
            io.BytesIO(data),
            convert_image=mammoth.images.img_element(lambda image: {}),
            include_embedded_style_map=False,
            external_file_access=False,
        ).value
    except (BadZipFile, KeyError) as error:  # KeyError: a part is missing
        raise UsageError(f"{name} is not a DOCX file", why=str(error).strip("'\"")) from None
    text = markdown_of(BeautifulSoup(html, "html.parser"))
    if not text:
        raise UsageError(f"{name} has no text", why="it may have only images")
    return lines_of(name, text, span)


def _check(name: str, file: ZipFile) -> None:
    """Refuse a file whose parts are too large, or declare entities, which no word processor writes."""
    parts = [part for part in file.infolist() if part.filename.endswith((".xml", ".rels"))]
    n_bytes = sum(part.file_size for part in parts)
    if n_bytes > MOST_XML_BYTES or len(parts) > MOST_PARTS:
        why = f"it unpacks to {size_of(n_bytes)} of XML in {len(parts):,} parts"
        raise UsageError(f"{name} is too large", why=f"{why}, and may have {MOST_XML_BYTES >> 20} MB")
    for part in parts:
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = _refuse
        try:
            parser.Parse(file.read(part), True)
        except expat.ExpatError as error:
            raise UsageError(f"{name} is damaged", why=f"{part.filename}: {error}") from None


def _refuse(*_: object) -> NoReturn:
    raise ValueError("its XML has a document type declaration, which could name other files")
