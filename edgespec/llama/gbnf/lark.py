"""Rules of GBNF, written as Lark. The names of terminals are capital letters, as Lark wants."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

from edgespec.llama.gbnf.rules import Characters, Choice, Literal, Node, Reference, Repeat

_SPECIAL = re.compile(r"[^A-Za-z0-9 _]")


def written(rules: Mapping[str, Node], lexemes: Set[Node]) -> str:
    """The rules that "root" uses, as Lark. `lexemes` are the parts that become terminals."""
    return _Writer(rules, lexemes).text


class _Writer:
    def __init__(self, rules: Mapping[str, Node], lexemes: Set[Node]) -> None:
        self._lexemes = lexemes
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._terminals: dict[str, str] = {}  # the names of terminals by what they match
        parsed, regular = _Wanted(), _Wanted()
        parsed.add("root")
        lines = []
        for name in parsed.names:
            body = self._parsed(rules[name], parsed, regular)
            lines.append(f"{'start' if name == 'root' else f'r{self._numbers[name]}'}: {body}")
        lines += [f"{name}: {text}" for text, name in self._terminals.items()]
        for name in regular.names:
            lines.append(f"R{self._numbers[name]}: {self._regular(rules[name], regular)}")
        self.text = "\n".join(["%llguidance {}", *lines, ""])

    def _parsed(self, node: Node, parsed: _Wanted, regular: _Wanted) -> str:
        """A part of a rule."""
        if node in self._lexemes:
            text = self._regular(node, regular)
            return text if isinstance(node, Reference) else self._terminals.setdefault(text, f"T{len(self._terminals)}")
        if isinstance(node, Reference):
            parsed.add(node.name)
            name = f"r{self._numbers[node.name]}"
            return "start" if node.name == "root" else name
        if isinstance(node, Literal):  # letter by letter: a longer terminal could hide a shorter one
            return f"({' '.join(f'/{_escaped(letter)}/' for letter in node.text)})" if node.text else '""'
        return _composed(node, [self._parsed(part, parsed, regular) for part in node.parts])

    def _regular(self, node: Node, regular: _Wanted) -> str:
        """A part of a terminal."""
        if isinstance(node, Reference):
            regular.add(node.name)
            return f"R{self._numbers[node.name]}"
        if isinstance(node, Literal):
            return f"/{_escaped(node.text)}/" if node.text else '""'
        return _composed(node, [self._regular(part, regular) for part in node.parts])


class _Wanted:
    """Names of rules, each once, in the order in which they were wanted first."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._seen: set[str] = set()

    def add(self, name: str) -> None:
        if name not in self._seen:
            self._seen.add(name)
            self.names.append(name)


def _composed(node: Node, parts: list[str]) -> str:
    if isinstance(node, Characters):
        ranges = (_escaped(chr(a)) + (f"-{_escaped(chr(b))}" if b > a else "") for a, b in node.ranges)
        return f"/[{''.join(ranges)}]/"
    if isinstance(node, Repeat):
        if node.most == 0:
            return '""'
        return f"({parts[0]}){{{node.least},{'' if node.most is None else node.most}}}"
    if isinstance(node, Choice):
        return f"({' | '.join(parts)})"
    return f"({' '.join(parts)})" if parts else '""'


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"\\u{{{ord(found[0]):X}}}", text)
