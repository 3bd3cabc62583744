"""A trace: what was guessed at every round and what came, in a file from which other ways of guessing can be replayed.

Each row is a JSON object. The first one says what was run and what passes cost; one begins each answer; one tells each
round. Where the text does not depend on what is guessed, a run that decodes plainly and guesses in the shadow at every
token is all that is needed to know what any lengths of drafts would have done (`edgespec.bench.replay`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from edgespec.core.draft import Budget, Draft
from edgespec.core.policy.policy import DraftPolicy, Proposal, ProposalContext, Verified
from edgespec.core.prefix import common_prefix
from edgespec.errors import EdgespecError, UsageError

VERSION = 1


@dataclass(frozen=True, slots=True)
class Guessed:
    """A drafter's chain at one round. `confidence`, and the draft model's probability `q` of each token and `entropy`
    of its distribution, go token by token; a drafter without a distribution has None. `matched` tokens agree with the
    text that came, `verified` of them went through the target, which accepted `accepted`; None where nothing was
    verified."""

    source: str
    tokens: list[int]
    confidence: list[float]
    q: list[float] | None
    entropy: list[float] | None
    matched: int
    verified: int
    accepted: int | None
    passes: int
    draft_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """A target pass over `width` tokens of `target_s` seconds, which emitted tokens from index `position` on."""

    position: int
    emitted: list[int]
    width: int
    target_s: float
    drafts: list[Guessed]


@dataclass(frozen=True, slots=True)
class Trace:
    """One answer. `costs` are seconds: "target" by width of the pass, "step" by drafter; `header` is all that was said
    about the run and the answer."""

    kind: str
    temperature: float
    n_max: int
    costs: dict[str, dict[str, float]]
    header: dict[str, Any]
    rounds: list[Round] = field(default_factory=list)

    @property
    def text(self) -> list[int]:
        """The tokens of the answer."""
        return [token for round in self.rounds for token in round.emitted]


# --- writing ----------------------------------------------------------------------------------------------------------


class Recorder:
    """A policy that writes down what another one decides, for one sequence at a time and chains only.

    Where the other does not draft, the recorder does, as much as it may; nothing of that is verified. `header` needs
    "kind", "temperature", "n_max" and "costs". Raises EdgespecError when the file cannot be written.
    """

    def __init__(self, pace: DraftPolicy, file: Path, header: Mapping[str, Any]) -> None:
        self.pace, self.path = pace, file
        self._text: list[int] = []
        self._in_shadow = set[str]()  # drafters that the other policy has not asked in this step
        self._held: deque[_Row] = deque()
        try:
            self._file: TextIO = file.open("w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise self._unwritable(error) from error
        self._write({"type": "header", "version": VERSION, **header})

    def begin(self, header: Mapping[str, Any]) -> None:
        """Another answer begins; what is said about it goes before what was said about the run."""
        self._release(ended=True)
        self._text = []
        self._write({"type": "answer", **header})

    def close(self) -> None:
        """Write what was held back. From then on the other policy is asked alone."""
        self._release(ended=True)
        self._file.close()

    def budget(self, context: ProposalContext, drafter: str, n_unread: Callable[[], int]) -> Budget | None:
        budget = self.pace.budget(self._without_shadow(context), drafter, n_unread)
        if self._file.closed or (budget is not None and budget.tokens):
            return budget
        self._in_shadow.add(drafter)
        return Budget(context.n_max) if context.n_max > 0 else None

    def select(self, contexts: Sequence[ProposalContext], width: int, room: int) -> list[Draft]:
        if len(contexts) > 1:
            raise NotImplementedError("a trace records one sequence")
        return self.pace.select([self._without_shadow(context) for context in contexts], width, room)

    def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
        self.pace.record([replace(each, context=self._without_shadow(each.context)) for each in verified], seconds)
        self._in_shadow.clear()
        for each in verified if not self._file.closed else ():
            self._held.append(_Row(len(self._text), each, seconds or 0.0))
            self._text += each.emitted
        self._release(ended=False)

    def _without_shadow(self, context: ProposalContext) -> ProposalContext:
        return replace(context, proposals=[p for p in context.proposals if p.drafter not in self._in_shadow])

    def _release(self, *, ended: bool) -> None:
        """Write the rows of which is known how much of their drafts came true."""
        while self._held and (ended or self._held[0].is_known(self._text)):
            self._write(self._held.popleft().as_json(self._text))

    def _write(self, row: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(row, separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> EdgespecError:
        return EdgespecError(f"the trace {self.path} cannot be written", why=error.strerror or str(error))


@dataclass(frozen=True, slots=True)
class _Row:
    """A step that was not written yet."""

    position: int
    verified: Verified
    target_s: float

    def is_known(self, text: list[int]) -> bool:
        """Whether more text cannot change how much of the drafts came true."""
        came = text[self.position :]
        drafts = [proposal.draft.tokens for proposal in self.verified.context.proposals]
        return all(common_prefix(draft, came) < len(came) or len(draft) <= len(came) for draft in drafts)

    def as_json(self, text: list[int]) -> dict[str, Any]:
        return {
            "type": "round",
            "position": self.position,
            "emitted": [*self.verified.emitted],
            "width": 1 + len(self.verified.draft),
            "target_s": round(self.target_s, 9),
            "drafts": [self._draft(proposal, text[self.position :]) for proposal in self.verified.context.proposals],
        }

    def _draft(self, proposal: Proposal, came: list[int]) -> dict[str, Any]:
        draft, certainty = proposal.draft, proposal.draft.certainty
        is_verified = len(self.verified.draft) > 0 and self.verified.draft.source_of(0) == proposal.drafter
        return {
            "source": proposal.drafter,
            "tokens": draft.tokens,
            "confidence": [round(confidence, 6) for confidence in draft.confidence],
            "q": [round(q, 6) for q, _ in certainty] if certainty else None,
            "entropy": [round(entropy, 6) for _, entropy in certainty] if certainty else None,
            "matched": common_prefix(draft.tokens, came),
            "verified": len(self.verified.draft) if is_verified else 0,
            "accepted": len(self.verified.path) if is_verified else None,
            "passes": proposal.passes,
            "draft_s": round(proposal.seconds, 9),
        }


# --- reading ----------------------------------------------------------------------------------------------------------


def read_trace(path: Path) -> list[Trace]:
    """The answers in a file. A last line that was torn off is left out; raises UsageError for anything else that a
    recorder does not write."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"the trace {path} cannot be read", why=reason or str(error)) from error
    traces: list[Trace] = []
    header: dict[str, Any] | None = None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if header is None:
                header = _header(row)
            elif row["type"] == "answer":
                traces.append(_trace(header | row))
            elif row["type"] == "round":
                traces = traces or [_trace(header)]
                traces[-1].rounds.append(_round(row, len(traces[-1].text)))
            else:
                raise ValueError(f"a row of type {row['type']!r}")
        except json.JSONDecodeError as error:
            if header is not None and number == len(lines) and not line.endswith("\n"):
                break
            raise _unreadable(path, number, f"not JSON, {error.msg}") from error
        except KeyError as error:
            raise _unreadable(path, number, f"{error} is missing") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise _unreadable(path, number, str(error)) from error
    if header is None:
        raise UsageError(f"{path} is not a trace", why="it is empty")
    return traces


def _unreadable(path: Path, line: int, reason: str) -> UsageError:
    return UsageError(f"{path} is not a valid trace", why=f"line {line}: {reason}")


def _header(row: dict[str, Any]) -> dict[str, Any]:
    if row["type"] != "header":
        raise ValueError("it does not start with a header")
    if row["version"] != VERSION:
        raise ValueError(f"unknown version {row['version']!r}, expected {VERSION}")
    _trace(row)
    return row


def _trace(header: dict[str, Any]) -> Trace:
    costs = {
        name: {str(key): _positive(seconds) for key, seconds in known.items()}
        for name, known in header["costs"].items()
    }
    if not costs["target"] or any(int(width) < 1 for width in costs["target"]):
        raise ValueError("the costs of target passes by width are missing")
    costs.setdefault("step", {})
    return Trace(str(header["kind"]), float(header["temperature"]), int(header["n_max"]), costs, header)


def _round(row: dict[str, Any], position: int) -> Round:
    if row["position"] != position:
        raise ValueError(f"position {row['position']!r} after {position} tokens")
    drafts = [_guessed(draft) for draft in row["drafts"]]
    return Round(position, _ids(row["emitted"]), int(row["width"]), float(row["target_s"]), drafts)


def _guessed(row: dict[str, Any]) -> Guessed:
    tokens, certainty = _ids(row["tokens"]), [row["q"], row["entropy"]]
    sizes = {len(values) for values in (row["confidence"], *certainty) if values is not None}
    if sizes - {len(tokens)}:
        raise ValueError("a draft has parts of different lengths")
    if not 0 <= row["matched"] <= len(tokens):
        raise ValueError(f"{row['matched']!r} of {len(tokens)} tokens matched")
    q, entropy = (None if values is None else [float(value) for value in values] for values in certainty)
    return Guessed(
        source=str(row["source"]),
        tokens=tokens,
        confidence=[float(value) for value in row["confidence"]],
        q=q,
        entropy=entropy,
        matched=int(row["matched"]),
        verified=int(row["verified"]),
        accepted=None if row["accepted"] is None else int(row["accepted"]),
        passes=int(row["passes"]),
        draft_s=float(row["draft_s"]),
    )


def _ids(values: list[int]) -> list[int]:
    if not all(isinstance(value, int) for value in values):
        raise ValueError("tokens must be integers")
    return list(values)


def _positive(seconds: float) -> float:
    if not seconds > 0:
        raise ValueError(f"{seconds!r} is not a cost of a pass")
    return float(seconds)
