"""The progress and the speed of a job, for the user."""

from __future__ import annotations

from time import perf_counter

from edgespec.batch.results import Result
from edgespec.errors import EdgespecError
from edgespec.events import TokenEvent
from edgespec.text.figures import clock, rate


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

    def add(self, result: Result) -> None:
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
