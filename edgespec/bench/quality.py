"""How well a model predicts a text: its perplexity, and its divergence from a reference model.

While other models are compared with the reference, the reference's predictions are kept on disk. A row is the
logarithms of V probabilities as float16: 2 V bytes, 304 kB for a vocabulary of 152 thousand. Rows are normalised again
when they are read, so that this rounding, about 0.02 % of each number, changes a divergence by less than the rounding
of kernels.

A text is split into windows of tokens as in llama.cpp's llama-perplexity (tools/perplexity/perplexity.cpp): whole
windows one after another, each with BOS as its first token if the model uses one. Only predictions in the second half
of a window count, so each has at least half a window of context.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import IO

import numpy as np
from numpy.typing import NDArray

from edgespec.bench.suites import sample, shipped
from edgespec.cancel import CancelFlag
from edgespec.errors import GenerationError, UsageError, told_as
from edgespec.files.optional_files import why_unusable
from edgespec.files.paths import cache_dir, make_room
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.context import CancelledError, Context
from edgespec.llama.model import LlamaModel
from edgespec.runtime.planning import base_plan, fitted, open_model
from edgespec.settings import LoadSettings
from edgespec.text.encodings import decoded

ROWS = 64  # rows of V floats that llama.cpp holds at a time
Windows = Sequence[Sequence[int]]
MOST_BYTES = 1_000_000_000  # of the reference's rows
MOST_WINDOWS = 12  # 3060 positions of windows of 512 tokens
SMALLEST = np.float16(-65504)

Told = Callable[[int, int], None]
"""Called with the number of windows done, and of all."""


@dataclass(slots=True, frozen=True)
class Perplexity:
    """exp of the mean negative log-likelihood over `positions` tokens, with its standard error, and the time it
    took."""

    value: float
    standard_error: float
    positions: int
    windows: int
    seconds: float
    tokens_per_s: float


@dataclass(slots=True, frozen=True)
class Quality:
    """The divergence of a file from its reference, over `positions` tokens of a text.

    Attributes:
        perplexity_ratio: the file's perplexity over the reference's; its standard error accounts for the common text
        kl: the mean Kullback-Leibler divergence of the file's probabilities from the reference's, in nats per token
        kl_99: the 99th percentile
        same_top: the share of positions with the same most likely token
    """

    positions: int
    perplexity: float
    perplexity_error: float
    perplexity_ratio: float = 1.0
    perplexity_ratio_error: float = 0.0
    kl: float = 0.0
    kl_error: float = 0.0
    kl_median: float = 0.0
    kl_99: float = 0.0
    same_top: float = 1.0


@dataclass(slots=True)
class ReferenceRows:
    """The reference's predictions: its rows in a file, its most likely token and the loss (nats) at each position."""

    file: IO[bytes]
    n_vocab: int
    likeliest: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def quality(self) -> Quality:
        """The quality of the reference itself."""
        return Quality(len(self.losses), *exp_of_mean(self.losses))

    def __iter__(self) -> Iterator[NDArray[np.float64]]:
        """Yield the log-probabilities float64[V] of each position, in order."""
        self.file.seek(0)
        for _ in self.losses:
            row = np.frombuffer(self.file.read(2 * self.n_vocab), np.float16).astype(np.float64)
            yield row - np.log(np.exp(row).sum())


def perplexity(context: Context, text: Windows, tell: Told, cancel: CancelFlag) -> Perplexity | None:
    """Return the perplexity over the windows of `text`, or over those read before it was cancelled, if any. Raises
    GenerationError."""
    losses: list[float] = []
    done, started_s, took_s = 0, perf_counter(), 0.0
    context.watch(cancel)
    try:
        for window in text:
            tell(done, len(text))
            losses += [-float(row[token]) for token, row in [*log_probabilities(context, window)]]
            done, took_s = done + 1, perf_counter() - started_s
        tell(done, len(text))
    except CancelledError:
        pass
    if not done:
        return None
    value, error = exp_of_mean(losses)
    return Perplexity(value, error, len(losses), done, took_s, done * len(text[0]) / took_s)


@contextmanager
def room_for_rows(n_vocab: int, size: int, n_windows: int) -> Iterator[ReferenceRows]:
    """Yield empty rows in a file that is deleted afterwards, in the cache folder or else the folder for temporary
    files. Raises UsageError without room."""
    folder = cache_dir() / "compare"
    if why_unusable(cache_dir()) or why_unusable(folder):
        folder = Path(tempfile.gettempdir())
    n_bytes = _size_bytes(n_vocab, size, n_windows)
    make_room(folder, n_bytes, "the reference's log probabilities", hint="compare fewer (--limit), ")
    with tempfile.TemporaryFile(dir=folder) as file:  # also deleted if the program is killed
        yield ReferenceRows(file, n_vocab)


def default_limit(n_vocab: int, size: int) -> int:
    """Return the default number of windows: fewer if rows would take more than `MOST_BYTES`."""
    return max(1, min(MOST_WINDOWS, MOST_BYTES // _size_bytes(n_vocab, size, 1)))


def keep_rows(context: Context, text: Windows, rows: ReferenceRows, tell: Told, cancel: CancelFlag) -> None:
    """Fill `rows` with what the model in `context` predicts. Raises CancelledError, GenerationError, UsageError."""
    with told_as(UsageError, "the reference's log probabilities cannot be written"):
        for token, row in _predictions(context, text, tell, cancel):
            rows.likeliest.append(int(row.argmax()))
            rows.losses.append(-float(row[token]))
            rows.file.write(np.maximum(row, SMALLEST).astype(np.float16).tobytes())
        rows.file.flush()


def compare_with(rows: ReferenceRows, context: Context, text: Windows, tell: Told, cancel: CancelFlag) -> Quality:
    """Return the quality of the model in `context` over the text of `rows`. Raises CancelledError, GenerationError."""
    divergences: list[float] = []
    losses: list[float] = []
    same = 0
    reference = zip(rows, rows.likeliest, strict=True)
    for (token, row), (expected, likeliest) in zip(_predictions(context, text, tell, cancel), reference, strict=False):
        divergences.append(divergence(expected, row))
        losses.append(-float(row[token]))
        same += int(row.argmax()) == likeliest
    n = len(losses)
    return Quality(
        n,
        *exp_of_mean(losses),
        *exp_of_mean(np.subtract(losses, rows.losses).tolist()),
        kl=float(np.mean(divergences)),
        kl_error=float(np.std(divergences) / np.sqrt(n - 1)),
        kl_median=float(np.median(divergences)),
        kl_99=float(np.quantile(divergences, 0.99)),
        same_top=same / n,
    )


def _predictions(
    context: Context, text: Windows, tell: Told, cancel: CancelFlag
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield each token that counts with the log-probabilities there, and report how many windows are done. Raises
    CancelledError, GenerationError."""
    context.watch(cancel)
    for done, window in enumerate(text):
        tell(done, len(text))
        yield from log_probabilities(context, window)
    tell(len(text), len(text))


def divergence(reference: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the sum of p (log p - log q) over the vocabulary, in nats; both are log-probabilities."""
    p = np.exp(reference)
    with np.errstate(invalid="ignore"):
        return float(np.sum(p * (reference - other), where=p > 0))


def exp_of_mean(losses: Sequence[float]) -> tuple[float, float]:
    """Return exp of the mean, and its standard error."""
    with np.errstate(over="ignore", invalid="ignore"):
        value = np.exp(np.mean(losses))
        return float(value), float(value * np.std(losses) / np.sqrt(len(losses) - 1))


def _size_bytes(n_vocab: int, size: int, n_windows: int) -> int:
    return 2 * n_vocab * len(counted(size)) * n_windows


# --- windows of a text ------------------------------------------------------------------------------------------------


def default_text() -> str:
    """Return the default text: the prompts and answers of all suites, interleaved. They are 94 kB of prose, code and
    translations that were written for this project, so no model was trained on them before."""
    items = shipped()
    return "\n\n".join(f"{item.prompt}\n\n{item.reference}" for item in sample(items, len(items)))


def read_text(file: Path) -> str:
    """Read a text as llama.cpp does: without one newline at its end. Raises UsageError."""
    try:
        with told_as(UsageError, f"cannot read the text in {file}"):
            return decoded(file.read_bytes()).removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text", why=f"byte {error.start + 1} is invalid") from error


def windows(model: LlamaModel, text: str, size: int, limit: int | None = None) -> list[list[int]]:
    """Return the first `limit` whole windows of `size` tokens. Raises UsageError for a text that is too short."""
    tokens = model.tokenize(text, add_special=True)
    if not text or len(tokens) < size:
        raise UsageError(
            "the text is empty" if not text else "the text is shorter than one window",
            why="" if not text else f"it has {len(tokens)} tokens, a window {size}",
            hint="use a longer text (--text)",
        )
    found = [tokens[start : start + size] for start in range(0, len(tokens) - size + 1, size)][:limit]
    if model.adds_bos and model.bos is not None:
        for window in found:
            window[0] = model.bos
    return found


def counted(size: int) -> range:
    """Return the positions of a window at which the prediction of the next token counts."""
    return range(size // 2, size - 1)


@contextmanager
def opened(
    path: Path,
    settings: LoadSettings,
    size: int,
    note: Callable[[str], None],
    progress: Callable[[float], None],
) -> Iterator[Context]:
    """Open a model with a context of one window. Raises ModelFileError, OutOfMemoryError, UsageError."""
    plan = replace(base_plan(check_model(path), settings, size), max_outputs=ROWS)
    plan = fitted(plan, note, settings.offload[0])
    with open_model(plan, note, progress) as model, Context(model, plan) as context:
        yield context


def log_probabilities(context: Context, window: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield the next token and the log-probabilities float64[V] of all tokens, at each position that counts.

    Raises CancelledError, GenerationError.
    """
    context.forget(0)
    places = counted(len(window))
    for start in range(0, places.start, context.n_batch):
        _decode(context, window, start, min(start + context.n_batch, places.start), wanted=False)
    for start in range(places.start, places.stop, ROWS):
        stop = min(start + ROWS, places.stop)
        _decode(context, window, start, stop, wanted=True)
        for place in range(start, stop):
            yield window[place + 1], log_softmax(context.logits(place - start))


def log_softmax(row: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the logarithm of the softmax of a row. Raises GenerationError if the row contains a NaN."""
    logits = row.astype(np.float64)
    with np.errstate(invalid="ignore"):
        logits -= logits.max()
        logits -= np.log(np.exp(logits).sum())
    if np.isnan(logits[0]):  # one anywhere makes all of them one
        raise GenerationError("the model's logits are not numbers", hint="the file may be damaged: download it again")
    return logits


def _decode(context: Context, window: Sequence[int], start: int, stop: int, *, wanted: bool) -> None:
    n = stop - start
    context.decode(window[start:stop], range(start, stop), [(0,)] * n, [wanted] * n)
