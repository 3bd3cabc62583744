"""The answers on disk, and what the target computed for each of their tokens.

`answers.jsonl` has a line per answer, `states.bin` a record per token, in the same order. The target computes the
records by reading the answers, so `states.bin` can be deleted, and `answers.jsonl` alone can be taken elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.core.features import FINAL_STATE
from edgespec.errors import EdgespecError, UsageError, told_as
from edgespec.llama.context import CancelledError, Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.text.strict_json import json_line
from edgespec.training.job import Listener

ANSWERS, STATES = "answers.jsonl", "states.bin"
N_BATCH = 512
RESUMES = "free some space and start the same command again: it resumes"
SAMPLED = 0.8  # the temperature of answers that are not greedy


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """An answer: token ids of the prompt as the template renders it, and of the answer with its end token if it ended.
    `text` is what was asked. Held-out answers are not trained on."""

    kind: str
    temperature: float
    is_held_out: bool
    prompt: list[int]
    answer: list[int]
    text: str = ""


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """The place of an answer's tokens, prompt first, in the arrays."""

    start: int
    length: int
    n_prompt: int
    temperature: float
    is_held_out: bool

    @property
    def n_anchors(self) -> int:
        """Cells at which a draft of answer tokens may begin; the first one is the cell of the last prompt token."""
        return self.length - self.n_prompt - 1


@dataclass(frozen=True, slots=True)
class Features:
    """The states of N tokens as arrays mapped from disk, and the documents in them.

    Of a prompt, all but its last token have no `hidden`, `normalisers` and `best`: at run time, most prompts are read
    without computing them.
    """

    documents: list[AnswerSpan]
    #: float16[N, 3 D], the inputs of three layers; [N, 0] if the target does not give them.
    inputs: NDArray[np.float16]
    #: float16[N, D], the final state after the last norm.
    hidden: NDArray[np.float16]
    #: float32[N, 2], the logarithm of the sum of exponentials of the logits, at temperatures 1 and `SAMPLED`.
    normalisers: NDArray[np.float32]
    #: int32[N], the target's first choice for the next token.
    best: NDArray[np.int32]
    tokens: NDArray[np.int32]


def record(n_embd: int, n_layers: int) -> np.dtype[np.void]:
    """The layout of a token's record, with the fields of `Features`."""
    inputs, hidden = ("inputs", np.float16, (n_layers * n_embd,)), ("hidden", np.float16, (n_embd,))
    return np.dtype([inputs, hidden, ("normalisers", np.float32, (2,)), ("best", np.int32), ("tokens", np.int32)])


def default_layers(n_layers: int) -> tuple[int, int, int]:
    """The layers whose inputs an EAGLE-3 head reads; the same choice as in llama.cpp."""
    return min(2, n_layers - 1), n_layers // 2, max(0, n_layers - 3)


def n_learned(rows: Sequence[TrainingRow]) -> int:
    """The number of answer tokens to learn from."""
    return sum(len(row.answer) for row in rows if not row.is_held_out)


def read_rows(folder: Path) -> list[TrainingRow]:
    """Return the finished answers, and cut off an unfinished line. Raises UsageError, EdgespecError."""
    file = folder / ANSWERS
    if not file.exists():
        return []
    with told_as(EdgespecError, f"{file} cannot be read"):
        data = file.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(file, len(whole))
    try:
        return [TrainingRow(**json.loads(line)) for line in whole.splitlines()]
    except (ValueError, TypeError) as error:
        raise UsageError(f"{file} was not written by draft train", hint="use another --work folder") from error


def add_row(folder: Path, row: TrainingRow) -> None:
    """Append an answer. Raises EdgespecError if it cannot be written."""
    with told_as(EdgespecError, f"cannot write to {folder}", hint=RESUMES), (folder / ANSWERS).open("ab") as file:
        file.write(json_line(asdict(row)).encode() + b"\n")


def read_states(model: LlamaModel, folder: Path, layers: Sequence[int], listener: Listener, threads: int = 0) -> None:
    """Let the target read the answers whose states are missing, until all are there or the listener cancels.

    Raises EdgespecError if the disk is full, UsageError if the target does not give the inputs of `layers`.
    """
    rows, kind, file = read_rows(folder), record(model.n_embd, len(layers)), folder / STATES
    lengths = [len(row.prompt) + len(row.answer) for row in rows]
    n_whole = file.stat().st_size // kind.itemsize if file.exists() else 0
    ends = np.cumsum(lengths)
    n_done = int((ends <= n_whole).sum())
    if n_done == len(rows):
        return
    n_ctx = max(lengths)
    with (
        told_as(EdgespecError, f"cannot write to {folder}", hint=RESUMES),
        Context(model, ContextParams(n_ctx=n_ctx, max_outputs=N_BATCH, threads=threads, n_batch=N_BATCH)) as context,
        file.open("r+b" if file.exists() else "wb") as out,
        suppress(CancelledError),
    ):
        context.watch_layers([*layers, FINAL_STATE])
        context.watch(listener.cancel)
        out.truncate(int(ends[n_done - 1]) * kind.itemsize if n_done else 0)
        out.seek(0, os.SEEK_END)
        for number in range(n_done, len(rows)):
            out.write(_states(context, rows[number], layers, kind).tobytes())
            listener.progress("reading the answers", (number + 1) / len(rows))


def load(folder: Path, n_embd: int, n_layers: int) -> Features:
    """Map the states, which were read with the inputs of `n_layers` layers. Raises UsageError if there are none."""
    documents, end = [], 0
    for row in read_rows(folder):
        start, end = end, end + len(row.prompt) + len(row.answer)
        documents.append(AnswerSpan(start, end - start, len(row.prompt), row.temperature, row.is_held_out))
    if not end:
        raise UsageError(f"there is nothing to learn from in {folder}")
    records: Any = np.memmap(folder / STATES, record(n_embd, n_layers), "r", shape=(end,))
    return Features(documents, *(records[name] for name in records.dtype.names))


def _states(context: Context, row: TrainingRow, layers: Sequence[int], kind: np.dtype[np.void]) -> NDArray[np.void]:
    """The records of an answer's tokens."""
    tokens, records = row.prompt + row.answer, np.zeros(len(row.prompt) + len(row.answer), kind)
    records["tokens"] = tokens
    context.forget(0)
    for start in range(0, len(tokens), N_BATCH):
        part = tokens[start : start + N_BATCH]
        end = start + len(part)
        context.decode(part, range(start, end), [(0,)] * len(part), [True] * len(part))
        if layers:
            inputs = np.concatenate([context.layer_inputs(layer) for layer in layers], axis=1)
            records["inputs"][start:end] = np.clip(inputs, -65504, 65504)  # float16's range
        for place in range(max(start, len(row.prompt) - 1), end):
            logits = context.logits(place - start)
            records["hidden"][place] = context.hidden(place - start)
            records["normalisers"][place] = log_sum(logits), log_sum(logits, SAMPLED)
            records["best"][place] = logits.argmax()
    return records


def log_sum(logits: NDArray[np.float32], temperature: float = 1.0) -> float:
    """The logarithm of the sum of exponentials of the logits at a temperature."""
    most = logits.max()
    return float(most / temperature + np.log(np.exp((logits - most) / np.float32(temperature)).sum()))
