"""Measure plain decoding while other programs use the processor.

    python scripts/lab/bench_load.py model.Q8_0.gguf --native native/bin/llama-bench
    python scripts/lab/bench_load.py model.Q8_0.gguf --other before=../before/.venv/bin/python --loads 1,2

The loads are busy loops (a number of them), a `second` edgespec that generates all the time, and a `compiler` that
compiles one C++ file for each core over and over. In each turn, each way of decoding answers the same prompt in a
process that is started for it. Loading and reading the prompt are not counted; the time in which edgespec finds out
how many threads are the fastest is counted. `--other NAME=PYTHON` measures the edgespec of another environment.

The table has medians of tokens per second, and goes to stdout as Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import psutil

PROMPT = "Write a long story about a lighthouse keeper who finds a map in a bottle, and what he did with it.\n\n"
SOURCE = "#include <algorithm>\n#include <map>\n#include <regex>\n" + "".join(
    f'int f{i}(std::map<int, std::regex> & m) {{ m[{i}] = std::regex("a{i}|b"); return m.size(); }}\n'
    for i in range(20)
)


def main() -> None:
    args = arguments()
    if args.measure is not None:
        print(edgespec_speed(args.model, args.measure, args.seconds))
        return
    cores = os.cpu_count() or 1
    own = partial(child_speed, sys.executable, args)
    ways: dict[str, Callable[[], float]] = {}
    if args.native:
        ways["llama.cpp"] = lambda: native_speed(args.native, args.model, cores, args.tokens)
    for other in args.other:
        name, _, python = other.partition("=")
        ways[name] = partial(child_speed, python, args, 0)
    ways |= {"edgespec, 1 thread": partial(own, 1), f"edgespec, {cores} threads": partial(own, cores)}
    ways["edgespec"] = partial(own, 0)
    speeds: dict[tuple[str, str], list[float]] = {}
    for turn in range(args.turns):
        for load in args.loads.split(","):
            with running(load, args.model, cores):
                for way in [*ways][:: 1 if turn % 2 else -1]:
                    speeds.setdefault((load, way), []).append(ways[way]())
                    print(f"{load}, {way}: {speeds[load, way][-1]:.1f}", file=sys.stderr)
    print("| other programs |", " | ".join(ways), "|")
    print("| --- |" + " ---: |" * len(ways))
    for load in args.loads.split(","):
        name = f"{load} busy loops" if load.isdecimal() else load
        print(f"| {name} |", " | ".join(f"{median(speeds[load, way]):.1f}" for way in ways), "|")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--native", type=Path, help="llama.cpp's llama-bench")
    parser.add_argument("--other", action="append", default=[], metavar="NAME=PYTHON", help="another edgespec")
    parser.add_argument("--loads", default="0,1,2,4,second,compiler")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each answer of edgespec")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer of llama.cpp")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)  # in a process of its own: the threads
    return parser.parse_args()


def edgespec_speed(model: Path, threads: int, seconds: float) -> float:
    """Return the tokens per second of an answer that ends after these seconds; 0: it never ends."""
    import edgespec

    with edgespec.load(str(model), threads=threads, spec_type="none", ctx_size=2048) as llm:
        while True:
            started_s, n = 0.0, 0
            for _ in llm.generate(PROMPT, max_tokens=1024, temperature=0, ignore_eos=True):
                now_s = perf_counter()
                started_s, n = started_s or now_s, n + 1
                if seconds and n > 1 and now_s - started_s > seconds:
                    return (n - 1) / (now_s - started_s)


def child_speed(python: str, args: argparse.Namespace, threads: int) -> float:
    command = [python, __file__, str(args.model), "--measure", str(threads), "--seconds", str(args.seconds)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def native_speed(program: Path, model: Path, threads: int, tokens: int) -> float:
    command = [str(program), "-m", str(model), *f"-p 0 -n {tokens} -t {threads} -r 1 -o json".split()]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return float(found[0]["avg_ts"])


@contextmanager
def running(load: str, model: Path, cores: int) -> Iterator[None]:
    """Run other programs during the block."""
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        if load.isdecimal():
            commands = [[sys.executable, "-c", "while True: pass"]] * int(load)
        elif load == "second":
            commands = [[sys.executable, __file__, str(model), "--measure", "0", "--seconds", "0"]]
        else:
            source = Path(folder, "source.cpp")
            source.write_text(SOURCE, encoding="utf-8")
            again = "import subprocess, sys\nwhile True: subprocess.run(sys.argv[1:], check=True)"
            compiler = [sys.executable, "-c", again, "c++", "-O2", "-c", str(source), "-o", os.devnull]
            commands = [compiler] * cores
        for command in commands:
            stack.callback(end, subprocess.Popen(command))
        sleep(5.0 if load == "second" else 0.5)  # until it has loaded its model
        yield


def end(process: subprocess.Popen[bytes]) -> None:
    for part in psutil.Process(process.pid).children(recursive=True):
        part.kill()
    process.kill()
    process.wait()


if __name__ == "__main__":
    main()
