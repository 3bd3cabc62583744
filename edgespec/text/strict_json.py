"""JSON without what Python's parser allows in addition: NaN, infinities, lone surrogates and any depth."""

from __future__ import annotations

import json
from math import isinf
from typing import Any, NoReturn

MAX_DEPTH = 64


def parsed(data: bytes) -> Any:
    """Parse JSON. Raises ValueError for invalid JSON, and for numbers and texts that JSON cannot contain, and
    RecursionError for values that are nested too deeply."""
    value = json.loads(data.decode(), parse_constant=refuse_constant, parse_float=_finite)
    _check_depth(value)
    if b"\\ud" in data.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


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
