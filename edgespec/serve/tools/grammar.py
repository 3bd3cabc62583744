"""Grammars of answers that call tools, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgespec.serve.tools.formats import CLOSE, LLAMA, OPEN, TAGS, Format

MOST_CALLS = 8  # in an answer that has to call tools: small models would repeat calls endlessly
# A model that may write blanks may write them endlessly.
LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "coerce_one_of": True}


def several_calls(format: Format, call: Mapping[str, Any], special: Mapping[str, int]) -> str | None:
    """Return a grammar of one call or several, or None for a format without repeated calls. `call` is the schema of a
    call, `special` has the ids of marks that are single tokens."""
    more = f"{{0,{MOST_CALLS - 1}}}"
    if format is LLAMA:
        return _lark(f'start: json ("; " json){more}', call)
    marks = _marks(format, special)
    if marks is None:
        return None
    opened, closed = marks
    return _lark(f'start: call ("\\n" call){more}\ncall: {opened} "\\n" json "\\n" {closed}', call)


def calls_in_text(format: Format, call: Mapping[str, Any], special: Mapping[str, int], *, template: str) -> str | None:
    """Return a grammar of any text in which each call matches the schema `call`, or None if the format of the template
    is not JSON between marks."""
    marks = _marks(format, special)
    if marks is None or "<function=" in template:  # XML
        return None
    opened, closed = marks
    if OPEN in special:  # all other tokens are text, among them marks of reasoning
        text = f"text: <[^{special[OPEN]}]>*\nstart: (text call)* text"
        return _lark(f"{text}\ncall: {opened} SPACE json SPACE {closed}\nSPACE: /[ \\n]*/", call)
    if "<think>" in template:  # may be a single token, which TEXT does not match
        return None
    text = "start: call* TEXT\nTEXT: /(.|\\n)*/\nbegun[lazy]: TEXT " + opened
    return _lark(f"{text}\ncall: begun SPACE json SPACE {closed}\nSPACE: /[ \\n]*/", call)


def _marks(format: Format, special: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the marks around a call in Lark, as names of tokens or as strings; None if the format has no such
    marks."""
    if format is not TAGS or (OPEN in special) != (CLOSE in special):
        return None
    return (OPEN, CLOSE) if OPEN in special else (json.dumps(OPEN), json.dumps(CLOSE))


def _lark(rules: str, call: Mapping[str, Any]) -> str:
    schema = json.dumps({**call, "x-guidance": LAYOUT})
    return f"%llguidance {{}}\n{rules}\njson: %json {schema}\n"
