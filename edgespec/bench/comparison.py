"""`edgespec compare`: measure the divergence of several files from a reference, and their speed in several modes.

One file is loaded at a time. Since files are measured one after another, a ratio of two files' speeds is only reliable
if the machine was equally busy for both. Otherwise the conclusions give a range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from math import floor, inf, isfinite, log10
from typing import TYPE_CHECKING

import psutil

from edgespec.bench import WINDOW
from edgespec.bench.measure import (
    WARM_UP_TOKENS,
    BenchPlan,
    BenchResult,
    Conditions,
    Sample,
    TimeLeft,
    run_bench,
    without_folders,
)
from edgespec.bench.modes import PLAIN, Contest
from edgespec.bench.quality import Quality, compare_with, default_limit, keep_rows, opened, room_for_rows, windows
from edgespec.bench.report import BUSY_SPREAD, FEW_PROMPTS, SPEED, busy, machine_line, run_line
from edgespec.bench.suites import SuitePrompt
from edgespec.bench.summary import Cell, median, plain_spread, summarise
from edgespec.bench.tables import NOTHING, Figures, Lines, duration, notes, percent, rate, stacked, times
from edgespec.bench.targets import Target, Targets
from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, GenerationError
from edgespec.events import PROGRESS, Progress
from edgespec.llama.context import CancelledError, Context
from edgespec.llama.model import LlamaModel
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings
from edgespec.text.figures import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

VERSION = 5  # of the JSON
ASKED_AGAIN = 2  # prompts, to find out whether the machine has changed
READING = 0.2  # time per token of a prompt, relative to a generated one
ALIKE = 0.03  # smaller differences of speeds are noise
BEST = "*"  # marks rows
MEASURING_PASSES = 80  # generated tokens that take about the same time


@dataclass(slots=True, frozen=True)
class ComparisonPlan:
    """The comparison to make.

    Attributes:
        contests: the modes to measure, by the loads that they need
        tokens: the length of each answer
        text, limit: quality is measured on the first `limit` windows of this text
        command: the command line, which is recorded in the result
    """

    targets: Targets
    contests: Sequence[Contest]
    items: Sequence[SuitePrompt]
    tokens: int
    text: str
    settings: LoadSettings
    limit: int | None = None
    command: str = ""


@dataclass(slots=True, frozen=True)
class ComparisonRow(Cell):
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
    rows: list[ComparisonRow]
    reference_again: float | None
    messages: list[str]
    failures: list[str]
    complete: bool

    def as_json(self) -> dict[str, object]:
        rows = [asdict(row) | {"stats": row.stats.as_json()} for row in self.rows]
        return {"version": VERSION, **asdict(self), "rows": rows}


def run_comparison(
    plan: ComparisonPlan, progress: Progress | None = None, cancel: CancelFlag | None = None
) -> Comparison:
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

    def __init__(self, plan: ComparisonPlan, progress: Progress, cancel: CancelFlag) -> None:
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

    def _rows(self, target: Target) -> list[ComparisonRow]:
        """Return the rows of one file; plain decoding is taken from its first load."""
        found: dict[tuple[str | None, str], ComparisonRow] = {}
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
        with LlamaModel.load_vocabulary(reference.path) as model:
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

    def _measure(self, load: _Load, items: Sequence[SuitePrompt], tell: Progress) -> None:
        """Measure greedy answers of one load. Raises CancelledError, EdgespecError."""
        label, process = load.target.label, psutil.Process()

        def look(what: str, share: float) -> None:
            load.memory_bytes = max(load.memory_bytes, process.memory_info().rss)
            if what != "prompt":
                tell(PROGRESS[what].format(label) if what in PROGRESS else what, share)

        # Loading is not counted as work, as in `_opened`: the share of this part is that of the answers.
        settings = load.contest.settings(self._plan.settings, load.target.path)
        with Runtime(settings, lambda what, done: look(what, 0.0)) as llm:
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


def rows_of(label: str, contest: Contest, samples: Sequence[Sample], memory_bytes: int) -> Iterator[ComparisonRow]:
    """Yield a row for each mode of one load of a file."""
    drafting = {mode.name for mode in contest.modes if mode.draft_model == "draft"}
    for cell in summarise(samples, [mode.name for mode in contest.modes]).overall(0.0):
        figures = {each.name: getattr(cell, each.name) for each in fields(cell)}
        draft = contest.draft.stem if contest.draft and cell.mode in drafting else None
        yield ComparisonRow(**figures, file=label, draft=draft, memory_bytes=memory_bytes)


def with_best(rows: Sequence[ComparisonRow], closeness: Mapping[str, float]) -> list[ComparisonRow]:
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


# --- the report -------------------------------------------------------------------------------------------------------


def table(result: Comparison) -> RenderableType:
    """Return the full report of a result for a terminal."""
    parts: list[RenderableType] = [Lines(list(_heading(result))), _files(result)]
    if result.rows:
        parts.append(_speeds(result))
    lines = [*caveats(result), *conclusions(result), *_legend(result), *result.messages]
    return stacked([*parts, notes(lines)])


def uncertainty(result: Comparison) -> float:
    """Return the factor by which a ratio of two files' speeds may be wrong: the largest difference between measurements
    of about the same work; 1 if the machine was about equally busy all the time."""
    spread, again = _spread(result), result.reference_again or 1.0
    factor = max(1 + spread, again, 1 / again)
    return factor if factor > 1 + BUSY_SPREAD else 1.0


def caveats(result: Comparison) -> Iterator[str]:
    """Yield what to keep in mind about all conclusions on speed."""
    yield from busy(_spread(result), "about the same work")
    again = result.reference_again
    if again and max(again, 1 / again) > 1 + BUSY_SPREAD:
        yield f"at the end of this run, {result.reference} was {times(again)} as fast as in the table"


def conclusions(result: Comparison) -> Iterator[str]:
    """Yield the gains and losses of each file against the reference, and the best rows."""
    files = {file.label: file for file in result.files}
    base = files[result.reference]
    for file in files.values():
        if file is not base:
            yield f"{file.label}: {', '.join(_differences(result, file, base))}"
    best = [row for row in result.rows if row.is_best]
    if best and len({row.file for row in result.rows}) > 1:
        names = [f"{row.file} {way(result, row)}" for row in sorted(best, key=lambda row: -(row.tokens_per_s or 0))]
        yield f"best trade-offs of speed and closeness to {base.label}, fastest first: {'; '.join(names)}"
    yield from _fastest(result)


def way(result: Comparison, row: ComparisonRow) -> str:
    """Return a row's mode, and the draft model if there are several."""
    drafts = {row.draft for row in result.rows} - {None}
    return f"{row.mode} by {row.draft}" if row.draft and len(drafts) > 1 else row.mode


def nats(value: float) -> str:
    """A divergence; very small ones are rounding."""
    return "0" if value < 5e-6 else f"{value:.2g}" if value >= 1e-4 else f"{value:.1e}"


# --- tables of a comparison -------------------------------------------------------------------------------------------


def _heading(result: Comparison) -> Iterator[tuple[str, str]]:
    settings = result.settings
    yield "run", run_line(result.started, result.edgespec)
    if line := machine_line(result.machine):
        yield "machine", line
    yield "files", ", ".join(file.name for file in result.files)
    asked = f"{counted(settings['prompts'], 'prompt')}, greedy answers of {settings['tokens']} tokens"
    yield "speed", asked + (f", {counted(settings['threads'], 'thread')}" if settings["threads"] else "")
    positions = max((file.quality.positions for file in result.files if file.quality), default=0)
    if positions:
        read = f"{positions} tokens of a text, {counted(settings['windows'], 'window')} of {settings['window']}"
        yield "quality", f"{read}; the reference is {result.reference}"
    if not result.complete:
        yield "stopped", "before the end"


def _files(result: Comparison) -> Figures:
    def other(text: Callable[[Quality], str]) -> Callable[[ComparedFile], str]:
        """A figure of the quality of all files but the reference."""
        return lambda file: NOTHING if not file.quality or file.label == result.reference else text(file.quality)

    columns: dict[str, Callable[[ComparedFile], str]] = {
        "file": lambda file: file.label,
        "MB": lambda file: f"{file.size_bytes / 1e6:.0f}",
        "KL": other(lambda quality: nats(quality.kl)),
        "KL\nmedian": other(lambda quality: nats(quality.kl_median)),
        "KL\n99 %": other(lambda quality: nats(quality.kl_99)),
        "same\ntop %": other(lambda quality: percent(quality.same_top, digits=1)),
        "perplexity": lambda file: (
            _with_error(file.quality.perplexity, file.quality.perplexity_error) if file.quality else NOTHING
        ),
        "of the\nreference's": other(
            lambda quality: _with_error(quality.perplexity_ratio, quality.perplexity_ratio_error)
        ),
    }
    return Figures.of("Files", columns, result.files)


def _speeds(result: Comparison) -> Figures:
    has_drafts = len({row.draft for row in result.rows} - {None}) > 1
    first_rows = {row.file: row for row in reversed(result.rows)}

    columns: dict[str, Callable[[ComparisonRow], str]] = {
        "file": lambda row: row.file if first_rows[row.file] is row else "",
        "draft": lambda row: (has_drafts and row.draft) or NOTHING,
        "mode": lambda row: row.mode,
        **SPEED,
        "tok/s": lambda row: f"{BEST} " * row.is_best + rate(row.tokens_per_s),
        "first\ntoken": lambda row: NOTHING if row.first_token_s is None else duration(row.first_token_s),
        "memory\nMB": lambda row: f"{row.memory_bytes / 1e6:.0f}",
    }
    return Figures.of("Speed", columns, result.rows)


def _legend(result: Comparison) -> Iterator[str]:
    if any(row.is_best for row in result.rows):
        yield (
            f"{BEST} marks rows that none beats in both; files are measured one after another, modes of a file in turns"
        )
    if any(row.mode != PLAIN.name for row in result.rows):
        yield (
            "speedup is the median over prompts of the ratio to plain decoding of the same prompt, not the quotient of "
            "the medians in tok/s"
        )
    few = min((row.prompts for row in result.rows), default=FEW_PROMPTS)
    if few < FEW_PROMPTS:
        yield f"speeds over {counted(few, 'prompt')} say little (--per-category, --prompts)"


# --- conclusions in words ---------------------------------------------------------------------------------------------


def _differences(result: Comparison, file: ComparedFile, base: ComparedFile) -> Iterator[str]:
    yield _more(base.size_bytes / file.size_bytes, "smaller", "larger", "as large")
    plain, plain_base = (_plain_rate(result, each.label) for each in (file, base))
    if plain and plain_base:
        yield _speed(plain / plain_base, uncertainty(result))
        faster = [row for row in result.rows if row.file == file.label and row.is_faster]
        best = max(faster, key=lambda row: row.speedup or 0.0, default=None)
        if best and (best.speedup or 0) > 1 + ALIKE:
            yield f"speculative decoding ({way(result, best)}) makes it {times(best.speedup)} faster"
    if file.quality is not None:
        yield f"KL {nats(file.quality.kl)}"
        yield f"same most likely token at {percent(file.quality.same_top, digits=1)} % of the positions"
        yield f"perplexity {file.quality.perplexity_ratio:.3f} times the reference's"


def _fastest(result: Comparison) -> Iterator[str]:
    """Yield the fastest combination of weights and drafting on this machine, if there was a choice."""
    known = [(row.tokens_per_s, row) for row in result.rows if row.tokens_per_s and row.is_candidate]
    plain_speed, plain = max(
        ((speed, row) for speed, row in known if row.mode == PLAIN.name), key=lambda pair: pair[0], default=(0.0, None)
    )
    if plain is None or len(result.rows) < 2:
        return
    speed, fastest = max(known, key=lambda pair: pair[0])
    if fastest is plain:
        yield f"fastest on this machine: {plain.file} without drafting, {rate(speed)} tok/s"
        return
    yield (
        f"fastest on this machine: {fastest.file} with {way(result, fastest)}, {rate(speed)} tok/s, "
        f"{times(speed / plain_speed)} the fastest without drafting ({plain.file})"
    )


def _spread(result: Comparison) -> float:
    """Return how much the speed of plain decoding varied at most within a file."""
    return max((file.spread for file in result.files if file.spread is not None), default=0.0)


def _plain_rate(result: Comparison, label: str) -> float | None:
    return next((row.tokens_per_s for row in result.rows if (row.file, row.mode) == (label, PLAIN.name)), None)


def _speed(ratio: float, factor: float) -> str:
    """Say what a ratio of speeds means, with its range if it may be wrong by a factor."""
    found = _more(ratio, "faster", "slower", "as fast")
    return found if factor == 1 else f"{found} ({times(ratio / factor)} to {times(ratio * factor)} as fast: see above)"


def _more(factor: float, more: str, less: str, alike: str) -> str:
    if 1 - ALIKE <= factor <= 1 + ALIKE:
        return alike
    return f"{times(factor)} {more}" if factor > 1 else f"{times(1 / factor)} {less}"


def _with_error(value: float, error: float) -> str:
    """A figure with as many digits as its standard error justifies."""
    if not (isfinite(value) and 0 < error < inf):
        return f"{value:.4g}"
    digits = max(0, 1 - floor(log10(error)))
    return f"{value:.{digits}f} ±{error:.{digits}f}"
