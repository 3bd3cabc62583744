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
import math
import os
import queue
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 120.0
FAILED = "FAILED"
REPLY = "mutate_gguf reply: "

EXTREMES = (
    0,
    1,
    2,
    3,
    7,
    255,
    256,
    *((1 << bits) + plus for bits in (15, 31, 32, 40, 63) for plus in (-1, 0)),
    (1 << 64) - 1,
)
FLOATS = (0.0, -1.0, 1e-30, 1e30, -1e30, math.inf, -math.inf, math.nan)
WORDS = (
    "",
    "llama",
    "qwen2",
    "gemma2",
    "bert",
    "clip",
    "mamba",
    "rwkv7",
    "gpt2",
    "t5",
    "plamo2",
    "none",
    "default",
    "llama-bpe",
    "yarn",
    "longrope",
    "no such thing",
    "\x00",
    "a" * 300,
)
_SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class Field(NamedTuple):
    """One value in a header: where it stands, how it is packed (struct's letter, "s" for text), what it is."""

    start: int
    end: int
    format: str
    what: str


@dataclass(frozen=True)
class Base:
    """An intact file, with every field of its header and where its header ends."""

    name: str
    data: bytes
    fields: tuple[Field, ...]
    tensors: tuple[tuple[int, int], ...]
    header_end: int

    def numbers(self, *what: str) -> list[Field]:
        return [field for field in self.fields if field.format != "s" and (not what or field.what in what)]

    def texts(self) -> list[Field]:
        return [field for field in self.fields if field.format == "s"]

    def with_header(self, header: bytes | bytearray) -> bytes:
        """This file with another header, the data following at the next multiple of 32."""
        return bytes(header) + bytes(-len(header) % 32) + self.data[self.header_end + -self.header_end % 32 :]


Mutator = Callable[[random.Random, Base], bytes]


def flip_bits(dice: random.Random, base: Base) -> bytes:
    data = bytearray(base.data)
    for _ in range(dice.choice((1, 1, 1, 2, 4, 16))):
        data[dice.randrange(base.header_end)] ^= 1 << dice.randrange(8)
    return bytes(data)


def overwrite_bytes(dice: random.Random, base: Base) -> bytes:
    data, n = bytearray(base.data), dice.choice((1, 2, 4, 8, 64))
    start = dice.randrange(base.header_end)
    data[start : start + n] = dice.randbytes(n)
    return bytes(data[: len(base.data)])


def extreme_number(dice: random.Random, base: Base) -> bytes:
    field = dice.choice(base.numbers("count", "length", "dimensions", "dimension", "offset", "value", "version"))
    return _changed(base, field, dice.choice(EXTREMES))


def change_type(dice: random.Random, base: Base) -> bytes:
    field = dice.choice(base.numbers("type", "tensor type"))
    return _changed(base, field, dice.randrange(45) if dice.random() < 0.9 else dice.choice(EXTREMES))


def replace_value(dice: random.Random, base: Base) -> bytes:
    """A metadata value that might be meant: another small number, twice, half, one more or less."""
    field = dice.choice(base.numbers("value"))
    (old,) = struct.unpack(f"<{field.format}", base.data[field.start : field.end])
    if field.format in "fd":
        return _changed(base, field, dice.choice((*FLOATS, old * 2, -old)))
    return _changed(base, field, dice.choice((dice.randrange(10), old * 2, old // 2, old + 1, old - 1, old + 2)))


def replace_text(dice: random.Random, base: Base) -> bytes:
    field = dice.choice(base.texts())
    word = dice.choice((*WORDS, base.data[slice(*dice.choice(base.texts())[:2])].decode("utf-8", "replace"))).encode()
    before, after = base.data[: field.start - 8], base.data[field.end : base.header_end]
    return base.with_header(before + struct.pack("<Q", len(word)) + word + after)


def swap_texts(dice: random.Random, base: Base) -> bytes:
    one, two = sorted(dice.sample(base.texts(), 2))
    data, head, tail = base.data, slice(one.start - 8, one.end), slice(two.start - 8, two.end)
    between = data[one.end : two.start - 8]
    return base.with_header(data[: one.start - 8] + data[tail] + between + data[head] + data[two.end : base.header_end])


def delete_chunk(dice: random.Random, base: Base) -> bytes:
    start = dice.randrange(base.header_end if dice.random() < 0.8 else len(base.data))
    return base.data[:start] + base.data[start + dice.choice((1, 4, 8, 32, 256, 4096)) :]


def duplicate_chunk(dice: random.Random, base: Base) -> bytes:
    start, n = (
        dice.randrange(base.header_end if dice.random() < 0.8 else len(base.data)),
        dice.choice((1, 4, 8, 32, 256)),
    )
    return base.data[: start + n] + base.data[start:]


def truncate(dice: random.Random, base: Base) -> bytes:
    return base.data[: dice.randrange(base.header_end if dice.random() < 0.5 else len(base.data))]


def permute_tensors(dice: random.Random, base: Base) -> bytes:
    """Tensor descriptions in another order, or with two names swapped."""
    order = list(base.tensors)
    if dice.random() < 0.5:
        dice.shuffle(order)
    else:
        first, second = dice.sample(range(len(order)), 2)
        order[first], order[second] = order[second], order[first]
    start, end = base.tensors[0][0], base.tensors[-1][1]
    infos = b"".join(base.data[slice(*place)] for place in order)
    return base.with_header(base.data[:start] + infos + base.data[end : base.header_end])


def swap_dimensions(dice: random.Random, base: Base) -> bytes:
    data = bytearray(base.data)
    one, two = dice.sample(base.numbers("dimension"), 2)
    data[one.start : one.end], data[two.start : two.end] = (
        base.data[two.start : two.end],
        base.data[one.start : one.end],
    )
    return bytes(data)


def damage_weights(dice: random.Random, base: Base) -> bytes:
    data = bytearray(base.data)
    for _ in range(dice.choice((1, 16, 256))):
        start = dice.randrange(base.header_end, len(data) - 4)
        data[start : start + 4] = dice.choice((dice.randbytes(4), struct.pack("<f", dice.choice(FLOATS))))
    return bytes(data)


MUTATORS: dict[Mutator, int] = {  # how often each
    flip_bits: 4,
    overwrite_bytes: 2,
    extreme_number: 4,
    change_type: 3,
    replace_value: 5,
    replace_text: 2,
    swap_texts: 2,
    delete_chunk: 1,
    duplicate_chunk: 1,
    truncate: 1,
    permute_tensors: 1,
    swap_dimensions: 1,
    damage_weights: 1,
}


def mutation(bases: Sequence[Base], seed: int, number: int) -> tuple[Base, str, bytes]:
    """Mutation `number` of a run: the base, the mutator's name, the bytes. The same for the same arguments."""
    dice = random.Random(f"{seed}/{number}")
    base = bases[number % len(bases)]
    mutate = dice.choices(list(MUTATORS), weights=list(MUTATORS.values()))[0]
    return base, mutate.__name__, mutate(dice, base)


def read_base(path: Path) -> Base:
    """Note every field of an intact file's header."""
    data = path.read_bytes()
    fields: list[Field] = []
    pos = 4

    def number(format: str, what: str) -> int:
        nonlocal pos
        fields.append(Field(pos, pos + struct.calcsize(f"<{format}"), format, what))
        (value,) = struct.unpack_from(f"<{format}", data, pos)
        pos = fields[-1].end
        return int(value) if format not in "fd" else 0

    def text() -> None:
        nonlocal pos
        length = number("Q", "length")
        fields.append(Field(pos, pos + length, "s", "text"))
        pos += length

    def value(kind: int) -> None:
        if kind == _STRING:
            text()
        elif kind == _ARRAY:
            kind, n = number("I", "type"), number("Q", "count")
            for _ in range(n):
                value(kind)
        else:
            number(_SIZES[kind], "value")

    number("I", "version")
    n_tensors, n_entries = number("Q", "count"), number("Q", "count")
    for _ in range(n_entries):
        text()
        value(number("I", "type"))
    tensors = []
    for _ in range(n_tensors):
        start = pos
        text()
        for _ in range(number("I", "dimensions")):
            number("Q", "dimension")
        number("I", "tensor type")
        number("Q", "offset")
        tensors.append((start, pos))
    return Base(path.stem, data, _thinned(fields), tuple(tensors), pos)


def _thinned(fields: list[Field]) -> tuple[Field, ...]:
    """Fewer of the vocabulary's fields, whose thousands would crowd out all others: one in twenty."""
    kept = []
    for index, field in enumerate(fields):
        neighbours = fields[max(0, index - 4) : index + 5]
        in_a_list = all(other.what in ("length", "text") or other.what == field.what for other in neighbours)
        if not in_a_list or index % 20 == 0:
            kept.append(field)
    return tuple(kept)


def _changed(base: Base, field: Field, value: float) -> bytes:
    size = field.end - field.start
    if field.format in "fd":
        packed = struct.pack(f"<{field.format}", value)
    else:
        packed = (int(value) % (1 << 8 * size)).to_bytes(size, "little")
    return base.data[: field.start] + packed + base.data[field.end :]


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
