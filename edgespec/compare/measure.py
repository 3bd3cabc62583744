"""The comparison: first how far each file is from the reference, then how fast it is; the result is plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from edgespec import __version__
from edgespec.bench.machine import build, machine, without_folders
from edgespec.bench.measure import WARM_UP_TOKENS
from edgespec.bench.modes import PLAIN
from edgespec.bench.suites import Item
from edgespec.bench.time_left import TimeLeft
from edgespec.cancel import CancelFlag
from edgespec.compare import WINDOW
from edgespec.compare.contests import Contest
from edgespec.compare.figures import greedy_agreement, plain_spread, rows_of, times_as_fast, with_best
from edgespec.compare.kept import Key, keep, quality_key, recall, speed_key
from edgespec.compare.perplexity import exp_of_mean, perplexity
from edgespec.compare.quality import Quality, compare_with, reference_quality
from edgespec.compare.quants import types_by_share
from edgespec.compare.rows import ReferenceRows, default_limit, keep_rows, room_for_rows
from edgespec.compare.speed import Speed, measure_speed, new_speed
from edgespec.compare.targets import Target, Targets
from edgespec.compare.windows import opened, windows
from edgespec.errors import EdgespecError
from edgespec.events import PROGRESS, Progress
from edgespec.llama.context import CancelledError, Context
from edgespec.llama.model import Model
from edgespec.settings import LoadSettings

VERSION = 2
ASKED_AGAIN = 2  # prompts, to tell whether the machine is what it was

Result = dict[str, Any]


@dataclass(slots=True, frozen=True)
class Plan:
    """What is compared: answers of `tokens` tokens to `items`, and the first `limit` windows of a `text`. `resume`
    reuses what an earlier comparison measured. `command` is recorded in the result."""

    targets: Targets
    contests: Sequence[Contest]
    items: Sequence[Item]
    tokens: int
    text: str
    settings: LoadSettings
    limit: int | None = None
    resume: bool = False
    command: str = ""


def run_comparison(plan: Plan, progress: Progress | None = None, cancel: CancelFlag | None = None) -> Result:
    """Measure `plan`, one file loaded at a time. Partial results are saved in the cache folder as they come.

    If `cancel` is set the result is partial and not "complete"; neither is it if a file fails, and "failures" says how.
    Raises UsageError for a text that is too short, and if there is no room for the reference's rows.
    """
    comparison = _Comparison(plan, progress or (lambda what, done: None), cancel or CancelFlag())
    comparison.run()
    return comparison.result()


@dataclass(slots=True)
class _Job:
    """One load of a file to measure its speed, and the results so far."""

    target: Target
    contest: Contest
    settings: LoadSettings
    key: Key
    known: Speed


class _Comparison:
    """A comparison in progress."""

    def __init__(self, plan: Plan, progress: Progress, cancel: CancelFlag) -> None:
        self._plan, self._progress, self._cancel = plan, progress, cancel
        self._started = datetime.now(UTC).isoformat(timespec="milliseconds")  # which run measured a part
        self._reference, self._targets = plan.targets.reference, plan.targets.all
        self._windows = self._cut_text()
        self._messages, self._failures = list(plan.targets.messages), list[str]()
        self._is_complete, self._is_kept = False, True
        keys = {t.label: quality_key(t.path, self._reference.path, plan.settings, self._windows) for t in self._targets}
        self._quality_keys = keys
        found = {label: recall(key) for label, key in keys.items() if plan.resume}
        self._qualities = {label: Quality(**known["quality"]) for label, known in found.items() if known}
        self._quality_runs: dict[str, str] = {label: known["run"] for label, known in found.items() if known}
        self._jobs = [self._job(target, contest) for target in self._targets for contest in plan.contests]
        self._time = TimeLeft(self._units())

    def run(self) -> None:
        """Measure until done or cancelled. Raises UsageError."""
        try:
            self._measure_qualities()
            is_measured_again = self._is_measured_again()
            for job in self._jobs:
                if self._missing(job):
                    with self._failing(job.target):
                        self._measure_speed(job)
            if is_measured_again:
                self._measure_reference_again()
        except CancelledError:
            return
        self._is_complete = not self._failures

    def result(self) -> Result:
        """The result so far, as plain data."""
        plan, count = self._plan, len(self._plan.contests)
        speeds = {
            target.label: [job.known for job in self._jobs[number * count : (number + 1) * count]]
            for number, target in enumerate(self._targets)
        }
        rows = [row for target in self._targets for row in rows_of(target.label, plan.contests, speeds[target.label])]
        divergences = {label: quality.kl for label, quality in self._qualities.items()}
        base = self._base.known
        notes = [message for job in self._jobs for message in job.known["messages"]]
        return {
            "version": VERSION,
            "command": plan.command,
            "started": self._started,
            "edgespec": __version__,
            "complete": self._is_complete,
            "parts": self._parts(),
            "failures": self._failures,
            "machine": machine(),
            "build": build(),
            "settings": {
                "threads": plan.settings.threads or None,
                "tokens": plan.tokens,
                "prompts": len(plan.items),
                "modes": list(dict.fromkeys(name for contest in plan.contests for name in contest.names.values())),
                "window": len(self._windows[0]),
                "windows": len(self._windows),
            },
            "reference": self._reference.label,
            "targets": [self._about(target, speeds[target.label][0], base) for target in self._targets],
            "rows": [asdict(row) for row in with_best(rows, divergences)],
            "load": {
                "spread": {label: plain_spread(known) for label, known in speeds.items()},
                "reference_again": base["again"],
            },
            "messages": [without_folders(message) for message in dict.fromkeys([*self._messages, *notes])],
        }

    def _about(self, target: Target, speed: Speed, base: Speed) -> dict[str, Any]:
        quality = self._qualities.get(target.label)
        return {
            "label": target.label,
            "name": target.name,
            "file": target.path.name,
            "quantisation": target.quantisation,
            "size_bytes": target.size_bytes,
            "types": types_by_share(target.header),
            "parameters": target.header.n_params,
            "quality": asdict(quality) if quality else None,
            "quality_run": self._quality_runs.get(target.label),
            "greedy": greedy_agreement(speed["answers"], base["answers"]),
        }

    def _parts(self) -> dict[str, Any]:
        """The number of parts, how many of them are finished or begun, and whether a later run can reuse them."""
        missing = [self._missing(job) for job in self._jobs]
        begun = [bool(job.known["items"]) and bool(lack) for job, lack in zip(self._jobs, missing, strict=True)]
        return {
            "all": len(self._targets) + len(self._jobs),
            "finished": len(self._qualities) + missing.count(0),
            "begun": sum(begun),
            "kept": self._is_kept,
        }

    # --- what is to be done ---------------------------------------------------------------------------------------

    def _cut_text(self) -> list[list[int]]:
        plan, reference = self._plan, self._reference
        size = min(WINDOW, reference.header.number("context_length") or WINDOW)
        limit = plan.limit or default_limit(reference.header.n_vocab, size)
        with Model.load_vocabulary(reference.path) as model:
            return windows(model, plan.text, size, limit)

    def _unread(self) -> list[Target]:
        """Files whose quality is unknown. The reference is read again if any other must be compared with it."""
        others = [target for target in self._targets if target != self._reference]
        missing = [target for target in others if target.label not in self._qualities]
        return [self._reference, *missing] if missing or self._reference.label not in self._qualities else []

    def _job(self, target: Target, contest: Contest) -> _Job:
        plan = self._plan
        settings = contest.settings(plan.settings, target.path)
        key = speed_key(settings, [mode.name for mode in contest.modes], plan.items, plan.tokens)
        return _Job(target, contest, settings, key, (recall(key) if plan.resume else None) or new_speed())

    @property
    def _base(self) -> _Job:
        """The baseline of all files: plain decoding of the reference, from the first of its loads."""
        return next(job for job in self._jobs if job.target == self._reference)

    def _missing(self, job: _Job) -> int:
        return len({item.id for item in self._plan.items} - set(job.known["items"]))

    def _is_measured_again(self) -> bool:
        """Whether to measure the reference again at the end: if speeds of files are compared, and any is new."""
        return len(self._targets) > 1 and any(map(self._missing, self._jobs))

    def _units(self) -> float:
        """The total work."""
        text, tokens = self._windows, self._plan.tokens
        units = sum(len(text) * window_units(target.size_bytes, text[0]) for target in self._unread())
        for job in self._jobs:
            size, n_modes = job.target.size_bytes, len(job.contest.modes)
            if missing := self._missing(job):
                units += preparation_units(size, n_modes) + missing * n_modes * answer_units(size, tokens)
        if self._is_measured_again():
            units += ASKED_AGAIN * answer_units(self._reference.size_bytes, tokens)
        return units

    # --- quality --------------------------------------------------------------------------------------------------

    def _measure_qualities(self) -> None:
        """Raises CancelledError, UsageError."""
        unread = self._unread()
        if not unread:
            return
        base, *others = unread
        if not others:
            with self._failing(base), self._opened(base) as context:
                found = perplexity(context, self._windows, self._teller(base), self._cancel)
                if found is None or found.windows < len(self._windows):
                    raise CancelledError
                self._learn(base, reference_quality(found.positions, found.value, found.standard_error))
            return
        with room_for_rows(base.header.n_vocab, len(self._windows[0]), len(self._windows)) as rows:
            with self._failing(base), self._opened(base) as context:
                keep_rows(context, self._windows, rows, self._teller(base), self._cancel)
                self._learn(base, _reference_quality(rows))
            for target in others if base.label in self._qualities else []:
                with self._failing(target), self._opened(target) as context:
                    self._learn(target, compare_with(rows, context, self._windows, self._teller(target), self._cancel))

    @contextmanager
    def _opened(self, target: Target) -> Iterator[Context]:
        def tell(done: float) -> None:
            self._tell(f"loading {target.label}")

        with opened(target.path, self._plan.settings, len(self._windows[0]), self._messages.append, tell) as context:
            yield context

    def _teller(self, target: Target) -> Callable[[int, int], None]:
        each = window_units(target.size_bytes, self._windows[0])

        def tell(done: int, total: int) -> None:
            if done:
                self._time.add(each)
            self._tell(f"reading a text with {target.label}")

        return tell

    def _learn(self, target: Target, quality: Quality) -> None:
        self._qualities[target.label], self._quality_runs[target.label] = quality, self._started
        self._keep(self._quality_keys[target.label], {"run": self._started, "quality": asdict(quality)})

    # --- speed ----------------------------------------------------------------------------------------------------

    def _measure_speed(self, job: _Job) -> None:
        """Raises CancelledError, EdgespecError."""
        size, plan, prepared = job.target.size_bytes, self._plan, False

        def tell(what: str, done: float) -> None:
            nonlocal prepared
            if what == "answer":
                before = 0.0 if prepared else preparation_units(size, len(job.contest.modes))
                self._time.add(before + answer_units(size, plan.tokens))
                prepared = True
            if what != "prompt":
                told = (
                    PROGRESS[what].format(job.target.label)
                    if what in PROGRESS
                    else f"generating with {job.target.label}"
                )
                self._tell(told)

        measure_speed(
            job.settings,
            job.contest.modes,
            plan.items,
            plan.tokens,
            job.known,
            run=self._started,
            progress=tell,
            cancel=self._cancel,
            keep=lambda speed: self._keep(job.key, speed),
        )

    def _measure_reference_again(self) -> None:
        """Files are measured one after another: at the end, find out whether the machine has changed meanwhile. Raises
        CancelledError."""
        base, plan = self._base, self._plan

        def tell(what: str, done: float) -> None:
            if what == "answer":
                self._time.add(answer_units(base.target.size_bytes, plan.tokens))
            self._tell(f"generating with {base.target.label} again")

        with self._failing(base.target):
            alone = replace(base.contest, draft=None, modes=(PLAIN,)).settings(plan.settings, base.target.path)
            again, asked = new_speed(), [item for item in plan.items if item.id in base.known["answers"]][:ASKED_AGAIN]
            if asked:
                measure_speed(
                    alone,
                    (PLAIN,),
                    asked,
                    plan.tokens,
                    again,
                    run="",
                    progress=tell,
                    cancel=self._cancel,
                    keep=lambda _: None,
                )
            base.known["again"][self._started] = times_as_fast(again, base.known)
            self._keep(base.key, base.known)

    def _tell(self, what: str) -> None:
        self._progress(self._time.line(what), self._time.share)

    def _keep(self, key: Key, result: dict[str, Any]) -> None:
        self._is_kept = keep(key, result) and self._is_kept

    @contextmanager
    def _failing(self, target: Target) -> Iterator[None]:
        """A failure of one file is reported, and the others continue."""
        if self._cancel.is_set():
            raise CancelledError
        try:
            yield
        except EdgespecError as error:
            self._failures.append(f"{target.label}: {error}")


def _reference_quality(rows: ReferenceRows) -> Quality:
    return reference_quality(len(rows.losses), *exp_of_mean(rows.losses))


# --- how much work the parts are, in bytes of weights that go through the processor for a token -----------------------

READING = 0.2  # prefill time per token, relative to a generated one
MEASURING_PASSES = 80  # equivalent number of generated tokens


def window_units(size_bytes: int, window: Sequence[int]) -> float:
    """One window of a text, processed by a file of that size."""
    return READING * size_bytes * len(window)


def preparation_units(size_bytes: int, n_modes: int) -> float:
    """The work before the first answer of one load."""
    return float(size_bytes * (MEASURING_PASSES + WARM_UP_TOKENS * n_modes))


def answer_units(size_bytes: int, tokens: int) -> float:
    """One answer."""
    return float(size_bytes * tokens)
