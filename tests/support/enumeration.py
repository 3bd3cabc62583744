"""Every outcome of a step of drafting and verifying, with its exact probability: the proof of a verification rule.

Drafting and verifying are functions of a `Chance`, which answers all of their coins and draws. `outcomes` replays them
once for every list of answers, depth first, so that the distribution of what is emitted comes out exactly but for
rounding, for any rule and any way to draft.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from edgespec.core.distribution import Distribution
from edgespec.core.draft import Draft
from edgespec.core.verify import AcceptanceTest

Prefix = tuple[int, ...]
Model = Callable[[Prefix], Distribution]
Joint = dict[Prefix, float]
"""The probability of each sequence of tokens."""
Rule = Callable[[Draft, AcceptanceTest], tuple[list[int], int | None]]
T = TypeVar("T")


class Chance:
    """One way that things go: the numbers in `script` say which of the possible answers come first, then the first one
    always does. `others` are the scripts of the ways not gone."""

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.taken: list[int] = []
        self.others: list[list[int]] = []
        self.probability = 1.0

    def pick(self, answers: Sequence[tuple[T, float]]) -> T:
        possible = [(answer, p) for answer, p in answers if p > 0]
        at = len(self.taken)
        if at < len(self.script):
            number = self.script[at]
        else:
            number = 0
            self.others += [[*self.taken, other] for other in range(1, len(possible))]
        self.taken.append(number)
        answer, p = possible[number]
        self.probability *= p
        return answer

    def coin(self, p: float) -> bool:
        assert 0 <= p <= 1, p
        return self.pick([(True, p), (False, 1 - p)])

    def draw(self, distribution: Distribution) -> int:
        assert np.all(distribution.p >= 0) and abs(distribution.p.sum() - 1) < 1e-12, distribution
        ids: list[int] = distribution.ids.tolist()
        return self.pick(list(zip(ids, distribution.p.tolist(), strict=True)))


def outcomes(play: Callable[[Chance], T]) -> Iterator[tuple[T, float]]:
    """Yield each possible result of `play` with its probability."""
    pending: list[list[int]] = [[]]
    while pending:
        chance = Chance(pending.pop())
        result = play(chance)
        pending += chance.others
        yield result, chance.probability


@dataclass(frozen=True)
class EnumeratedTest:
    """A target that verifies a draft and accepts as the coins say. Nothing may follow the token `end`."""

    target: Model
    draft: Draft
    chance: Chance
    end: int | None = None

    def distribution(self, path: list[int]) -> Distribution:
        for node, parent in zip(path, [-1, *path], strict=False):
            assert self.draft.parents[node] == parent, "not a path"
        return self.target(tuple(self.draft.tokens[node] for node in path))

    def accepts(self, probability: float, depth: int, token: int) -> bool:
        return self.chance.coin(probability)

    def draw(self, distribution: Distribution, depth: int) -> int:
        return self.chance.draw(distribution)

    def ends(self, token: int) -> bool:
        return token == self.end


# --- what is proved -------------------------------------------------------------------------------------------------

Drafting = Callable[[Chance, Model], Draft]
TestOf = Callable[[Model, Draft, Chance, int | None], AcceptanceTest]


@dataclass(frozen=True)
class Emitted:
    """The distribution of the first n tokens when a step is followed by plain decoding, and the mean number of
    accepted draft tokens."""

    joint: Joint
    accepted: float


def enumerate_step(
    rule: Rule,
    drafting: Drafting,
    target: Model,
    drafter: Model,
    n: int,
    end: int | None = None,
    test_of: TestOf = EnumeratedTest,
) -> Emitted:
    """All that a round may emit; n is at least the draft's depth and one."""

    def verdicts(draft: Draft) -> Iterator[tuple[tuple[list[int], int | None], float]]:
        return outcomes(lambda chance: rule(draft, test_of(target, draft, chance, end)))

    joint: Joint = {}
    accepted = 0.0
    for draft, p_draft in outcomes(lambda chance: drafting(chance, drafter)):
        for (path, last), p_verdict in verdicts(draft):
            emitted = tuple([draft.tokens[node] for node in path] + ([] if last is None else [last]))
            assert len(emitted) <= n
            joint[emitted] = joint.get(emitted, 0.0) + p_draft * p_verdict
            accepted += p_draft * p_verdict * len(path)
    return Emitted(continued(joint, target, n, end), accepted)


def plain(target: Model, n: int, end: int | None = None) -> Joint:
    return continued({(): 1.0}, target, n, end)


def continued(joint: Joint, target: Model, n: int, end: int | None = None) -> Joint:
    """Continue with plain decoding up to n tokens or the end."""
    result: Joint = {}
    pending = list(joint.items())
    while pending:
        prefix, probability = pending.pop()
        if len(prefix) == n or (prefix and prefix[-1] == end):
            result[prefix] = result.get(prefix, 0.0) + probability
        else:
            distribution = target(prefix)
            pending += [
                ((*prefix, id), probability * p)
                for id, p in zip(distribution.ids.tolist(), distribution.p.tolist(), strict=True)
            ]
    return result


def error(one: Joint, other: Joint) -> float:
    """The largest difference in the probability of a sequence."""
    return max(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys())


def emission_error(
    rule: Rule, drafting: Drafting, target: Model, drafter: Model, n: int, end: int | None = None
) -> float:
    return error(enumerate_step(rule, drafting, target, drafter, n, end).joint, plain(target, n, end))


def surprise(sample: Iterable[Prefix], joint: Joint) -> float:
    """Chi-square of a sample, divided by what one in 10,000 samples of that distribution exceeds; inf for what cannot
    come.

    Sequences that are expected fewer than five times are counted together.
    """
    counts = Counter(sample)
    if not counts.keys() <= {tokens for tokens, p in joint.items() if p > 0}:
        return math.inf
    expected = {tokens: counts.total() * p for tokens, p in joint.items() if p > 0}
    common = [tokens for tokens, mean in expected.items() if mean >= 5]
    cells = [(counts[tokens], expected[tokens]) for tokens in common]
    rest = counts.total() - sum(mean for _, mean in cells)
    if rest > 1e-9:
        cells.append((counts.total() - sum(n for n, _ in cells), rest))
    statistic = sum((n - mean) ** 2 / mean for n, mean in cells)
    spread = 2 / (9 * (len(cells) - 1))
    quantile = (len(cells) - 1) * (1 - spread + 3.719 * math.sqrt(spread)) ** 3  # Wilson and Hilferty 1931
    return statistic / quantile


# --- ways to draft --------------------------------------------------------------------------------------------------

Siblings = Callable[[Chance, Distribution], list[tuple[int, Distribution | None]]]
"""The candidates at a node whose draft distribution is given, and what each was drawn from."""


def tree(*levels: Siblings) -> Drafting:
    """A draft of as many levels, with these candidates at every node of a level; also below an end token."""

    def draft(chance: Chance, drafter: Model) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        distributions: list[Distribution | None] = []
        frontier: list[tuple[int, Prefix]] = [(-1, ())]
        for siblings in levels:
            grown = []
            for node, prefix in frontier:
                for token, distribution in siblings(chance, drafter(prefix)):
                    grown.append((len(tokens), (*prefix, token)))
                    tokens.append(token)
                    parents.append(node)
                    distributions.append(distribution)
            frontier = grown
        return Draft(tokens, parents, [0.5] * len(tokens), distributions)

    return draft


def chain(k: int) -> Drafting:
    return tree(*[drawn(1)] * k)


def drawn(k: int) -> Siblings:
    """At most k, without replacement."""

    def siblings(chance: Chance, distribution: Distribution) -> list[tuple[int, Distribution | None]]:
        found: list[tuple[int, Distribution | None]] = []
        for number in range(min(k, int(np.count_nonzero(distribution.p)))):
            if number > 0:
                distribution = given_another(distribution, [found[-1][0]])
            found.append((chance.draw(distribution), distribution))
        return found

    return siblings


def likeliest(k: int) -> Siblings:
    """The k likeliest, not drawn."""
    return lambda chance, distribution: [(token, None) for token in top(distribution, k)]


def likeliest_and_drawn(k: int) -> Siblings:
    """The k - 1 likeliest, and one drawn from the rest, if there is any."""

    def siblings(chance: Chance, distribution: Distribution) -> list[tuple[int, Distribution | None]]:
        fixed = top(distribution, min(k - 1, int(np.count_nonzero(distribution.p)) - 1))
        rest = given_another(distribution, fixed)
        return [*((token, None) for token in fixed), (chance.draw(rest), rest)]

    return siblings


def drawn_and_looked_up(token: int) -> Siblings:
    """One drawn, and a token from elsewhere unless it is the same."""

    def siblings(chance: Chance, distribution: Distribution) -> list[tuple[int, Distribution | None]]:
        found = chance.draw(distribution)
        return [(found, distribution)] + ([(token, None)] if token != found else [])

    return siblings


def given_another(distribution: Distribution, tokens: Sequence[int]) -> Distribution:
    """The distribution given that it is none of the tokens."""
    p = np.where(np.isin(distribution.ids, tokens), 0.0, distribution.p)
    return Distribution(distribution.ids, p / p.sum())


def top(distribution: Distribution, k: int) -> list[int]:
    return [int(id) for id in distribution.ids[np.argsort(-distribution.p, kind="stable")[:k]]]


# --- pairs of models ------------------------------------------------------------------------------------------------


def distribution(*p: float) -> Distribution:
    return Distribution(np.arange(len(p), dtype=np.int32), np.array(p))


def some(token_p: dict[int, float]) -> Distribution:
    """A distribution on these tokens alone, as truncation leaves it."""
    return Distribution(np.array(sorted(token_p), np.int32), np.array([token_p[token] for token in sorted(token_p)]))


def constant(distribution: Distribution) -> Model:
    return lambda prefix: distribution


def random_model(seed: int, v: int, kept: int | None = None) -> Model:
    """A distribution that depends on the whole prefix, on v tokens or on `kept` of them."""

    @cache
    def model(prefix: Prefix) -> Distribution:
        random = np.random.default_rng([seed, len(prefix), *prefix])
        ids = np.sort(random.choice(v, kept or v, replace=False))
        return Distribution(ids, random.dirichlet(np.ones(len(ids))))

    return model


def with_zeros(model: Model, seed: int) -> Model:
    """One token of the distribution, another at each prefix, cannot come, though it has a place in the array."""

    @cache
    def zeroed(prefix: Prefix) -> Distribution:
        whole = model(prefix)
        return given_another(whole, [int(whole.ids[(seed + sum(prefix)) % len(whole.ids)])])

    return zeroed


def rounded(model: Model) -> Model:
    """The same distribution but for rounding."""

    @cache
    def nearly(prefix: Prefix) -> Distribution:
        distribution = model(prefix)
        third = distribution.p / 3
        return Distribution(distribution.ids, third / third.sum())

    return nearly


def pairs(v: int) -> dict[str, tuple[Model, Model]]:
    """Targets and drafters that are hard on a rule, v >= 3."""
    p, q = random_model(1, v), random_model(2, v)
    return {
        "the same": (p, p),
        "the same but for rounding": (p, rounded(p)),
        "random": (p, q),
        "random too": (random_model(3, v), random_model(4, v)),
        "disjoint": (constant(some({0: 0.4, 1: 0.6})), constant(some(dict.fromkeys(range(2, v), 1 / (v - 2))))),
        "one-hot draft": (p, lambda prefix: distribution(*np.eye(v)[(1 + sum(prefix)) % v])),
        "one-hot target": (lambda prefix: distribution(*np.eye(v)[sum(prefix) % v]), q),
        "draft lacks a token": (p, with_zeros(q, 1)),
        "target lacks a token": (with_zeros(p, 2), q),
        "each lacks one": (with_zeros(p, 0), with_zeros(q, 1)),
        "truncated differently": (random_model(5, v, v - 1), random_model(6, v, v - 1)),
        "draft truncated to two": (p, random_model(7, v, 2)),
        "target truncated to two": (random_model(8, v, 2), q),
    }
