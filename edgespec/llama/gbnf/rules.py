"""The rules of GBNF and their parser. The syntax is described in `grammars/README.md` of llama.cpp."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

MOST_DIGITS = 6  # of a number of repetitions

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_COUNTS = re.compile(r"\{\s*(?P<least>[0-9]+)\s*(?:(?P<comma>,)\s*(?P<most>[0-9]*)\s*)?\}")
_PLAIN_TEXT = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[nrt]|[^\w\s]|_)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True)
class Node:
    """A part of a rule, which may consist of further parts. Parts that are written in the same way are equal."""

    parts: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Literal(Node):
    text: str = ""


@dataclass(frozen=True)
class Characters(Node):
    """One character in these ranges of code points, or with `is_negated` one that is in none of them."""

    ranges: tuple[tuple[int, int], ...] = ()
    is_negated: bool = False


@dataclass(frozen=True)
class Reference(Node):
    """The text of another rule."""

    name: str = ""


@dataclass(frozen=True)
class Sequence(Node):
    pass


@dataclass(frozen=True)
class Alternatives(Node):
    pass


@dataclass(frozen=True)
class Repeat(Node):
    """Its only part `least` to `most` times; None: without limit."""

    least: int = 0
    most: int | None = None


def all_parts(node: Node) -> list[Node]:
    """Return the node with all parts inside it."""
    found = [node]
    for part in found:
        found += part.parts
    return found


def references(node: Node) -> list[str]:
    """Return the names of the rules in a node."""
    return [part.name for part in all_parts(node) if isinstance(part, Reference)]


def reached(rules: Mapping[str, Node]) -> list[str]:
    """Return the names of the rules that the rule "root" needs, nearest first."""
    found = dict.fromkeys(["root"])
    names = ["root"]
    for name in names:
        new = [other for other in dict.fromkeys(references(rules[name])) if other not in found]
        found |= dict.fromkeys(new)
        names += new
    return names


def without_recursion(name: str, rule: Node) -> Node:
    """Write `x ::= a x | b` as `a* b`, which is a regular expression. Rules that refer to themselves elsewhere stay."""
    if isinstance(rule, Repeat) and (rule.least, rule.most) == (0, 1):  # such as ws ::= ([ \t\n] ws)?
        inner = rule.parts[0]
        options = (*(inner.parts if isinstance(inner, Alternatives) else [inner]), Sequence())
    else:
        options = rule.parts if isinstance(rule, Alternatives) else (rule,)
    again = [
        option for option in options if isinstance(option, Sequence) and option.parts[-1:] == (Reference(name=name),)
    ]
    repeated = [Sequence(option.parts[:-1]) for option in again]
    last = [option for option in options if option not in again]
    if not again or not last or name in references(Sequence((*repeated, *last))):
        return rule
    return Sequence((Repeat((Alternatives((*repeated,)),)), Alternatives((*last,))))


def parsed(text: str) -> dict[str, Node]:
    """Return the rules of a grammar by name. If a name has several rules, the last one counts, as in llama.cpp. Raises
    ValueError with the line and the column of a mistake."""
    parser = _Parser(text)
    rules = parser.rules()
    for name, at in parser.references.items():
        if name not in rules:
            parser.fail(f"rule '{name}' not found", at)
    if "root" not in rules:
        raise ValueError("rule 'root' not found; an answer begins with that rule")
    return rules


class _Parser:
    """Reads a grammar from left to right. `_at` is the position of the next character."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.references: dict[str, int] = {}  # rule names, each with the position of its first use

    def fail(self, why: str, at: int | None = None) -> NoReturn:
        """Raise ValueError with a position: the next character, or `at`."""
        before = self._text[: self._at if at is None else at]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise ValueError(f"line {line}, column {column}: {why}")

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._take(_BLANK_LINES)
        while self._at < len(self._text):
            name = self._take(_NAME) or self._expected("the name of a rule")
            self._take(_BLANKS)
            self._expect("::=")
            self._take(_BLANK_LINES)
            rules[name] = self._choice(is_nested=False)
            if self._next() not in ("", "\r", "\n"):
                self._expected("the end of the rule")
            self._take(_BLANK_LINES)
        return rules

    def _choice(self, *, is_nested: bool) -> Node:
        options = [self._sequence(is_nested=is_nested)]
        while self._takes_bar(is_nested=is_nested):
            self._take(_BLANK_LINES)
            options.append(self._sequence(is_nested=is_nested))
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def _takes_bar(self, *, is_nested: bool) -> bool:
        """Take a `|`. A rule may also continue on the next line if that line begins with one."""
        at = self._at
        self._take(_BLANK_LINES)
        if self._takes("|"):
            return True
        self._at = self._at if is_nested else at
        return False

    def _sequence(self, *, is_nested: bool) -> Node:
        parts: list[Node] = []
        while (letter := self._next()) not in ("", "|", ")", "\r", "\n"):
            if letter in "*+?{":
                if not parts:
                    self.fail(f"{letter} must follow what it repeats")
                parts[-1] = self._repeat(parts[-1])
            else:
                parts.append(self._part())
            self._take(_BLANK_LINES if is_nested else _BLANKS)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self) -> Node:
        at = self._at
        if self._takes('"'):
            return self._literal()
        if self._takes("["):
            return self._characters()
        if self._takes("("):
            self._take(_BLANK_LINES)
            group = self._choice(is_nested=True)
            self._expect(")")
            return group
        if self._takes("."):
            return Characters(is_negated=True)
        if self._next() in ("<", "!"):
            self.fail("tokens (<...>) are not supported; write their text")
        name = self._take(_NAME) or self._expected("a string, characters, a group or the name of a rule")
        self.references.setdefault(name, at)
        return Reference(name=name)

    def _repeat(self, part: Node) -> Node:
        letter, at = self._next(), self._at
        if letter != "{":
            self._at += 1
            return Repeat((part,), int(letter == "+"), 1 if letter == "?" else None)
        found = _COUNTS.match(self._text, at) or self.fail("expected {n}, {n,} or {n,m}")
        self._at = found.end()
        if any(len(digits or "") > MOST_DIGITS for digits in found.group("least", "most")):
            self.fail(f"a number of repetitions has more than {MOST_DIGITS} digits", at)
        least = int(found["least"])
        most = least if not found["comma"] else int(found["most"]) if found["most"] else None
        if most is not None and most < least:
            self.fail(f"at most {most} repetitions cannot be at least {least}", at)
        return Repeat((part,), least, most)

    def _literal(self) -> Node:
        letters = []
        while not self._takes('"'):
            letters.append(self._take(_PLAIN_TEXT) or self._character())
        return Literal(text="".join(letters))

    def _characters(self) -> Node:
        at = self._at - 1
        is_negated = self._takes("^")
        ranges: list[tuple[int, int]] = []
        while not self._takes("]"):
            place = self._at
            first = last = ord(self._character())
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = ord(self._character())
            if last < first:
                self.fail("the range is the wrong way round", place)
            ranges.append((first, last))
        if not ranges and not is_negated:
            self.fail("no character is in these brackets", at)
        return Characters(ranges=tuple(ranges), is_negated=is_negated)

    def _character(self) -> str:
        """The next character of a string or of a class, which may be an escape sequence."""
        letter, at = self._next() or self._expected("a character"), self._at
        if letter != "\\":
            self._at += 1
            return letter
        escape = self._take(_ESCAPE)
        if not escape:
            self.fail(f"{self._text[at : at + 2]} is no escape sequence, or needs more hexadecimal digits")
        if len(escape) == 2:
            return _ESCAPES.get(escape[1], escape[1])
        code = int(escape[2:], 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            self.fail(f"{escape} is no character", at)
        return chr(code)

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found[0] if found else ""

    def _takes(self, mark: str) -> bool:
        """Take a mark if it comes next."""
        found = self._text.startswith(mark, self._at)
        self._at += len(mark) if found else 0
        return found

    def _expect(self, mark: str) -> None:
        if not self._takes(mark):
            self._expected(mark)

    def _expected(self, what: str) -> NoReturn:
        if self._at >= len(self._text):
            self.fail(f"Unexpected end of the grammar, expected {what}")
        self.fail(f"expected {what}, not {self._next()!r}")
