"""The parts of the rules of a GBNF grammar. Parts that are written in the same way are equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """A part of a rule, which may consist of further parts."""

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
class Choice(Node):
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
        options = (*(inner.parts if isinstance(inner, Choice) else [inner]), Sequence())
    else:
        options = rule.parts if isinstance(rule, Choice) else (rule,)
    again = [
        option for option in options if isinstance(option, Sequence) and option.parts[-1:] == (Reference(name=name),)
    ]
    repeated = [Sequence(option.parts[:-1]) for option in again]
    last = [option for option in options if option not in again]
    if not again or not last or name in references(Sequence((*repeated, *last))):
        return rule
    return Sequence((Repeat((Choice((*repeated,)),)), Choice((*last,))))
