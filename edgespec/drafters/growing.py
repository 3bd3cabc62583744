"""Drafters that grow a tree, with confidences that are calibrated by the share of draft tokens that was accepted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from edgespec.core.candidates import DraftCandidate, draft_candidates, unsure
from edgespec.core.sampling import FloatRow
from edgespec.drafters.base import DraftContext, Drafter
from edgespec.drafters.calibration import PRIOR, Calibration, Calibrations
from edgespec.drafters.tree import ROOT, Tree

Known = TypeVar("Known")


class GrowingDrafter(Drafter):
    """Calibrates its estimates, whose `prior` is the weight of an estimate in tokens.

    The drafter learns only if the text does not depend on the drafts: otherwise an answer would influence later ones.
    """

    #: Most candidates of a node whose tokens are chosen from a row of logits.
    width = 1

    def __init__(self, prior: float = PRIOR) -> None:
        self._calibrations = Calibrations(prior)
        self._tables: list[dict[int, Any]] = []
        # The last tree of each slot, and the number of tokens before it.
        self._last: dict[int, tuple[Tree | None, int]] = self._by_slot(lambda: (None, 0))

    def _by_slot(self, make: Callable[[], Known]) -> dict[int, Known]:
        """Return a table of what is known about the sequence of each slot; `make` makes the entry of a new sequence."""
        table = defaultdict[int, Known](make)
        self._tables.append(table)
        return table

    def begin(self, sequence: DraftContext) -> None:
        for table in self._tables:
            table.pop(sequence.slot, None)

    def end(self, sequence: DraftContext) -> None:
        for table in self._tables:
            table.pop(sequence.slot, None)

    def state(self) -> dict[str, Any]:
        return self._calibrations.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._calibrations.restore(state)

    def _compare(self, sequence: DraftContext, tree: Tree) -> None:
        """Compare the last tree of a sequence with the text; `tree` is the next one."""
        last, start = self._last[sequence.slot]
        if last is not None and sequence.is_draft_invariant:
            self._learn(last, sequence, sequence.tokens[start:])
        self._last[sequence.slot] = tree, len(sequence.tokens)

    def _add_choices(
        self, sequence: DraftContext, tree: Tree, node: int, row: FloatRow, estimate: float | None = None
    ) -> range:
        """Add the candidates after a node to a tree, chosen from a row of logits in the target's ids; returns the new
        nodes. `estimate` is a separate estimate that the best candidate is accepted."""
        path = tree.path(node)
        candidates = draft_candidates(
            sequence.sampler,
            row,
            sequence.tokens + path if sequence.sampler.reads_prefix else [],
            len(sequence.tokens) + len(path),
            min(self.width, tree.budget.leaves),
            (sequence.round << 20) + node + 1 if sequence.draws else None,
        )
        if estimate is not None and candidates:  # the geometric mean of both estimates, for all in proportion
            factor = math.sqrt(estimate / candidates[0].confidence)
            candidates = [replace(each, confidence=unsure(factor * each.confidence)) for each in candidates]
        return self._add_candidates(sequence, tree, node, candidates)

    def _add_candidates(
        self, sequence: DraftContext, tree: Tree, node: int, candidates: Sequence[DraftCandidate]
    ) -> range:
        """Add candidates to a tree, best first, with calibrated confidences, which never increase from one to the
        next."""
        calibrated: list[DraftCandidate] = []
        least = 1.0
        for rank, candidate in enumerate(candidates):
            if sequence.is_draft_invariant:
                least = min(least, self._calibration(sequence, rank).probability(candidate.confidence))
                calibrated.append(DraftCandidate(candidate.token, least, candidate.distribution))
            else:
                calibrated.append(candidate)
        return tree.add(node, calibrated, [candidate.confidence for candidate in candidates])

    def _learn(self, tree: Tree, sequence: DraftContext, tokens: Sequence[int]) -> None:
        """Compare the candidates of a tree with the tokens that came instead, as far as the tree agrees."""
        node = ROOT
        for token in tokens:
            children = tree.children(node)
            for rank, child in enumerate(children):
                self._calibration(sequence, rank).observe(tree.raw[child], tree.tokens[child] == token)
            right = [child for child in children if tree.tokens[child] == token]
            if not right:
                break
            node = right[0]

    def _calibration(self, sequence: DraftContext, rank: int) -> Calibration:
        """Return the calibration for this case: estimates mean something else with and without noise, and for the best
        candidate and the others."""
        noise = "greedy" if sequence.sampler.settings.temperature == 0 else "noise"
        return self._calibrations[f"{noise}, {'best' if rank == 0 else 'behind'}"]
