"""Kills batches at random moments and looks at what is left.

    .venv/bin/python scripts/kill_batch.py --times 100

A job is killed with SIGKILL somewhere between its start and its end, and begun again, until it is done; then another
one. Half of the jobs answer one row at a time with --strict: what they write has to be what a job writes that nobody
kills, byte for byte. The others answer eight at a time: every row has to be there once. No process may be left over.
POSIX only. Exits with 1 at the first loss.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

GONE_S = 10.0
PARALLEL = {"one": ["--parallel", "1", "--strict"], "eight": ["--parallel", "8"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=8.0, help="seconds until a job is killed")
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("-n", "--max-tokens", type=int, default=8)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        rows = [{"id": f"row {number}", "prompt": f"def f{number}(x):"} for number in range(options.rows)]
        (home / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        args = ["-m", options.model, "-n", str(options.max_tokens), "-t", "1", "--raw", "--seed", "7", "--no-store"]
        if (code := start(home, "whole.jsonl", [*args, *PARALLEL["one"]]).wait()) != 0:
            sys.exit(f"the job that nobody kills ended with {code}")
        n_kills = n_jobs = 0
        while n_kills < options.times:
            kind = ("one", "eight")[n_jobs % 2]
            out = f"out-{n_jobs}.jsonl"
            n_kills += killed_until_done(home, out, [*args, *PARALLEL[kind]], chance, options.longest)
            n_jobs += 1
            if problem := what_is_lost(home, out, kind, [row["id"] for row in rows]):
                sys.exit(f"LOST: {problem}")
            print(f"{kind} at a time: done, {n_kills} kills so far, nothing lost", flush=True)


def start(home: Path, out: str, args: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "edgespec", "batch", "in.jsonl", "-o", out, "-q", *args]
    environ = os.environ | {"EDGESPEC_HOME": str(home / "home")}
    return subprocess.Popen(command, cwd=home, env=environ, stdin=subprocess.DEVNULL)


def killed_until_done(home: Path, out: str, args: list[str], chance: random.Random, longest_s: float) -> int:
    """Run a job, kill it, run it again, until one run ends by itself. How many were killed."""
    n_kills = 0
    while True:
        program = start(home, out, args)
        try:
            code = program.wait(chance.uniform(0, longest_s))
        except subprocess.TimeoutExpired:
            children = psutil.Process(program.pid).children(recursive=True)
            program.kill()
            program.wait()
            n_kills += 1
            if left := psutil.wait_procs(children, timeout=GONE_S)[1]:
                sys.exit(f"LEFT OVER: {left}")
            continue
        if code != 0:
            sys.exit(f"a job ended with {code}")
        return n_kills


def what_is_lost(home: Path, out: str, kind: str, ids: list[str]) -> str:
    """What is not as it should be; empty where all is."""
    written, whole = (home / out).read_bytes(), (home / "whole.jsonl").read_bytes()
    try:
        found = [json.loads(line) for line in written.splitlines()]
    except ValueError as error:
        return f"a row of {out} is torn: {error}"
    if sorted(row["id"] for row in found) != sorted(ids):
        return f"{out} has {len(found)} rows, {len({row['id'] for row in found})} of them different, of {len(ids)}"
    if any(not row.get("tokens") for row in found):
        return f"a row of {out} has no answer"
    return "" if kind == "eight" or written == whole else f"{out} is not what a job writes that nobody kills"


if __name__ == "__main__":
    started_s = time.monotonic()
    main()
    print(f"{time.monotonic() - started_s:.0f} s")
