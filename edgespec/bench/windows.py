"""Split a text into windows of tokens, and compute a model's predictions for the second half of each window.

This follows llama.cpp's llama-perplexity (tools/perplexity/perplexity.cpp): whole windows one after another, each with
BOS as its first token if the model uses one. Only predictions in the second half of a window count, so each has at
least half a window of context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.bench.suites import sample, shipped
from edgespec.cancel import CancelFlag
from edgespec.errors import GenerationError, UsageError, told_as
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.models.memory.estimate import Plan
from edgespec.runtime.fitting import fitted, open_model
from edgespec.settings import LoadSettings

ROWS = 64  # rows of V floats that llama.cpp holds at a time

Windows = Sequence[Sequence[int]]


def default_text() -> str:
    """Return the default text: the prompts and answers of all suites, interleaved. They are 94 kB of prose, code and
    translations that were written for this project, so no model was trained on them before."""
    items = shipped()
    return "\n\n".join(f"{item.prompt}\n\n{item.reference}" for item in sample(items, len(items)))


def read_text(file: Path) -> str:
    """Read a text as llama.cpp does: without one newline at its end. Raises UsageError."""
    try:
        with told_as(UsageError, f"cannot read the text in {file}"):
            return file.read_bytes().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text", why=f"byte {error.start + 1} is invalid") from error


def windows(model: Model, text: str, size: int, limit: int | None = None) -> list[list[int]]:
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
    plan = Plan(
        check_model(path),
        n_ctx=size,
        max_outputs=ROWS,
        cache_type_k=settings.cache_type_k,
        cache_type_v=settings.cache_type_v,
        flash_attention=settings.flash_attention,
    )
    plan = fitted(plan, note, settings.gpu_layers)
    with (
        open_model(plan, note, progress) as model,
        Context(model, threads=settings.threads, threads_batch=settings.threads_batch, **plan.context) as context,
    ):
        yield context


@contextmanager
def watching(context: Context, cancel: CancelFlag) -> Iterator[None]:
    """Let `cancel` stop decodes within this block."""
    context.watch(cancel)
    try:
        yield
    finally:
        context.watch(None)


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
