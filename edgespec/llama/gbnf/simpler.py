"""Rules that match the same, with more parts that are regular expressions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from edgespec.llama.gbnf.rules import Characters, Choice, Literal, Node, Reference, Repeat, Sequence, all_parts

MOST_INLINED = 16  # characters


def simplified(rules: Mapping[str, Node]) -> dict[str, Node]:
    """The same rules, where those that refer to themselves at their end alone, such as `ws ::= ([ \\t\\n] ws)?`,
    are written as repetitions, and each string is written in one way: as one string."""
    simple = {name: _flat(_without_recursion(name, rule), {}) for name, rule in rules.items()}
    texts = {name: rule for name, rule in simple.items() if isinstance(rule, Literal) and len(rule.text) < MOST_INLINED}
    return {name: _flat(rule, texts) for name, rule in simple.items()}


def _without_recursion(name: str, rule: Node) -> Node:
    """`x ::= a x | b` as `a* b`; the rule itself if it refers to itself elsewhere."""
    if isinstance(rule, Repeat) and (rule.least, rule.most) == (0, 1):
        options = [rule.part, Sequence([])]
        if isinstance(rule.part, Choice):
            options[:1] = rule.part.options
    else:
        options = [*rule.parts] if isinstance(rule, Choice) else [rule]
    repeated: list[Node] = []
    last: list[Node] = []
    for option in options:
        end = option.parts[-1] if isinstance(option, Sequence) and option.parts else None
        if isinstance(end, Reference) and end.name == name:
            repeated.append(Sequence(option.parts[:-1]))
        else:
            last.append(option)
    kept = [*repeated, *last]
    names = {part.name for one in kept for part in all_parts(one) if isinstance(part, Reference)}
    if not repeated or not last or name in names:
        return rule
    return Sequence([Repeat(Choice(repeated), 0, None), Choice(last)])


def _flat(node: Node, texts: Mapping[str, Literal]) -> Node:
    """The same node without sequences in sequences, choices in choices, or strings next to each other. `texts` are the
    rules that are replaced by their strings."""
    parts = [_flat(part, texts) for part in node.parts]
    if isinstance(node, Reference):
        return texts.get(node.name, node)
    if isinstance(node, Characters):
        (first, last), *others = node.ranges
        return node if others or first < last else Literal(chr(first))
    if isinstance(node, Repeat):
        return parts[0] if (node.least, node.most) == (1, 1) else Repeat(parts[0], node.least, node.most)
    if isinstance(node, Choice):
        options = [inner for part in parts for inner in (part.parts if isinstance(part, Choice) else [part])]
        return Choice(options) if len(options) > 1 else options[0]
    if not isinstance(node, Sequence):
        return node
    joined: list[Node] = []
    inner = [one for part in parts for one in (part.parts if isinstance(part, Sequence) else [part])]
    for _, group in groupby(inner, lambda one: isinstance(one, Literal)):
        nodes = [*group]
        strings = [one.text for one in nodes if isinstance(one, Literal)]
        joined += [Literal("".join(strings))] if strings else nodes
    return joined[0] if len(joined) == 1 else Sequence(joined)
