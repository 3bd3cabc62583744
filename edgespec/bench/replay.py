"""Replay other draft-length policies on a recorded run.

The text of a coupled run does not depend on the drafts, so one trace with a draft at every token is enough: a policy
that drafts k tokens at a position gets the first k of the draft recorded there. Seconds are those of the trace's table,
t(n) for a target pass over n tokens and c for a pass of the drafter, not of the clock. The draft's prefill of the
prompt is left out for all. No policy can draft more than was recorded (`n_max`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Protocol

from edgespec.core.draft import Draft
from edgespec.core.policy.costs import Costs
from edgespec.core.policy.measured import MeasuredPolicy
from edgespec.core.policy.policy import DraftPolicy, Proposal, ProposalContext, Verified
from edgespec.engine.trace import Guessed, Trace
from edgespec.errors import UsageError
from edgespec.settings import MODEL_DRAFTERS, MTP

SVIP_GAMMA, SVIP_MOST = 0.15, 0.3
LIKELY, LLAMA_LIKELY = 0.4, 0.75


@dataclass(slots=True)
class Replay:
    """The result of a policy: `lengths` are the numbers of verified tokens per step, `positions` the tokens before it,
    `passes` those of the drafter. `shadow_s` of the seconds went into drafts that were not verified at all."""

    policy: str
    plain_s: float
    seconds: float = 0.0
    shadow_s: float = 0.0
    tokens: int = 0
    accepted: int = 0
    passes: int = 0
    positions: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        return len(self.lengths)

    @property
    def speedup(self) -> float:
        """Against plain decoding."""
        return self.tokens * self.plain_s / self.seconds if self.seconds else 1.0

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def mean_length(self) -> float:
        return sum(self.lengths) / self.rounds if self.rounds else 0.0

    @property
    def wasted(self) -> float:
        """The share of the drafter's passes that gave no accepted token."""
        return max(0.0, 1 - self.accepted / self.passes) if self.passes else 0.0


@dataclass(frozen=True, slots=True)
class Tape:
    """What one drafter drafted at each token of an answer, and what passes cost. `guesses[p]` is None if there is
    nothing to draft: before the first draft, and at the last token. With `overlaps` the drafter has a device of its
    own, on which it drafts while the target verifies (`drafters.overlap`)."""

    source: str
    trace: Trace
    text: list[int]
    guesses: list[Guessed | None]
    costs: Costs
    overlaps: bool = False

    @classmethod
    def of(cls, trace: Trace, source: str) -> Tape:
        """Raises UsageError unless the trace has a draft by this drafter at every token."""
        by_position = {step.position: step for step in trace.rounds}
        text = trace.text
        start = next((at for at, step in by_position.items() if step.drafts), len(text))
        guesses: list[Guessed | None] = [None] * len(text)
        for position in range(start, len(text) - 1):
            drafts = by_position[position].drafts if position in by_position else []
            guesses[position] = next((draft for draft in drafts if draft.source == source), None)
            if guesses[position] is None:
                others = sorted({draft.source for step in trace.rounds for draft in step.drafts} - {source})
                raise UsageError(
                    f"the trace has no draft by {source} at token {position}",
                    why=f"other drafters in it: {', '.join(others)} (--source)" if others else "",
                    hint="record a run with plain decoding (--pace off) and this drafter",
                )
        return cls(source, trace, text, guesses, table(trace))

    @property
    def start(self) -> int:
        """The first token that a drafter could have drafted."""
        return next((at for at, draft in enumerate(self.guesses) if draft is not None), len(self.text))

    def target_s(self, width: int) -> float:
        return self.costs.target(width)

    def guess_s(self, passes: int, n_unread: int = 0) -> float:
        """Seconds of a draft whose first pass also processes `n_unread` uncached tokens."""
        if not passes:
            return 0.0
        step_s = self.costs.step(self.source)
        return (passes - 1) * step_s + max(step_s, self.costs.read(self.source, 1 + n_unread))

    def passes(self, length: int) -> int:
        """For a draft of so many tokens; a look-up needs one."""
        return length if is_model(self.source) else min(1, length)

    def made_ahead(self, draft: Guessed | None, drafted: int, verified: int) -> int:
        """Passes of the next draft for which there is time while the target verifies this one. 0 where that draft would
        not follow what came: all that was verified, and then the drafter's own next token."""
        if not self.overlaps or not verified or draft is None or draft.matched <= verified or not is_model(self.source):
            return 0
        fitting = int(self.target_s(1 + verified) / self.costs.step(self.source))
        return max(0, min(verified, fitting - (drafted == verified)))  # one finds the next token, if it is not known


def is_model(source: str) -> bool:
    """Whether a drafter needs a pass for each token."""
    return source in (*MODEL_DRAFTERS, MTP)


def table(trace: Trace) -> Costs:
    """The trace's costs as if they had been measured; missing ones of a drafter are taken from its steps."""
    plain_s = trace.costs["target"].get("1") or min(trace.costs["target"].values())
    costs = Costs({int(width): seconds / plain_s for width, seconds in trace.costs["target"].items()})
    for width, seconds in trace.costs["target"].items():
        costs.observe_target(int(width), seconds)
    drafts = [draft for step in trace.rounds for draft in step.drafts if draft.passes]
    for source in {draft.source for draft in drafts}:
        took_s = [draft.draft_s / draft.passes for draft in drafts if draft.source == source]
        costs.observe_step(source, trace.costs["step"].get(source) or median(took_s))
    for source, seconds in trace.costs.get("read", {}).items():
        costs.observe_read(source, 1, seconds)
    return costs


# --- policies that consider one draft at a time -----------------------------------------------------------------------


class Policy(Protocol):
    """Chooses how many tokens to draft and how many of these to verify; learns how many were accepted."""

    def lengths(self, draft: Guessed) -> tuple[int, int]: ...

    def judged(self, length: int, accepted: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Until:
    """At most `n_max` tokens; the first one with `stop` ends the draft, and is verified if `inclusive`."""

    n_max: int
    stop: Callable[[Guessed, int], bool] | None = None
    inclusive: bool = True

    def lengths(self, draft: Guessed) -> tuple[int, int]:
        most = min(self.n_max, len(draft.tokens))
        end = next((at for at in range(most) if self.stop(draft, at)), None) if self.stop is not None else None
        return (most, most) if end is None else (end + 1, end + self.inclusive)

    def judged(self, length: int, accepted: int) -> None:
        pass


@dataclass(slots=True)
class Heuristic:
    """Transformers' schedule: two tokens more after a fully accepted draft, else one fewer."""

    n_max: int
    tokens: int = 20

    def lengths(self, draft: Guessed) -> tuple[int, int]:
        length = min(self.tokens, self.n_max, len(draft.tokens))
        return length, length

    def judged(self, length: int, accepted: int) -> None:
        wanted = min(self.tokens, self.n_max)
        self.tokens = min(self.n_max, wanted + 2) if accepted == wanted else max(1, wanted - 1)


def _unlikely(least: float) -> Callable[[Guessed, int], bool]:
    return lambda draft, at: draft.q is not None and draft.q[at] < least


def _unsure(draft: Guessed, at: int) -> bool:
    """2411.18462: a bound on the acceptance from the entropy of the draft's distribution."""
    return draft.entropy is not None and math.sqrt(SVIP_GAMMA * draft.entropy[at]) > SVIP_MOST


def policies(n_max: int, source: str) -> dict[str, Policy]:
    """Other programs' policies by name; those that use a distribution only if the drafter has one."""
    found: dict[str, Policy] = {"plain": Until(0)}
    found |= {f"fixed {k}": Until(k) for k in range(1, n_max + 1)}
    found["transformers, heuristic"] = Heuristic(n_max)
    if is_model(source):
        found["transformers, threshold"] = Until(20, _unlikely(LIKELY))
        found["llama.cpp"] = Until(3)
        found["llama.cpp, p-min"] = Until(16, _unlikely(LLAMA_LIKELY), inclusive=False)
        found["svip"] = Until(n_max, _unsure)
    return found


def replay(tapes: Sequence[Tape], name: str, policy: Policy) -> Replay:
    """A policy that considers one draft at a time."""
    result = Replay(name, tapes[0].target_s(1))
    for tape in tapes:
        position, made = tape.start, 0
        while position < len(tape.text):
            draft = tape.guesses[position]
            drafted, verified = policy.lengths(draft) if draft is not None else (0, 0)
            accepted = min(verified, draft.matched) if draft is not None else 0
            passes = max(0, tape.passes(drafted) - made)
            made = tape.made_ahead(draft, drafted, verified)
            _count(result, tape, passes, tape.guess_s(passes), verified, accepted)
            if verified:
                policy.judged(verified, accepted)
            position += accepted + 1
    return result


# --- the bound --------------------------------------------------------------------------------------------------------


def replay_oracle(tapes: Sequence[Tape]) -> Replay:
    """The least time for the text, if it is known in advance: no policy is faster."""
    result = Replay("oracle", tapes[0].target_s(1))
    for tape in tapes:
        lengths = _least_time(tape)
        position = tape.start
        while position < len(tape.text):
            length, draft = lengths[position], tape.guesses[position]
            accepted = min(length, draft.matched) if draft is not None else 0
            passes = tape.passes(length)
            _count(result, tape, passes, tape.guess_s(passes), length, accepted)
            position += accepted + 1
    return result


def _least_time(tape: Tape) -> list[int]:
    """For each position the length with the least time to the end. It can exceed what is accepted, where a wider pass
    is faster."""
    end = len(tape.text)
    least_s, lengths = [0.0] * (end + 1), [0] * end
    for position in range(end - 1, tape.start - 1, -1):
        draft = tape.guesses[position]
        matched, most = (draft.matched, len(draft.tokens)) if draft is not None else (0, 0)
        least_s[position], lengths[position] = min(
            (tape.guess_s(tape.passes(k)) + tape.target_s(1 + k) + least_s[position + 1 + min(k, matched)], k)
            for k in range(min(most, end - position - 1) + 1)
        )
    return lengths


# --- a draft policy, used as the engine does---------------------------------------------------------------------------


def new_pace(tapes: Sequence[Tape]) -> MeasuredPolicy:
    """This project's own draft policy, which knows the costs of passes but not yet the pair of models."""
    return MeasuredPolicy(table(tapes[0].trace))


def replay_auto(tapes: Sequence[Tape], pace: DraftPolicy | None = None) -> Replay:
    """This project's own draft policy: a new one, or `pace`."""
    return replay_pace(tapes, "auto", pace or new_pace(tapes))


def replay_pace(tapes: Sequence[Tape], name: str, pace: DraftPolicy) -> Replay:
    """Any draft policy, used as the engine uses it; its measurements are those of the table."""
    result = Replay(name, tapes[0].target_s(1))
    for tape in tapes:
        kind, position, read = tape.trace.kind, tape.start, tape.start - 1  # `read` tokens are in the drafter's cache
        made = 0
        while position < len(tape.text):
            draft = tape.guesses[position]
            remaining = len(tape.text) - position
            n_unread = max(0, position - 1 - read) if is_model(tape.source) else 0
            context = ProposalContext(kind, min(tape.trace.n_max, remaining - 1), remaining, step=position)
            budget = None
            if draft is not None and context.n_max > 0:
                budget = pace.budget(context, tape.source, partial(int, n_unread))
            passes, length, spent_s, verified = 0, 0, 0.0, Draft.empty()
            if budget is not None and budget.tokens and draft is not None:
                length = min(budget.tokens, len(draft.tokens))
                passes = min(1, length)
                if is_model(tape.source):
                    reaches = _chain(draft, length).reaches()
                    least = max(1, min(made, length))
                    stops = (n for n in range(least, length) if not budget.worth(reaches[:n], reaches[n - 1]))
                    length = next(stops, length)
                    passes = max(0, length - made)
                    read = position + min(draft.matched, max(0, length - 1))
                spent_s = tape.guess_s(passes, n_unread)
                context.proposals = [Proposal(tape.source, _chain(draft, length), n_unread, passes, spent_s)]
                [verified] = pace.select([context], 1, context.n_max)
            accepted = min(len(verified), draft.matched) if draft is not None else 0
            made = tape.made_ahead(draft, length, len(verified))
            emitted = tape.text[position : position + accepted + 1]
            taken_s = tape.target_s(1 + len(verified))
            pace.record([Verified(context, verified, range(accepted), emitted)], taken_s)
            _count(result, tape, passes, spent_s, len(verified), accepted)
            position += accepted + 1
    return result


def _chain(draft: Guessed, length: int) -> Draft:
    return Draft.chain(draft.tokens[:length], draft.confidence[:length], draft.source)


def _count(result: Replay, tape: Tape, passes: int, guess_s: float, verified: int, accepted: int) -> None:
    result.positions.append(result.tokens)
    result.lengths.append(verified)
    result.seconds += guess_s + tape.target_s(1 + verified)
    result.shadow_s += 0.0 if verified else guess_s
    result.tokens += accepted + 1
    result.accepted += accepted
    result.passes += passes


def replay_all(tapes: Sequence[Tape], pace: DraftPolicy | None = None) -> list[Replay]:
    """Every policy over the same answers: other programs', this project's (a new one, or `pace`), and the bound, which
    is unknown where drafting overlaps."""
    others = policies(tapes[0].trace.n_max, tapes[0].source)
    return [
        *(replay(tapes, name, policy) for name, policy in others.items()),
        replay_auto(tapes, pace),
        *([] if tapes[0].overlaps else [replay_oracle(tapes)]),
    ]
