"""The parts of the rules of a GBNF grammar, and sets of characters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Ranges = tuple[tuple[int, int], ...]
"""Characters by their first and last code points, sorted, apart from each other."""

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)  # code points that no text contains


@dataclass(eq=False, slots=True)
class Node:
    """A part of a rule."""

    @property
    def parts(self) -> list[Node]:
        return []


@dataclass(eq=False, slots=True)
class Literal(Node):
    text: str


@dataclass(eq=False, slots=True)
class Characters(Node):
    """One character of a set."""

    ranges: Ranges


@dataclass(eq=False, slots=True)
class Reference(Node):
    """Another rule."""

    name: str


@dataclass(eq=False, slots=True)
class Sequence(Node):
    nodes: list[Node]

    @property
    def parts(self) -> list[Node]:
        return self.nodes


@dataclass(eq=False, slots=True)
class Choice(Node):
    options: list[Node]

    @property
    def parts(self) -> list[Node]:
        return self.options


@dataclass(eq=False, slots=True)
class Repeat(Node):
    """A part `least` to `most` times; None: any number of times."""

    part: Node
    least: int
    most: int | None

    @property
    def parts(self) -> list[Node]:
        return [self.part]


def all_parts(node: Node) -> list[Node]:
    """The node, its parts and theirs."""
    found = [node]
    for part in found:
        found += part.parts
    return found


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters in the order of their code points."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All other characters."""
    found, begin = [], 0
    for first, last in merged([*ranges, SURROGATES]):
        if first > begin:
            found.append((begin, first - 1))
        begin = last + 1
    if begin <= LAST:
        found.append((begin, LAST))
    return tuple(found)
