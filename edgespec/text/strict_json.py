"""JSON without what Python's parser allows in addition: NaN, infinities, lone surrogates and any depth; and JSON on one
line."""

from __future__ import annotations

import json
import re
from math import isinf
from typing import Any, NoReturn

MAX_DEPTH = 64
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")


def parsed(data: bytes) -> object:
    """Parse JSON. Raises ValueError for invalid JSON, and for numbers and texts that JSON cannot contain, and
    RecursionError for values that are nested too deeply."""
    value = json.loads(data.decode(), parse_constant=refuse_constant, parse_float=_finite)
    _check_depth(value)
    if b"\\ud" in data.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def json_line(value: object, *, is_compact: bool = False) -> str:
    """Return a value as JSON on one line, for a client, a file or the terminal. Characters that some programs read as
    line ends are escaped. Raises ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":") if is_compact else None)
    return _LINE_ENDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # in JSON they occur only in strings


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and infinities, which Python reads although JSON does not have them."""
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    """Parse a number. Python reads 1e999 as infinity, which no JSON answer can contain."""
    value = float(text)
    if isinf(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [part for part in level if isinstance(part, dict | list)]
        if not level:
            return
        level = [item for part in level for item in (part.values() if isinstance(part, dict) else part)]
    raise RecursionError
