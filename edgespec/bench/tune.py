"""Is a draft worth it on this machine? Measures costs and acceptance, and gives a verdict.

First the passes: t(n) and c. Then a text of every category is decoded plainly with an unverified draft at every token,
from which every draft length is replayed. At last plain decoding and the measured draft policy answer the same prompts
in turns. What the policy learns on the way is saved for the next start.
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
from edgespec.bench.measure import Plan, run_bench
from edgespec.bench.modes import PLAIN, Mode
from edgespec.bench.questions import Question, ask
from edgespec.bench.replay import Tape, new_pace, replay_all, replay_auto, table
from edgespec.bench.suites import Item
from edgespec.bench.summary import summarise
from edgespec.cancel import CancelFlag
from edgespec.core.sampling import SamplingSettings
from edgespec.core.theory import CostCurve, cost_curve, expected_tokens
from edgespec.engine.trace import Trace, read_trace
from edgespec.errors import UsageError
from edgespec.events import Progress
from edgespec.runtime.runtime import Runtime

TOKENS = 32
SHADOW_SHARE = 0.4  # of the time goes into acceptance, the remainder into speedups
LEAST_MEASURED = 3  # prompts
WORTH_IT, HARMLESS = 1.02, 0.97
LENGTHS = (1, 3)  # of chains whose cost is told
CONTRADICTED = 0.8  # of the replayed speedup: a measured one below says that something else took the time
DISTURBED = 0.9  # passes over one token: a wider one cannot be cheaper


@dataclass(frozen=True, slots=True)
class Kind:
    """The drafter on one category's texts: `alpha` is the share of next tokens it predicted, `best_length` and
    `best_speedup` the best fixed length by replay, `auto_speedup` that of the automatic draft length, `oracle_speedup`
    the bound of an oracle that knows the text."""

    category: str
    tokens: int
    alpha: float
    best_length: int
    best_speedup: float
    auto_speedup: float
    oracle_speedup: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result. `measured` is the speedup of the automatic draft length over plain decoding, with its 95 % interval;
    None if there was not enough time. `break_even` is the alpha from which on some length pays off. `use_it` is None
    without a verdict. `elsewhere` says on what machine it would pay, where it does not here. `fastest` names the
    fastest of this model's weight types measured here, "" if there is one only, or if the measurement was disturbed or
    stopped early."""

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
    curve = cost_curve({"target": first.costs["target"], "draft": table(first).step(drafter)})
    assert curve is not None
    took_s = perf_counter() - started_s
    # An answer takes about as long as a shadowed one, most of it for the prompt; there are two of each.
    n_measured = max(LEAST_MEASURED, int((seconds - took_s) / (2 * took_s / len(traces))))
    plan = Plan(
        [question.item for question in questions[:n_measured]],
        [PLAIN, mode],
        tokens=TOKENS,
        temperatures=[temperature],
    )
    llm.draft_with(pace="auto")
    # What the texts have shown need not be learned again from answers.
    tapes = [(category, Tape.of(trace, drafter)) for category, trace in traces]
    replay_auto([tape for _, tape in tapes], llm.engine.speculator.pace)
    result = run_bench(llm, plan, tell, cancel)
    cell = summarise(result).cell(mode.name, temperature)
    kinds = _kinds(tapes)
    measured = (cell.speedup, cell.speedup_low, cell.speedup_high) if cell else (None, None, None)
    if cancel.is_set():
        messages.append("stopped early: the verdict covers only what was measured")
    even, overall = break_even(curve), _overall(kinds)
    use_it, why = verdict(drafter, curve, kinds, overall, even, measured)
    is_known = use_it is not None and not cancel.is_set()
    best = fastest(expected(llm, [tape for _, tape in tapes])) if is_known else ""
    other = elsewhere(curve, overall.alpha) if use_it is False else ""
    return Tuned(drafter, curve, kinds, overall, even, *measured, why, use_it, other, best, messages)


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
                for _ in llm.answer(question.request, cancel):
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


def break_even(curve: CostCurve) -> float | None:
    """The least alpha, in steps of a per cent, at which some draft length pays off; None if none does."""
    return next((alpha / 100 for alpha in range(1, 101) if curve.best(alpha / 100)[1] > 1), None)


def elsewhere(curve: CostCurve, alpha: float) -> str:
    """The costs of passes from which on drafts of this acceptance would pay: those of another machine."""
    step = curve.draft or 0.0
    bounds = {
        length + 1: expected_tokens(alpha, length) - step * length for length in LENGTHS if length <= curve.longest
    }
    parts = [
        f"over {width} tokens costs less than {bound:.2f} (here {curve.at(width):.2f})"
        for width, bound in bounds.items()
        if bound > 1
    ]
    if not parts:
        return "nowhere: drafting costs more than these drafts save"
    return f"where a pass {', or one '.join(parts)}, a pass over one token being 1"


def verdict(
    drafter: str,
    curve: CostCurve,
    kinds: Sequence[Kind],
    overall: Kind,
    even: float | None,
    measured: tuple[float | None, float | None, float | None],
) -> tuple[bool | None, str]:
    """Whether to use it, and why; None if the costs cannot be right.

    A speedup that acceptance does not explain is noise; one that it does explain may still be uncertain with few
    prompts.
    """
    speedup, low, _ = measured
    disturbed = ""
    if min(curve.target.values()) < DISTURBED:
        disturbed = "a wide pass appeared cheaper than one over a single token"
    elif speedup is not None and speedup < HARMLESS and speedup < CONTRADICTED * overall.auto_speedup:
        disturbed = f"costs and acceptance promise {overall.auto_speedup:.2f}x, but {speedup:.2f}x was measured"
    if disturbed:
        return None, (
            f"none: another program disturbed the measurement ({disturbed}); close other programs and run tune again"
        )
    step = curve.draft or 0.0
    reached = speedup if speedup is not None else overall.auto_speedup
    paying = [kind.category for kind in kinds if kind.auto_speedup >= WORTH_IT]
    certain = low is None or low >= HARMLESS
    if reached >= WORTH_IT and (overall.auto_speedup >= WORTH_IT or (paying and certain)):
        where = "" if len(paying) == len(kinds) else f", most of it on {', '.join(paying)}"
        return True, f"worth it: {reached:.2f}x as fast as plain decoding{where}"
    costs = f"a pass over 2 tokens costs {curve.at(2):.2f} of one over 1, and a draft token {step:.2g}"
    if step >= 1:
        why = f"a draft token costs more than a pass of the target itself ({step:.1f} passes)"
    elif even is None:
        why = f"{costs}, so not even 100% acceptance would pay off"
    elif overall.alpha < even:
        why = f"{costs}, so break-even is {even:.0%} acceptance; {overall.alpha:.0%} was measured"
    else:
        why = f"acceptance of {overall.alpha:.0%} barely beats break-even ({even:.0%})"
    harm = (
        "--pace auto switches it off by itself" if reached >= HARMLESS else f"measured {reached:.2f}x of plain decoding"
    )
    some = f"; it pays off on {', '.join(paying)}" if paying else ""
    return False, f"not worth it ({drafter}): {why}{some}; {harm}".replace("%", " %")
