"""Many prompts as one job: rows of JSON in, rows of JSON out, in whatever order they are finished."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from edgespec.cancel import CancelFlag
from edgespec.errors import UsageError
from edgespec.settings import Request

if TYPE_CHECKING:
    from edgespec.batch.job import Engine
    from edgespec.batch.openai import TokenBytes


def answer_rows(
    engine: Engine,
    rows: Iterable[Any],
    *,
    model: str,
    token_bytes: TokenBytes,
    chat: bool,
    system: str = "",
    seed: int = 0,
    n: int = 1,
    ordered: bool = False,
    timings: bool = False,
    cancel: CancelFlag | None = None,
    **settings: Any,
) -> Generator[dict[str, Any], None, None]:
    """The results of rows as they finish, or in the order of the rows with `ordered`.

    Rows and results are described as lines in docs/batch.md. `settings` are by the names of `Request` and
    `SamplingSettings`, as defaults of rows; `seed` is the base of the rows' seeds, `n` the number of samples per row,
    `chat` says whether prompts are user messages, `model` is the name to report, `token_bytes` returns the bytes of a
    token id. Raises UsageError for invalid settings, and what the engine raises.
    """
    from edgespec.batch.arriving import Polled
    from edgespec.batch.job import Job
    from edgespec.batch.reading import Defaults, RowReader
    from edgespec.batch.results import Results
    from edgespec.batch.row import BadRowError
    from edgespec.batch.row_settings import checked_n, request_fields
    from edgespec.core.sampling import SamplingSettings

    if isinstance(rows, Mapping | str | bytes):
        raise UsageError("rows must be a list or another iterable of rows")
    try:
        request, n = Request(**request_fields(settings, SamplingSettings())), checked_n(n)
    except BadRowError as error:
        raise UsageError(str(error)) from error
    engine.check_settings(request)
    reader = RowReader(Defaults(request, seed, chat, system, n))
    job = Job(
        engine,
        Polled(reader.from_values(rows)),
        Results(model, token_bytes, timings),
        cancel or CancelFlag(),
        ordered=ordered,
    )

    def results() -> Generator[dict[str, Any], None, None]:
        with closing(job.run()) as made:
            for result in made:
                yield result.row

    return results()
