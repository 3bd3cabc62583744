"""`edgespec tune`: measure which drafters to use for a model, how long their drafts should be, and what that gains.

The model is loaded once for each of its draft heads and draft models. In each load, plain decoding, the drafters
without weights, the head alone, all of them together and the head with fixed draft lengths answer the same prompts,
interleaved. So each speedup compares answers to the same prompt within seconds. The draft-length policy saves what it
learns here for the next start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter

from edgespec.bench.candidates import LeftOut, current_mode, find_candidates, name_of_draft, others_of, without_weights
from edgespec.bench.measure import BenchPlan, BenchResult, run_bench
from edgespec.bench.modes import PLAIN, Contest, Mode
from edgespec.bench.suites import SuitePrompt
from edgespec.bench.summary import (
    Cell,
    CostCurve,
    acceptance_probability,
    by_prompt,
    cost_curve,
    plain_spread,
    speedups,
    summarise,
)
from edgespec.cancel import CancelFlag
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError, GenerationError
from edgespec.events import Progress
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.context import CancelledError
from edgespec.models.names.spec import resolve
from edgespec.runtime.runtime import Runtime
from edgespec.settings import MTP, LoadSettings, fixed_length

TOKENS = 32
MOST_REPEATS = 20  # of the same prompt
LEAST_PROMPTS = 3  # for each draft, even if that takes longer
LONGEST = 8  # draft tokens up to which the cost of passes is shown


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One way to decode, with its figures by temperature.

    Attributes:
        draft: the file of the draft model or head that is loaded, if the mode uses it
        is_current: True for what a start without options uses
        cells: figures over all categories
        by_category: speedups by category
        ratios: speedups by prompt
        beside: the same of the modes without weights in its own load
    """

    mode: Mode
    draft: Path | None
    is_current: bool
    cells: Mapping[float, Cell]
    by_category: Mapping[float, Mapping[str, float | None]]
    ratios: Mapping[float, Mapping[str, float]]
    beside: Mapping[Mode, Mapping[float, Mapping[str, float]]]

    @property
    def draft_name(self) -> str:
        """The name of the draft as an option takes it; empty without one."""
        return "" if self.draft is None else name_of_draft(self.draft)

    @property
    def has_weights(self) -> bool:
        """True if it needs a draft model, a head or the MTP block."""
        return _needs_weights(self.mode)

    def as_json(self) -> dict[str, object]:
        names = ("prompts", "tokens_per_s", "speedup", "speedup_low", "speedup_high", "tokens_per_step", "acceptance")
        at = [
            {"temperature": temperature, **{name: getattr(cell, name) for name in names},
             "by_category": self.by_category[temperature]}
            for temperature, cell in self.cells.items()
        ]  # fmt: skip
        about = {"mode": self.mode.name, "spec_type": self.mode.spec_type, "pace": self.mode.pace}
        draft = None if self.draft is None else str(self.draft)
        return {**about, "draft_model": draft, "is_current": self.is_current, "figures": at}


@dataclass(frozen=True, slots=True)
class DraftCost:
    """The cost of the drafts of a drafter with weights, and how often they are right, at temperature 0.

    Attributes:
        length: the number of tokens of these drafts
        cost: the time of a draft in passes of the target over one token; None if nothing was drafted
        alpha: the share of its tokens that were accepted, given that those before them were
        break_even: the least such share at which these drafts pay off, if there is one
    """

    drafter: str
    draft: Path | None
    length: int
    cost: float | None
    alpha: float | None
    break_even: float | None

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"draft": None if self.draft is None else str(self.draft)}


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of `tune`, complete or not.

    Attributes:
        model: the model as it was named
        curve: the cost of the target's passes
        cheapest: the measured cost of the cheapest pass, in passes over one token; below 1, the machine was busy
        spread: how much the speed of plain decoding varied, if that is known
        is_complete: False if it was stopped
        pace: the draft lengths of the present setting
    """

    model: str
    path: Path
    sampling: SamplingSettings
    temperatures: tuple[float, ...]
    curve: CostCurve
    cheapest: float
    costs: tuple[DraftCost, ...]
    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]
    spread: float | None
    is_complete: bool
    messages: tuple[str, ...]
    pace: str

    def as_json(self) -> dict[str, object]:
        """Return plain data; costs in seconds and relative to a pass over one token."""
        widths = {str(width): round(cost, 4) for width, cost in self.curve.target.items()}
        return {
            "model": str(self.path),
            "sampling": asdict(self.sampling),
            "temperatures": list(self.temperatures),
            "pass_s": self.curve.pass_s,
            "passes": widths,
            "drafts": [cost.as_json() for cost in self.costs],
            "candidates": [candidate.as_json() for candidate in self.candidates],
            "left_out": [asdict(each) for each in self.left_out],
            "is_complete": self.is_complete,
            "messages": list(self.messages),
        }


def tune(
    settings: LoadSettings,
    sampling: SamplingSettings,
    items: Sequence[SuitePrompt],
    seconds: float,
    *,
    current: LoadSettings | None = None,
    only_named: bool = False,
    progress: Progress | None = None,
    cancel: CancelFlag | None = None,
) -> Tuned | None:
    """Measure everything that can draft for a model on `items`, or `only_named` drafts, for about that long.

    Answers are sampled greedily and at the temperature of `sampling`, both with its other settings. `current` are the
    settings of a start without options; None: the defaults. A draft that cannot be loaded is left out.

    Returns None if it was cancelled before it had any result. Raises what `Runtime` raises for the target itself, and
    UsageError if there is nothing to measure.
    """
    found = resolve(settings.model)
    target = check_model(found.path)
    current = current or LoadSettings(settings.model)
    present = current_mode(current, target, found.default_draft)
    candidates = find_candidates(settings, target, found.default_draft, present, only_named=only_named)
    temperatures = tuple(dict.fromkeys((0.0, sampling.temperature)))
    run = _Run(settings, sampling, temperatures, items, progress or (lambda what, done: None), cancel or CancelFlag())
    run.left_out += candidates.left_out
    started_s, is_complete = perf_counter(), True
    waiting, number = [*candidates.contests], 0
    try:
        while waiting:
            contest, number = waiting.pop(0), number + 1
            run.part = f" ({number} of {number + len(waiting)})" if number + len(waiting) > 1 else ""
            left_s = seconds - (perf_counter() - started_s)
            try:
                run.measure(contest, found.path, max(0.0, left_s) / (1 + len(waiting)))
            except EdgespecError as error:
                if contest.draft is None:
                    raise
                run.left_out.append(LeftOut(name_of_draft(contest.draft), error.line.partition("\n")[0]))
                if not waiting and not run.loads:
                    if not others_of(settings):
                        raise
                    waiting.append(without_weights(settings))
    except CancelledError:
        is_complete = False
    loads = [load for load in run.loads if load.result.samples]
    if not loads:
        return None
    messages = [*dict.fromkeys(message for load in loads for message in load.result.messages)]
    now = current_mode(current, target, found.default_draft)  # may have changed: a head that pays is used again
    return Tuned(
        model=settings.model,
        path=found.path,
        sampling=sampling,
        temperatures=temperatures,
        curve=loads[0].curve,
        cheapest=min(load.cheapest for load in loads),
        costs=tuple(cost for load in loads for cost in _costs(load, temperatures[0])),
        candidates=tuple(_candidates(loads, now)),
        left_out=tuple(run.left_out),
        spread=max((spread for load in loads if (spread := plain_spread(load.result.samples))), default=None),
        is_complete=is_complete,
        messages=tuple(messages),
        pace=current.pace,
    )


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Load:
    """One load of the model, and what was measured."""

    contest: Contest
    result: BenchResult

    @property
    def modes(self) -> list[Mode]:
        return [mode for mode in self.contest.modes if mode.name in self.result.modes]

    @property
    def curve(self) -> CostCurve:
        found = cost_curve(self.result.costs)
        assert found is not None
        return found

    @property
    def cheapest(self) -> float:
        return float(min(self.result.costs["target"].values()) / self.curve.pass_s)


@dataclass(slots=True)
class _Run:
    """A measurement in progress."""

    settings: LoadSettings
    sampling: SamplingSettings
    temperatures: tuple[float, ...]
    items: Sequence[SuitePrompt]
    progress: Progress
    cancel: CancelFlag
    part: str = ""
    loads: list[_Load] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def measure(self, contest: Contest, target: Path, seconds: float) -> None:
        """Load the model for a contest and measure for about this time, at least `LEAST_PROMPTS` prompts. Raises
        CancelledError and GenerationError, after which `loads` has what was measured, and what `Runtime` raises."""
        started_s = perf_counter()
        what = f"measuring {name_of_draft(contest.draft) if contest.draft else ''}".rstrip() + self.part
        limit = self.settings.spec_draft_n_max
        load_settings = contest.settings(self.settings, target)
        if limit is not None:
            load_settings = replace(load_settings, spec_draft_n_max=limit)
        n_prompts = len(self.items)

        def is_enough(result: BenchResult) -> bool:
            share = (perf_counter() - started_s) / seconds if seconds else 1.0
            in_turn = len(result.modes) * len(self.temperatures)
            turns, rest = divmod(len(result.samples), in_turn)
            self.progress(what, min(1.0, share, (turns + rest / in_turn) / LEAST_PROMPTS))
            return share >= 1 and turns >= min(LEAST_PROMPTS, n_prompts) and not rest

        with Runtime(load_settings, self._tell_loading) as llm:
            self.progress("warming up", 0.0)
            plan = BenchPlan(
                self.items, contest.modes, TOKENS, self.temperatures, MOST_REPEATS, sampling=self.sampling, passes=3,
                longest=LONGEST,
            )  # fmt: skip
            result = run_bench(llm, plan, None, self.cancel, is_enough)
        if result.costs:
            self.loads.append(_Load(contest, result))
        if self.cancel.is_set():
            raise CancelledError
        if result.failure:
            raise GenerationError(result.failure)

    def _tell_loading(self, what: str, done: float) -> None:
        """Show how far a load is. Raises CancelledError where that stops it; llama.cpp itself cannot be stopped."""
        if what == "prompt":
            return
        if self.cancel.is_set() and what != "loading":
            raise CancelledError
        self.progress(what, done)


# --- figures ----------------------------------------------------------------------------------------------------------


def _candidates(loads: Sequence[_Load], current: tuple[Path | None, Mode]) -> list[Candidate]:
    """Return the figures of all ways to decode; those without a draft are taken from the first load that has them."""
    found: dict[tuple[Path | None, Mode], Candidate] = {}
    for load in loads:
        summary = summarise(load.result.samples, [mode.name for mode in load.modes])
        ratios = {mode: {t: _ratios(load, mode, t) for t in summary.temperatures} for mode in load.modes}
        beside = {mode: of for mode, of in ratios.items() if not _needs_weights(mode)}
        for mode in load.modes:
            draft = load.contest.draft if mode.draft_model == "draft" else None
            cells = {t: cell for t in summary.temperatures if (cell := summary.cell(mode.name, t))}
            by_category = {t: summary.by_category(mode.name, t) for t in cells}
            candidate = Candidate(mode, draft, (draft, mode) == current, cells, by_category, ratios[mode], beside)
            found.setdefault((draft, mode), candidate)
    return list(found.values())


def _ratios(load: _Load, mode: Mode, temperature: float) -> dict[str, float]:
    """Return the speedups of a mode by prompt."""
    measured = zip(load.result.samples, speedups(load.result.samples), strict=True)
    own = [(s, ratio) for s, ratio in measured if (s.mode, s.temperature) == (mode.name, temperature)]
    return by_prompt([sample for sample, _ in own], [ratio for _, ratio in own])


def _needs_weights(mode: Mode) -> bool:
    return bool(mode.draft_model) or MTP in mode.drafters


def _costs(load: _Load, temperature: float) -> list[DraftCost]:
    """Return the costs of the drafter with weights that a load has measured alone, by the clock."""
    fixed = [
        mode for mode in load.modes if fixed_length(mode.pace) and _needs_weights(mode) and len(mode.drafters) == 1
    ]
    if not fixed:
        return []
    mode = max(fixed, key=lambda mode: fixed_length(mode.pace) or 0)
    of_mode, plain = (
        [s.stats for s in load.result.samples if (s.mode, s.temperature) == (name, temperature)]
        for name in (mode.name, PLAIN.name)
    )
    length, drafter = fixed_length(mode.pace) or 0, mode.drafters[0]
    alpha = acceptance_probability([(stats.proposed_per_pos, stats.accepted_per_pos) for stats in of_mode])
    sources = [stats.by_source[drafter] for stats in of_mode if drafter in stats.by_source]
    asked, passes = sum(source.asked for source in sources), sum(stats.rounds for stats in plain)
    cost = even = None
    if asked and passes:
        pass_s = sum(stats.target_s for stats in plain) / passes
        cost = sum(source.seconds for source in sources) / asked / pass_s
        even = load.curve.break_even(length, cost)
    return [DraftCost(mode.spec_type, load.contest.draft, length, cost, alpha, even)]
