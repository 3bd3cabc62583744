"""Many prompts as one job: rows of JSON in, rows of JSON out, in the order in which they finish."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from edgespec.cancel import CancelFlag
from edgespec.errors import UsageError
from edgespec.settings import Request

if TYPE_CHECKING:
    from edgespec.llm.model import Model
    from edgespec.requests.openai import TokenBytes


def answer_rows(
    llm: Model,
    rows: Iterable[object],
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
    **settings: object,
) -> Generator[dict[str, object], None, None]:
    """Answer rows, and yield the results as they finish, or in the order of the rows with `ordered`.

    docs/batch.md describes rows and results. `settings` are defaults of rows, by the names of `Request` and
    `SamplingSettings`. Each row's seed is computed from `seed`; `n` is the number of samples per row. With `chat`,
    prompts are sent as user messages. `model` is the name in results. `token_bytes` returns the bytes of a token id.
    Raises UsageError for invalid settings, and the errors of the model.
    """
    from edgespec.batch.job import Job
    from edgespec.batch.reading import Defaults, RowReader
    from edgespec.batch.results import Results
    from edgespec.core.sampling import SamplingSettings
    from edgespec.requests.bad_input import BadInputError
    from edgespec.requests.row_settings import checked_n, request_fields

    if isinstance(rows, Mapping | str | bytes):
        raise UsageError("rows must be a list or another iterable of rows")
    try:
        request, n = Request(**request_fields(settings, SamplingSettings())), checked_n(n)
    except BadInputError as error:
        raise UsageError(str(error)) from error
    llm.check_settings(request)
    reader = RowReader(Defaults(request, seed, chat, system, n))
    job = Job(
        llm,
        reader.from_values(rows),
        Results(model, token_bytes, timings),
        cancel or CancelFlag(),
        ordered=ordered,
    )

    def results() -> Generator[dict[str, object], None, None]:
        with closing(job.run()) as made:
            for result in made:
                yield result.row

    return results()
