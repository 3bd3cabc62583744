"""`edgespec compare`: measure the divergence of several files from a reference, and their speed in several modes.

One file is loaded at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

import psutil

from edgespec.bench import WINDOW
from edgespec.bench.measure import WARM_UP_TOKENS, BenchResult, Conditions, Sample, TimeLeft, run_bench, without_folders
from edgespec.bench.measure import Plan as BenchPlan
from edgespec.bench.modes import PLAIN, Contest
from edgespec.bench.quality import Quality, compare_with, default_limit, keep_rows, opened, room_for_rows, windows
from edgespec.bench.suites import Item
from edgespec.bench.summary import Cell, median, plain_spread, summarise
from edgespec.bench.targets import Target, Targets
from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, GenerationError
from edgespec.events import PROGRESS, Progress
from edgespec.llama.context import CancelledError, Context
from edgespec.llama.model import Model
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings

VERSION = 5  # of the JSON
ASKED_AGAIN = 2  # prompts, to find out whether the machine has changed
READING = 0.2  # time per token of a prompt, relative to a generated one
MEASURING_PASSES = 80  # generated tokens that take about the same time


@dataclass(slots=True, frozen=True)
class Plan:
    """The comparison to make.

    Attributes:
        contests: the modes to measure, by the loads that they need
        tokens: the length of each answer
        text, limit: quality is measured on the first `limit` windows of this text
        command: the command line, which is recorded in the result
    """

    targets: Targets
    contests: Sequence[Contest]
    items: Sequence[Item]
    tokens: int
    text: str
    settings: LoadSettings
    limit: int | None = None
    command: str = ""


@dataclass(slots=True, frozen=True)
class Row(Cell):
    """The figures of one file in one mode, over all categories.

    Attributes:
        memory_bytes: the observed peak memory of the process
        is_best: True if no other row is better in both speed and closeness to the reference
    """

    file: str
    draft: str | None
    memory_bytes: int
    is_best: bool = False

    @property
    def is_faster(self) -> bool:
        """True if the interval shows a speedup over plain decoding; noise alone does not."""
        return self.speedup_low is not None and self.speedup_low > 1 and (self.tokens_per_step or 0) > 1

    @property
    def is_candidate(self) -> bool:
        """True for plain decoding, and for modes that are certainly faster."""
        return self.mode == PLAIN.name or self.is_faster


@dataclass(slots=True, frozen=True)
class ComparedFile:
    """One of the compared files.

    Attributes:
        quality: None if it was not measured
        spread: how much the speed of plain decoding varied
    """

    label: str
    name: str
    file: str
    quantisation: str
    size_bytes: int
    parameters: int
    quality: Quality | None
    spread: float | None


@dataclass(slots=True, kw_only=True)
class Comparison(Conditions):
    """The result, complete or not.

    Attributes:
        reference: the label of the reference
        reference_again: the reference's speed at the end of this run over its speed in the rows; None if it was not
            measured again
    """

    reference: str
    files: list[ComparedFile]
    rows: list[Row]
    reference_again: float | None
    messages: list[str]
    failures: list[str]
    complete: bool

    def as_json(self) -> dict[str, Any]:
        rows = [asdict(row) | {"stats": row.stats.as_json()} for row in self.rows]
        return {"version": VERSION, **asdict(self), "rows": rows}


def run_comparison(plan: Plan, progress: Progress | None = None, cancel: CancelFlag | None = None) -> Comparison:
    """Measure `plan`. If `cancel` is set or a file fails, the result is partial.

    Raises UsageError for a text that is too short, and if there is no room for the reference's rows.
    """
    run = _Run(plan, progress or (lambda what, done: None), cancel or CancelFlag())
    try:
        run.measure_qualities()
        run.measure_speeds()
    except CancelledError:
        pass
    return run.result()


@dataclass(slots=True)
class _Load:
    """One load of a file, to measure its speed in the modes of a contest."""

    target: Target
    contest: Contest
    memory_bytes: int = 0
    result: BenchResult | None = None

    @property
    def samples(self) -> list[Sample]:
        """The answers, if all were measured."""
        return self.result.samples if self.result and self.result.complete else []


class _Run:
    """A comparison in progress."""

    def __init__(self, plan: Plan, progress: Progress, cancel: CancelFlag) -> None:
        self._plan, self._progress, self._cancel = plan, progress, cancel
        self._started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._reference, self._targets = plan.targets.reference, plan.targets.all
        self._windows = self._cut_text()
        self._messages, self._failures = list(plan.targets.messages), list[str]()
        self._reference_again: float | None = None
        self._qualities: dict[str, Quality] = {}  # by label
        self._loads = [_Load(target, contest) for target in self._targets for contest in plan.contests]
        # The total work, in bytes of weights that go through the processor for a token
        reading = sum(self._reading_units(target) for target in self._targets)
        self._time = TimeLeft(reading + sum(map(self._speed_units, self._loads)))

    def result(self) -> Comparison:
        plan = self._plan
        rows = [row for target in self._targets for row in self._rows(target)]
        closeness = {label: quality.kl for label, quality in self._qualities.items()}
        notes = [message for load in self._loads if load.result for message in load.result.messages]
        return Comparison(
            command=plan.command,
            started=self._started,
            settings={
                "threads": plan.settings.threads or None,
                "tokens": plan.tokens,
                "prompts": len(plan.items),
                "window": len(self._windows[0]),
                "windows": len(self._windows),
            },
            reference=self._reference.label,
            files=[self._about(target) for target in self._targets],
            rows=with_best(rows, closeness),
            reference_again=self._reference_again,
            messages=[without_folders(message) for message in dict.fromkeys([*self._messages, *notes])],
            failures=self._failures,
            complete=len(self._qualities) == len(self._targets) and all(load.samples for load in self._loads),
        )

    def _about(self, target: Target) -> ComparedFile:
        samples = [sample for load in self._loads if load.target == target for sample in load.samples]
        return ComparedFile(
            target.label,
            target.name,
            target.path.name,
            target.quantisation,
            target.size_bytes,
            target.header.n_params,
            self._qualities.get(target.label),
            plain_spread(samples),
        )

    def _rows(self, target: Target) -> list[Row]:
        """Return the rows of one file; plain decoding is taken from its first load."""
        found: dict[tuple[str | None, str], Row] = {}
        for load in self._loads:
            if load.target == target:
                for row in rows_of(target.label, load.contest, load.samples, load.memory_bytes):
                    found.setdefault((row.draft, row.mode), row)
        return list(found.values())

    # --- what is to be done ---------------------------------------------------------------------------------------

    def _cut_text(self) -> list[list[int]]:
        plan, reference = self._plan, self._reference
        size = min(WINDOW, reference.header.number("context_length") or WINDOW)
        limit = plan.limit or default_limit(reference.header.n_vocab, size)
        with Model.load_vocabulary(reference.path) as model:
            return windows(model, plan.text, size, limit)

    def _reading_units(self, target: Target) -> float:
        return READING * target.size_bytes * len(self._windows) * len(self._windows[0])

    def _speed_units(self, load: _Load) -> float:
        answers = len(self._plan.items) * self._plan.tokens + WARM_UP_TOKENS
        return float(load.target.size_bytes * (MEASURING_PASSES + len(load.contest.modes) * answers))

    # --- quality --------------------------------------------------------------------------------------------------

    def measure_qualities(self) -> None:
        """Read the text with each file, the reference first. Raises CancelledError, UsageError."""
        base, text, cancel = self._reference, self._windows, self._cancel
        with room_for_rows(base.header.n_vocab, len(text[0]), len(text)) as rows:
            with self._opened(base) as (context, tell):
                keep_rows(context, text, rows, tell, cancel)
                self._qualities[base.label] = rows.quality
            for target in self._targets if self._qualities else ():
                if target != base:
                    with self._opened(target) as (context, tell):
                        self._qualities[target.label] = compare_with(rows, context, text, tell, cancel)

    @contextmanager
    def _opened(self, target: Target) -> Iterator[tuple[Context, Callable[[int, int], None]]]:
        """Open a file to read the text with it; a failure is reported, and the others continue."""
        label, size = target.label, len(self._windows[0])
        with (
            self._part(self._reading_units(target), target) as tell,
            opened(
                target.path,
                self._plan.settings,
                size,
                self._messages.append,
                lambda done: tell(f"loading {label}", 0.0),
            ) as context,
        ):
            yield context, lambda done, total: tell(f"reading a text with {label}", done / total)

    # --- speed ----------------------------------------------------------------------------------------------------

    def measure_speeds(self) -> None:
        """Measure the speed of each load. Raises CancelledError."""
        for load in self._loads:
            with self._part(self._speed_units(load), load.target) as tell:
                self._measure(load, self._plan.items, tell)
        if len(self._targets) > 1:
            self._measure_reference_again()

    def _measure_reference_again(self) -> None:
        """Find out whether the machine has changed since the reference was measured: files are measured one after
        another. Raises CancelledError."""
        first = next(load for load in self._loads if load.target == self._reference)
        before = [sample for sample in first.samples if sample.mode == PLAIN.name]
        asked = {sample.item for sample in before}
        items = [item for item in self._plan.items if item.id in asked][:ASKED_AGAIN]
        if not items:
            return
        again = _Load(self._reference, Contest(None, (PLAIN,)))
        with self._part(0.0, self._reference) as tell:
            self._measure(again, items, tell)
            self._reference_again = times_as_fast(again.samples, before)

    def _measure(self, load: _Load, items: Sequence[Item], tell: Progress) -> None:
        """Measure greedy answers of one load. Raises CancelledError, EdgespecError."""
        label, process = load.target.label, psutil.Process()

        def look(what: str, done: float) -> None:
            load.memory_bytes = max(load.memory_bytes, process.memory_info().rss)
            if what != "prompt":
                tell(PROGRESS[what].format(label) if what in PROGRESS else what, done)

        with Runtime(load.contest.settings(self._plan.settings, load.target.path), look) as llm:
            plan = BenchPlan(items, load.contest.modes, self._plan.tokens, (0.0,), passes=2)
            load.result = run_bench(llm, plan, lambda _, done: look(f"generating with {label}", done), self._cancel)
        if load.result.failure:
            raise GenerationError(load.result.failure)

    # --- parts ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _part(self, units: float, target: Target) -> Iterator[Progress]:
        """Measure a part that takes `units` of work. If its file fails, this is reported, and the others continue.

        Raises CancelledError.
        """
        if self._cancel.is_set():
            raise CancelledError
        begun = self._time.done

        def tell(what: str, share: float) -> None:
            self._time.done = begun + share * units
            self._progress(self._time.line(what), self._time.share)

        try:
            yield tell
        except EdgespecError as error:
            self._failures.append(f"{target.label}: {error}")
        self._time.done = begun + units


# --- figures ----------------------------------------------------------------------------------------------------------


def rows_of(label: str, contest: Contest, samples: Sequence[Sample], memory_bytes: int) -> Iterator[Row]:
    """Yield a row for each mode of one load of a file."""
    drafting = {mode.name for mode in contest.modes if mode.draft_model == "draft"}
    for cell in summarise(samples, [mode.name for mode in contest.modes]).overall(0.0):
        figures = {each.name: getattr(cell, each.name) for each in fields(cell)}
        draft = contest.draft.stem if contest.draft and cell.mode in drafting else None
        yield Row(**figures, file=label, draft=draft, memory_bytes=memory_bytes)


def with_best(rows: Sequence[Row], closeness: Mapping[str, float]) -> list[Row]:
    """Return the rows, with those marked that no other beats in both speed and closeness.

    `closeness` is the KL divergence by file. Speculation counts only if it is certainly faster than plain decoding.
    """
    points = [
        (row.tokens_per_s, closeness[row.file])
        if row.tokens_per_s is not None and row.file in closeness and row.is_candidate
        else None
        for row in rows
    ]
    known = [point for point in points if point is not None]
    return [
        replace(row, is_best=point is not None and not any(_beats(other, point) for other in known))
        for row, point in zip(rows, points, strict=True)
    ]


def times_as_fast(samples: Sequence[Sample], before: Sequence[Sample]) -> float | None:
    """Return the speed of samples over that of earlier ones, the median over common prompts."""
    earlier = {sample.item: sample.tokens_per_s for sample in before}
    pairs = [(sample.tokens_per_s, earlier.get(sample.item)) for sample in samples]
    return median(rate / rate_before for rate, rate_before in pairs if rate and rate_before)


def _beats(other: tuple[float, float], point: tuple[float, float]) -> bool:
    """Return whether a point is faster and at least as close to the reference, or closer and at least as fast."""
    return other != point and other[0] >= point[0] and other[1] <= point[1]
