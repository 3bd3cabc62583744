"""`edgespec compare`: measure the divergence of several files from a reference, and their speed in several modes.

One file is loaded at a time. Each finished part - the quality of a file, or the speed of one load - is saved in the
cache folder under what it depends on, so that a stopped comparison can resume.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from edgespec import __version__
from edgespec.bench import WINDOW
from edgespec.bench.compared import (
    VERSION,
    ComparedFile,
    Comparison,
    Row,
    Speed,
    greedy_same,
    rows_of,
    times_as_fast,
    with_best,
)
from edgespec.bench.machine import conditions, without_folders
from edgespec.bench.modes import PLAIN, Contest
from edgespec.bench.quality import Quality, compare_with, default_limit, keep_rows, perplexity, room_for_rows
from edgespec.bench.quants import types_by_share
from edgespec.bench.questions import ask
from edgespec.bench.runner import WARM_UP_TOKENS, Runner, Sample
from edgespec.bench.statistics import plain_spread
from edgespec.bench.suites import Item
from edgespec.bench.targets import Target, Targets
from edgespec.bench.time_left import TimeLeft
from edgespec.bench.windows import opened, windows
from edgespec.cancel import CancelFlag
from edgespec.datastore.corpus import find
from edgespec.errors import EdgespecError
from edgespec.events import PROGRESS, Progress
from edgespec.files.paths import cache_name, file_facts, read_cache, write_cache
from edgespec.llama.context import CancelledError, Context
from edgespec.llama.library import build_id
from edgespec.llama.model import Model
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings

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
        resume: reuse what an earlier comparison measured
        command: the command line, which is recorded in the result
    """

    targets: Targets
    contests: Sequence[Contest]
    items: Sequence[Item]
    tokens: int
    text: str
    settings: LoadSettings
    limit: int | None = None
    resume: bool = False
    command: str = ""


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
    """One load of a file, to measure its speed in the modes of a contest; `speed` is None until it is measured."""

    target: Target
    contest: Contest
    settings: LoadSettings
    key: str
    speed: Speed | None = None


class _Run:
    """A comparison in progress."""

    def __init__(self, plan: Plan, progress: Progress, cancel: CancelFlag) -> None:
        self._plan, self._progress, self._cancel = plan, progress, cancel
        self._started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._reference, self._targets = plan.targets.reference, plan.targets.all
        self._windows = self._cut_text()
        self._messages, self._failures = list(plan.targets.messages), list[str]()
        self._is_saved = True
        self._reference_again: float | None = None
        self._qualities: dict[str, tuple[str, Quality]] = {}  # by label: when the run started, and what it measured
        self._loads = [self._load(target, contest) for target in self._targets for contest in plan.contests]
        if plan.resume:
            self._recall()
        self._time = TimeLeft(self._units())

    def result(self) -> Comparison:
        plan, loads = self._plan, self._loads
        rows = [row for target in self._targets for row in self._rows(target)]
        closeness = {label: quality.kl for label, (_, quality) in self._qualities.items()}
        notes = [message for load in loads if load.speed for message in load.speed.messages]
        return Comparison(
            **conditions(plan.command, self._started),
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
            n_parts=len(self._targets) + len(loads),
            n_finished=len(self._qualities) + sum(load.speed is not None for load in loads),
            is_saved=self._is_saved,
        )

    def _about(self, target: Target) -> ComparedFile:
        run, quality = self._qualities.get(target.label, (None, None))
        samples = [sample for load in self._loads_of(target) if load.speed for sample in load.speed.samples]
        return ComparedFile(
            target.label,
            target.name,
            target.path.name,
            target.quantisation,
            target.size_bytes,
            target.header.n_params,
            types_by_share(target.header),
            quality,
            run,
            greedy_same(samples, self._plain_of_reference()),
            plain_spread(samples),
        )

    def _rows(self, target: Target) -> list[Row]:
        """Return the rows of one file; plain decoding is taken from its first load."""
        found: dict[tuple[str | None, str], Row] = {}
        for load in self._loads_of(target):
            for row in rows_of(target.label, load.contest, load.speed) if load.speed else ():
                found.setdefault((row.draft, row.mode), row)
        return list(found.values())

    # --- what is to be done ---------------------------------------------------------------------------------------

    def _cut_text(self) -> list[list[int]]:
        plan, reference = self._plan, self._reference
        size = min(WINDOW, reference.header.number("context_length") or WINDOW)
        limit = plan.limit or default_limit(reference.header.n_vocab, size)
        with Model.load_vocabulary(reference.path) as model:
            return windows(model, plan.text, size, limit)

    def _load(self, target: Target, contest: Contest) -> _Load:
        settings = contest.settings(self._plan.settings, target.path)
        return _Load(target, contest, settings, speed_key(settings, contest, self._plan.items, self._plan.tokens))

    def _loads_of(self, target: Target) -> list[_Load]:
        return [load for load in self._loads if load.target == target]

    def _recall(self) -> None:
        """Load the parts that an earlier run saved."""
        for load in self._loads:
            if found := _recalled(load.key):
                load.speed = Speed.from_json(found)
        for target in self._targets:
            if found := _recalled(self._quality_key(target)):
                self._qualities[target.label] = found["run"], Quality(**found["quality"])

    def _quality_key(self, target: Target) -> str:
        return quality_key(target.path, self._reference.path, self._plan.settings, self._windows)

    def _unread(self) -> list[Target]:
        """Return the files whose quality is unknown, with the reference if any of them must be compared with it."""
        others = [target for target in self._targets if target != self._reference]
        missing = [target for target in others if target.label not in self._qualities]
        return [self._reference, *missing] if missing or self._reference.label not in self._qualities else []

    def _units(self) -> float:
        """The total work, in bytes of weights that go through the processor for a token."""
        reading = sum(self._reading_units(target) for target in self._unread())
        return reading + sum(self._speed_units(load) for load in self._loads if load.speed is None)

    def _reading_units(self, target: Target) -> float:
        return READING * target.size_bytes * len(self._windows) * len(self._windows[0])

    def _speed_units(self, load: _Load) -> float:
        answers = len(self._plan.items) * self._plan.tokens + WARM_UP_TOKENS
        return float(load.target.size_bytes * (MEASURING_PASSES + len(load.contest.modes) * answers))

    # --- quality --------------------------------------------------------------------------------------------------

    def measure_qualities(self) -> None:
        """Read the text with each file whose quality is unknown. Raises CancelledError, UsageError."""
        if not (unread := self._unread()):
            return
        base, *others = unread
        text, cancel = self._windows, self._cancel
        if not others:
            with self._opened(base) as (context, tell):
                found = perplexity(context, text, tell, cancel)
                if found is None or found.windows < len(text):
                    raise CancelledError
                self._learn(base, Quality(found.positions, found.value, found.standard_error))
            return
        with room_for_rows(base.header.n_vocab, len(text[0]), len(text)) as rows:
            is_read = False
            with self._opened(base) as (context, tell):
                keep_rows(context, text, rows, tell, cancel)
                self._learn(base, rows.quality)
                is_read = True
            for target in others if is_read else []:
                with self._opened(target) as (context, tell):
                    self._learn(target, compare_with(rows, context, text, tell, cancel))

    @contextmanager
    def _opened(self, target: Target) -> Iterator[tuple[Context, Callable[[int, int], None]]]:
        """Open a file to read the text with it; a failure is reported, and the others continue."""
        with self._part(self._reading_units(target), target) as tell:

            def load(done: float) -> None:
                tell(f"loading {target.label}", 0.0)

            with opened(
                target.path, self._plan.settings, len(self._windows[0]), self._messages.append, load
            ) as context:
                yield context, lambda done, total: tell(f"reading a text with {target.label}", done / total)

    def _learn(self, target: Target, quality: Quality) -> None:
        self._qualities[target.label] = self._started, quality
        self._keep(self._quality_key(target), {"run": self._started, "quality": asdict(quality)})

    # --- speed ----------------------------------------------------------------------------------------------------

    def measure_speeds(self) -> None:
        """Measure the speed of each load that has none. Raises CancelledError."""
        missing = [load for load in self._loads if load.speed is None]
        for load in missing:
            with self._part(self._speed_units(load), load.target) as tell:
                load.speed = self._measured(load, self._plan.items, tell)
                self._keep(load.key, load.speed.as_json())
        if missing and len(self._targets) > 1:
            self._measure_reference_again()

    def _measure_reference_again(self) -> None:
        """Find out whether the machine has changed since the reference was measured: files are measured one after
        another. Raises CancelledError."""
        before = self._plain_of_reference()
        asked = {sample.item for sample in before}
        items = [item for item in self._plan.items if item.id in asked][:ASKED_AGAIN]
        if not items:
            return
        contest = Contest(None, (PLAIN,))
        load = _Load(self._reference, contest, contest.settings(self._plan.settings, self._reference.path), "")
        with self._part(0.0, self._reference) as tell:
            again = self._measured(load, items, tell).samples
            self._reference_again = times_as_fast(again, before)

    def _measured(self, load: _Load, items: Sequence[Item], tell: Progress) -> Speed:
        """Measure greedy answers of one load. Raises CancelledError, EdgespecError."""
        label, process, speed = load.target.label, psutil.Process(), Speed(self._started)

        def look(what: str, done: float) -> None:
            speed.memory_bytes = max(speed.memory_bytes, process.memory_info().rss)
            if what != "prompt":
                share = len(speed.samples) / (len(items) * len(load.contest.modes))
                tell(PROGRESS[what].format(label) if what in PROGRESS else what, share)

        with Runtime(load.settings, look) as llm:
            questions, messages = ask(llm, items, self._plan.tokens, reference=False)
            with Runner(llm, load.contest.modes, self._cancel) as runner:
                runner.warm_up(questions[0], repeat=2)
                for sample in runner.samples(questions):
                    speed.samples.append(sample)
                    look(f"generating with {label}", 0.0)
            speed.messages = [*messages, *runner.messages, *llm.notes]
        return speed

    def _plain_of_reference(self) -> list[Sample]:
        speed = self._loads_of(self._reference)[0].speed
        return [sample for sample in speed.samples if sample.mode == PLAIN.name] if speed else []

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

    def _keep(self, key: str, result: dict[str, Any]) -> None:
        self._is_saved = write_cache(key, json.dumps(result)) and self._is_saved


# --- the cache --------------------------------------------------------------------------------------------------------


def speed_key(settings: LoadSettings, contest: Contest, items: Sequence[Item], tokens: int) -> str:
    """Return the cache name of speeds, which depend on the files, how they are loaded, the version, and the prompts."""
    facts: dict[str, Any] = {name: value for name, value in asdict(settings).items() if not name.endswith("model")}
    facts["model"] = file_facts(Path(settings.model))
    facts["draft_model"] = settings.draft_model and file_facts(Path(settings.draft_model))
    facts["corpus"] = settings.corpus and file_facts(find(settings.corpus))
    facts["modes"] = [mode.name for mode in contest.modes]
    return _key(facts | {"items": [asdict(item) for item in items], "tokens": tokens, "edgespec": __version__})


def quality_key(target: Path, reference: Path, settings: LoadSettings, text: Sequence[Sequence[int]]) -> str:
    """Return the cache name of a quality, which depends on both files, the text, and how the text is read."""
    names = ("gpu_layers", "cache_type_k", "cache_type_v", "flash_attention")
    facts = {name: getattr(settings, name) for name in names}
    return _key(facts | {"target": file_facts(target), "reference": file_facts(reference), "text": text})


def _key(facts: dict[str, Any]) -> str:
    return cache_name("compare", facts | {"version": VERSION, "build": build_id()})


def _recalled(key: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] | None = json.loads(read_cache(key) or "null")
    except ValueError:
        return None
    return found
