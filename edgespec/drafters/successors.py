"""The tokens that the target found likely after the same one or two tokens the last time, from rows of logits that
verification computes anyway (Luo et al., 2408.08696)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgespec.core.index.successor_table import NONE, Context, SuccessorTable, successors_in
from edgespec.core.sampler import log_sum_exp
from edgespec.core.sampling import FloatRow
from edgespec.drafters.base import DraftContext, Outcome
from edgespec.drafters.walk import WalkingDrafter

BLENDED = 0.3  # share of the successors in a head's draft; a larger share harms a good head
# The assumed probability that a stored row is also right after the same two tokens, or the same token, elsewhere: of a
# row of this process, and of an earlier row. Shares of held-out answers of SmolLM2.
RELIABILITY = ((0.85, 0.4), (0.55, 0.3))


class Successors:
    """The successors that are known of a target, shared by all sequences and drafters: rows of this process, and
    earlier ones, of saved and bundled tables.

    The last row after the same two tokens is used; without one, the last row after the same token.
    """

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self._own, self._earlier, self._unsaved = SuccessorTable(), SuccessorTable(), SuccessorTable()
        self._learnt: Outcome | None = None

    def learn(self, outcome: Outcome) -> None:
        """Store the rows of a step; storing the same step twice does no harm."""
        if outcome is self._learnt:
            return
        self._learnt = outcome
        before = outcome.before
        for node, token in zip([-1, *outcome.path], outcome.tokens, strict=True):
            row = successors_in(outcome.logits(node))
            for context in ((before, token), (NONE, token)):
                self._own.put(context, row)
                if outcome.is_remembered:
                    self._unsaved.put(context, row)
                else:
                    self._unsaved.remove(context)
            before = token

    def forget(self) -> None:
        """Forget the rows of this process, but not those of tables; rows that are to be saved are still saved."""
        self._own, self._learnt = SuccessorTable(), None

    def of(self, token: int, temperature: float = 1.0, before: int = NONE) -> tuple[list[int], list[float], float]:
        """Return the successors of a token after the token `before`, likeliest first, their probabilities, which sum to
        1, and the assumed probability that they are right; empty if none are known."""
        for place, context in enumerate(((before, token), (NONE, token))):
            for table, reliability in zip((self._own, self._earlier), RELIABILITY, strict=True):
                if (row := table.get(*context)) is not None:
                    ids, logits = (each.tolist() for each in row)  # numpy would be slower for so few
                    weights = [math.exp((logit - logits[0]) / temperature) for logit in logits]
                    total = sum(weights)
                    return ids, [weight / total for weight in weights], reliability[place]
        return [], [], 0.0

    def blend(self, row: FloatRow, token: int, drafted: FloatRow | None = None) -> None:
        """Mix the successors of `token` into a draft's logits float32[n_vocab] for the next token, in place.

        `drafted` are the logits that are not -inf, if the caller knows them.
        """
        ids, weights, _ = self.of(token)
        if ids:
            # Softmax ignores what all logits have in common, so only these few change
            share = log_sum_exp(row if drafted is None else drafted) + np.log(BLENDED / (1 - BLENDED))
            row[ids] = np.logaddexp(row[ids], share + np.log(weights))

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Add the rows of a table, in place of earlier ones. Raises ValueError, TypeError, KeyError for other data."""
        self._earlier.restore(state, self.n_vocab)

    def unsaved(self) -> SuccessorTable:
        """Return the new rows of answers that may be remembered, and regard them as saved."""
        unsaved, self._unsaved = self._unsaved, SuccessorTable()
        return unsaved


class RecyclingDrafter(WalkingDrafter[Context]):
    """Token recycling: grows a chain or a tree from the successors of the last two tokens."""

    name = "recycling"
    needs_logits = True

    def __init__(self, successors: Successors) -> None:
        super().__init__()
        self._successors = successors

    def observe(self, outcome: Outcome) -> None:
        self._successors.learn(outcome)

    def start(self, sequence: DraftContext) -> Context:
        before, token = (NONE, NONE, *sequence.tokens[-2:])[-2:]
        return before, token

    def distribution(self, place: Context, sequence: DraftContext, most: int) -> Mapping[int, float]:
        if not sequence.is_draft_invariant:
            return {}
        before, token = place
        temperature = sequence.sampler.settings.temperature or 1.0
        ids, weights, reliability = self._successors.of(token, temperature, before)
        return dict(zip(ids[:most], (reliability * weight for weight in weights), strict=False))

    def step(self, place: Context, token: int) -> Context:
        return place[1], token
