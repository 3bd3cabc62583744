"""Measure several modes on one loaded model. The result can be saved and loaded (`bench`); `compare` and `tune` report
about several of them."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from random import Random
from time import perf_counter
from types import TracebackType
from typing import Any, Self, TypedDict

import psutil

from edgespec import __version__
from edgespec.bench.modes import Mode, with_plain
from edgespec.bench.suites import SuitePrompt
from edgespec.cancel import CancelFlag
from edgespec.core.policy.policy import pass_widths
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.errors import GenerationError, UsageError, told_as
from edgespec.events import Progress
from edgespec.gguf_file.header import Header
from edgespec.llama import library
from edgespec.llama.context import CancelledError
from edgespec.llama.model import described
from edgespec.models.names.model_names import short_name
from edgespec.runtime.runtime import Runtime
from edgespec.settings import HEADS, Message, Request, in_order
from edgespec.text.figures import clock

WARM_UP_TOKENS = 16
SEED = 1
RAW_CATEGORIES = ("code_completion",)  # texts to complete, without a chat template
_ABOUT = ("mode", "temperature", "category", "item", "repeat", "tokens")


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as token ids, and its request; the answer has `max_tokens` tokens."""

    item: SuitePrompt
    request: Request
    prompt: list[int]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured answer.

    Attributes:
        mode: the name of the mode that answered
        item: the id of the prompt
        repeat: how many times the prompt had been answered before in the same mode and at the same temperature
        tokens: the ids of the answer
        stats: times and counts; the time starts at the first token
    """

    mode: str
    temperature: float
    category: str
    item: str
    repeat: int
    tokens: list[int]
    stats: Stats

    @property
    def tokens_per_s(self) -> float | None:
        """The speed after the first token; None if it was too fast to be timed."""
        return len(self.tokens) / self.stats.generation_s if self.stats.generation_s > 0 else None

    def as_json(self) -> dict[str, object]:
        about = {name: getattr(self, name) for name in _ABOUT}
        return {**about, "tokens_per_s": self.tokens_per_s, **self.stats.as_json()}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Sample:
        """Return the sample that `as_json` was called on. Raises KeyError, TypeError, ValueError or AttributeError for
        other data."""
        return cls(**{name: row[name] for name in _ABOUT}, stats=Stats.from_json(row))


def ask(
    llm: Runtime, items: Iterable[SuitePrompt], tokens: int | None, *, reference: bool
) -> tuple[list[Question], list[str]]:
    """Return the prompts that can be asked, and messages about the others.

    Answers have `tokens` tokens. With `reference` they are the reference answers, up to that length. Raises UsageError
    if no prompt can be asked.
    """
    questions, messages = [], []
    for item in items:
        try:
            questions.append(_question(llm, item, tokens, reference=reference))
        except UsageError as error:
            messages.append(f"skipped {item.id}: {error.what}")
    if not questions:
        raise UsageError("there is nothing to measure", why="; ".join(messages) or "there are no prompts")
    return questions, messages


class Runner:
    """Measures answers of a loaded model. A context manager, after which the model drafts as before.

    `modes` are those of the requested modes that are possible with this model, plain decoding first; `messages` say
    which were left out and why. Answers are sampled with `sampling`, except for its temperature.
    """

    def __init__(
        self,
        llm: Runtime,
        modes: Sequence[Mode],
        cancel: CancelFlag,
        *,
        reference: bool = False,
        sampling: SamplingSettings | None = None,
    ) -> None:
        self._llm, self._cancel, self._settings = llm, cancel, llm.settings
        self._sampling = sampling or SamplingSettings()
        self._drafters = [llm.settings.spelling(drafter.name) for drafter in llm.engine.speculator.drafters]
        self._leaves = llm.engine.speculator.tree_width
        self.modes: list[Mode] = []
        self.messages: list[str] = []
        for mode in with_plain(modes):
            why_not = self._obstacle(mode, reference=reference)
            if why_not:
                self.messages.append(f"skipped {mode.name}: {why_not}")
            else:
                self.modes.append(mode)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        settings = self._settings
        self._llm.draft_with(
            spec_type=in_order(self._drafters) or "none",
            pace=settings.pace,
            spec_draft_n_max=settings.draft_n_max,
            spec_tree=self._leaves,
        )

    def warm_up(self, question: Question, repeat: int = 5, longest: int | None = None) -> dict[str, Any]:
        """Measure the cost of passes, in seconds: the target's by width, up to drafts of `longest` tokens, and those of
        each draft model. Then let every mode answer once. Raises CancelledError, GenerationError."""
        n_max = self._llm.engine.speculator.n_max
        widths = pass_widths(n_max if longest is None else min(longest, n_max))
        costs = self._llm.measure_costs(widths, repeat, cancel=self._cancel)
        short = replace(question.request, max_tokens=min(WARM_UP_TOKENS, question.request.max_tokens))
        for mode in self.modes:
            self.answer(mode, replace(question, request=short), 0.0)
        steps = costs["step"]
        return {"target": costs["target"], "draft": next(iter(steps.values()), None), "drafts": steps}

    def samples(
        self, questions: Sequence[Question], temperatures: Sequence[float] = (0.0,), repeat: int = 1
    ) -> Iterator[Sample]:
        """Yield the answers of all modes to one question after the other.

        The order of the modes is random, so that none is always first or always follows the same one. Raises
        CancelledError, GenerationError.
        """
        for turn, (number, question, temperature) in enumerate(product(range(repeat), questions, temperatures)):
            for mode in Random(turn).sample(self.modes, len(self.modes)):
                yield self.answer(mode, question, temperature, number)

    def answer(self, mode: Mode, question: Question, temperature: float, repeat: int = 0) -> Sample:
        """Answer once, starting with empty caches. Raises CancelledError, GenerationError."""
        llm, n_max = self._llm, mode.n_max
        if mode.pace == "auto":
            n_max = min(n_max, self._settings.draft_n_max)
        llm.draft_with(spec_type=mode.spec_type, pace=mode.pace, spec_draft_n_max=n_max or None, spec_tree=mode.tree)
        llm.forget()
        sampling = replace(self._sampling, temperature=temperature)
        request = replace(question.request, sampling=sampling, verify=mode.rule)
        tokens = [event.id for event in llm.submit(request, self._cancel) if event.id >= 0]  # the end has id -1
        if self._cancel.is_set():
            raise CancelledError
        item = question.item
        if len(tokens) < request.max_tokens:
            raise GenerationError(f"{item.id}: the answer of {mode.name} ended early")
        return Sample(mode.name, temperature, item.category, item.id, repeat, tokens, llm.stats)

    def _obstacle(self, mode: Mode, *, reference: bool) -> str:
        """Return the reason why a mode cannot be measured, or an empty text."""
        loaded = {*self._drafters, "none"}
        if not loaded.isdisjoint(HEADS):
            loaded.add("draft")  # a head can be called a draft as well
        missing = [drafter for drafter in mode.spec_type.split(",") if drafter not in loaded]
        if missing:
            return f"drafter {missing[0]} is not loaded"
        if mode.tree > self._leaves:
            return "this target supports chains only"
        if reference and mode.rule != "coupled":
            return "reference answers need the coupled rule"
        return ""


class TimeLeft:
    """The progress of work of `total` units that starts now."""

    def __init__(self, total: float) -> None:
        self._total, self.done = total, 0.0
        self._started_s = perf_counter()

    @property
    def share(self) -> float:
        return min(1.0, self.done / self._total) if self._total > 0 else 1.0

    def line(self, what: str) -> str:
        """Return `what` with the time left, if that can be estimated."""
        if not 0 < self.done < self._total:
            return what
        left_s = (perf_counter() - self._started_s) * (self._total / self.done - 1)
        return f"{what}, {clock(left_s)} left"


def _question(llm: Runtime, item: SuitePrompt, tokens: int | None, *, reference: bool) -> Question:
    answer: list[int] = []
    if reference:
        answer = llm.model.tokenize(item.reference, add_special=False, parse_special=False)[:tokens]
        if not answer:
            raise UsageError("it has no reference answer")
    chat = llm.info.has_chat_template and item.category not in RAW_CATEGORIES
    request = Request(
        prompt="" if chat else item.prompt,
        messages=(Message("user", item.prompt),) if chat else (),
        max_tokens=len(answer) or tokens or 1,
        seed=SEED,
        ignore_eos=True,
        reference=tuple(answer),
    )
    question = Question(item, request, llm.tokenize(request))
    if len(question.prompt) + request.max_tokens > llm.context.n_ctx:
        raise UsageError(
            f"a prompt of {len(question.prompt)} tokens and an answer of {request.max_tokens} do not fit into a "
            f"context of {llm.context.n_ctx}"
        )
    return question


# --- results ----------------------------------------------------------------------------------------------------------


VERSION = 2
TOKENS = 48
TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The modes and prompts to measure.

    Attributes:
        tokens: the length of each answer; None for `TOKENS`, or with `reference` for all of the reference answer
        sampling: the settings of answers, except for their temperature
        reference: answer with the items' own reference answers, forced token by token
        passes: how often the cost of passes is measured at each width
        longest: draft tokens up to which it is measured; None: those of the longest drafts
        command: the command line, which is recorded in the result
    """

    items: Sequence[SuitePrompt]
    modes: Sequence[Mode]
    tokens: int | None = None
    temperatures: Sequence[float] = TEMPERATURES
    repeat: int = 1
    reference: bool = False
    sampling: SamplingSettings | None = None
    passes: int = 5
    longest: int | None = None
    command: str = ""


class Machine(TypedDict):
    """A processor and its system, with the memory in bytes."""

    cpu: str
    gpus: list[str]
    physical_cores: int | None
    logical_cores: int | None
    memory_bytes: int
    system: str
    python: str


def machine() -> Machine:
    """Return the processor and the system, with the memory in bytes."""
    devices = library.devices()
    return {
        "cpu": next((device.description for device in devices if device.kind == "CPU"), platform.machine()),
        "gpus": [device.description for device in devices if "GPU" in device.kind],
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


@dataclass(slots=True, kw_only=True)
class Conditions:
    """The conditions of a measurement, to compare it with another one. `started` is a time in ISO 8601."""

    command: str
    started: str
    edgespec: str = __version__
    machine: Mapping[str, object] = field(default_factory=machine)
    build: dict[str, object] = field(
        default_factory=lambda: {"llama_cpp_python": version("llama-cpp-python"), "flags": library.build_flags()}
    )
    settings: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class BenchResult(Conditions):
    """A benchmark, complete or not.

    Attributes:
        failure: the error that stopped it, if one did
        modes: names of the measured modes, plain decoding first
        costs: seconds of the target's passes by width, and of a pass of the draft model
        messages: notes for the user about the run
    """

    modes: list[str]
    temperatures: list[float]
    models: dict[str, Any]
    costs: dict[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    failure: str | None = None
    complete: bool = False
    samples: list[Sample] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        about = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "samples"}
        return {"version": VERSION, **about, "samples": [sample.as_json() for sample in self.samples]}


def run_bench(
    llm: Runtime,
    plan: BenchPlan,
    progress: Progress | None = None,
    cancel: CancelFlag | None = None,
    watch: Callable[[BenchResult], bool | None] = lambda result: None,
) -> BenchResult:
    """Measure `plan` with a model that was loaded for its modes (`modes.settings_for`).

    `watch` receives the partial result after every answer, and ends the measurement by returning True. If `cancel` is
    set or the model fails, the result is partial, too. Raises UsageError if nothing can be asked.
    """
    progress, cancel = progress or (lambda what, done: None), cancel or CancelFlag()
    tokens = TOKENS if plan.tokens is None and not plan.reference else plan.tokens
    questions, messages = ask(llm, plan.items, tokens, reference=plan.reference)
    with Runner(llm, plan.modes, cancel, reference=plan.reference, sampling=plan.sampling) as runner:
        result = BenchResult(
            command=plan.command,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            settings=_settings(llm, plan, tokens),
            modes=[mode.name for mode in runner.modes],
            temperatures=[*plan.temperatures],
            models={
                "target": model_facts(llm.model.header),
                "draft": llm.draft_header and model_facts(llm.draft_header),
            },
            messages=[without_folders(message) for message in (*llm.notes, *runner.messages, *messages)],
        )
        try:
            progress("warming up", 0.0)
            result.costs = runner.warm_up(questions[0], plan.passes, plan.longest)
            left = TimeLeft(len(questions) * len(plan.temperatures) * plan.repeat * len(runner.modes))
            progress(left.line("measuring"), 0.0)
            for sample in runner.samples(questions, plan.temperatures, plan.repeat):
                result.samples.append(sample)
                left.done += 1
                progress(left.line("measuring"), left.share)
                if watch(result):
                    break
            else:
                result.complete = True
        except CancelledError:
            pass
        except GenerationError as error:
            result.failure = str(error)
    return result


def load_result(path: Path) -> BenchResult:
    """Return the result that `bench --json` wrote to `path`. Raises UsageError for any other file."""
    hint = "give a file written by bench --json of this version of edgespec, or measure again"
    with told_as(UsageError, f"cannot read {path}", hint=hint):
        data = path.read_bytes()
    try:
        found = json.loads(data)
        if (number := found.pop("version")) != VERSION:
            raise ValueError(f"version {number}, not {VERSION}")
        samples = [Sample.from_json(row) for row in found.pop("samples")]
        return BenchResult(**found, samples=samples)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{path} is not a bench result", why=f"its format is unknown: {error}", hint=hint) from error


def _settings(llm: Runtime, plan: BenchPlan, tokens: int | None) -> dict[str, object]:
    """Return the load settings without paths and without what the modes name, and the plan's settings."""
    left_out = ("model", "mmproj", "chat_template_file", "draft_model", "spec_type", "pace")
    settings = {name: value for name, value in asdict(llm.settings).items() if name not in left_out}
    corpus = llm.settings.corpus and Path(llm.settings.corpus).name
    return settings | {
        "corpus": corpus,
        "rpc": list(llm.settings.rpc),
        "lora": llm.info.adapters,
        "threads": llm.context.threads,
        "threads_batch": llm.context.threads_batch,
        "ctx_size": llm.context.n_ctx,
        "tokens": tokens,
        "repeat": plan.repeat,
        "reference": plan.reference,
    }


def model_facts(header: Header) -> dict[str, object]:
    """Return the name and size of a model file, and what is in it."""
    path = header.path
    return {
        "name": short_name(path),
        "file": path.name,
        "bytes": path.stat().st_size,
        "description": described(header),
        "parameters": header.n_params,
    }


def without_folders(text: str) -> str:
    """Return a message without the folders of absolute paths in it: they contain the name of the user."""
    return re.sub(r"(?<![\w.~/\\])(?:[A-Za-z]:)?[/\\](?:[^\s/\\]+[/\\])+", "", text)
