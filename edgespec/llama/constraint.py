"""A grammar, a JSON schema or a regular expression as users write it: the text itself, or the file that contains it.

llguidance parses it without a model: errors are reported before one is loaded.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgespec.errors import UsageError
from edgespec.settings import CONSTRAINTS, Constraint

MOST_BYTES = 4_000_000  # far beyond any grammar
MOST_WORDS = 400  # characters of llguidance's message; it quotes whole expressions
# Models that may write blanks write them endlessly; forced whitespace can be drafted. A schema can set x-guidance.
JSON_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "coerce_one_of": True}


def settled(kind: Constraint, given: str) -> str:
    """The constraint, with a file replaced by its absolute path. Raises UsageError for one that cannot be read or
    used."""
    if not given:
        return given
    if is_text(kind, given):
        compiled(kind, given)
        return given
    compiled(kind, constraint_text(kind, given), f"the {CONSTRAINTS[kind]} in {given}")
    return str(Path(given).expanduser().absolute())


def constraint_text(kind: Constraint, given: str) -> str:
    """The text itself, or that of the file. Raises UsageError."""
    if not given or is_text(kind, given):
        return given
    what = CONSTRAINTS[kind]
    try:
        file = Path(given).expanduser()
        if file.stat().st_size > MOST_BYTES:
            raise UsageError(f"cannot use {given} as a {what}", why="it is too large")
        text = file.read_text("utf-8-sig")
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~nobody
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the {what} {given}", why=why, hint=_HINTS[kind]) from error
    if not text.strip():
        raise UsageError(f"cannot use {given} as a {what}", why="it is empty")
    return text


def is_text(kind: Constraint, given: str) -> bool:
    """Whether this is not a file's name."""
    if kind == "json_schema":
        return given.lstrip().startswith(("{", "[")) or given.strip() in ("true", "false")
    return kind == "regex" or "::=" in given or given.lstrip().startswith("%llguidance")


def compiled(kind: Constraint, text: str, name: str = "") -> str:
    """The text as llguidance's own grammar. `name` is the option. Raises UsageError, saying what is wrong and where."""
    from llguidance import LLMatcher, LLParserLimits

    from edgespec.llama.gbnf import to_lark
    from edgespec.llama.schema import translated

    what = f"cannot use {name or f'this {CONSTRAINTS[kind]}'}"
    try:
        if kind == "json_schema":
            grammar = LLMatcher.grammar_from_json_schema(translated(text)[0], defaults=JSON_LAYOUT)
        elif kind == "regex":
            grammar = LLMatcher.grammar_from_regex(text)
        else:
            grammar = LLMatcher.grammar_from_lark(to_lark(text))
    except Exception as error:  # what it raises for unknown rules
        raise UsageError(what, why=readable(str(error))) from error
    limits = LLParserLimits(verbose_errors=False)  # or they go on for pages
    if said := LLMatcher.validate_grammar(grammar, None, limits=limits):
        raise UsageError(what, why=readable(said))
    return grammar


@lru_cache(16)
def constraint_notes(kind: Constraint, text: str) -> tuple[str, ...]:
    """Notes for the user on what of a text is ignored. There are none for a text that `compiled` refuses."""
    from edgespec.llama.schema import translated

    try:
        return tuple(translated(text)[1]) if kind == "json_schema" else ()
    except ValueError:
        return ()


def readable(said: str) -> str:
    """llguidance's message without what is meant for its developers."""
    if broken := re.search(r"regex parse error:\n    (.*)\n( *)\^+\nerror: (.*)", said):
        pattern, blanks, why = broken.groups()
        return f"{pattern}, column {len(blanks) - 3}: {why}"
    if "lookarounds not supported" in said:
        return r"look-around and word boundaries (\b) are not supported"
    if said.startswith("panic"):
        return "llguidance fails on it"
    if re.search("[Tt]oo many (expressions|items)", said):
        return "it is too large, or can never end"
    if "Regex is empty" in said or "NoExtension" in said or "schema is false" in said:
        return "nothing can match it"
    said = said.replace("<non-verbose/>", "").strip()
    return said if len(said) <= MOST_WORDS else said[:MOST_WORDS] + " ..."


_HINTS: dict[Constraint, str] = {
    "json_schema": "give a file, or the schema itself, starting with {",
    "grammar": "give a file, or rules: root ::= ...",
    "regex": "",
}
