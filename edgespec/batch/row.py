"""A row of a job: one prompt, the format of its result, and its identity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from edgespec.settings import Request

Id = str | int
Form = Literal["own", "chat.completion", "text_completion"]
"""The format of the result: edgespec's own, or one of OpenAI's objects."""


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt of the input, and the number of samples (`Request.sample` 0 to n - 1) in its result. `mark` is a digest
    of its content, and part of the result."""

    id: Id
    line: int
    request: Request
    n: int = 1
    form: Form = "own"
    mark: str = ""


@dataclass(frozen=True, slots=True)
class BadRow:
    """An invalid row, and the reason. Without an `id`, it is identified by its line."""

    id: Id | None
    line: int
    why: str
    form: Form = "own"


def mark_of(id: Id, given: Mapping[str, Any]) -> str:
    """Return 12 hexadecimal digits computed from the content of a row, independent of the order of its fields."""
    try:
        text = json.dumps([id, given], sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # values from Python that are not JSON; they are refused later
        text = json.dumps(id)
    return sha256(text.encode()).hexdigest()[:12]


def row_key(id: Id) -> int:
    """Return a number of 64 bits that identifies a row within this process."""
    return hash(json.dumps(id))
