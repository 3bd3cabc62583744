"""What a head sees and what it is to predict: arrays on disk with a row for each token of answers and their prompts.

`answers.jsonl` says which rows belong to which answer, in its order; rows behind those are left from an interruption.
Of a prompt only `inputs` and `tokens` are filled, of the last token of an answer only `tokens`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.closable import Closable
from edgespec.errors import EdgespecError, UsageError

ANSWERS = "answers.jsonl"
TYPES = {"inputs": np.float16, "hidden": np.float16, "normalisers": np.float32, "best": np.int32, "tokens": np.int32}


@dataclass(frozen=True, slots=True)
class Row:
    """One answer: ids of the prompt as the template renders it, ids of the answer with its end token if it ended.
    `text` is what was asked."""

    kind: str
    temperature: float
    is_held_out: bool
    prompt: list[int]
    answer: list[int]
    text: str = ""

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True, slots=True)
class Document:
    """Where the tokens of one answer, prompt first, lie in the arrays."""

    start: int
    length: int
    n_prompt: int
    temperature: float
    is_held_out: bool


@dataclass(frozen=True, slots=True)
class Features:
    """The arrays, mapped, and the documents in them, of N tokens in all.

    `inputs` float16[N, 3 D] of three layers ([N, 0] where the target does not give them), `hidden` float16[N, D] after
    the last norm, `normalisers` float32[N, 2] (the logarithm of the sum of exponentials of the logits at temperatures 1
    and .8), `best` int32[N] (the target's first choice for the token after), `tokens` int32[N].
    """

    documents: list[Document]
    inputs: NDArray[np.float16]
    hidden: NDArray[np.float16]
    normalisers: NDArray[np.float32]
    best: NDArray[np.int32]
    tokens: NDArray[np.int32]


class Writer(Closable):
    """Appends answers with their arrays to a folder. Raises EdgespecError where the disk is full.

    `missing` are the answers whose arrays are not there, or not whole: `fill` them in, in this order, before others are
    added. So the arrays can be deleted, and `answers.jsonl` alone be taken elsewhere.
    """

    def __init__(self, folder: Path, n_embd: int, n_layers: int = 3) -> None:
        self.folder, widths = folder, _widths(n_embd, n_layers)
        self.rows = read_rows(folder)
        n, n_whole = 0, _whole_tokens(folder, widths)
        self.missing: list[Row] = []
        for row in self.rows:
            if self.missing or n + row.length > n_whole:
                self.missing.append(row)
            else:
                n += row.length
        try:
            self._answers = (folder / ANSWERS).open("ab")
            self._files = {
                name: _opened(folder / f"{name}.bin", n * width * np.dtype(TYPES[name]).itemsize)
                for name, width in widths.items()
            }
        except OSError as error:
            raise _full(folder, error) from error

    def fill(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The arrays of the first answer that lacks them."""
        self._write(arrays)
        self.missing.pop(0)

    def add(self, row: Row, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Arrays first: a row counts only when its line is complete."""
        if self.missing:
            raise ValueError("there are answers before this one without their arrays")
        self._write(arrays)
        try:
            self._answers.write(json.dumps(asdict(row), ensure_ascii=False).encode() + b"\n")
            self._answers.flush()
        except OSError as error:
            raise _full(self.folder, error) from error
        self.rows.append(row)

    def _write(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        try:
            for name, file in self._files.items():
                file.write(np.ascontiguousarray(arrays[name], TYPES[name]).data)
                file.flush()
        except OSError as error:
            raise _full(self.folder, error) from error

    def close(self) -> None:
        for file in (self._answers, *self._files.values()):
            file.close()


def load(folder: Path, n_embd: int, n_layers: int = 3) -> Features:
    """Of answers that were kept with the inputs of so many layers. Raises UsageError where there is nothing, or less
    than `answers.jsonl` says."""
    documents, n = [], 0
    for row in read_rows(folder):
        documents.append(Document(n, row.length, len(row.prompt), row.temperature, row.is_held_out))
        n += row.length
    if not n:
        raise UsageError(f"there is nothing to learn from in {folder}")
    arrays: dict[str, Any] = {"inputs": np.zeros((n, 0), np.float16)}
    try:
        for name, width in _widths(n_embd, n_layers).items():
            arrays[name] = np.memmap(folder / f"{name}.bin", TYPES[name], "r", shape=(n, width) if width > 1 else (n,))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} is damaged", why=str(error), hint="use another --work folder") from error
    return Features(documents, **arrays)


def read_rows(folder: Path) -> list[Row]:
    """The answers so far; a line that was not finished is cut off. Raises UsageError, EdgespecError."""
    file = folder / ANSWERS
    try:
        data = file.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with file.open("r+b") as torn:
                torn.truncate(len(whole))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise EdgespecError(f"{file} cannot be read", why=error.strerror or str(error)) from error
    try:
        return [Row(**json.loads(line)) for line in whole.splitlines()]
    except (ValueError, TypeError) as error:
        raise UsageError(f"{file} was not written by draft train", hint="use another --work folder") from error


def bytes_per_token(n_embd: int, n_layers: int = 3) -> int:
    """Disk that one token takes."""
    return sum(width * np.dtype(TYPES[name]).itemsize for name, width in _widths(n_embd, n_layers).items()) + 8


def default_layers(n_layers: int) -> tuple[int, int, int]:
    """Whose inputs a head reads, as llama.cpp has it."""
    return min(2, n_layers - 1), n_layers // 2, max(0, n_layers - 3)


def log_sum(row: NDArray[np.float32], temperature: float = 1.0) -> float:
    """The logarithm of the sum of exponentials of logits at a temperature."""
    scaled = (row - row.max()) / np.float32(temperature)
    return float(row.max() / temperature + np.log(np.exp(scaled).sum()))


def _widths(n_embd: int, n_layers: int) -> dict[str, int]:
    widths = {"inputs": n_layers * n_embd, "hidden": n_embd, "normalisers": 2, "best": 1, "tokens": 1}
    return {name: width for name, width in widths.items() if width}


def _whole_tokens(folder: Path, widths: Mapping[str, int]) -> int:
    """Of how many tokens there are all arrays."""
    try:
        sizes = {name: (folder / f"{name}.bin").stat().st_size for name in widths}
    except OSError:
        return 0
    return min(sizes[name] // (width * np.dtype(TYPES[name]).itemsize) for name, width in widths.items())


def _opened(file: Path, n_bytes: int) -> Any:
    """A file to go on with behind its first bytes."""
    opened = file.open("r+b" if file.exists() else "w+b")
    opened.truncate(n_bytes)
    opened.seek(n_bytes)
    return opened


def _full(folder: Path, error: OSError) -> EdgespecError:
    return EdgespecError(
        f"cannot write to {folder}",
        why=error.strerror or str(error),
        hint="free some space and start the same command again: it resumes",
    )


def n_learned(rows: Sequence[Row]) -> int:
    """Tokens of answers to learn from."""
    return sum(len(row.answer) for row in rows if not row.is_held_out)
