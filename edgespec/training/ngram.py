"""A table of likely successors for token recycling, made from a target's answers. PyTorch is not needed.

The probabilities of the target's next tokens are averaged over all places with the same last two tokens, and over all
with the same last token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.core.index.successor_table import MOST, MOST_CONTEXTS, NONE, Context, SuccessorTable, successors_in
from edgespec.core.sampling import FloatRow
from edgespec.datastore.successor_store import table_bytes
from edgespec.errors import EdgespecError, UsageError, told_as
from edgespec.files.paths import write_whole
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import target_print
from edgespec.llama.context import Context as ModelContext
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel
from edgespec.training.features import N_BATCH, TrainingRow, log_sum, n_learned, read_rows
from edgespec.training.job import LICENCE, Acceptance, Listener, Progress, Settings, TrainedHead

MOST_AVERAGED = 8 * MOST_CONTEXTS  # contexts in memory; the rarest leave
DRAFTED = 3  # tokens of the drafts that are measured


class Averages:
    """The number of places with a context, and the sum of the probabilities of each next token there."""

    def __init__(self) -> None:
        self._counts: dict[Context, int] = {}
        self._sums: dict[Context, dict[int, float]] = {}

    def add(self, context: Context, probabilities: dict[int, float]) -> None:
        self._counts[context] = self._counts.get(context, 0) + 1
        sums = self._sums.setdefault(context, {})
        for token, probability in probabilities.items():
            sums[token] = sums.get(token, 0.0) + probability
        if len(self._counts) > MOST_AVERAGED:  # a context takes about a kilobyte
            for rare in sorted(self._counts, key=self._counts.__getitem__)[: MOST_AVERAGED // 2]:
                del self._counts[rare], self._sums[rare]

    def add_place(self, before: int, token: int, probabilities: dict[int, float]) -> None:
        """Add a place to the contexts of its last two tokens and of its last one."""
        self.add((before, token), probabilities)
        self.add((NONE, token), probabilities)

    def table(self) -> SuccessorTable:
        """Return the averages of the contexts that gain most, these last."""
        table = SuccessorTable()
        gains = {context: self._gain(context) for context in self._sums}
        for context in sorted(gains, key=gains.__getitem__)[-MOST_CONTEXTS:]:
            sums = self._sums[context]
            best = sorted(sums, key=sums.__getitem__, reverse=True)[:MOST]
            shares = np.array([sums[token] for token in best], np.float32) / self._counts[context]
            table.put(context, (np.array(best, np.int32), np.log(shares)))
        return table

    def _gain(self, context: Context) -> float:
        """Return the expected number of tokens that the likeliest successor of a context predicts here, less those
        that the likeliest successor of the last token alone would predict."""
        before, token = context
        sums, shorter = self._sums[context], self._sums.get((NONE, token), {})
        known = 0.0 if before == NONE or not shorter else sums.get(max(shorter, key=shorter.__getitem__), 0.0)
        return max(sums.values()) - known


def write_table(model: LlamaModel, folder: Path, settings: Settings, listener: Listener) -> TrainedHead | None:
    """Let the target read its answers in `folder`, and write the table. Return None if the listener cancelled it.

    Raises UsageError if there are no answers, EdgespecError if the file cannot be written.
    """
    rows = read_rows(folder)
    learned = [row for row in rows if not row.is_held_out]
    if not learned:
        raise UsageError(f"there is nothing to learn from in {folder}")
    averages, n_ctx = Averages(), max(len(row.prompt) + len(row.answer) for row in learned)
    with ModelContext(
        model, ContextParams(n_ctx=n_ctx, max_outputs=N_BATCH, threads=settings.threads, n_batch=N_BATCH)
    ) as context:
        for number, row in enumerate(learned):
            if listener.cancel.is_set():
                return None
            before, token = (NONE, *row.prompt)[-2:]
            for following, logits in zip(row.answer, _logits(context, row), strict=True):
                ids, best = successors_in(logits)
                likely = dict(zip(ids.tolist(), np.exp(best - log_sum(logits)).tolist(), strict=True))
                averages.add_place(before, token, likely)
                before, token = token, following
            listener.progress("reading the answers", (number + 1) / len(learned))
    tokens = n_learned(rows)
    accepted = save_table(averages, settings.out, model.header, rows, tokens)
    progress = Progress(tokens=tokens, acceptance=Acceptance(greedy=accepted))
    return TrainedHead(settings.out.stat().st_size, len(rows), tokens, progress)


def save_table(averages: Averages, file: Path, target: Header, rows: Sequence[TrainingRow], tokens: int) -> list[float]:
    """Write a table that was made from the target's answers, and return its `acceptance` in `rows`.

    `tokens` is the number of tokens of these answers.

    Raises EdgespecError if the file cannot be written.
    """
    table = averages.table()
    accepted = acceptance(table, [row for row in rows if row.is_held_out and row.temperature == 0])
    about: dict[str, Any] = {"tokens": tokens, "acceptance": accepted, "licence": LICENCE}
    with told_as(EdgespecError, f"{file} cannot be written"):
        write_whole(file, table_bytes(target.path, target_print(target), table.state(), **about))
    return accepted


def _logits(context: ModelContext, row: TrainingRow) -> Iterator[FloatRow]:
    """Yield the logits for each token of an answer."""
    tokens = row.prompt + row.answer[:-1]
    context.forget(0)
    for start in range(0, len(tokens), N_BATCH):
        part = tokens[start : start + N_BATCH]
        places = range(start, start + len(part))
        context.decode(part, places, [(0,)] * len(part), [True] * len(part))
        yield from (context.logits(place - start) for place in places if place >= len(row.prompt) - 1)


def acceptance(table: SuccessorTable, rows: list[TrainingRow]) -> list[float]:
    """Return the shares of drafts from the table alone whose first 1, 2, ... tokens all are those of greedy answers."""
    right, drafts = np.zeros(DRAFTED), 0
    for row in rows:
        tokens = [NONE, *row.prompt, *row.answer]
        for place in range(1 + len(row.prompt), len(tokens) - DRAFTED):
            before, token = tokens[place - 2 : place]
            for length in range(DRAFTED):
                found = table.get(before, token) or table.get(NONE, token)
                if found is None or found[0][0] != tokens[place + length]:
                    break
                before, token = token, tokens[place + length]
                right[length] += 1
            drafts += 1
    return [round(float(share), 4) for share in right / max(1, drafts)]
