"""From the events of a row's answers to its result, a row of the output; and the progress and speed of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from edgespec.batch.input import LINE
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, UsageError
from edgespec.events import TokenEvent, ended_json
from edgespec.requests import openai
from edgespec.requests.openai import TokenBytes
from edgespec.requests.row import BadRow, Id, Row, Sample, finite
from edgespec.settings import shown
from edgespec.text.figures import clock, rate


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row of the output as JSON, with the statistics of its samples, or which row failed and why."""

    row: dict[str, Any]
    stats: tuple[Stats, ...] = ()
    failure: str = ""
    is_cut_off: bool = False  # a limit ended a sample before it satisfied its constraint


@dataclass(frozen=True, slots=True)
class Results:
    """Makes results.

    Attributes:
        model: the name of the model in OpenAI's objects.
        timings: results contain times, and so differ between runs.
        numbered: results end with the number of their input line, for `merge`.
    """

    model: str
    token_bytes: TokenBytes
    timings: bool = False
    numbered: bool = False

    def answered(self, row: Row, answers: Sequence[Sample]) -> RowResult:
        stats = tuple(answer.stats for answer in answers)
        if row.form == "own":
            made = self._own(row, answers)
        else:
            timings = [answer.stats.as_json()["timings"] for answer in answers] if self.timings else []
            made = openai.answered(row, answers, model=self.model, token_bytes=self.token_bytes, timings=timings)
        return RowResult(
            self._numbered(made, row), stats=stats, is_cut_off=any(is_cut_off(row, answer) for answer in answers)
        )

    def refused(self, row: BadRow) -> RowResult:
        """Return the result of an invalid row."""
        why = f"line {row.line} {row.why[3:]}" if row.why.startswith("it ") else f"line {row.line}: {row.why}"
        return RowResult(self._numbered(_failed(row, why, is_request=True) | {"line": row.line}, row), failure=why)

    def failed(self, row: Row, error: EdgespecError) -> RowResult:
        """Return the result of a row that the model could not answer."""
        why, is_request = error.line, isinstance(error, UsageError)
        failure = f"{shown(row.id)} (line {row.line}): {why}"
        return RowResult(self._numbered(_failed(row, why, is_request=is_request), row), failure=failure)

    def _numbered(self, made: dict[str, object], row: Row | BadRow) -> dict[str, object]:
        return {**made, LINE: row.line} if self.numbered else made

    def _own(self, row: Row, answers: Sequence[Sample]) -> dict[str, object]:
        parts = [self._sample(row, answer) for answer in answers]
        samples = [{"index": index, **part} for index, part in enumerate(parts)]
        return {
            "id": row.id,
            **(parts[0] if row.n == 1 else {"choices": samples}),
            "seed": row.request.seed,
            "prompt_tokens": answers[0].stats.prompt_tokens,
            "tokens": sum(answer.n_tokens for answer in answers),
            "digest": row.mark,
        }

    def _sample(self, row: Row, answer: Sample) -> dict[str, object]:
        part: dict[str, object] = {"content": answer.content, **ended_json(answer.finish_reason)}
        if is_cut_off(row, answer):
            part["cut_off"] = True
        if row.request.logprobs is not None:
            part["logprobs"] = [self._token(event) for event in answer.tokens]
        return part | (answer.stats.as_json() if self.timings else {})

    def _token(self, event: TokenEvent) -> dict[str, object]:
        top = [
            {"id": token, "text": self._text(token), "logprob": finite(logprob)}
            for token, logprob in event.top_logprobs
        ]
        return {"id": event.id, "text": event.text, "logprob": finite(event.logprob), "top_logprobs": top}

    def _text(self, token: int) -> str:
        return self.token_bytes(token).decode("utf-8", "replace")


def is_cut_off(row: Row, answer: Sample) -> bool:
    """True if a limit ended a sample that must match a schema, a grammar or a regular expression."""
    return row.request.constraint is not None and answer.finish_reason == "length"


def id_in(row: Mapping[str, object]) -> Id:
    """Return the id of a row of the output. Raises ValueError."""
    id = row.get("custom_id") if "custom_id" in row else row.get("id")
    if isinstance(id, str | int):
        return id
    raise ValueError("it has no id")


def mark_in(row: Mapping[str, object]) -> str:
    """Return the mark of the row that an output row answers; empty for an error."""
    if is_failure(row):
        return ""
    return openai.mark_in(row) if "custom_id" in row else str(row.get("digest") or "")


def is_of_bad_line(row: Mapping[str, object]) -> bool:
    """True if an output row reports a bad line of the input."""
    return is_failure(row) and isinstance(row.get("line"), int)


def is_failure(row: Mapping[str, object]) -> bool:
    """True if an output row is an error."""
    return row.get("error") is not None or openai.is_refusal(row)


def _failed(row: Row | BadRow, why: str, *, is_request: bool) -> dict[str, object]:
    if row.form != "own":
        return openai.failed(row.id, why, is_request=is_request)
    return {"id": row.id, "error": {"message": why, "type": openai.INVALID if is_request else openai.FAILED}}


class Meter:
    """Counts rows and tokens since `start`. `n_before` rows existed already; `n_all` is None if it is unknown."""

    def __init__(self, n_before: int, n_all: int | None = None) -> None:
        self.n_rows = self.n_failed = self.n_cut_off = self.n_tokens = 0
        self.first_failure = ""
        self._n_before, self._n_all = n_before, n_all
        self._n_generated = self._n_rounds = 0
        self._started_s = perf_counter()

    def start(self) -> None:
        self._started_s = perf_counter()

    def hear(self, event: TokenEvent | EdgespecError) -> None:
        self.n_tokens += isinstance(event, TokenEvent) and not event.is_last and (event.id >= 0 or event.text != "")

    def drop(self, n_tokens: int) -> None:
        """Leave out the tokens of an answer that was lost, and begins anew."""
        self.n_tokens -= n_tokens

    def add(self, result: RowResult) -> None:
        self.n_rows += 1
        self.n_failed += bool(result.failure)
        self.n_cut_off += result.is_cut_off
        self.first_failure = self.first_failure or result.failure
        for stats in result.stats:
            self._n_generated += stats.generated_tokens
            self._n_rounds += stats.rounds

    def progress(self) -> list[str]:
        """Return the number of rows, the speed, and the time left."""
        elapsed_s, n_done = self._elapsed_s, self._n_before + self.n_rows
        if self._n_all is None:
            return [f"{n_done:,} rows", *self._speed(elapsed_s)]
        left = [f"{clock((self._n_all - n_done) * elapsed_s / self.n_rows)} left"] if self.n_rows else []
        return [f"{n_done:,} of {self._n_all:,} rows", *self._speed(elapsed_s), *left]

    def summary(self) -> list[str]:
        """Return the number of rows and tokens, and the speed."""
        elapsed_s = self._elapsed_s
        rows = "1 row" if self.n_rows == 1 else f"{self.n_rows:,} rows"
        parts = [rows, f"{self.n_tokens:,} tokens in {elapsed_s:.1f} s", *self._speed(elapsed_s)]
        rounds = [f"{self._n_generated / self._n_rounds:.1f} tokens per step"] if self._n_rounds else []
        return [*parts, *rounds]

    @property
    def _elapsed_s(self) -> float:
        return max(perf_counter() - self._started_s, 1e-6)

    def _speed(self, elapsed_s: float) -> list[str]:
        failed = [f"{self.n_failed:,} failed"] if self.n_failed else []
        return [*failed, f"{rate(self.n_rows / elapsed_s)} rows/s", f"{rate(self.n_tokens / elapsed_s)} tok/s"]
