"""The verification rules, which decide which draft tokens are accepted.

Every rule follows the draft from the last committed token and ends with one token sampled from the target. *Coupled*
accepts the tokens that the target samples with the noise of their positions, so the text does not depend on the draft.
*Rejection* and *block* preserve the target's distribution if the draft was sampled from another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.distribution import Distribution
from edgespec.core.draft import Draft
from edgespec.core.noise import NoiseStream, uniform
from edgespec.core.sampler import NothingAllowedError, SampledToken, Sampler

VerifyRule = Literal["coupled", "rejection", "block"]
RowOf = Callable[[int], NDArray[np.float32]]
"""The target's float32[V] row after a draft node; -1 is the last committed token."""


class VerifyResult(NamedTuple):
    """The result of verifying a draft."""

    #: accepted nodes, root first
    path: list[int]
    #: the tokens to emit: those of `path`, and one sampled from the target unless the path ends with an end token
    choices: list[SampledToken]


class AcceptanceTest(Protocol):
    """The target's distributions along a draft, and the random numbers of one step.

    A path is a list of nodes, root first. Tests implement this protocol to enumerate all random outcomes.
    """

    def distribution(self, path: list[int]) -> Distribution:
        """Return the target's distribution of the token after `path`."""

    def accepts(self, probability: float, depth: int, token: int) -> bool:
        """Return True with this probability, by the random number of this token at this depth."""

    def draw(self, distribution: Distribution, depth: int) -> int:
        """Sample the token at this depth from a distribution."""

    def ends(self, token: int) -> bool:
        """Return whether the token ends the answer."""


def rejection(draft: Draft, test: AcceptanceTest) -> tuple[list[int], int | None]:
    """Verify token by token (Leviathan et al., 2211.17192; Chen et al., 2302.01318), with any number of candidates.

    A child x sampled from q is accepted with probability min(1, p(x) / q(x)). If it is rejected, p becomes
    norm((p - q)+) and the next sibling is tried. After the last sibling a token is sampled from the remaining p. A
    child that was not sampled is accepted if it equals this token. Returns the path and the token after it, or None in
    place of the token if the path ends with an end token.
    """
    path: list[int] = []
    while True:
        node = path[-1] if path else -1
        p, kept = test.distribution(path), None
        for child in draft.children(node):
            q, token = draft.distributions[child], draft.tokens[child]
            if q is None:
                continue
            if test.accepts(min(1.0, _ratio(p.probability(token), q.probability(token))), len(path), token):
                kept = child
                break
            p = p.residual(q)
        if kept is None:
            token = test.draw(p, len(path))
            kept = draft.child(node, token)
            if kept is None:
                return path, token
        path.append(kept)
        if test.ends(draft.tokens[kept]):
            return path, None


def block(draft: Draft, test: AcceptanceTest) -> tuple[list[int], int | None]:
    """Verify a whole chain at once (block verification, Sun et al., 2403.10444).

    On average this accepts at least as many tokens as `rejection`. The weight of a prefix is
    p_i = min(1, p_(i-1) P_i(x_i) / Q_i(x_i)); for a draft token that was not sampled, Q(x) = 1. Every prefix is tested
    independently, and the longest accepted prefix is kept: stopping at the first failure would change the distribution.
    """
    if not draft.is_chain:
        raise ValueError("block verification checks chains")
    last = next((i for i, token in enumerate(draft.tokens) if test.ends(token)), len(draft) - 1)
    tokens = draft.tokens[: last + 1]
    nodes = list(range(len(tokens)))
    target = [test.distribution(nodes[:i]) for i in nodes]
    drafted = [
        distribution or Distribution.point(token)
        for distribution, token in zip(draft.distributions, tokens, strict=False)
    ]
    weights = [1.0]
    for token, p, q in zip(tokens, target, drafted, strict=True):
        weights.append(min(1.0, weights[-1] * _ratio(p.probability(token), q.probability(token))))
    kept = 0
    for i, token in enumerate(tokens, 1):
        chance = weights[i]
        if i < len(tokens):
            above = float(target[i].excess(drafted[i], weights[i]).sum())
            room = above + (1 - weights[i])
            chance = above / room if room > 0 else 1.0
        if test.accepts(chance, i - 1, token):
            kept = i
    path = nodes[:kept]
    if kept < len(tokens):
        return path, test.draw(target[kept].residual(drafted[kept], weights[kept]), kept)
    if path and test.ends(tokens[-1]):
        return path, None
    return path, test.draw(test.distribution(path), kept)


def _ratio(p: float, q: float) -> float:
    return p / q if q > 0 else math.inf


# --- with the sampler's noise ---------------------------------------------------------------------------------------


def verify(
    rule: VerifyRule,
    draft: Draft,
    row_of: RowOf,
    sampler: Sampler,
    tokens: list[int],
    ends: Callable[[int], bool],
    step: int = 0,
) -> VerifyResult:
    """Verify a draft after the committed `tokens`.

    `ends` returns whether a token ends the answer. `step` makes the random numbers of each step independent: block
    verification tests positions after the last accepted one, and the next step tests these positions again. Raises
    ValueError for a row of NaN, and for a tree under block verification, and NothingAllowedError.
    """
    try:
        return _verified(rule, draft, row_of, sampler, tokens, ends, step)
    except NothingAllowedError:
        if not draft.tokens:
            raise
        # The text reaches its dead end token by token, as without a draft.
        return _verified(rule, Draft.empty(), row_of, sampler, tokens, ends, step)


def _verified(
    rule: VerifyRule,
    draft: Draft,
    row_of: RowOf,
    sampler: Sampler,
    tokens: list[int],
    ends: Callable[[int], bool],
    step: int,
) -> VerifyResult:
    if rule == "coupled":
        return coupled(draft, row_of, sampler, tokens, ends)
    test = NoiseTest(draft, row_of, sampler, tokens, ends, step)
    path, last = (rejection if rule == "rejection" else block)(draft, test)
    emitted = [draft.tokens[node] for node in path] + ([] if last is None else [last])
    return VerifyResult(path, [test.report(path[:depth], token) for depth, token in enumerate(emitted)])


def coupled(
    draft: Draft, row_of: RowOf, sampler: Sampler, tokens: list[int], ends: Callable[[int], bool]
) -> VerifyResult:
    """Follow the target's choices down the tree, while there is a child with the chosen token.

    Each choice is sampled with the noise of its position, exactly as plain decoding would. So the text is that of
    plain decoding with the same seed, for every draft (Daliri et al., 2408.07978).
    """
    path: list[int] = []
    choices: list[SampledToken] = []
    while True:
        node = path[-1] if path else -1
        choice = sampler.choose(row_of(node), _prefix(sampler, tokens, draft, path), len(tokens) + len(path))
        choices.append(choice)
        child = draft.child(node, choice.id)
        if child is not None:
            path.append(child)
        if child is None or ends(choice.id):
            return VerifyResult(path, choices)


def _prefix(sampler: Sampler, tokens: list[int], draft: Draft, path: list[int]) -> list[int]:
    """Return the tokens up to the end of `path` for the sampling chain, or none if it does not use them."""
    return tokens + [draft.tokens[node] for node in path] if sampler.reads_prefix else []


@dataclass(frozen=True, slots=True)
class NoiseTest:
    """The target's rows, and random numbers that are a function of seed, sample, position and step."""

    draft: Draft
    row_of: RowOf
    sampler: Sampler
    tokens: list[int]
    ends: Callable[[int], bool]
    step: int

    def distribution(self, path: list[int]) -> Distribution:
        row = self.row_of(path[-1] if path else -1)
        return self.sampler.distribution(row, self._prefix(path), len(self.tokens) + len(path))

    def accepts(self, probability: float, depth: int, token: int) -> bool:
        noise_key = self.sampler.noise_key(len(self.tokens) + depth, NoiseStream.ACCEPT, self.step)
        return uniform(noise_key, token) < probability

    def draw(self, distribution: Distribution, depth: int) -> int:
        return self.sampler.draw(distribution, len(self.tokens) + depth, NoiseStream.RESIDUAL, self.step)

    def report(self, path: list[int], token: int) -> SampledToken:
        """Return the token after `path`, with the requested log probabilities."""
        return self.sampler.report(self.row_of(path[-1] if path else -1), self._prefix(path), token)

    def _prefix(self, path: list[int]) -> list[int]:
        return _prefix(self.sampler, self.tokens, self.draft, path)
