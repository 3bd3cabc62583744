"""The speed of one file: every mode answers every prompt, in turns, on one load. Results are saved as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import psutil

from edgespec.bench.answers import Contestant, OwnMode
from edgespec.bench.energy import EnergyMeter
from edgespec.bench.measure import WARM_UP_TOKENS, shuffled
from edgespec.bench.modes import Mode
from edgespec.bench.questions import Question, ask
from edgespec.bench.suites import Item
from edgespec.cancel import CancelFlag
from edgespec.core.policy.policy import pass_widths
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import UsageError
from edgespec.events import Progress
from edgespec.llama.context import CancelledError
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings

REPEAT = 2  # of each width of passes, before the answers; the draft policy needs them

Speed = dict[str, Any]
"""Plain data: "samples" as a bench has them, each with when its "run" began, the ids of plain "answers" by prompt,
"memory_bytes", "messages", "items" for which every mode has answered, and of the reference "again": by run, how many
times as fast its plain decoding was at the end of that."""


def new_speed() -> Speed:
    return {"items": [], "samples": [], "answers": {}, "memory_bytes": 0, "messages": [], "again": {}}


def measure_speed(
    settings: LoadSettings,
    modes: Sequence[Mode],
    items: Sequence[Item],
    tokens: int,
    known: Speed,
    *,
    run: str,
    progress: Progress,
    cancel: CancelFlag,
    keep: Callable[[Speed], object],
) -> None:
    """Add to `known` what it does not have yet: greedy answers of `tokens` tokens. `run` is the start time of this run.

    `keep` is called after every prompt, `progress` with "answer" after every answer. Memory is read between answers,
    and while the file is loaded. Raises CancelledError, UsageError if no prompt fits, and what loading and decoding
    raise.
    """
    memory = _Memory()

    def tell(what: str, done: float) -> None:
        memory.look()
        progress(what, done)

    with Runtime(settings, tell) as llm:
        questions, messages = ask(llm, items, tokens, reference=False)
        if not questions:
            raise UsageError("there is nothing to measure", why="; ".join(messages) or "there are no prompts")
        contestants: list[Contestant] = [OwnMode(llm, mode, EnergyMeter()) for mode in modes]
        _warm_up(llm, contestants, questions[0], cancel)
        for turn, question in enumerate(questions):
            if question.item.id in known["items"]:
                continue
            found: dict[str, tuple[dict[str, Any], list[int]]] = {}
            for contestant in shuffled(contestants, turn):
                answer = _answer(contestant, question, cancel)
                if answer is None:
                    messages.append(f"{question.item.id}: the answer of {contestant.name} ended early")
                    break
                found[contestant.name] = answer
                memory.look()
                progress("answer", 1.0)
            else:
                known["samples"] += [sample | {"run": run} for sample, _ in found.values()]
                known["answers"][question.item.id] = found[contestants[0].name][1]
            known["items"].append(question.item.id)
            known["memory_bytes"] = max(known["memory_bytes"], memory.most_bytes)
            known["messages"] = list(dict.fromkeys([*known["messages"], *messages, *llm.notes]))
            keep(known)
        known["items"] = [item.id for item in items]  # those that could not be asked cannot be asked next time
        keep(known)


def _warm_up(llm: Runtime, contestants: Sequence[Contestant], question: Question, cancel: CancelFlag) -> None:
    """Measure the cost of passes, and let every mode answer once. Raises CancelledError."""
    llm.measure_costs(pass_widths(llm.engine.speculator.n_max), REPEAT, cancel)
    short = replace(question.request, max_tokens=min(WARM_UP_TOKENS, question.request.max_tokens))
    for contestant in contestants:
        _answer(contestant, replace(question, request=short), cancel)


def _answer(contestant: Contestant, question: Question, cancel: CancelFlag) -> tuple[dict[str, Any], list[int]] | None:
    """A greedy answer as a sample, and its ids; None if it ended by itself. Raises CancelledError."""
    greedy = replace(question.request, sampling=SamplingSettings(temperature=0.0))
    answer = contestant.answer(replace(question, request=greedy), cancel)
    if cancel.is_set():
        raise CancelledError
    if answer is None:
        return None
    names = ("tokens", "seconds", "tokens_per_s", "prompt_s", "rounds", "proposed", "accepted")
    figures = {name: value for name, value in answer.as_sample().items() if name in names}
    item = question.item
    where = {"mode": contestant.name, "temperature": 0.0, "category": item.category, "item": item.id, "repeat": 0}
    return where | figures, answer.tokens


class _Memory:
    """The observed peak memory of this process: weights, caches and buffers, and the program itself."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.most_bytes = 0

    def look(self) -> None:
        self.most_bytes = max(self.most_bytes, self._process.memory_info().rss)
