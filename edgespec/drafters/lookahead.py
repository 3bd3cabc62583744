"""Lookahead decoding: the target predicts several next tokens at once (Fu et al., arXiv 2402.02057).

The draft is a window of tokens that the target predicted after the tokens of the last draft, rejected ones included.
This is one step of a Jacobi iteration, which converges to the target's own text. The n-grams of these predictions are
kept; those that begin with the last token are drafted in addition to the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgespec.core.sampler import perturbed_best
from edgespec.core.sampling import apply_chain
from edgespec.drafters.base import DraftContext, Outcome
from edgespec.drafters.walk import WalkingDrafter

WINDOW, N = 3, 3  # tokens of the window, and of an n-gram
GRAMS = 3  # n-grams kept for each first token
POOL = 4096  # first tokens with n-grams
IN_WINDOW, IN_GRAM = 0.1, 0.3  # assumed probability that a token is right: in the window, and in the most recent n-gram

Run = tuple[float, Sequence[int]]
"""The possible next tokens, each with its probability if the tokens before it are right."""


class NGrams:
    """The most recent n-grams of a sequence by first token, for the most recent first tokens."""

    def __init__(self) -> None:
        self._rests: dict[int, list[tuple[int, ...]]] = {}

    def __len__(self) -> int:
        """The number of first tokens."""
        return len(self._rests)

    def add(self, gram: Sequence[int]) -> None:
        first, rest = gram[0], tuple(gram[1:])
        known = [other for other in self._rests.pop(first, ()) if other != rest]
        self._rests[first] = [rest, *known][:GRAMS]
        if len(self._rests) > POOL:
            del self._rests[next(iter(self._rests))]

    def after(self, token: int) -> Sequence[tuple[int, ...]]:
        """Return the n-grams that begin with this token, without it, most recent first."""
        return self._rests.get(token, ())


@dataclass(slots=True)
class _Ahead:
    """The target's predictions for a sequence: the tokens after its first `n_tokens`, and n-grams."""

    window: list[int] = field(default_factory=list)
    n_tokens: int = 0
    grams: NGrams = field(default_factory=NGrams)


class LookaheadDrafter(WalkingDrafter[list[Run]]):
    """Drafts from the target's own predictions; needs no model and no other text."""

    name = "lookahead"
    needs_logits = True
    unlikely = 0.0  # the target's predictions after unlikely tokens are useful too

    def __init__(self) -> None:
        super().__init__()
        self._ahead = self._by_slot(_Ahead)

    def observe(self, outcome: Outcome) -> None:
        sequence, draft, accepted = outcome.sequence, outcome.draft, [-1, *outcome.path]
        tokens, sampler, ahead = sequence.tokens, sequence.sampler, self._ahead[sequence.slot]
        start = len(tokens) - len(accepted)  # the position of the draft
        depths = dict(enumerate([0, *(1 + depth for depth in draft.depths())], -1))
        before = {-1: tokens[max(0, start - N + 1) : start]}  # the last tokens up to each node
        predicted: dict[int, int] = {}
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            before[node] = [*before[parent], token][1 - N :]
        for node in sorted(before, key=accepted.__contains__):  # accepted nodes last: the text is the most recent
            position = start + depths[node]
            if node in accepted:
                predicted[node] = tokens[position]
            else:  # skips penalties and grammar, which take longer
                excludes = sampler.excludes(position)
                candidates = apply_chain(outcome.logits(node), sampler.settings, (), sampler.banned, excludes=excludes)
                predicted[node] = perturbed_best(candidates, sampler.noise_key(position))
            if len(before[node]) == N - 1:
                ahead.grams.add([*before[node], predicted[node]])
        ahead.window, ahead.n_tokens = [], len(tokens)
        node = max(depths, key=depths.__getitem__)
        while depths[node] >= len(accepted):
            ahead.window.insert(0, predicted[node])
            node = draft.parents[node]

    def start(self, sequence: DraftContext) -> list[Run]:
        tokens, ahead = sequence.tokens, self._ahead[sequence.slot]
        if not tokens:
            return []
        window = ahead.window[len(tokens) - ahead.n_tokens :]
        while len(window) < WINDOW:  # fill up the window from n-grams, or with any token
            known = ahead.grams.after([tokens[-1], *window][-1])
            window += known[0] if known else [token for token in tokens[-WINDOW:] if token >= 0]
        runs: list[Run] = [(IN_GRAM / 2**age, rest) for age, rest in enumerate(ahead.grams.after(tokens[-1]))]
        return sorted([*runs, (IN_WINDOW, window[:WINDOW])], key=lambda run: -run[0])

    def distribution(self, place: list[Run], sequence: DraftContext, most: int) -> Mapping[int, float]:
        found: dict[int, float] = {}
        for likely, run in place:
            if run and len(found) < most:
                found.setdefault(run[0], likely)
        return found

    def step(self, place: list[Run], token: int) -> list[Run]:
        return [(likely, run[1:]) for likely, run in place if run and run[0] == token]
