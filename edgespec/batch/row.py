"""A row of a job: one prompt, what its result is to look like, and what it is known by."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from edgespec.settings import Request

Id = str | int
Form = Literal["own", "chat.completion", "text_completion"]
"""How the result looks: edgespec's own form, or one of OpenAI's objects."""


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt of the input, and of how many samples of it (`Request.sample` 0 to n - 1) the result is made."""

    id: Id
    line: int
    request: Request
    n: int = 1
    form: Form = "own"


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no request, and why. `id` None: it has none of its own, and is known by its line."""

    id: Id | None
    line: int
    why: str
    form: Form = "own"


class BadRowError(Exception):
    """What is wrong with a row."""


def row_key(id: Id | None, line: int | None) -> int:
    """What a row is known by within this process, as a number of 64 bits."""
    return hash(json.dumps(id if id is not None else ["line", line]))
