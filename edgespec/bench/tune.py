"""Measure costs and acceptance of a drafter on this machine, and the speed with and without it.

First the passes are measured: t(n) and c. Then texts of every category are decoded plainly with an unverified draft at
every token, from which every draft length is replayed. Finally plain decoding and the measured draft policy answer the
same prompts alternately, as many of each category. The next start uses the costs that the policy learns here.
`verdict.py` decides.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter
from typing import Any

from edgespec.bench.fastest import expected, fastest
from edgespec.bench.measure import Plan, Result, run_bench
from edgespec.bench.modes import PLAIN, Mode
from edgespec.bench.paired import ratios
from edgespec.bench.questions import Question, ask
from edgespec.bench.replay import Tape, new_pace, replay_all, replay_auto, table
from edgespec.bench.suites import Item
from edgespec.bench.verdict import Kind, break_even, judge, measured_speedup
from edgespec.cancel import CancelFlag
from edgespec.core.sampling import SamplingSettings
from edgespec.core.theory import CostCurve, cost_curve
from edgespec.engine.trace import Trace, read_trace
from edgespec.errors import UsageError
from edgespec.events import Progress
from edgespec.runtime.runtime import Runtime

TOKENS = 32
SHADOW_SHARE = 0.4  # of the time goes into acceptance, the remainder into speedups
LEAST_MEASURED = 3  # prompts
MOST_REPEATS = 5  # of the same prompt, if there are no more prompts


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result.

    Attributes:
        break_even: the least alpha at which some draft length pays off
        measured: the speedup of the automatic draft length over plain decoding, with its 95 % interval; None if there
            was not enough time
        use_it: None if the figures allow no decision
        elsewhere: the machines on which drafts would pay, if they cannot pay here
        fastest: the fastest of this model's weight types measured here; empty if there is one only, or if the
            measurement was disturbed or stopped early
    """

    drafter: str
    curve: CostCurve
    kinds: list[Kind]
    overall: Kind
    break_even: float | None
    measured: float | None
    measured_low: float | None
    measured_high: float | None
    verdict: str
    use_it: bool | None
    elsewhere: str
    fastest: str
    messages: list[str]

    def as_json(self) -> dict[str, Any]:
        """Plain data; costs in seconds and in passes over one token."""
        return {
            **asdict(self),
            "curve": {
                "pass_s": self.curve.pass_s,
                "passes": {str(width): round(cost, 4) for width, cost in self.curve.target.items()},
                "guess": self.curve.draft,
            },
        }


def tune(
    llm: Runtime,
    items: Sequence[Item],
    seconds: float,
    *,
    temperature: float = 0.0,
    progress: Progress | None = None,
    cancel: CancelFlag | None = None,
) -> Tuned | None:
    """Measure the loaded drafter on `items` for about that long; None if it was cancelled before it had any result.

    Raises UsageError if there is no drafter, or no item fits.
    """
    tell, cancel = progress or (lambda what, done: None), cancel or CancelFlag()
    if not llm.engine.speculator.drafters:
        raise UsageError(
            "there is nothing to tune: no drafter is loaded", hint="pass a draft model (-md), or --spec-type suffix"
        )
    started_s = perf_counter()
    drafter = llm.engine.speculator.drafters[0].name
    mode = Mode(llm.settings.spelling(drafter))
    questions, messages = ask(llm, items, TOKENS, reference=False)
    if not questions:
        raise UsageError("there is nothing to tune with", why="; ".join(messages) or "there are no prompts")
    sampling = SamplingSettings(temperature=temperature)
    questions = [replace(q, request=replace(q.request, sampling=sampling)) for q in questions]
    traces = _shadowed(llm, mode, questions, started_s + SHADOW_SHARE * seconds, seconds, tell, cancel)
    if not traces:
        return None
    _, first = traces[0]
    seconds_by_width = {int(width): cost_s for width, cost_s in first.costs["target"].items() if cost_s}
    curve = cost_curve({"target": first.costs["target"], "draft": table(first).step(drafter)})
    assert curve is not None
    llm.draft_with(pace="auto")
    # What the texts have shown need not be learned again from answers.
    tapes = [(category, Tape.of(trace, drafter)) for category, trace in traces]
    replay_auto([tape for _, tape in tapes], llm.engine.speculator.pace)
    took_s = perf_counter() - started_s
    # An answer takes about as long as a shadowed one, most of it for the prompt; there are two of each.
    n_pairs = int((seconds - took_s) / (2 * took_s / len(traces)))
    chosen, repeat = _evenly([question.item for question in questions], n_pairs)
    plan = Plan(chosen, [PLAIN, mode], tokens=TOKENS, temperatures=[temperature], repeat=repeat)
    result = run_bench(llm, plan, tell, cancel)
    kinds = _kinds(tapes)
    measured = measured_speedup(_ratios(result, mode.name), kinds)
    if cancel.is_set():
        messages.append("stopped early: the verdict covers only what was measured")
    overall = _overall(kinds)
    cheapest = min(seconds_by_width.values()) / seconds_by_width[1]
    found = judge(drafter, curve, kinds, overall, measured, cheapest=cheapest)
    best = ""
    if found.use_it is not None and not cancel.is_set():
        files = expected(llm, [tape for _, tape in tapes])
        best = fastest(files if found.use_it else [replace(file, drafting=0.0) for file in files])
    return Tuned(
        drafter,
        curve,
        kinds,
        overall,
        break_even(curve),
        measured=measured.speedup if measured else None,
        measured_low=measured.low if measured else None,
        measured_high=measured.high if measured else None,
        verdict=found.why,
        use_it=found.use_it,
        elsewhere=found.elsewhere,
        fastest=best,
        messages=messages,
    )


def _evenly(items: Sequence[Item], n_pairs: int) -> tuple[list[Item], int]:
    """About `n_pairs` prompts with as many of each category, if there is time for all categories, and how often each is
    asked."""
    n_categories = len({item.category for item in items})
    n = max(LEAST_MEASURED, n_pairs)
    chosen = list(items[: n - n % n_categories if n > n_categories else n])
    return chosen, min(MOST_REPEATS, max(1, n // len(chosen)))


def _ratios(result: Result, mode: str) -> dict[str, list[float]]:
    """The speedups of pairs of answers by category."""
    samples = result["samples"]
    found: dict[str, list[float]] = {}
    for sample, ratio in zip(samples, ratios(samples), strict=True):
        if sample["mode"] == mode and ratio is not None:
            found.setdefault(sample["category"], []).append(ratio)
    return found


def _shadowed(
    llm: Runtime,
    mode: Mode,
    questions: Sequence[Question],
    until_s: float,
    seconds: float,
    progress: Progress,
    cancel: CancelFlag,
) -> list[tuple[str, Trace]]:
    """Answers with an unverified draft at every token, by category; at least one of each, then as many as there is time
    for."""
    seen: set[str] = set()
    llm.draft_with(spec_type=mode.spec_type, pace="off", spec_tree=1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.jsonl"
        with llm.recording(file, questions[0].request) as recorder:
            for question in questions:
                if cancel.is_set() or (question.item.category in seen and perf_counter() > until_s):
                    break
                recorder.begin({"category": question.item.category})
                for _ in llm.submit(question.request, cancel):
                    pass
                seen.add(question.item.category)
                progress("comparing drafts", min(1.0, 1 - max(0.0, until_s - perf_counter()) / seconds))
        return [(trace.header["category"], trace) for trace in read_trace(file) if any(r.drafts for r in trace.rounds)]


def _kinds(all_tapes: Sequence[tuple[str, Tape]]) -> list[Kind]:
    """One row per category, its texts concatenated. The policy knows the pair, as it will in use."""
    found = []
    everything = [tape for _, tape in all_tapes]
    pace = new_pace(everything)
    replay_auto(everything, pace)
    for category in dict.fromkeys(category for category, _ in all_tapes):
        tapes = [tape for name, tape in all_tapes if name == category]
        runs = {run.policy: run for run in replay_all(tapes, pace)}
        lengths = {0: 1.0} | {
            int(name.removeprefix("fixed ")): run.speedup for name, run in runs.items() if name.startswith("fixed ")
        }
        best = max(lengths, key=lengths.__getitem__)
        drafts = [draft for tape in tapes for draft in tape.guesses if draft is not None]
        alpha = sum(draft.matched > 0 for draft in drafts) / max(1, len(drafts))
        auto, oracle = runs["auto"].speedup, runs["oracle"].speedup
        found.append(Kind(category, runs["plain"].tokens, alpha, best, lengths[best], auto, oracle))
    return found


def _overall(kinds: Sequence[Kind]) -> Kind:
    """All categories together; the best length is that of the largest share of them."""
    tokens = sum(kind.tokens for kind in kinds)
    lengths = [kind.best_length for kind in kinds]
    return Kind(
        "all",
        tokens,
        sum(kind.alpha * kind.tokens for kind in kinds) / max(1, tokens),
        max(set(lengths), key=lengths.count),
        geometric_mean(kind.best_speedup for kind in kinds),
        geometric_mean(kind.auto_speedup for kind in kinds),
        geometric_mean(kind.oracle_speedup for kind in kinds),
    )
