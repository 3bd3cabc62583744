"""Reading answers: of dialects in pieces, and of models whose reasoning ends on request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.dialects.calls import AnswerPart, AnyCall, CallPiece, CutCall, ToolCall
from edgespec.dialects.dialect import Dialect
from edgespec.dialects.reader import reader
from edgespec.llm.model import Model
from edgespec.settings import Request

SCHEMAS: dict[str, Any] = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {"type": "object", "properties": {}},
}


def read(dialect: Dialect, text: str, size: int, opened: str | None = None) -> tuple[str, str, list[Any]]:
    """Return the reasoning, the content and the calls of an answer that arrives in pieces."""
    found = reader(dialect, SCHEMAS, opened=opened)
    parts = [part for at in range(0, len(text), size) for part in found.push(text[at : at + size])] + found.end()
    check_pieces(parts)
    said = {"thinking": "", "answer": ""}
    for part in parts:
        if isinstance(part, tuple):
            said[part[0]] += part[1]
    calls = [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, ToolCall)]
    return said["thinking"], said["answer"], calls


def ended_early(engine: Model, request: Request, n_events: int) -> str:
    """Return the text of an answer whose reasoning is to end after `n_events` events."""
    cancel, texts = CancelFlag(), list[str]()
    for event in engine.submit(request, cancel):
        texts.append(event.text)
        if len(texts) == n_events:
            cancel.end_reasoning()
    return "".join(texts)


def check_pieces(parts: Sequence[AnswerPart | str]) -> None:
    """Check that each call follows its pieces and has their text, and that only complete calls have an object."""
    pieces: list[CallPiece] = []
    for part in parts:
        if isinstance(part, CallPiece):
            pieces.append(part)
        elif isinstance(part, AnyCall):
            first = CallPiece(part.name, "", part.number, part.id)
            assert pieces[0] == first
            assert all(piece.text and (piece.number, piece.id) == (part.number, part.id) for piece in pieces[1:])
            assert "".join(piece.text for piece in pieces) == part.arguments
            assert _is_object(part.arguments) is not isinstance(part, CutCall)
            pieces = []
    assert not pieces


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
