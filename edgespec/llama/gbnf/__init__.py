"""GBNF, the grammar language of llama.cpp, as llguidance's dialect of Lark."""

from __future__ import annotations

import re

from llguidance import LLMatcher, LLParserLimits

from edgespec.llama.gbnf.lark import written
from edgespec.llama.gbnf.parser import parsed
from edgespec.llama.gbnf.rules import without_recursion
from edgespec.llama.gbnf.terminals import terminals_of

_IS_LARK = re.compile(r"(?m)^\s*(?:%llguidance\b|start\s*:(?!:=))")


def to_lark(text: str) -> str:
    """Return a grammar in GBNF as Lark, or unchanged if it is Lark already. Raises ValueError with the line and the
    column of a mistake."""
    if _IS_LARK.search(text):
        return text
    rules = {name: without_recursion(name, rule) for name, rule in parsed(text).items()}
    lark = written(rules, terminals_of(rules))
    if _is_refused(lark):  # some regular expressions are too much for llguidance as one terminal
        return written(rules, frozenset())
    return lark


def _is_refused(lark: str) -> bool:
    limits = LLParserLimits(verbose_errors=False)
    try:
        return bool(LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(lark), None, limits=limits))
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # a panic in Rust, which is no Exception
            raise
        return True
