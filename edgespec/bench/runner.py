"""Run all measurements of speed: on one loaded model, each prompt is answered in all modes before the next prompt.

A prompt of a suite becomes a `Question` in the form that the loaded model needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from edgespec.bench.modes import Mode, with_plain
from edgespec.bench.suites import Item
from edgespec.cancel import CancelFlag
from edgespec.core.policy.policy import pass_widths
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.errors import GenerationError, UsageError
from edgespec.llama.context import CancelledError
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

    item: Item
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

    def as_json(self) -> dict[str, Any]:
        about = {name: getattr(self, name) for name in _ABOUT}
        return {**about, "tokens_per_s": self.tokens_per_s, **self.stats.as_json()}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Sample:
        """Return the sample that `as_json` was called on. Raises KeyError, TypeError, ValueError or AttributeError for
        other data."""
        return cls(**{name: row[name] for name in _ABOUT}, stats=Stats.from_json(row))


def ask(
    llm: Runtime, items: Iterable[Item], tokens: int | None, *, reference: bool
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


def _question(llm: Runtime, item: Item, tokens: int | None, *, reference: bool) -> Question:
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
