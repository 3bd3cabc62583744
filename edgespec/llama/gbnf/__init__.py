"""GBNF, the grammar language of llama.cpp, as llguidance's dialect of Lark."""

from __future__ import annotations

import re

from llguidance import LLMatcher, LLParserLimits

from edgespec.llama.gbnf.lark import written
from edgespec.llama.gbnf.lexemes import Lexemes
from edgespec.llama.gbnf.parser import parsed
from edgespec.llama.gbnf.simpler import simplified

_IS_LARK = re.compile(r"(?m)^\s*(?:%llguidance\b|start\s*:(?!:=))")


def to_lark(text: str) -> str:
    """A grammar in GBNF as Lark; Lark stays as it is. Raises ValueError with the line and the column of a mistake."""
    if _IS_LARK.search(text):
        return text
    rules = simplified(parsed(text))
    lark = written(rules, Lexemes(rules).chosen)
    if _is_refused(lark):  # some regular expressions are too much for llguidance as one terminal
        return written(rules, frozenset())
    return lark


def _is_refused(lark: str) -> bool:
    limits = LLParserLimits(verbose_errors=False)
    try:
        return bool(LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(lark), None, limits=limits))
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust; it is no Exception
            raise
        return True
