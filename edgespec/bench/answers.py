"""One measured answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from edgespec.bench.energy import EnergyMeter
from edgespec.bench.modes import Mode
from edgespec.bench.questions import Question
from edgespec.cancel import CancelFlag
from edgespec.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Answer:
    """Token ids, seconds from the first token to the last and to the first, passes after the prompt's by width, and
    further measurements."""

    tokens: list[int]
    seconds: float
    prompt_s: float
    widths: Counter[int]
    facts: dict[str, Any]
    energy_j: float | None = None

    def as_sample(self) -> dict[str, Any]:
        """As plain data; unknown values are null."""
        unknown = dict.fromkeys(("by_source", "draft_s", "target_s", "other_s"))
        return {
            "tokens": len(self.tokens),
            "seconds": self.seconds,
            "tokens_per_s": len(self.tokens) / self.seconds if self.seconds > 0 else None,
            "prompt_s": self.prompt_s,
            "widths": {str(width): count for width, count in sorted(self.widths.items())},
            **unknown,
            **self.facts,
            "repeated_4grams": repeated_4grams(self.tokens),
            "energy_j": self.energy_j,
        }


class Contestant(Protocol):
    """Something that answers: a mode, or another program."""

    @property
    def name(self) -> str: ...

    def is_exact(self, temperature: float) -> bool:
        """Whether its answers must be those of plain decoding, token by token."""

    def answer(self, question: Question, cancel: CancelFlag) -> Answer | None:
        """None if it was cancelled."""


class OwnMode:
    """Answers with a loaded runtime, in one of its modes."""

    def __init__(self, llm: Runtime, mode: Mode, meter: EnergyMeter) -> None:
        self._llm, self._mode, self._meter = llm, mode, meter
        self._n_max = min(mode.n_max, llm.settings.draft_n_max) if mode.pace == "auto" else mode.n_max
        self.name = mode.name

    def is_exact(self, temperature: float) -> bool:
        return self._mode.rule == "coupled" or temperature == 0

    def answer(self, question: Question, cancel: CancelFlag) -> Answer | None:
        llm, mode = self._llm, self._mode
        llm.draft_with(
            spec_type=mode.spec_type, pace=mode.pace, spec_draft_n_max=self._n_max or None, spec_tree=mode.tree
        )
        llm.forget()
        tokens: list[int] = []
        widths: Counter[int] = Counter()
        round_number, proposed = 0, 0
        for event in llm.submit(replace(question.request, verify=mode.rule), cancel):
            if event.id < 0:  # the end of the answer
                continue
            if not tokens:
                self._meter.start()
            elif event.round != round_number:  # its pass is the last one that was counted
                round_number = event.round
                widths[1 + llm.stats.proposed - proposed] += 1
                proposed = llm.stats.proposed
            tokens.append(event.id)
        energy_j, stats = self._meter.joules(), llm.stats
        if len(tokens) < question.request.max_tokens:
            return None
        return Answer(
            tokens,
            stats.generation_s,
            stats.prompt_s,
            widths,
            {
                "rounds": stats.rounds,
                "proposed": stats.proposed,
                "accepted": stats.accepted,
                "proposed_per_pos": stats.proposed_per_pos,
                "accepted_per_pos": stats.accepted_per_pos,
                "by_source": {source: asdict(counts) for source, counts in stats.by_source.items()},
                "draft_s": stats.draft_s,
                "target_s": stats.target_s,
                "other_s": stats.other_s,
            },
            energy_j,
        )


def repeated_4grams(tokens: Sequence[int]) -> float:
    """The share of runs of four tokens that occurred before in the same answer: how repetitive it is."""
    runs = [tuple(tokens[at : at + 4]) for at in range(len(tokens) - 3)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
