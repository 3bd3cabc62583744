"""Plain text and tables as documents."""

from __future__ import annotations

import csv

from edgespec.documents.document import MOST_TEXT_BYTES, Document, Span, extent
from edgespec.errors import UsageError
from edgespec.text.encodings import decoded
from edgespec.text.figures import size_of
from edgespec.text.printable import with_unix_line_ends

DELIMITERS = ",;\t|"
_INSTEAD = {  # formats of other programs, and what these programs can save instead
    **dict.fromkeys((".doc", ".odt", ".pages", ".rtf", ".epub"), "DOCX or PDF"),
    **dict.fromkeys((".ppt", ".pptx", ".odp", ".key"), "PDF"),
    **dict.fromkeys((".xls", ".xlsx", ".ods", ".numbers"), "CSV"),
}


def text_of(name: str, data: bytes) -> str:
    """Return the text of a file with this content. Raises UsageError."""
    if not data.strip():
        raise UsageError(f"{name} is empty", why="0 bytes" if not data else "there is only white space")
    check_size(name, len(data))
    try:
        text = decoded(data)
    except UnicodeDecodeError as error:
        if b"\0" not in data:
            raise UsageError(f"{name} is not UTF-8", why=f"byte {error.start} is invalid") from None
        text = "\0"
    if "\0" in text:
        suffix = next((suffix for suffix in _INSTEAD if name.lower().endswith(suffix)), "")
        hint = f"save it as {_INSTEAD[suffix]}" if suffix else ""
        raise UsageError(f"{name} is a binary file", why=f"byte {data.index(0)} is null", hint=hint)
    return with_unix_line_ends(text).rstrip()


def check_size(name: str, n_bytes: int, most: int = MOST_TEXT_BYTES) -> None:
    """Raise UsageError if a file is too large."""
    if n_bytes > most:
        why = f"it has {size_of(n_bytes)}, and files of this kind may have {most >> 20} MB"
        raise UsageError(f"{name} is too large", why=why, hint="attach a part of it")


def lines_of(name: str, text: str, span: Span | None) -> Document:
    """Return a text, or some of its lines. Raises UsageError if it does not have them."""
    if span is None:
        return Document(name, text)
    lines = text.split("\n")
    span = span.within(name, "line", len(lines))
    return Document(name, "\n".join(lines[span.first - 1 : span.last]), extent("line", len(lines), span))


def rows_of(name: str, text: str, span: Span | None) -> Document:
    """Return a table, or its header and some of its rows, as they are in the file. Raises UsageError."""
    header, *rows = _rows(text)
    if span is None:
        return Document(name, text, extent("row", len(rows)))
    span = span.within(name, "row", len(rows))
    chosen = [header, *rows[span.first - 1 : span.last]]
    return Document(name, "\n".join(chosen), extent("row", len(rows), span))


def _rows(text: str) -> list[str]:
    """Return the text of each row, which may have several lines. Blank lines are left out."""
    lines = text.split("\n")
    delimiter = max(DELIMITERS, key=lines[0].count)
    csv.field_size_limit(MOST_TEXT_BYTES)  # the default refuses fields of more than 131,072 characters
    rows, end = [], 0
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter)
    for fields in reader:
        start, end = end, reader.line_num
        if fields:
            rows.append("\n".join(lines[start:end]))
    return rows
