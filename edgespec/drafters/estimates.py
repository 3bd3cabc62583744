"""Confidences of draft tokens: raw estimates, calibrated by the share that was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgespec.core.candidates import DraftCandidate
from edgespec.core.policy.calibration import PRIOR, Calibration, Calibrations
from edgespec.drafters.base import DraftContext
from edgespec.drafters.tree import ROOT, Tree


class Estimates:
    """Calibrates estimates. It learns only if the text does not depend on the drafts: otherwise an answer would
    influence later ones."""

    def __init__(self, prior: float = PRIOR) -> None:
        self._calibrations = Calibrations(prior)

    def state(self) -> dict[str, Any]:
        return self._calibrations.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned. Raises ValueError, TypeError or AttributeError for other data."""
        self._calibrations.restore(state)

    def hang(self, tree: Tree, parent: int, sequence: DraftContext, candidates: Sequence[DraftCandidate]) -> range:
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
        return tree.add(parent, calibrated, [candidate.confidence for candidate in candidates])

    def learn(self, tree: Tree, sequence: DraftContext, start: int, learnt: int) -> int:
        """Compare the candidates of a tree that starts after `start` tokens with the text; returns the position
        compared up to.

        Positions up to `learnt` were compared with an earlier tree and are not counted again: unverified drafts
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
        """Return the calibration for this case: estimates mean something else with and without noise, and for the best
        candidate and the others."""
        noise = "greedy" if sequence.sampler.settings.temperature == 0 else "noise"
        return self._calibrations[f"{noise}, {'best' if rank == 0 else 'behind'}"]
