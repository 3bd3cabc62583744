"""Measure several modes on one loaded model. The result can be saved and loaded (`bench`); `compare` and `tune` report
about several of them."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from edgespec import __version__
from edgespec.bench.modes import Mode
from edgespec.bench.runner import Runner, Sample, TimeLeft, ask
from edgespec.bench.suites import Item
from edgespec.cancel import CancelFlag
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import GenerationError, UsageError, told_as
from edgespec.events import Progress
from edgespec.gguf_file.header import Header
from edgespec.llama import library
from edgespec.llama.context import CancelledError
from edgespec.llama.model import described
from edgespec.models.names.model_names import short_name
from edgespec.runtime.runtime import Runtime

VERSION = 2
TOKENS = 48
TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True, slots=True)
class Plan:
    """The modes and prompts to measure.

    Attributes:
        tokens: the length of each answer; None for `TOKENS`, or with `reference` for all of the reference answer
        sampling: the settings of answers, except for their temperature
        reference: answer with the items' own reference answers, forced token by token
        passes: how often the cost of passes is measured at each width
        longest: draft tokens up to which it is measured; None: those of the longest drafts
        command: the command line, which is recorded in the result
    """

    items: Sequence[Item]
    modes: Sequence[Mode]
    tokens: int | None = None
    temperatures: Sequence[float] = TEMPERATURES
    repeat: int = 1
    reference: bool = False
    sampling: SamplingSettings | None = None
    passes: int = 5
    longest: int | None = None
    command: str = ""


def machine() -> dict[str, Any]:
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
    """How and where a result was measured, to compare it with another one. `started` is a time in ISO 8601."""

    command: str
    started: str
    edgespec: str = __version__
    machine: dict[str, Any] = field(default_factory=machine)
    build: dict[str, Any] = field(
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
    plan: Plan,
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


def _settings(llm: Runtime, plan: Plan, tokens: int | None) -> dict[str, Any]:
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


def model_facts(header: Header) -> dict[str, Any]:
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
