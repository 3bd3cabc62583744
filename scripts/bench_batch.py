"""Measures batches: what a row costs beside the model, and how many rows a second a model answers.

    .venv/bin/python scripts/bench_batch.py rows                        # no model needed
    .venv/bin/python scripts/bench_batch.py speed -m target.gguf -md draft.gguf

rows: 100,000 rows through reading, the loop and writing, with an engine that answers at once: microseconds a row,
without those of the engine, and how the memory grows. speed: rows of 32 tokens, answers of 64, at several numbers of
answers at a time, with and without speculation, in turns; the medians of rows per second, of the gain over one answer
at a time, and of the gain by speculation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from fake_stream import FakeStream  # noqa: E402

from edgespec.batch.job import Job  # noqa: E402
from edgespec.batch.lines import read_lines  # noqa: E402
from edgespec.batch.output import OutputFile  # noqa: E402
from edgespec.batch.reading import Defaults, RowReader  # noqa: E402
from edgespec.batch.results import Results  # noqa: E402
from edgespec.bench.suites import shipped  # noqa: E402
from edgespec.cancel import CancelFlag  # noqa: E402
from edgespec.errors import EdgespecError  # noqa: E402
from edgespec.runtime.worker import Worker  # noqa: E402
from edgespec.settings import LoadSettings, Request  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("what", choices=["rows", "speed"])
    parser.add_argument("--rows", type=int, default=0, help="100,000 for rows; for speed 4 for each answer at a time")
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("-md", "--draft-model")
    parser.add_argument("-t", "--threads", type=int, default=0)
    parser.add_argument("-c", "--ctx-size", type=int, default=512)
    parser.add_argument("--parallel", default="1,2,4,8,16")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--mixed", action="store_true", help="answers of 24 to 104 tokens, 64 in the mean")
    options = parser.parse_args()
    if options.what == "rows":
        measure_rows(options.rows or 100_000)
    else:
        measure_speed(options)


# --- beside the model -------------------------------------------------------------------------------------------------


def measure_rows(n_rows: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "in.jsonl").open("w", encoding="utf-8") as file:
            for number in range(n_rows):
                file.write(json.dumps({"id": f"row-{number}", "prompt": f"Summarise text {number}. " * 8}) + "\n")
        engine_us = engine_alone(n_rows)
        for kind in ("new", "done already", "ordered"):
            started_s, before = perf_counter(), psutil.Process().memory_info().rss
            peak = run(folder, "other.jsonl" if kind == "ordered" else "out.jsonl", ordered=kind == "ordered")
            per_row_us = (perf_counter() - started_s) / n_rows * 1e6 - (0 if kind == "done already" else engine_us)
            print(f"{kind:12}  {per_row_us:6.1f} us a row  {(peak - before) / 1e6:+7.1f} MB")


def engine_alone(n_rows: int) -> float:
    """Microseconds that the engine itself takes for a row."""
    started_s = perf_counter()
    for _ in FakeStream(room=8).stream(Request("go", seed=number, max_tokens=1) for number in range(n_rows)):
        pass
    return (perf_counter() - started_s) / n_rows * 1e6


def run(folder: Path, name: str, *, ordered: bool) -> int:
    """The whole way of each row; the most memory on it, in bytes."""
    peak, process = 0, psutil.Process()
    with (folder / "in.jsonl").open("rb") as data, OutputFile(folder / name) as output:
        seed = output.resume({}, 1)
        output.begin()
        defaults = Defaults(Request(max_tokens=1), seed, chat=False)
        rows = RowReader(defaults, output.done).from_lines(read_lines(data))
        engine = FakeStream(room=8, keeps_requests=False)
        job = Job(engine, rows, Results("fake", lambda token: b""), CancelFlag(), ordered=ordered)
        for number, result in enumerate(job.run()):
            output.write(result.row)
            if number % 1000 == 0:
                peak = max(peak, process.memory_info().rss)
    return max(peak, process.memory_info().rss)


# --- with a model -----------------------------------------------------------------------------------------------------


def measure_speed(options: argparse.Namespace) -> None:
    widths = [int(width) for width in options.parallel.split(",")]
    rates: dict[tuple[int, str], list[float]] = {(width, mode): [] for width in widths for mode in ("none", "auto")}
    prompts: list[str] = []
    for turn in range(options.repeat):
        for width, mode in rates:
            settings = LoadSettings(
                options.model,
                draft_model=options.draft_model if mode == "auto" else None,
                spec_type=mode,
                store=False,
                threads=options.threads,
                ctx_size=options.ctx_size,
                sequences=width,
            )
            with Worker(settings) as worker:
                prompts = prompts or list(prompts_of(worker, 32))
                rows = list(islice(cycle(prompts), options.rows or max(8, 4 * width)))
                rates[width, mode].append(rows_per_s(worker, rows, mixed=options.mixed))
            print(f"turn {turn + 1}, {mode} x {width}: {rates[width, mode][-1]:.2f} rows/s", file=sys.stderr)
    print("at a time  rows/s    gain  drafting   gain  by drafting")
    for width in widths:
        plain, speculating = rates[width, "none"], rates[width, "auto"]
        print(
            f"{width:9}{statistics.median(plain):8.2f}{ratio(plain, rates[widths[0], 'none']):7.2f}x"
            f"{statistics.median(speculating):10.2f}{ratio(speculating, rates[widths[0], 'auto']):6.2f}x"
            f"{ratio(speculating, plain):12.2f}x"
        )


def ratio(rates: list[float], to: list[float]) -> float:
    """The median of the turns' ratios."""
    return statistics.median(rate / other for rate, other in zip(rates, to, strict=True))


def prompts_of(worker: Worker, n_tokens: int) -> Iterator[str]:
    """The beginnings of the prompts that come with edgespec, of about so many tokens."""
    for item in shipped():
        ids = worker.tokenize(Request(item.prompt))
        if len(ids) >= n_tokens:
            yield "".join(worker.token_text(token) for token in ids[1:n_tokens])


def rows_per_s(worker: Worker, prompts: list[str], *, mixed: bool) -> float:
    requests = (
        Request(prompt, seed=number, max_tokens=24 + 16 * (5 * number % 6) if mixed else 64, ignore_eos=True)
        for number, prompt in enumerate(prompts)
    )
    started_s = perf_counter()
    with closing(worker.stream(requests)) as events:
        for _, event in events:
            if isinstance(event, EdgespecError):
                raise event
    return len(prompts) / (perf_counter() - started_s)


if __name__ == "__main__":
    main()
