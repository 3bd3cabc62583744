"""Counts and times of an answer and of its speculative decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from edgespec.core.draft import Draft


@dataclass(slots=True)
class SourceStats:
    """The counters of one drafter."""

    #: steps in which its tokens were verified
    rounds: int = 0
    #: tokens verified
    proposed: int = 0
    #: tokens accepted
    accepted: int = 0
    #: times the drafter was asked for a draft
    asked: int = 0
    #: time of these drafts
    seconds: float = 0.0
    #: tokens that plain decoding would have generated in the time of drafts and wider target passes; None if unmeasured
    cost: float | None = None
    #: drafts begun while the target verified the draft before
    ahead: int = 0
    #: of these, drafts that continued the accepted tokens and so could be used
    overlapped: int = 0


@dataclass(slots=True)
class Stats:
    """The counters of one answer, times in seconds.

    Generated tokens include the end token, and tokens that a stop string cut off. The last pass of the prompt generates
    the first token. This pass counts in `prompt_s`, as in llama.cpp.
    """

    prompt_tokens: int = 0
    #: prompt tokens taken from the KV cache
    cached_tokens: int = 0
    prompt_s: float = 0.0
    generated_tokens: int = 0
    generation_s: float = 0.0
    draft_s: float = 0.0
    target_s: float = 0.0
    #: steps, which are target passes
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    #: verified draft tokens by depth in the tree
    proposed_per_pos: list[int] = field(default_factory=list)
    accepted_per_pos: list[int] = field(default_factory=list)
    #: steps by number of accepted tokens
    accepted_histogram: list[int] = field(default_factory=list)
    #: tokens of the longest loop, the same few tokens over and over, which drafts predict easily
    repeated_tokens: int = 0
    by_source: dict[str, SourceStats] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the speed and the gain of drafting in a line."""
        parts = [f"{self.generated_tokens} tokens in {self.generation_s:.2f} s ({self.tokens_per_s:.1f} tok/s)"]
        if self.proposed:
            parts.append(f"{self.accepted} of {self.proposed} draft tokens accepted")
            if (speedup := self.speedup) is not None:
                parts.append(f"speed-up {speedup:.2f}x")
        return ", ".join(parts)

    def count_round(self, draft: Draft, path: Sequence[int], emitted: int) -> None:
        """Count a step that accepted the nodes of `path` and emitted `emitted` tokens."""
        accepted = len(path)
        self.rounds += 1
        self.proposed += len(draft)
        self.accepted += accepted
        self.generated_tokens += emitted
        _grow(self.accepted_histogram, accepted + 1)
        self.accepted_histogram[accepted] += 1
        if not draft:
            return
        depths = draft.depths()
        deepest = max(depths) + 1
        _grow(self.proposed_per_pos, deepest)
        _grow(self.accepted_per_pos, deepest)
        for depth in depths:
            self.proposed_per_pos[depth] += 1
        for depth in range(accepted):
            self.accepted_per_pos[depth] += 1
        sources = [draft.source_of(node) for node in range(len(draft))]
        for name in dict.fromkeys(sources):
            source = self.by_source.setdefault(name, SourceStats())
            source.rounds += 1
            source.proposed += sources.count(name)
            source.accepted += sum(sources[node] == name for node in path)

    def add(self, other: Stats) -> None:
        """Add the counters of a later part of the same answer, which began with a prompt again."""
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if isinstance(theirs, int | float):
                setattr(self, item.name, (mine or 0) + theirs)
            elif isinstance(theirs, list):
                _grow(mine, len(theirs))
                for position, count in enumerate(theirs):
                    mine[position] += count
        for name, counts in other.by_source.items():
            source = self.by_source.setdefault(name, SourceStats())
            for item in fields(source):
                if (theirs := getattr(counts, item.name)) is not None:
                    setattr(source, item.name, (getattr(source, item.name) or 0) + theirs)

    def count_draft(self, name: str, seconds: float) -> None:
        """Count a draft, verified or not, with its time."""
        source = self.by_source.setdefault(name, SourceStats())
        source.asked += 1
        source.seconds += seconds
        self.draft_s += seconds

    def count_ahead(self, name: str, waited_s: float, *, is_begun: bool) -> None:
        """Count a draft begun during the target's pass (`is_begun`), and the time spent waiting after the pass."""
        source = self.by_source[name]
        source.ahead += is_begun
        source.seconds += waited_s
        self.draft_s += waited_s

    def count_cost(self, name: str, cost: float) -> None:
        source = self.by_source.setdefault(name, SourceStats())
        source.cost = (source.cost or 0.0) + cost

    def gained_per_s(self, name: str) -> float | None:
        """Return the tokens per second that a drafter added, or None if unknown."""
        source = self.by_source[name]
        if source.cost is None or not self.generation_s:
            return None
        return (source.accepted - source.cost) / self.generation_s

    @property
    def speedup(self) -> float | None:
        """Speedup over plain decoding: the time of drafts and wider passes is compared with that of the plain passes.

        None if unknown, and for an answer that repeats itself, since drafts of a loop say nothing about other answers.
        Never more than the tokens per step: a step takes at least as long as a plain pass, even if noise hides that.
        """
        if self.repeated_tokens:
            return None
        costs = [source.cost for source in self.by_source.values()]
        known = [cost for cost in costs if cost is not None]
        plain_tokens = self.generated_tokens - self.accepted + max(0.0, sum(known))  # in the same time
        return self.generated_tokens / plain_tokens if len(known) == len(costs) and plain_tokens > 0 else None

    @property
    def other_s(self) -> float:
        """Time spent outside target passes and drafting: sampling, verification, KV cache."""
        return max(0.0, self.generation_s - self.target_s - self.draft_s)

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens per proposed draft token; 0 if nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Block efficiency: tokens emitted per target pass, 1.0 for plain decoding."""
        return self.generated_tokens / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.generated_tokens / self.generation_s if self.generation_s else 0.0

    @property
    def prompt_tokens_per_s(self) -> float:
        return (self.prompt_tokens - self.cached_tokens) / self.prompt_s if self.prompt_s else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the counters under llama.cpp's names, with times in milliseconds."""
        return {
            "timings": {
                "prompt_n": self.prompt_tokens - self.cached_tokens,
                **{name: getattr(self, field) for field, name in _COUNTS.items()},
                **{name: round(getattr(self, field) * 1e3, 3) for field, name in _TIMES.items()},
                "prompt_per_second": round(self.prompt_tokens_per_s, 3),
                "predicted_per_second": round(self.tokens_per_s, 3),
                "other_ms": round(self.other_s * 1e3, 3),
            },
            "acceptance": round(self.acceptance_rate, 4),
            "tokens_per_round": round(self.tokens_per_round, 4),
            **{name: getattr(self, name) for name in _OTHERS},
            "by_source": {source: asdict(counts) for source, counts in self.by_source.items()},
        }

    @classmethod
    def from_json(cls, figures: Mapping[str, Any]) -> Stats:
        """Return the counters of `as_json`'s data. Missing counters are 0."""
        timings = figures.get("timings", {})
        known = {item.name for item in fields(SourceStats)}
        return cls(
            prompt_tokens=timings.get("prompt_n", 0) + timings.get("cache_n", 0),
            by_source={
                name: SourceStats(**{key: count for key, count in counts.items() if key in known})
                for name, counts in figures.get("by_source", {}).items()
            },
            **{field: timings.get(name, 0) for field, name in _COUNTS.items()},
            **{field: timings.get(name, 0.0) / 1e3 for field, name in _TIMES.items()},
            **{name: copy(figures[name]) for name in _OTHERS if name in figures},
        )


_COUNTS = {
    "cached_tokens": "cache_n",
    "generated_tokens": "predicted_n",
    "proposed": "draft_n",
    "accepted": "draft_n_accepted",
}
_TIMES = {"prompt_s": "prompt_ms", "generation_s": "predicted_ms", "draft_s": "draft_ms", "target_s": "target_ms"}
_OTHERS = ("rounds", "proposed_per_pos", "accepted_per_pos", "accepted_histogram", "repeated_tokens")


def _grow(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))
