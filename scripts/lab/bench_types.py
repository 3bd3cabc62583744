"""Measure the passes of a model in many quantisations, with the kernels of edgespec and of llama.cpp.

    python scripts/lab/bench_types.py model.F16.gguf
    python scripts/lab/bench_types.py model.F16.gguf --types Q4_K_M,Q8_0 --depth 2000 -t 4

    python scripts/lab/bench_types.py model.F16.gguf --beside "ik=ik_llama.cpp/build/bin/llama-bench -rtr 1"

The types of weights are made from the model in a temporary folder, one at a time. All passes of a type are interleaved
in one process. The table on stdout, in Markdown, has the time of a pass over one token, the passes over several tokens
in units of it, and the time of reading a prompt, all after `--depth` tokens. "llama.cpp" is the same build without
edgespec's kernels. `--beside` runs other programs before and after, each the `llama-bench` of its build; the better of
both runs counts. They compute the logits of the last token of a pass only, and without their option --n-depth the cache
is empty. "memory" is the time in which all threads read as many bytes as the file has. `--plot` makes a chart of the
passes over one token and over eight.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from edgespec.bench.measure import machine
from edgespec.bench.report import COLOURS, check_plot, picture
from edgespec.errors import UsageError
from edgespec.llama import kernels
from edgespec.llama.context import Context
from edgespec.llama.quantize import quantize
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings

TYPES = "F16,BF16,Q8_0,Q6_K,Q5_K_M,Q4_K_M,Q3_K_M,Q2_K,Q5_0,Q5_1,Q4_0,Q4_1,IQ4_NL,IQ4_XS"
WIDTHS = (1, 2, 4, 8, 16)
PLOTTED = (1, 8)
SETTINGS = ("edgespec", "llama.cpp")

Row = dict[str, list[float]]
"""By name, the seconds of passes of the widths that are drawn; of "memory" one value."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the passes of a model in many quantisations")
    parser.add_argument("model", type=Path, help="a GGUF file in F16, BF16 or F32")
    parser.add_argument("--types", default=TYPES, help="separated by commas")
    parser.add_argument("--depth", type=int, default=128, help="tokens in the cache")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("-t", type=int, default=os.cpu_count(), help="threads")
    parser.add_argument(
        "--beside", action="append", default=[], metavar="NAME=COMMAND", help="a llama-bench; may be repeated"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture, SVG or PNG (needs matplotlib)")
    args = parser.parse_args()
    if args.plot:
        try:
            check_plot(args.plot)
        except UsageError as error:
            parser.error(str(error))
    logging.disable(logging.WARNING)
    others = {name: shlex.split(command) for name, _, command in (each.partition("=") for each in args.beside)}
    names = [*SETTINGS, *others]
    about = (machine()["cpu"], args.model.name, f"depth {args.depth}", f"{args.t} threads")
    rows = dict[str, Row]()
    print(", ".join((*about, kernels.described_build())) + "\n")
    speed = memory_speed(args.t)
    heads = [f"{name} {width}" for name in names for width in WIDTHS[1:]]
    columns = ["type", "memory, ms", *(f"{name} 1, ms" for name in names), *heads]
    columns += [f"{name} prompt, ms" for name in names]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for type in args.types.split(","):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{type}.gguf"
            quantize(args.model, file, type, again=True)
            before = {name: bench(program, file, args) for name, program in others.items()}
            limit_s = file.stat().st_size / speed
            passes, prompts = measured(file, args)
            for name, program in others.items():
                after = bench(program, file, args)
                passes |= {(name, width): min(before[name][width], after[width]) for width in WIDTHS}
                prompts[name] = min(before[name][args.prompt], after[args.prompt])
        shares = [passes[name, width] / passes[name, 1] for name in names for width in WIDTHS[1:]]
        cells = [
            f"{1000 * limit_s:.1f}",
            *(f"{1000 * passes[name, 1]:.1f}" for name in names),
            *(f"{share:.2f}" for share in shares),
            *(f"{1000 * prompts[name]:.0f}" for name in names),
        ]
        print(f"| {type} | {' | '.join(cells)} |", flush=True)
        rows[type] = {"memory": [limit_s]} | {name: [passes[name, width] for width in PLOTTED] for name in names}
        if args.plot:
            args.plot.write_bytes(plot(rows, ", ".join(about), args.plot))


def memory_speed(threads: int) -> float:
    """Return the most bytes a second that this number of threads read together."""
    parts = np.split(np.ones((threads, 1 << 26), np.float32), threads)
    best_s = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(8):
            started_s = perf_counter()
            list(pool.map(np.max, parts))
            best_s = min(best_s, perf_counter() - started_s)
    return threads * parts[0].nbytes / best_s


def bench(program: list[str], file: Path, args: argparse.Namespace) -> Mapping[int, float]:
    """Return the seconds of passes by width, and of a prompt, as a llama-bench measures them."""
    widths = [*WIDTHS, args.prompt]
    command = [*program, "-m", str(file), "-t", str(args.t), "-n", "0", "-p", ",".join(map(str, widths))]
    command += ["-r", "5", "-fa", "1", "-ngl", "0", "-o", "json"]
    if "--n-depth" in subprocess.run([*program, "--help"], capture_output=True, text=True, check=False).stdout:
        command += ["-d", str(args.depth)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return {row["n_prompt"]: median(row["samples_ns"]) / 1e9 for row in json.loads(run.stdout)}


def measured(file: Path, args: argparse.Namespace) -> tuple[dict[tuple[str, int], float], dict[str, float]]:
    """Return the median seconds of passes by setting and width, and of reading a prompt by setting."""
    depth, prompt = args.depth, args.prompt
    passes = {(name, width): list[float]() for name in SETTINGS for width in WIDTHS}
    prompts = {name: list[float]() for name in SETTINGS}
    with ExitStack() as stack:
        contexts = {}
        for name in SETTINGS:
            settings = LoadSettings(
                str(file), spec_type="lookup", spec_draft_n_max=15, ctx_size=depth + prompt + 64, threads=args.t,
                exact=name == "edgespec", store=False, gpu_layers=0,
            )  # fmt: skip
            with kernels_of(name):
                contexts[name] = stack.enter_context(Runtime(settings)).context
        for turn in range(args.repeat + 1):
            for name, context in contexts.items():
                with kernels_of(name):
                    context.truncate(0, depth)
                    read(context, context.length(0), depth)
                    seconds = read(context, depth, depth + prompt)
                    if turn:
                        prompts[name].append(seconds)
            for width in WIDTHS:
                for name, context in contexts.items():
                    for _ in range(2):  # the first pass of a width also builds its graph
                        context.truncate(0, depth)
                        with kernels_of(name):
                            started_s = perf_counter()
                            context.decode_filler(depth, [True] * width)
                    if turn:
                        passes[name, width].append(perf_counter() - started_s)
    return {key: median(times) for key, times in passes.items()}, {key: median(times) for key, times in prompts.items()}


def kernels_of(name: str) -> AbstractContextManager[None]:
    return kernels.kernels_of_llama_cpp() if name == "llama.cpp" else nullcontext()


def read(context: Context, start: int, end: int) -> float:
    """Return the seconds of reading tokens without their logits."""
    started_s = perf_counter()
    for at in range(start, end, context.n_batch):
        context.decode_filler(at, [False] * min(context.n_batch, end - at))
    return perf_counter() - started_s


def plot(rows: Mapping[str, Row], title: str, path: Path) -> bytes:
    """Draw the passes over one token as bars, those over eight as marks, and the limit of memory as a line."""
    from matplotlib.figure import Figure

    names = [name for name in next(iter(rows.values())) if name != "memory"]
    figure = Figure(figsize=(max(8, 2 + 0.8 * len(rows)), 4), layout="constrained")
    axes, share = figure.subplots(), 0.8 / len(names)
    for number, name in enumerate(names):
        places = [place + share * (number + 0.5) - 0.4 for place in range(len(rows))]
        one, eight = ([1000 * row[name][at] for row in rows.values()] for at in range(len(PLOTTED)))
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(places, one, share, color=colour, label=f"{name}, 1 token")
        (marks,) = axes.plot(places, eight, "_", color=colour, label=f"{name}, {PLOTTED[1]} tokens")
        marks.set(markersize=9, markeredgewidth=2.5)
    for place, row in enumerate(rows.values()):
        memory = 1000 * row["memory"][0]
        axes.plot([place - 0.45, place + 0.45], [memory, memory], "k", label="" if place else "limit of memory")
    axes.set_xticks(range(len(rows)), list(rows))
    axes.set_ylabel("ms of a pass")
    axes.margins(x=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=8)
    figure.supxlabel(title, x=0.01, ha="left", fontsize=8)
    return picture(figure, path)


if __name__ == "__main__":
    main()
