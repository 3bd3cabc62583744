"""Grammars, JSON schemas and regular expressions as users write them, given as text or as a file.

llguidance parses a constraint without a model, so that errors are reported before a model is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import UsageError
from edgespec.llama.closing import close, without_traps
from edgespec.llama.schema import patterns_in, translated
from edgespec.settings import CONSTRAINTS, Constraint
from edgespec.text.encodings import decoded

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits
    from llguidance._lib import JsonCompileOptions

MOST_BYTES = 4_000_000  # far beyond any grammar
MOST_WORDS = 400  # characters of a message of llguidance, which quotes whole expressions
MOST_NOTED = 100_000  # characters of a text that is searched for ignored keywords: other answers wait for the search
MOST_LEXER_STATES = 50_000  # a string of 4,000 characters takes 12,000
TOO_DEEP = "it is nested too deeply, or its rules or definitions form too long a chain"
AMBIGUOUS = "it is too ambiguous or too large: finding the tokens that may follow takes too long"
# A model that may write blanks may write them endlessly, and forced whitespace can be drafted. A schema can override
# these options with x-guidance.
JSON_LAYOUT: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}


def constraint_text(kind: Constraint, given: str) -> str:
    """Return the text of a constraint, which may be in a file. Raises UsageError."""
    if not given or is_text(kind, given):
        return given
    what = CONSTRAINTS[kind]
    try:
        file = Path(given).expanduser()
        if file.stat().st_size > MOST_BYTES:
            raise UsageError(f"cannot use {given} as a {what}", why="it is too large")
        text = decoded(file.read_bytes())
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~nobody
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the {what} {given}", why=why, hint=_HINTS[kind]) from error
    if not text.strip():
        raise UsageError(f"cannot use {given} as a {what}", why="it is empty")
    return text


def is_text(kind: Constraint, given: str) -> bool:
    """Return True for the text of a constraint, False for the name of a file."""
    if kind == "json_schema":
        return given.lstrip().startswith(("{", "[")) or given.strip() in ("true", "false")
    return kind == "regex" or "::=" in given or given.lstrip().startswith("%llguidance")


def compiled(kind: Constraint, text: str) -> str:
    """Return a constraint as llguidance's own grammar. Raises ValueError, which says what is wrong and where."""
    from llguidance import LLMatcher

    from edgespec.llama.gbnf import to_lark

    try:
        if kind == "json_schema":
            grammar = LLMatcher.grammar_from_json_schema(_prepared(text)[0], defaults=JSON_LAYOUT)
        elif kind == "regex":
            grammar = LLMatcher.grammar_from_regex(text)
        else:
            grammar = LLMatcher.grammar_from_lark(_with_schemas(to_lark(text), _prepared)[0])
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    except Exception as error:  # its kind for unknown rules, and others
        raise ValueError(readable(str(error))) from error
    if said := LLMatcher.validate_grammar(grammar, None, limits=parser_limits()):
        raise ValueError((kind == "json_schema" and _pattern_error(text)) or readable(said))
    return grammar


def _pattern_error(schema: str) -> str:
    """Return what is wrong with the first wrong pattern of a schema, and its place; nothing if all are right."""
    from llguidance import LLMatcher

    for pattern, place in patterns_in(schema):
        try:
            said = LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern), None, limits=parser_limits())
        except ValueError as error:
            said = str(error)
        if said:
            return f"{place}: {readable(said)}; write the pattern in another way, or leave it out"
    return ""


@lru_cache(16)
def constraint_notes(kind: Constraint, text: str) -> tuple[str, ...]:
    """Return notes for the user about the ignored parts of a constraint; none if `compiled` refuses it."""
    if kind == "regex" or (kind == "grammar" and "%json" not in text):
        return ()
    if len(text) > MOST_NOTED:
        return ("JSON schema: too long to list the keywords in it that are ignored",)
    try:
        return tuple(translated(text)[1] if kind == "json_schema" else _with_schemas(text, translated)[1])
    except (ValueError, RecursionError):
        return ()


def _prepared(text: str) -> tuple[str, list[str]]:
    """Return a schema for llguidance that all answers can satisfy to their end, and the notes of `translated`. It names
    all properties of its objects unless it says otherwise. Raises ValueError."""
    translation, notes = translated(text)
    schema = json.loads(translation)
    close(schema)
    without_traps(schema)
    return json.dumps(schema), notes


def _with_schemas(lark: str, prepare: Callable[[str], tuple[str, list[str]]]) -> tuple[str, list[str]]:
    """Rewrite the JSON schemas in a grammar with `prepare`. Return the grammar, and notes about the ignored parts of
    the schemas. Raises ValueError."""
    parts, notes, end = list[str](), list[str](), 0
    for found in re.finditer(r"%json\s*(?={)", lark):
        if found.start() < end:  # inside the schema before it
            continue
        try:
            _, end_of_schema = json.JSONDecoder().raw_decode(lark, found.end())
        except ValueError:  # llguidance says what is wrong
            continue
        schema, ignored = prepare(lark[found.end() : end_of_schema])
        parts += [lark[end : found.end()], schema]
        notes += ignored
        end = end_of_schema
    return "".join([*parts, lark[end:]]), notes


def parser_limits() -> LLParserLimits:
    """Return llguidance's limits, which are the same for the trial and for the engine."""
    from llguidance import LLParserLimits

    # Verbose errors contain the whole grammar. A long text that is forced adds its states in one mask, 50,000 in .1 s.
    return LLParserLimits(max_lexer_states=MOST_LEXER_STATES, verbose_errors=False)


def first_mask_error(matcher: LLMatcher) -> str:
    """Return why a new matcher cannot be used, or an empty string. Some constraints fail only at the first token."""
    trial = matcher.deep_copy()
    if not trial.is_error():
        trial.compute_bitmask()
    if not trial.is_error():
        trial.compute_ff_tokens()
    return readable(trial.get_error()) if trial.is_error() else ""


def readable(said: str) -> str:
    """Return a message of llguidance without the details for its developers."""
    if broken := re.search(r"regex parse error:\n    (.*)\n( *)\^+\nerror: (.*)", said):
        pattern, blanks, why = broken.groups()
        return f"{_shortened(pattern)}, column {len(blanks) - 3}: {why}"
    if "lookarounds not supported" in said:
        return r"look-around and word boundaries (\b) are not supported"
    if "recursion limit" in said:
        return TOO_DEEP
    if "panic" in said:
        return "llguidance fails on it"
    if re.search("[Tt]oo many (expressions|items|states)|Current row has", said):
        return "it is too large, or can never end"
    if "Regex is empty" in said or "NoExtension" in said or "schema is false" in said:
        return "nothing can match it"
    return _shortened(said.replace("<non-verbose/>", "").strip())


def _shortened(said: str) -> str:
    return said if len(said) <= MOST_WORDS else said[:MOST_WORDS] + " ..."


_HINTS: dict[Constraint, str] = {
    "json_schema": "give a file, or the schema itself, starting with {",
    "grammar": "give a file, or rules: root ::= ...",
    "regex": "",
}
