"""Confidence: raw estimates, calibrated by what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgespec.core.candidates import DraftCandidate
from edgespec.core.policy.calibration import PRIOR, Calibration, Calibrations
from edgespec.drafters.base import DraftContext
from edgespec.drafters.tree import ROOT, Tree


class Estimates:
    """Learns only where the text does not depend on the tree: what is learned outlives the answer."""

    def __init__(self, prior: float = PRIOR) -> None:
        self._calibrations = Calibrations(prior)

    def state(self) -> dict[str, Any]:
        return self._calibrations.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises ValueError, TypeError or AttributeError for what `state` cannot have returned."""
        self._calibrations.restore(state)

    def hang(self, tree: Tree, parent: int, sequence: DraftContext, candidates: Sequence[DraftCandidate]) -> range:
        """Add candidates with raw estimates to a tree, best first; confidence never increases from one to the next."""
        calibrated: list[DraftCandidate] = []
        least = 1.0
        for rank, candidate in enumerate(candidates):
            if sequence.is_draft_invariant:
                least = min(least, self._calibration(sequence, rank).probability(candidate.confidence))
                calibrated.append(DraftCandidate(candidate.token, least, candidate.distribution))
            else:
                calibrated.append(candidate)
        return tree.add(parent, calibrated, [candidate.confidence for candidate in candidates])

    def learn(self, tree: Tree, sequence: DraftContext, start: int, learnt: int) -> int:
        """Compare the candidates of a tree that starts after `start` tokens with the text; returns the position
        compared up to.

        Positions up to `learnt`, which an earlier tree was compared with, are not counted again: unverified drafts
        overlap.
        """
        if not sequence.is_draft_invariant:
            return learnt
        node, seen = ROOT, start
        for token in sequence.tokens[start:]:
            children = tree.children(node)
            if not children:
                break
            if seen >= learnt:
                for rank, child in enumerate(children):
                    self._calibration(sequence, rank).observe(tree.raw[child], tree.tokens[child] == token)
            seen += 1
            right = [child for child in children if tree.tokens[child] == token]
            if not right:
                break
            node = right[0]
        return max(seen, learnt)

    def _calibration(self, sequence: DraftContext, rank: int) -> Calibration:
        """Estimates mean something else with and without noise, and for the best candidate and the others."""
        noise = "greedy" if sequence.sampler.settings.temperature == 0 else "noise"
        return self._calibrations[f"{noise}, {'best' if rank == 0 else 'behind'}"]
