"""GBNF, the grammar language of llama.cpp, as llguidance's dialect of Lark.

In Lark the names of rules are in lower case, and those of terminals in upper case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

from llguidance import LLMatcher, LLParserLimits

from edgespec.llama.gbnf.rules import (
    Alternatives,
    Characters,
    Literal,
    Node,
    Reference,
    Repeat,
    parsed,
    without_recursion,
)
from edgespec.llama.gbnf.terminals import terminals_of

_SPECIAL = re.compile(r"[^A-Za-z0-9 _]")
_IS_LARK = re.compile(r"(?m)^\s*(?:%llguidance\b|start\s*:(?!:=))")


def to_lark(text: str) -> str:
    """Return a grammar in GBNF as Lark, or unchanged if it is Lark already. Raises ValueError with the line and the
    column of a mistake."""
    if _IS_LARK.search(text):
        return text
    rules = {name: without_recursion(name, rule) for name, rule in parsed(text).items()}
    lark = _Writer(rules, terminals_of(rules)).text
    if _is_refused(lark):  # some regular expressions are too much for llguidance as one terminal
        return _Writer(rules, frozenset()).text
    return lark


def _is_refused(lark: str) -> bool:
    limits = LLParserLimits(verbose_errors=False)
    try:
        return bool(LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(lark), None, limits=limits))
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # a panic in Rust, which is no Exception
            raise
        return True


class _Writer:
    """Writes the rules that "root" needs. `terminals` are the parts that become terminals."""

    def __init__(self, rules: Mapping[str, Node], terminals: Set[Node]) -> None:
        self._terminals = terminals
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._names: dict[str, str] = {}  # of terminals, by their expressions
        self._waiting = [("root", False)]  # rules to be written, and whether as terminals
        lines: dict[str, str] = {}
        while self._waiting:
            name, is_terminal = self._waiting.pop()
            own = self._own_name(name, is_terminal=is_terminal)
            if own not in lines:
                lines[own] = self._written(rules[name], is_terminal=is_terminal)
        lines |= {name: expression for expression, name in self._names.items()}
        self.text = "\n".join(["%llguidance {}", *(f"{name}: {body}" for name, body in lines.items()), ""])

    def _own_name(self, name: str, *, is_terminal: bool) -> str:
        return "start" if name == "root" and not is_terminal else f"{'R' if is_terminal else 'r'}{self._numbers[name]}"

    def _written(self, node: Node, *, is_terminal: bool) -> str:
        """A part of a rule or of a terminal."""
        if node in self._terminals and not is_terminal:
            expression = self._written(node, is_terminal=True)
            return self._names.setdefault(expression, f"T{len(self._names)}")
        if isinstance(node, Reference):
            self._waiting.append((node.name, is_terminal))
            return self._own_name(node.name, is_terminal=is_terminal)
        if isinstance(node, Literal) and not node.text:
            return '""'
        if isinstance(node, Literal):  # in rules letter by letter: a longer terminal could hide a shorter one
            letters = " ".join(f"/{_escaped(letter)}/" for letter in node.text)
            return f"/{_escaped(node.text)}/" if is_terminal else f"({letters})"
        return _composed(node, [self._written(part, is_terminal=is_terminal) for part in node.parts])


def _composed(node: Node, parts: list[str]) -> str:
    if isinstance(node, Characters):
        if not node.ranges:
            return "/(?s:.)/"
        ranges = (f"{_escaped(chr(first))}-{_escaped(chr(last))}" for first, last in node.ranges)
        return f"/[{'^' * node.is_negated}{''.join(ranges)}]/"
    if isinstance(node, Repeat):
        if node.most == 0:
            return '""'
        return f"({parts[0]}){{{node.least},{'' if node.most is None else node.most}}}"
    if isinstance(node, Alternatives):
        return f"({' | '.join(parts)})"
    return f"({' '.join(parts)})" if parts else '""'


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"\\u{{{ord(found[0]):X}}}", text)
