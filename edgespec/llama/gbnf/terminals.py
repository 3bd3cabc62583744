"""Chooses the parts of a grammar that become terminals.

llguidance matches a terminal as a whole, which is fast, but always takes the longest match: with a terminal for
`[a-z]+` the rule `[a-z]+ "a"` could never end. So a part becomes a terminal only if this changes nothing:

- The part is a regular expression: it leads to no rule that contains itself.
- The part matches at least one character, and no character that may follow it could also make it longer.
- No other terminal or character begins with a character with which the part can begin.

Everything else is matched character by character. A set of characters is an integer here, with one bit for each range
of code points that the grammar does not distinguish.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgespec.llama.gbnf.rules import (
    Alternatives,
    Characters,
    Literal,
    Node,
    Reference,
    Repeat,
    Sequence,
    all_parts,
    reached,
)

MOST_RANGES = 2_000  # of code points; larger sets would take too long
MOST_NODES = 20_000


@dataclass(slots=True)
class _Facts:
    """Facts about a part.

    may_be_empty: the part can match the empty text.
    is_regular: the part leads to no rule that contains itself.
    first: the characters with which the part can begin.
    longer: the characters that can follow a complete match within the part, or a few more where the part is ambiguous.
        All of `first` are among them if the part may be empty.
    letters: all characters of the part.
    """

    may_be_empty: bool = False
    is_regular: bool = True
    first: int = 0
    longer: int = 0
    letters: int = 0


def terminals_of(rules: Mapping[str, Node]) -> set[Node]:
    """Return the parts that become terminals, or none if finding them would take too long."""
    names = reached(rules)
    nodes = [node for name in names for node in all_parts(rules[name])]
    points = {0}
    for node in nodes:
        if isinstance(node, Literal):
            points.update(ord(letter) + more for letter in set(node.text) for more in (0, 1))
        elif isinstance(node, Characters):
            points.update(point for first, last in node.ranges for point in (first, last + 1))
    if len(nodes) > MOST_NODES or len(points) > MOST_RANGES:
        return set()
    return _Analysis({name: rules[name] for name in names}, sorted(points)).chosen


class _Analysis:
    def __init__(self, rules: Mapping[str, Node], points: list[int]) -> None:
        self._rules, self._points = rules, points
        self._all = (1 << len(points)) - 1
        self._of_rule = {name: _Facts(is_regular=False) for name in rules}
        self._facts: dict[Node, _Facts] = {}
        self._follow: dict[Node, int] = {}
        self.chosen: set[Node] = set()
        self._find_facts()
        if self._of_rule["root"].is_regular:
            self.chosen = {rules["root"]}  # nothing can follow the whole grammar
        else:
            self._find_followers()
            self._choose()

    def _find_facts(self) -> None:
        """Find the facts of all parts. Rules refer to others below or above them, so the order alternates."""
        names, before = [*self._rules], dict[str, _Facts]()
        while before != self._of_rule:
            names.reverse()
            before = dict(self._of_rule)
            for name in names:
                self._of_rule[name] = self._find(self._rules[name])

    def _find(self, node: Node) -> _Facts:
        parts = [self._find(part) for part in node.parts]
        if isinstance(node, Reference):
            found = self._of_rule[node.name]
        elif isinstance(node, Characters):
            bits = self._bits(node.ranges)
            bits = self._all & ~bits if node.is_negated else bits
            found = _Facts(first=bits, letters=bits)
        elif isinstance(node, Literal):
            first, letters = self._bits_of(node.text[:1]), self._bits_of(node.text)
            found = _Facts(may_be_empty=not node.text, first=first, letters=letters)
        elif isinstance(node, Alternatives):
            found = _of_choice(parts)
        elif isinstance(node, Repeat):
            found = _of_repeat(parts[0], node.least, node.most)
        else:
            found = _of_sequence(parts)
        self._facts[node] = found
        return found

    def _bits_of(self, text: str) -> int:
        return self._bits(tuple((ord(letter), ord(letter)) for letter in set(text)))

    def _bits(self, ranges: tuple[tuple[int, int], ...]) -> int:
        bits = 0
        for first, last in ranges:
            bits |= (1 << bisect_left(self._points, last + 1)) - (1 << bisect_left(self._points, first))
        return bits

    def _find_followers(self) -> None:
        """Find the characters that can follow each part."""
        after, before = dict.fromkeys(self._rules, 0), dict[str, int]()
        while before != after:
            before = dict(after)
            for name, rule in self._rules.items():
                waiting = [(rule, after[name])]
                while waiting:
                    node, follow = waiting.pop()
                    self._follow[node] = self._follow.get(node, 0) | follow  # the same part may be in several places
                    if isinstance(node, Reference):
                        after[node.name] |= follow
                    elif isinstance(node, Repeat):
                        again = self._facts[node].first if node.most is None or node.most > 1 else 0
                        waiting.append((node.parts[0], follow | again))
                    elif isinstance(node, Sequence):
                        for part in reversed(node.parts):
                            waiting.append((part, follow))
                            facts = self._facts[part]
                            follow = facts.first | (follow if facts.may_be_empty else 0)
                    else:
                        waiting += [(part, follow) for part in node.parts]

    def _choose(self) -> None:
        """Choose the largest parts. Divide those that begin like others, until none does."""
        divided: set[Node] = set()
        while True:
            chosen, characters = self._candidates(divided)
            once = several = 0
            for first in [*(self._facts[node].first for node in chosen), *characters]:
                several |= once & first
                once |= first
            bad = {node for node in chosen if self._facts[node].first & several}
            if not bad:
                self.chosen = chosen
                return
            divided |= bad

    def _candidates(self, divided: set[Node]) -> tuple[set[Node], set[int]]:
        """Return the largest parts that can be terminals, and the characters of all others."""
        chosen: set[Node] = set()
        characters: set[int] = set()
        waiting, seen = [self._rules["root"]], set[str]()
        while waiting:
            node = waiting.pop()
            facts = self._facts[node]
            is_safe = facts.is_regular and not facts.may_be_empty and not facts.longer & self._follow[node]
            if is_safe and node not in divided and not isinstance(node, Characters):
                chosen.add(node)
            elif isinstance(node, Reference):
                if node.name not in seen:
                    seen.add(node.name)
                    waiting.append(self._rules[node.name])
            elif isinstance(node, Literal | Characters):
                characters.add(facts.letters)
            else:
                waiting += node.parts
        return chosen, characters


def _of_sequence(parts: list[_Facts]) -> _Facts:
    whole = _Facts(may_be_empty=True)
    for part in parts:
        is_ambiguous = whole.longer & part.first
        whole.first |= part.first if whole.may_be_empty else 0
        whole.letters |= part.letters
        whole.longer = part.longer | (whole.longer if part.may_be_empty else 0)
        whole.longer |= whole.letters if is_ambiguous else 0
        whole.is_regular &= part.is_regular
        whole.may_be_empty &= part.may_be_empty
    return whole


def _of_choice(options: list[_Facts]) -> _Facts:
    whole = _Facts()
    is_ambiguous = 0
    for option in options:
        is_ambiguous |= whole.first & option.first
        whole.first |= option.first
        whole.letters |= option.letters
        whole.longer |= option.longer
        whole.is_regular &= option.is_regular
        whole.may_be_empty |= option.may_be_empty
    whole.longer |= whole.first if whole.may_be_empty else 0
    whole.longer |= whole.letters if is_ambiguous else 0
    return whole


def _of_repeat(part: _Facts, least: int, most: int | None) -> _Facts:
    if most == 0:
        return _Facts(may_be_empty=True)
    whole = replace(part, may_be_empty=least == 0 or part.may_be_empty)
    if whole.may_be_empty or most is None or most > least:
        whole.longer |= part.first
    if most != 1 and part.longer & part.first:  # ambiguous
        whole.longer |= part.letters
    return whole
