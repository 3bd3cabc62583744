"""Break GGUF files in thousands of ways and see that every one is answered or refused, and none ends the program.

    python scripts/mutate_gguf.py                                # 2,000 mutations of tiny models, one per architecture
    python scripts/mutate_gguf.py --count 300 models/demo/draft.gguf
    python scripts/mutate_gguf.py --seed 0 --only 1234 --keep .  # that one mutation again, and its file

Each mutated file is loaded and asked for four tokens in a child process. A child that dies by a signal, raises anything
but an EdgespecError, or does not come back counts as FAILED; then the exit code is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf_mutations import MUTATORS, Base, mutation, read_base

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 120.0
FAILED = "FAILED"
REPLY = "mutate_gguf reply: "


# --- trying them out --------------------------------------------------------------------------------------------------


class Child:
    """A process that loads one file after another, started again whenever it dies."""

    def __init__(self, home: Path) -> None:
        self.environment = os.environ | {"EDGESPEC_HOME": str(home)}
        self.errors = home / "stderr.txt"
        self.process: subprocess.Popen[str] | None = None
        self.replies: queue.SimpleQueue[str] = queue.SimpleQueue()

    def outcome(self, path: Path) -> tuple[str, str]:
        """What became of one file: ("answered" | an EdgespecError's name | FAILED, details)."""
        process = self.process or self._start()
        assert process.stdin
        try:
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            reply = self.replies.get(timeout=TIMEOUT_S)
        except queue.Empty:
            return self._failed(f"no reply within {TIMEOUT_S:.0f} s")
        except OSError as error:
            return self._failed(str(error))
        if not reply:
            return self._failed("died")
        outcome, details = json.loads(reply)
        return str(outcome), str(details)

    def close(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).resolve()), "--child"]
        with self.errors.open("w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
                errors="replace",
                env=self.environment,
            )
        self.replies = queue.SimpleQueue()
        threading.Thread(target=_forward, args=(self.process, self.replies), daemon=True).start()
        return self.process

    def _failed(self, why: str) -> tuple[str, str]:
        code = self.process.poll() if self.process and why.startswith("no reply") else None
        if self.process and not why.startswith("no reply"):
            code = self.process.wait()
        self.close()
        lines = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        telling = [line for line in lines if any(word in line for word in ("GGML_", "terminate", "what()"))]
        return FAILED, f"{why}, exit code {code}: {' | '.join((telling or lines)[-2:])}"


def _forward(process: subprocess.Popen[str], replies: queue.SimpleQueue[str]) -> None:
    """Pass on the child's replies, and an empty one when it ends."""
    assert process.stdout
    for line in process.stdout:
        if line.startswith(REPLY):
            replies.put(line.removeprefix(REPLY))
    replies.put("")


def child() -> int:
    """The child: one path a line in, one reply a line out."""
    import traceback

    import edgespec
    from edgespec.errors import EdgespecError

    for line in sys.stdin:
        reply = ("answered", "")
        try:
            with edgespec.load(line.rstrip("\n"), store=False) as llm:
                for _ in llm.generate("def", max_tokens=4, temperature=0):
                    pass
        except EdgespecError as error:
            reply = (type(error).__name__, str(error))
        except BaseException as error:
            traceback.print_exc()
            reply = (FAILED, f"{type(error).__name__}: {error}")
        print(f"\n{REPLY}{json.dumps(reply)}", flush=True)  # llama.cpp may have left a line unfinished
    return 0


def tiny_models(folder: Path) -> list[Path]:
    """One tiny model of each architecture that the tests know."""
    spec = importlib.util.spec_from_file_location("tiny_gguf", ROOT / "tests" / "support" / "tiny_gguf.py")
    assert spec and spec.loader
    tiny: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny)
    types = ("F16", "Q8_0")
    return [
        tiny.write_model(folder / f"{name}.gguf", name, type=types[index % 2])
        for index, name in enumerate(tiny.ARCHITECTURES)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="intact GGUF files (default: a tiny one per architecture)")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="just this mutation of the run")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the files that failed")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child()
    with tempfile.TemporaryDirectory() as scratch:
        bases = [read_base(path) for path in arguments.models or tiny_models(Path(scratch))]
        numbers = [arguments.only] if arguments.only is not None else list(range(arguments.count))
        return run(bases, arguments.seed, numbers, Path(scratch), arguments.keep)


def run(bases: Sequence[Base], seed: int, numbers: Sequence[int], scratch: Path, keep: Path | None) -> int:
    """Try the numbered mutations and print what became of them. 1 if any failed, else 0."""
    counts: Counter[tuple[str, str]] = Counter()
    failures, tester = [], Child(scratch)
    try:
        for done, number in enumerate(numbers, start=1):
            base, mutator, data = mutation(bases, seed, number)
            path = scratch / f"mutated-{number}.gguf"
            path.write_bytes(data)
            outcome, details = tester.outcome(path)
            counts[mutator, outcome] += 1
            if outcome == FAILED or len(numbers) == 1:
                failures += [f"--seed {seed} --only {number} ({mutator} of {base.name}): {details}"] * (
                    outcome == FAILED
                )
                if keep:
                    keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, keep)
                if outcome != FAILED:
                    print(f"{mutator} of {base.name}: {outcome}: {details}")
            path.unlink()
            if sys.stderr.isatty() or done % 100 == 0 or done == len(numbers):
                end = "\r" if sys.stderr.isatty() and done < len(numbers) else "\n"
                print(f"{done} of {len(numbers)}, {len(failures)} failed", end=end, file=sys.stderr, flush=True)
    finally:
        tester.close()
    print_table(counts)
    for failure in failures:
        print(f"{FAILED}: {failure}")
    return 1 if failures else 0


def print_table(counts: Counter[tuple[str, str]]) -> None:
    outcomes = sorted(
        {outcome for _, outcome in counts}, key=lambda outcome: (outcome != "answered", outcome == FAILED)
    )
    mutators = [mutate.__name__ for mutate in MUTATORS]
    print(f"{'':18}" + "".join(f"{outcome:>20}" for outcome in outcomes))
    for mutator in mutators:
        print(f"{mutator:18}" + "".join(f"{counts[mutator, outcome]:20,}" for outcome in outcomes))
    totals = (sum(counts[mutator, outcome] for mutator in mutators) for outcome in outcomes)
    print(f"{'all':18}" + "".join(f"{total:20,}" for total in totals))


if __name__ == "__main__":
    sys.exit(main())
