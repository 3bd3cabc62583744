"""Chooses the parts of a grammar that become terminals.

llguidance reads a terminal ("lexeme") as a whole, which is fast, but always takes the longest match: with a terminal
for `[a-z]+` the rule `[a-z]+ "a"` could never end. So a part becomes a terminal only if that changes nothing:

- No reference in the part leads back to a rule that is being described: the part is a regular expression.
- The part matches at least one character, and no character that may follow could also make it longer.
- No other terminal or character begins with a character that the part can begin with.

All else is read character by character. A set of characters is an integer here, with one bit for each range of code
points that the grammar does not distinguish.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgespec.llama.gbnf.rules import Characters, Choice, Literal, Node, Reference, Repeat, Sequence, all_parts

MOST_RANGES = 2_000  # of code points; sets of more bits would take too long
MOST_NODES = 20_000
MOST_ROUNDS = 20  # of going through all rules


@dataclass(slots=True)
class _Facts:
    """Facts about a part.

    may_be_empty: the part can match the empty text.
    first: the characters that the part can begin with.
    longer: the characters that can follow a complete match within the part; all of `first` if the part may be empty.
    letters: all characters of the part.
    is_clear: each character shows which place of the part was matched, so that `longer` is exact.
    is_regular: no reference in the part leads back to a rule that is being described.
    size: the number of parts within the part and within the rules that the part refers to.
    """

    may_be_empty: bool = False
    first: int = 0
    longer: int = 0
    letters: int = 0
    is_clear: bool = True
    is_regular: bool = True
    size: int = 1

    @property
    def growth(self) -> int:
        return self.longer if self.is_clear else self.letters


class Lexemes:
    """`chosen` are the parts of these rules that become terminals; empty where finding them would take too long."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._order = _regular_rules(rules)
        self._regular = set(self._order)
        self.chosen: set[Node] = set()
        if "root" in self._regular:
            self.chosen = {rules["root"]}  # nothing can follow the whole grammar
            return
        reached = _reached(rules)
        nodes = [node for name in reached for node in all_parts(rules[name])]
        self._bits = _Bits(nodes)
        if len(nodes) <= MOST_NODES and len(self._bits.points) <= MOST_RANGES:
            self._order = [name for name in self._order if name in reached]
            self._others = [name for name in reversed(reached) if name not in self._regular]
            self._facts: dict[str, _Facts] = {name: _Facts() for name in reached}
            self._known: dict[Node, _Facts] = {}
            self._follow: dict[Node, int] = {}
            if self._find_facts() and self._find_followers():
                self._choose()

    def _find_facts(self) -> bool:
        """False if there are too many rounds to make."""
        for name in self._order:
            self._facts[name] = self._fact(self._rules[name])
        for _ in range(MOST_ROUNDS):
            before = [(self._facts[name].may_be_empty, self._facts[name].first) for name in self._others]
            for name in self._others:
                self._facts[name] = self._fact(self._rules[name])
            if before == [(self._facts[name].may_be_empty, self._facts[name].first) for name in self._others]:
                return True
        return False

    def _fact(self, node: Node) -> _Facts:
        parts = [self._fact(part) for part in node.parts]
        self._known[node] = fact = self._fact_of(node, parts)
        return fact

    def _fact_of(self, node: Node, parts: list[_Facts]) -> _Facts:
        if isinstance(node, Reference):
            fact = self._facts[node.name]
            return replace(fact, is_regular=node.name in self._regular, size=min(fact.size, MOST_NODES))
        if isinstance(node, Characters):
            bits = self._bits.of_ranges(node.ranges)
            return _Facts(first=bits, letters=bits)
        if isinstance(node, Literal):
            letters = self._bits.of_ranges(tuple((ord(letter), ord(letter)) for letter in set(node.text)))
            first = self._bits.of_ranges(tuple((ord(letter), ord(letter)) for letter in node.text[:1]))
            return _Facts(not node.text, first, 0, letters)
        if isinstance(node, Choice):
            return _of_choice(parts)
        if isinstance(node, Repeat):
            return _of_repeat(parts[0], node.least, node.most)
        return _of_sequence(parts)

    def _find_followers(self) -> bool:
        """The characters that can follow each part. False if there are too many rounds to make."""
        after = {"root": 0}
        for _ in range(MOST_ROUNDS):
            before = dict(after)
            for name in self._facts:
                waiting = [(self._rules[name], after.get(name, 0))]
                while waiting:
                    node, follow = waiting.pop()
                    self._follow[node] = follow
                    if isinstance(node, Reference):
                        after[node.name] = after.get(node.name, 0) | follow
                    elif isinstance(node, Sequence):
                        for part in reversed(node.nodes):
                            waiting.append((part, follow))
                            fact = self._known[part]
                            follow = fact.first | (follow if fact.may_be_empty else 0)
                    elif isinstance(node, Repeat):
                        again = self._known[node.part].first if node.most is None or node.most > 1 else 0
                        waiting.append((node.part, follow | again))
                    else:
                        waiting += [(part, follow) for part in node.parts]
            if after == before:
                return True
        return False

    def _choose(self) -> None:
        """Choose the largest parts, and divide those that could be taken for others, large ones first."""
        divided: set[Node] = set()
        for _ in range(MOST_ROUNDS):
            lexemes, firsts = self._candidates(divided)
            once = several = 0
            for first in firsts.values():
                several |= once & first
                once |= first
            bad = {node for node in lexemes if self._known[node].first & several}
            if not bad:
                self.chosen = lexemes
                return
            largest = max(self._known[node].size for node in bad)
            divided |= {node for node in bad if 2 * self._known[node].size > largest}

    def _candidates(self, divided: set[Node]) -> tuple[set[Node], dict[object, int]]:
        """The largest parts that can be terminals, and what each terminal and single character begins with."""
        lexemes: set[Node] = set()
        firsts: dict[object, int] = {}
        rules, seen = ["root"], {"root"}
        for rule in rules:
            waiting = [self._rules[rule]]
            while waiting:
                node = waiting.pop()
                fact = self._known[node]
                if node not in divided and self._can_be_one(node, fact):
                    lexemes.add(node)
                    firsts[self._key(node)] = fact.first
                elif isinstance(node, Reference):
                    if node.name not in seen:
                        seen.add(node.name)
                        rules.append(node.name)
                elif isinstance(node, Literal | Characters):
                    firsts[("letters", fact.letters)] = fact.letters
                else:
                    waiting += node.parts
        return lexemes, firsts

    def _can_be_one(self, node: Node, fact: _Facts) -> bool:
        return (
            fact.is_regular
            and not fact.may_be_empty
            and not fact.growth & self._follow[node]
            and not isinstance(node, Characters)
        )

    def _key(self, node: Node) -> object:
        """Equal for parts that match the same because they are written in the same way."""
        if isinstance(node, Reference):
            return node.name
        if isinstance(node, Literal):
            return ("text", node.text)
        if isinstance(node, Characters):
            return node.ranges
        limits = (node.least, node.most) if isinstance(node, Repeat) else ()
        return (type(node).__name__, *limits, *map(self._key, node.parts))


class _Bits:
    """One bit for each range of code points that the grammar does not distinguish."""

    def __init__(self, nodes: list[Node]) -> None:
        points: set[int] = set()
        for node in nodes:
            if isinstance(node, Literal):
                points.update(ord(letter) + more for letter in set(node.text) for more in (0, 1))
            elif isinstance(node, Characters):
                points.update(point for first, last in node.ranges for point in (first, last + 1))
        self.points = sorted(points)

    def of_ranges(self, ranges: tuple[tuple[int, int], ...]) -> int:
        bits = 0
        for first, last in ranges:
            bits |= (1 << bisect_left(self.points, last + 1)) - (1 << bisect_left(self.points, first))
        return bits


def _of_sequence(parts: list[_Facts]) -> _Facts:
    whole = _Facts(may_be_empty=True)
    for part in parts:
        whole.is_clear &= part.is_clear and not whole.longer & part.first
        whole.first |= part.first if whole.may_be_empty else 0
        whole.longer = part.longer | (whole.longer if part.may_be_empty else 0)
        whole.letters |= part.letters
        whole.is_regular &= part.is_regular
        whole.size += part.size
        whole.may_be_empty &= part.may_be_empty
    return whole


def _of_choice(options: list[_Facts]) -> _Facts:
    whole = _Facts()
    for option in options:
        both_empty = whole.may_be_empty and option.may_be_empty
        whole.is_clear &= option.is_clear and not both_empty and not whole.first & option.first
        whole.may_be_empty |= option.may_be_empty
        whole.first |= option.first
        whole.longer |= option.longer
        whole.letters |= option.letters
        whole.is_regular &= option.is_regular
        whole.size += option.size
    whole.longer |= whole.first if whole.may_be_empty else 0
    return whole


def _of_repeat(part: _Facts, least: int, most: int | None) -> _Facts:
    if most == 0:
        return _Facts(may_be_empty=True)
    repeats = most is None or most > 1
    whole = _Facts(least == 0 or part.may_be_empty, part.first, part.longer, part.letters, part.is_clear)
    whole.is_regular, whole.size = part.is_regular, part.size + 1
    if repeats:
        whole.is_clear &= not part.may_be_empty and not part.longer & part.first
    if whole.may_be_empty or most is None or (repeats and most > least):
        whole.longer |= part.first
    return whole


def _reached(rules: Mapping[str, Node]) -> dict[str, None]:
    """The names of the rules that "root" uses, those that are nearest to it first."""
    names, found = ["root"], {"root": None}
    for name in names:
        for part in all_parts(rules[name]):
            if isinstance(part, Reference) and part.name not in found:
                found[part.name] = None
                names.append(part.name)
    return found


def _regular_rules(rules: Mapping[str, Node]) -> list[str]:
    """The names of the rules that do not lead back to themselves, each after those that it refers to."""
    uses = {
        name: {part.name for part in all_parts(rule) if isinstance(part, Reference)} for name, rule in rules.items()
    }
    used_by: dict[str, list[str]] = {name: [] for name in rules}
    n_open = {}
    for name, used in uses.items():
        n_open[name] = len(used)
        for other in used:
            used_by[other].append(name)
    order = [name for name, n in n_open.items() if n == 0]
    for name in order:
        for user in used_by[name]:
            n_open[user] -= 1
            if n_open[user] == 0:
                order.append(user)
    return order
