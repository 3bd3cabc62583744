"""The target's own answers, with what a head will see of them, in one go: each token is decoded once.

What a head learns from is what it has to predict. Prompts that the target writes itself are sampled from what follows
its chat template's beginning of a user message ("Magpie", 2406.08464).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.core.sampling import SamplingSettings, apply_chain
from edgespec.errors import UsageError
from edgespec.llama.context import CancelledError, Context
from edgespec.llama.model import Model
from edgespec.llama.template import ChatTemplate
from edgespec.settings import Message
from edgespec.training.features import Row, Writer, log_sum, n_learned
from edgespec.training.prompts import Passages, Prompt, held_out, is_usable, seeds

N_CTX = 1024
N_BATCH = 512
MAX_TOKENS = 320  # of an answer: a small model that is greedy repeats itself sooner or later
MAX_PROMPT_TOKENS = 160  # of a prompt that the target writes
SELF_WRITTEN_SHARE = 0.5
FEWEST_HELD_OUT, TOKENS_PER_HELD_OUT = 6, 8000  # prompts to measure with: one for so many tokens to learn from
SAMPLED = 0.8  # the temperature of every second answer; the others are greedy
MARK = "\ue000"
_CHAINS = {0.0: SamplingSettings(temperature=0), SAMPLED: SamplingSettings(temperature=SAMPLED)}
_OPEN = SamplingSettings(temperature=1.0, top_k=0, top_p=0.95, min_p=0.0)


@dataclass(slots=True)
class _Job:
    """An answer in the making; without a prompt it is one itself. The rows are those of its tokens so far."""

    prompt: Prompt | None
    ids: list[int]
    sampling: SamplingSettings
    random: np.random.Generator
    answer: list[int] = field(default_factory=list)
    inputs: list[NDArray[np.float16]] = field(default_factory=list)
    hidden: list[NDArray[np.float16]] = field(default_factory=list)
    normalisers: list[tuple[float, float]] = field(default_factory=list)
    best: list[int] = field(default_factory=list)

    @property
    def limit(self) -> int:
        return min(MAX_TOKENS if self.prompt else MAX_PROMPT_TOKENS, N_CTX - len(self.ids) - 1)


class Answers:
    """Lets `model` answer prompts, `sequences` at a time, until those to learn from have `budget` tokens."""

    def __init__(
        self,
        model: Model,
        writer: Writer,
        layers: Sequence[int],
        budget: int,
        own: Sequence[Prompt],
        passages: Passages,
        *,
        sequences: int = 16,
        threads: int = 0,
        seed: int = 0,
        measures: bool = True,
        progress: Callable[[str, float], None] = lambda what, done: None,
        cancel: CancelFlag | None = None,
    ) -> None:
        self.model, self.writer, self.layers, self.budget, self.progress = model, writer, layers, budget, progress
        self.sequences, self.threads, self.cancel = sequences, threads, cancel or CancelFlag()
        self.passages = passages
        self.n_tokens = n_learned(writer.rows)
        self._template = ChatTemplate(model) if model.chat_template is not None else None
        self._end, self._header = end_token(model), user_header(model)
        self._number = len(writer.rows) + seed  # of the next job
        self._known = {" ".join(row.text.lower().split()) for row in writer.rows}
        self._self_written: list[str] = []
        self._n_sampling = 0
        asked = {(row.text, row.temperature) for row in writer.rows}
        kept_out = held_out(chat=self._template is not None)[: max(FEWEST_HELD_OUT, budget // TOKENS_PER_HELD_OUT)]
        first = [(prompt, t) for prompt in kept_out for t in _CHAINS] if measures else []
        first += [(prompt, random.Random(n).choice([*_CHAINS])) for n, prompt in enumerate(own)]
        self._first = [(prompt, t) for prompt, t in first if (prompt.text, t) not in asked]
        self._seeds = seeds(self._number, passages)
        for row in writer.rows[-64:]:
            self._learn_passage(row)

    def collect(self) -> None:
        """Raises EdgespecError where the disk is full, UsageError where the target does not give the layers' inputs."""
        with Context(
            self.model,
            n_ctx=N_CTX,
            sequences=self.sequences,
            max_outputs=N_BATCH,
            threads=self.threads,
            n_batch=N_BATCH,
            streams=True,
        ) as context:
            context.watch_layers(self.layers)
            context.hidden_states(True)
            context.watch(self.cancel)
            jobs, slots = self._jobs(), dict[int, _Job]()
            with suppress(CancelledError):
                self._read_again(context)
                while not self.cancel.is_set():
                    while len(slots) < self.sequences and (job := next(jobs, None)) is not None:
                        slot = next(slot for slot in range(self.sequences) if slot not in slots)
                        self._prefill(context, slot, job)
                        slots[slot] = job
                    if not slots:
                        return
                    self._step(context, slots)
                    for slot in [slot for slot, job in slots.items() if self._is_done(job)]:
                        self._finish(slots.pop(slot))

    # --- decoding -------------------------------------------------------------------------------------------------

    def _prefill(self, context: Context, slot: int, job: _Job) -> None:
        """All of the prompt but its last token, whose turn comes with the first step."""
        context.forget(slot)
        for start in range(0, len(job.ids) - 1, N_BATCH):
            part = job.ids[start : min(start + N_BATCH, len(job.ids) - 1)]
            context.decode(part, range(start, start + len(part)), [(slot,)] * len(part), [True] * len(part))
            job.inputs.extend(self._inputs(context, len(part)))

    def _read_again(self, context: Context) -> None:
        """Fill in what is missing of answers that are there: the same as when they were written, but for rounding."""
        total = len(self.writer.missing)
        while self.writer.missing and not self.cancel.is_set():
            row = self.writer.missing[0]
            sampling = _CHAINS.get(row.temperature, _OPEN)
            job = _Job(None, row.prompt, sampling, np.random.default_rng(0), row.answer)
            tokens = (row.prompt + row.answer)[:-1]
            context.forget(0)
            for start in range(0, len(tokens), N_BATCH):
                part = tokens[start : start + N_BATCH]
                context.decode(part, range(start, start + len(part)), [(0,)] * len(part), [True] * len(part))
                job.inputs.extend(self._inputs(context, len(part)))
                for index in range(max(0, len(row.prompt) - 1 - start), len(part)):
                    self._see(context, index, job)
            self.writer.fill(_arrays(job))
            self.progress("reading answers again", 1 - len(self.writer.missing) / total)

    def _see(self, context: Context, index: int, job: _Job) -> NDArray[np.float32]:
        """Keep what the target says at an entry of the batch; its row of logits."""
        row = context.logits(index)
        job.hidden.append(context.hidden(index).astype(np.float16))
        job.normalisers.append((log_sum(row), log_sum(row, SAMPLED)))
        job.best.append(int(row.argmax()))
        return row

    def _step(self, context: Context, slots: dict[int, _Job]) -> None:
        order = sorted(slots)  # llama.cpp splits a batch wherever its streams are out of order
        jobs = [slots[slot] for slot in order]
        tokens = [(job.answer or job.ids)[-1] for job in jobs]
        positions = [len(job.ids) + len(job.answer) - 1 for job in jobs]
        context.decode(tokens, positions, [(slot,) for slot in order], [True] * len(jobs))
        for index, (job, inputs) in enumerate(zip(jobs, self._inputs(context, len(jobs)), strict=True)):
            job.inputs.append(inputs)
            job.answer.append(_sampled(self._see(context, index, job), job))

    def _inputs(self, context: Context, n: int) -> NDArray[np.float16]:
        """float16[n, D for each layer] of the n tokens of the last pass."""
        none = np.empty((n, 0), np.float32)
        rows = np.concatenate([none, *(context.layer_inputs(layer) for layer in self.layers)], axis=1)
        kept: NDArray[np.float16] = np.clip(rows, -65504, 65504).astype(np.float16)
        return kept

    # --- prompts and answers --------------------------------------------------------------------------------------

    def _jobs(self) -> Iterator[_Job]:
        for prompt, temperature in self._first:
            yield from self._asking(prompt, temperature)
        while self.n_tokens < self.budget:
            chance = random.Random(self._number)
            temperature = chance.choice([*_CHAINS])
            if self._header and len(self._self_written) + self._n_sampling < self.sequences // 2:
                self._n_sampling += 1
                yield self._job(None, self._header, _OPEN)
            elif self._self_written and chance.random() < SELF_WRITTEN_SHARE:
                message = Message("user", self._self_written.pop(0))
                yield from self._asking(Prompt("self-written", (message,)), temperature)
            else:
                yield from self._asking(next(self._seeds), temperature)

    def _asking(self, prompt: Prompt, temperature: float) -> Iterator[_Job]:
        """The job for an answer; none for a prompt that the template refuses or that leaves no room for one."""
        with suppress(UsageError):
            if self._template is not None:
                ids = self._template.tokenize(prompt.messages)
            else:
                ids = self.model.tokenize(prompt.text, add_special=True)
            if 1 < len(ids) < N_CTX - MAX_TOKENS // 4:
                yield self._job(prompt, ids, _CHAINS[temperature])

    def _job(self, prompt: Prompt | None, ids: list[int], sampling: SamplingSettings) -> _Job:
        self._number += 1
        return _Job(prompt, ids, sampling, np.random.default_rng(self._number))

    def _is_done(self, job: _Job) -> bool:
        return self.model.is_end(job.answer[-1]) or len(job.answer) >= job.limit

    def _finish(self, job: _Job) -> None:
        has_ended = self.model.is_end(job.answer[-1])
        if job.prompt is None:
            self._n_sampling -= 1
            text = self.model.detokenize(job.answer[:-1]).decode("utf-8", "replace").strip()
            if has_ended and is_usable(text, self._known):
                self._self_written.append(text)
            return
        if has_ended and self._end is not None:
            job.answer[-1] = self._end
        row = Row(
            job.prompt.kind, job.sampling.temperature, job.prompt.is_held_out, job.ids, job.answer, job.prompt.text
        )
        self.writer.add(row, _arrays(job))
        self.n_tokens += 0 if row.is_held_out else len(row.answer)
        self._learn_passage(row)
        self.progress("answering", min(1.0, self.n_tokens / self.budget))

    def _learn_passage(self, row: Row) -> None:
        if self.passages.texts.maxlen is not None and row.kind in ("questions", "writing", "self-written"):
            self.passages.add(self.model.detokenize(row.answer).decode("utf-8", "replace"))


def _arrays(job: _Job) -> dict[str, NDArray[Any]]:
    before = len(job.ids) - 1
    filled: dict[str, Any] = {
        "inputs": [*job.inputs, np.zeros_like(job.inputs[0])],
        "hidden": [*[np.zeros_like(job.hidden[0])] * before, *job.hidden, np.zeros_like(job.hidden[0])],
        "normalisers": [*[(0.0, 0.0)] * before, *job.normalisers, (0.0, 0.0)],
        "best": [*[0] * before, *job.best, 0],
        "tokens": [*job.ids, *job.answer],
    }
    return {name: np.array(values) for name, values in filled.items()}


def _sampled(row: NDArray[np.float32], job: _Job) -> int:
    candidates = apply_chain(row, job.sampling, job.ids + job.answer)
    logits = candidates.logits.astype(np.float64)
    if job.sampling.temperature == 0:
        place = int(logits.argmax())
    else:
        chances = np.exp(logits - logits.max())
        place = int(job.random.choice(len(chances), p=chances / chances.sum()))
    return place if candidates.ids is None else int(candidates.ids[place])


def user_header(model: Model) -> list[int]:
    """The ids of what the template writes before a user's first message; none if it does not say it as it stands."""
    if model.chat_template is None:
        return []
    try:
        before, found, _ = ChatTemplate(model).render([Message("user", MARK)]).partition(MARK)
    except UsageError:
        return []
    ids = model.tokenize(before, parse_special=True) if found else []
    begins = model.bos is not None and model.adds_bos and ids[:1] != [model.bos]
    return [model.bos, *ids] if ids and begins and model.bos is not None else ids


def end_token(model: Model) -> int | None:
    """The token that ends an answer: the one that the template writes after it, or the vocabulary's."""
    if model.chat_template is not None:
        messages = [Message("user", "a"), Message("assistant", MARK), Message("user", "b")]
        with suppress(UsageError):
            after = ChatTemplate(model).render(messages).partition(MARK)[2]
            first = model.tokenize(after, parse_special=True)[:1]
            if first and model.is_end(first[0]):
                return first[0]
    return model.eos
