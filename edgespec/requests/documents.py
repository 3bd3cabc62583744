"""Documents in the messages of a request: file parts of OpenAI's formats and document blocks of Anthropic's, which are
replaced by their text."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Callable
from time import monotonic

from edgespec.documents.document import Document
from edgespec.documents.reader import kind_of, read_data
from edgespec.errors import UsageError
from edgespec.requests.bad_input import BadInputError, JsonObject, UnsupportedError, wrong
from edgespec.requests.fields import Fields, content_of
from edgespec.settings import shown
from edgespec.text.printable import one_line

MOST_DOCUMENTS = 100  # of a request
MOST_S = 30.0  # for all of them
LONGEST_NAME = 200
KINDS = ("file", "input_file", "document")
NESTED = ("content", "output")  # fields of a message, or of one of its parts, that have parts
MEDIA = {
    "application/pdf": "pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/csv": "table",
    "text/tab-separated-values": "table",
}

Part = JsonObject


def has_documents(body: JsonObject) -> bool:
    """Return whether the messages of a body, in any of the formats, have documents."""
    found: list[str] = []

    def note(where: str, part: Part) -> Part:
        found.append(where)
        return part

    for name in ("messages", "input"):
        _replaced(name, body.get(name), note)
    return bool(found)


def with_texts(where: str, messages: list[object]) -> list[object]:
    """Return messages with a text part in place of each document. Raises BadInputError."""
    until_s, n_read = monotonic() + MOST_S, 0

    def text(where: str, part: Part) -> Part:
        nonlocal n_read
        n_read += 1
        if n_read > MOST_DOCUMENTS:
            raise BadInputError(f"a request may have {MOST_DOCUMENTS} documents", where)
        try:
            return {"type": "text", "text": _text(where, part, until_s - monotonic())}
        except UsageError as error:
            raise BadInputError(f"{where}: {error.line}", where) from None

    return [_replaced(f"{where}[{index}]", message, text) for index, message in enumerate(messages)]


def _replaced(where: str, given: object, replace: Callable[[str, Part], Part]) -> object:
    """Return messages or parts of them with other parts in place of the documents."""
    if isinstance(given, list):
        return [_replaced(f"{where}[{index}]", each, replace) for index, each in enumerate(given)]
    if not isinstance(given, dict):
        return given
    if given.get("type") in KINDS:
        return replace(where, given)
    inner = {name: _replaced(f"{where}.{name}", given[name], replace) for name in NESTED if name in given}
    return given | inner


def _text(where: str, part: Part, limit_s: float) -> str:
    fields = Fields(part, where=where)
    kind = fields.take("type")
    if kind == "document":
        return _block(where, fields, limit_s)
    file = fields.within("file") if kind == "file" else fields
    for name in ("file_id", "file_url"):
        if name in file:
            raise UnsupportedError(f"{where}.{name}", "only file_data is read")
    return _read(where, file.text("filename"), "", file.text("file_data"), limit_s).block


def _block(where: str, fields: Fields, limit_s: float) -> str:
    """Return a document block of Anthropic's format as text. Raises BadInputError, UsageError."""
    if fields.within("citations").flag("enabled"):
        raise UnsupportedError(f"{where}.citations", "answers here have no citations")
    name, context, source = fields.text("title"), fields.text("context"), fields.within("source")
    kind = source.take("type")
    if kind == "base64":
        document = _read(where, name, source.text("media_type"), source.text("data"), limit_s)
    elif kind == "text":
        document = Document(_name(name), source.text("data"))
    elif kind == "content":
        document = Document(_name(name), content_of(f"{where}.source.content", source.take("content")))
    else:
        raise UnsupportedError(f"{where}.source", f"sources of type {shown(kind)} are not read")
    return "\n\n".join(filter(None, (context, document.block)))


def _read(where: str, name: str, media: str, encoded: str, limit_s: float) -> Document:
    """Read a document in base64, which may be a data URL. Raises BadInputError, UsageError."""
    if address := re.match(r"data:([^;,]{0,200})[^,]{0,200};base64,", encoded):
        media, encoded = address[1], encoded[address.end() :]
    try:
        data = b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError):
        raise wrong(where, "have its data in base64", encoded) from None
    return read_data(_name(name), data, MEDIA.get(media) or kind_of(name, data), limit_s)


def _name(given: str) -> str:
    return one_line(given)[:LONGEST_NAME] or "document"
