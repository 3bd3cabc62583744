"""The measurement: every mode answers every prompt, in turns, on one loaded model; the result is plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from random import Random
from statistics import mean, median, quantiles
from typing import Any

from edgespec import __version__
from edgespec.bench.answers import Contestant, OwnMode
from edgespec.bench.compare import VERSION
from edgespec.bench.energy import EnergyMeter
from edgespec.bench.machine import build, machine, model_facts, without_folders
from edgespec.bench.modes import Mode, with_plain
from edgespec.bench.peer import PeerMode
from edgespec.bench.questions import Question, ask
from edgespec.bench.report import cells
from edgespec.bench.suites import Item
from edgespec.bench.time_left import TimeLeft
from edgespec.cancel import CancelFlag
from edgespec.core.policy.policy import pass_widths
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import GenerationError, UsageError
from edgespec.events import Progress
from edgespec.llama.context import CancelledError
from edgespec.llama.peer import LOOKUP_TOKENS, Peer
from edgespec.runtime.runtime import Runtime
from edgespec.settings import HEADS, LoadSettings, in_order

TOKENS = 48
TEMPERATURES = (0.0, 0.8)
WARM_UP_TOKENS = 16
LEAST_RATES = 10  # prompts, to measure their spread

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """The items, modes and repeats: answers of `tokens` tokens at each of the temperatures.

    With `reference` the answers are the items' own, up to that length; None stands for all of it, or for `TOKENS`.
    `peer` adds llama-cpp-python's `Llama`. `command` is recorded in the result.
    """

    items: Sequence[Item]
    modes: Sequence[Mode]
    tokens: int | None = None
    temperatures: Sequence[float] = TEMPERATURES
    repeat: int = 1
    reference: bool = False
    peer: bool = False
    command: str = ""

    @property
    def least_n_max(self) -> int:
        """The draft length that must be loaded, so that the costs of the peer's passes can be measured."""
        return LOOKUP_TOKENS if self.peer else 0


def run_bench(
    llm: Runtime,
    plan: Plan,
    progress: Progress | None = None,
    cancel: CancelFlag | None = None,
    keep: Callable[[Result], None] | None = None,
) -> Result:
    """Measure `plan` with a model that was loaded for its modes (`modes.settings_for`).

    `keep` receives the result so far after every prompt, so that hours of measuring survive whatever ends the program.
    If `cancel` is set, or the model fails ("failure" says how), the result is partial and not "complete". Raises
    UsageError if nothing can be asked, GenerationError if the peer cannot be loaded.
    """
    with ExitStack() as stack:
        bench = _Bench(llm, plan, progress or (lambda what, done: None), cancel or CancelFlag(), stack)
        try:
            bench.run(keep)
        except CancelledError:
            pass
        except GenerationError as error:
            bench.result["failure"] = str(error)
        finally:
            bench.draft_as_before()
        return bench.finished()


def shuffled(contestants: Sequence[Contestant], turn: int) -> list[Contestant]:
    """The order of a turn: random, so that no mode is always first, or always follows the same one."""
    return Random(turn).sample(contestants, len(contestants))


@dataclass(slots=True)
class _Passes:
    """Seconds of the target's passes by width and of one of the draft's, for each time they were measured."""

    target: list[dict[str, float]] = field(default_factory=list)
    draft: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        widths = self.target[0] if self.target else ()
        return {
            "target": {width: mean(times[width] for times in self.target) for width in widths},
            "draft": mean(self.draft) if self.draft else None,
        }

    def spread(self) -> float | None:
        """How much the times differ, the median over the widths; None unless they were measured twice."""
        if len(self.target) < 2:
            return None
        return median(_spread([times[width] for times in self.target]) for width in self.target[0])


class _Bench:
    """A benchmark in progress; `result` is the result so far."""

    def __init__(self, llm: Runtime, plan: Plan, progress: Progress, cancel: CancelFlag, stack: ExitStack) -> None:
        self._llm, self._plan, self._progress, self._cancel = llm, plan, progress, cancel
        self._settings, self._drafters, self._leaves = (
            llm.settings,
            list(llm.engine.speculator.drafters),
            llm.engine.speculator.tree_width,
        )
        modes, self._messages = self._possible()
        self._tokens = TOKENS if plan.tokens is None and not plan.reference else plan.tokens
        self._questions, messages = ask(llm, plan.items, self._tokens, reference=plan.reference)
        self._messages += messages
        if not self._questions:
            raise UsageError("there is nothing to measure", why="; ".join(messages) or "there are no prompts")
        meter = EnergyMeter()
        self._contestants: list[Contestant] = [OwnMode(llm, mode, meter) for mode in modes]
        if plan.peer:
            longest = max(question.length for question in self._questions)
            peer = stack.enter_context(Peer(llm.context, llm.settings, longest + LOOKUP_TOKENS + 1))
            self._contestants += [PeerMode(peer, lookup=lookup) for lookup in (False, True)]
        self._passes = _Passes()
        self._answers: list[list[int]] = []
        self.result = self._header()

    def run(self, keep: Callable[[Result], None] | None = None) -> None:
        """Measure until the end or until it is cancelled. Raises CancelledError, GenerationError."""
        self.result["models"] = self._models()
        first = self._questions[0]
        short = replace(first.request, max_tokens=min(WARM_UP_TOKENS, first.request.max_tokens))
        for number, contestant in enumerate(self._contestants):
            self._progress("warming up", number / len(self._contestants))
            contestant.answer(replace(first, request=short), self._cancel)
        self.draft_as_before()
        self._measure_passes()  # leaves empty caches
        jobs = list(self._jobs())
        left = TimeLeft(len(jobs))
        for number, (contestant, question, temperature, repeat) in enumerate(jobs):
            if self._cancel.is_set():
                return
            self._progress(left.line("measuring"), left.share)
            self._measure(contestant, question, temperature, repeat)
            left.add(1)
            if keep is not None and (number + 1) % len(self._contestants) == 0:
                keep(self.finished())
        self.draft_as_before()
        self._measure_passes()
        self.result["complete"] = True

    def draft_as_before(self) -> None:
        """Restore the drafters that were loaded."""
        settings = self._settings
        names = in_order(settings.spelling(drafter.name) for drafter in self._drafters) or "none"
        self._llm.draft_with(
            spec_type=names, pace=settings.pace, spec_draft_n_max=settings.draft_n_max, spec_tree=self._leaves
        )

    def finished(self) -> Result:
        """The complete result."""
        spreads = {"passes": self._passes.spread(), "plain": self._plain_spread()}
        spread = max((spread for spread in spreads.values() if spread is not None), default=None)
        self._compare_with_plain()
        self.result |= {
            "costs": self._passes.as_json(),
            "load": {"spread": spread, **spreads},
            "messages": [without_folders(message) for message in (*self._llm.notes, *self._messages)],
        }
        self.result["cells"] = cells(self.result)
        return self.result

    # --- what is to be measured -----------------------------------------------------------------------------------

    def _possible(self) -> tuple[list[Mode], list[str]]:
        """The modes that are possible with the loaded models, and why the others are not."""
        loaded = {self._settings.spelling(drafter.name) for drafter in self._drafters} | {"none"}
        loaded |= {"draft"} if not loaded.isdisjoint(HEADS) else set()  # by which name a head drafts as well
        modes, messages = [], []
        for mode in with_plain(self._plan.modes):
            missing = [drafter for drafter in mode.spec_type.split(",") if drafter not in loaded]
            if missing:
                messages.append(f"skipped {mode.name}: drafter {missing[0]} is not loaded")
            elif mode.tree > self._leaves:
                messages.append(f"skipped {mode.name}: this target supports chains only")
            elif self._plan.reference and mode.rule != "coupled":
                messages.append(f"skipped {mode.name}: reference answers need the coupled rule")
            else:
                modes.append(mode)
        return modes, messages

    def _jobs(self) -> Iterator[tuple[Contestant, Question, float, int]]:
        turns = product(range(self._plan.repeat), self._questions, self._plan.temperatures)
        for turn, (repeat, question, temperature) in enumerate(turns):
            for contestant in shuffled(self._contestants, turn):
                yield contestant, question, temperature, repeat

    def _header(self) -> Result:
        llm, plan = self._llm, self._plan
        return {
            "version": VERSION,
            "command": plan.command,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "edgespec": __version__,
            "complete": False,
            "failure": None,
            "machine": machine(),
            "build": build(),
            "models": {},
            "settings": {
                **_without_names(self._settings),
                "threads": llm.context.threads,
                "threads_batch": llm.context.threads_batch,
                "ctx_size": llm.context.n_ctx,
                "tokens": self._tokens,
                "temperatures": list(plan.temperatures),
                "repeat": plan.repeat,
                "reference": plan.reference,
                "modes": [contestant.name for contestant in self._contestants],
                "items": len(self._questions),
            },
            "samples": [],
        }

    def _models(self) -> dict[str, Any]:
        llm = self._llm
        self._progress("hashing the model files", 0.0)
        target, draft = model_facts(llm.model.header, self._cancel), llm.draft_header
        return {"target": target, "draft": draft and model_facts(draft, self._cancel)}

    # --- measuring ------------------------------------------------------------------------------------------------

    def _measure(self, contestant: Contestant, question: Question, temperature: float, repeat: int) -> None:
        request = replace(question.request, sampling=SamplingSettings(temperature=temperature))
        answer = contestant.answer(replace(question, request=request), self._cancel)
        item, samples = question.item, self.result["samples"]
        if answer is None:
            if not self._cancel.is_set():
                self._messages.append(f"{item.id}: the answer of {contestant.name} ended early")
            return
        self._answers.append(answer.tokens)
        samples.append(
            {
                "mode": contestant.name,
                "temperature": temperature,
                "category": item.category,
                "item": item.id,
                "repeat": repeat,
                **answer.as_sample(),
                "equal": None,
                "order": len(samples),
            }
        )

    def _measure_passes(self) -> None:
        costs = self._llm.measure_costs(pass_widths(self._llm.engine.speculator.n_max), cancel=self._cancel)
        self._passes.target.append(costs["target"])
        self._passes.draft += costs["step"].values()

    # --- at the end -----------------------------------------------------------------------------------------------

    def _compare_with_plain(self) -> None:
        """Record whether each answer equals plain decoding's, where it must."""
        samples = self.result["samples"]
        plain = {
            (sample["item"], sample["temperature"]): tokens
            for sample, tokens in zip(samples, self._answers, strict=True)
            if sample["mode"] == self._contestants[0].name
        }
        exact = {contestant.name: contestant.is_exact for contestant in self._contestants}
        for sample, tokens in zip(samples, self._answers, strict=True):
            expected = plain.get((sample["item"], sample["temperature"]))
            if expected is not None and exact[sample["mode"]](sample["temperature"]):
                sample["equal"] = tokens == expected

    def _plain_spread(self) -> float | None:
        """How much plain decoding of the same prompt differs between repeats, the median over prompts; without repeats
        how much the slowest and fastest tenth of the prompts differ."""
        rates: dict[tuple[str, float], list[float]] = {}
        for sample in self.result["samples"]:
            if sample["mode"] == self._contestants[0].name and sample["tokens_per_s"]:
                rates.setdefault((sample["item"], sample["temperature"]), []).append(sample["tokens_per_s"])
        spreads = [_spread(values) for values in rates.values() if len(values) > 1]
        if spreads:
            return median(spreads)
        everything = [rate for values in rates.values() for rate in values]
        if len(everything) < LEAST_RATES:
            return None
        slow, *_, fast = quantiles(everything, n=10)  # prompts differ by their depths, but not by much
        return fast / slow - 1


def _spread(values: Sequence[float]) -> float:
    """The ratio of the slowest to the fastest, less 1."""
    return max(values) / min(values) - 1


def _without_names(settings: LoadSettings) -> dict[str, Any]:
    """The load settings, without the models, which are recorded elsewhere, and without what the modes name."""
    left_out = ("model", "draft_model", "spec_type", "pace")
    corpus = settings.corpus and Path(settings.corpus).name
    kept = {name: value for name, value in asdict(settings).items() if name not in left_out}
    return kept | {"corpus": corpus, "rpc": list(settings.rpc)}
