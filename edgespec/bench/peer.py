"""llama-cpp-python's own `Llama` as two more benchmark modes: plain, and with its prompt lookup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from edgespec.bench.answers import Answer
from edgespec.bench.questions import Question
from edgespec.cancel import CancelFlag
from edgespec.llama.peer import Peer

PLAIN_NAME = "llama-cpp-python"
LOOKUP_NAME = "llama-cpp-python lookup"


class PeerMode:
    """Answers questions with `Llama`. Proposed and accepted tokens are derived from its passes."""

    def __init__(self, peer: Peer, *, lookup: bool) -> None:
        self._peer, self._lookup = peer, lookup
        self.name = LOOKUP_NAME if lookup else PLAIN_NAME

    def is_exact(self, temperature: float) -> bool:
        return False

    def answer(self, question: Question, cancel: CancelFlag) -> Answer | None:
        request = question.request
        made = self._peer.answer(
            question.prompt,
            request.max_tokens,
            cancel,
            lookup=self._lookup,
            sampling=request.sampling,
            seed=request.seed,
            reference=request.reference,
        )
        if len(made.tokens) < request.max_tokens:
            return None
        proposed, accepted = [width - 1 for width, _ in made.passes], [given - 1 for _, given in made.passes]
        return Answer(
            made.tokens,
            made.generation_s,
            made.prompt_s,
            Counter(width for width, _ in made.passes),
            {
                "rounds": 1 + len(made.passes),
                "proposed": sum(proposed),
                "accepted": sum(accepted),
                "proposed_per_pos": _per_position(proposed),
                "accepted_per_pos": _per_position(accepted),
            },
        )


def _per_position(lengths: Sequence[int]) -> list[int]:
    """How many of the lengths reach each position."""
    return [sum(length > position for length in lengths) for position in range(max(lengths, default=0))]
