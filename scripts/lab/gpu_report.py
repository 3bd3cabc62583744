"""Print measurements of the GPU of this machine, as a section of docs/gpu.md.

    python scripts/lab/gpu_report.py
    python scripts/lab/gpu_report.py model.F16.gguf --native native/bin/llama-speculative-simple

The model is quantised to the types of the table. Without one, the bundled model is inflated to 0.9 billion parameters
(5 GB of disk space). llama.cpp's own program needs a model with a chat template (docs/bench.md).
`scripts/check_gpu --device` calls this after the tests, and passes the tests that failed.
"""

from __future__ import annotations

import argparse
import logging
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.bench.measure import machine
from edgespec.bench.targets import make_quant
from edgespec.engine.width_classes import WIDEST, WidthClasses, measured_classes
from edgespec.files.paths import cache_dir
from edgespec.gguf_file.model_check import check_model
from edgespec.llama import library
from edgespec.llama.context import Context
from edgespec.llama.drivers import driver_of
from edgespec.llama.kernels import described_build
from edgespec.llama.library import gpus
from edgespec.llama.model import Model
from edgespec.models.memory.estimate import Plan, estimate
from edgespec.models.names.spec import resolve

HERE = Path(__file__).parent
TYPES = ("F16", "Q8_0", "Q4_K_M")
WIDTHS = (2, 3, 4, 5, 8, 12, WIDEST)  # of the table


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a model with all layers on the GPU; the memory is that of the GPU."""

    type: str
    classes: WidthClasses | None
    expected_bytes: int
    reported_bytes: float


def main() -> int:
    """Print the report; what takes long is reported on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model with F16 weights")
    parser.add_argument("--native", help="llama.cpp's llama-speculative-simple, built for this GPU")
    parser.add_argument("--failed", action="append", default=[], help="a test that failed")
    parser.add_argument("--context", type=int, default=4096, help="tokens of context while measuring")
    parser.add_argument("--width", default="1792", help="of the model that is made")
    parser.add_argument("--layers", default="23", help="of the model that is made")
    args = parser.parse_args()
    if not gpus():
        print("gpu_report: llama.cpp sees no GPU; 'edgespec doctor' says why", file=sys.stderr)
        return 1
    path = resolve(args.model).path if args.model else inflated(args.width, args.layers)
    draft = None if args.model else "demo:draft"
    speed, failures = of_speed(path, draft, args.native), of_failures(args.failed)
    for part in (of_machine(), of_types(path, args.context), speed, failures):
        print("\n".join(part) + "\n", flush=True)
    return 0


def inflated(width: str, layers: str) -> Path:
    """Return the bundled model with this width and so many layers, which is made once."""
    path = cache_dir() / f"demo-{width}-{layers}.F16.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(HERE / "inflate_gguf.py"), "demo", "-o", str(path), "--type", "F16"]
        subprocess.run([*command, "--width", width, "--layers", layers], check=True, stdout=sys.stderr)
    return path


def of_machine() -> Iterator[str]:
    """Yield the devices, their drivers and the build."""
    yield f"## {gpus()[0].description}\n"
    for gpu in gpus():
        driver = driver_of(gpu.description, gpu.backend) or "unknown"
        yield f"- {gpu.name}: {gpu.description}, {gpu.total_bytes / 1e9:.1f} GB, {gpu.backend}, driver {driver}"
    yield f"- {described_build()}; {machine()['cpu']}, {machine()['system']}"


def of_types(path: Path, n_ctx: int) -> Iterator[str]:
    """Yield tables of the classes of widths, the times of passes, and the memory, for each type of weights."""
    found = [measured(path if type == "F16" else make_quant(path, type), type, n_ctx) for type in TYPES]
    yield "Widths of passes that give the same logits, and the time of a pass of n tokens over that of one:\n"
    rows = [["weights", "equal widths", *(f"n = {width}" for width in WIDTHS)]]
    for each in found:
        if each.classes is None:
            rows.append([each.type, "not measured", *[""] * len(WIDTHS)])
            continue
        ranges = ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in each.classes.ranges)
        rows.append([each.type, ranges, *(f"{each.classes.cost(width):.2f}" for width in WIDTHS)])
    yield from table(rows)
    yield f"\nMemory of the GPU with a context of {n_ctx} tokens, in MB:\n"
    rows = [["weights", "estimated", "reported by llama.cpp", "estimated / reported"]]
    for each in found:
        sizes = [f"{size / 1e6:.0f}" for size in (each.expected_bytes, each.reported_bytes)]
        rows.append([each.type, *sizes, f"{each.expected_bytes / max(1, each.reported_bytes):.2f}"])
    yield from table(rows)


def measured(path: Path, type: str, n_ctx: int) -> Measured:
    """Load a model with all layers on the first GPU, and measure it."""
    print(f"gpu_report: measuring {type}", file=sys.stderr)
    plan = Plan(check_model(path), n_ctx, max_outputs=WIDEST)
    plan = Plan(plan.header, n_ctx, max_outputs=WIDEST, gpu_layers=plan.n_layers)
    with (
        Buffers() as buffers,
        Model(plan.header, gpu_layers=plan.gpu_layers) as model,
        Context(model, **plan.context) as context,
    ):
        classes = measured_classes(context)
    return Measured(type, classes, estimate(plan).vram, buffers.n_bytes)


class Buffers(logging.Handler):
    """Within this block, adds up the buffers on GPUs that llama.cpp reports in its log."""

    def __enter__(self) -> Buffers:
        self._pattern = re.compile(rf"(?:{'|'.join(gpu.name for gpu in gpus())}) .*buffer size = +([\d.]+) MiB")
        self.n_bytes = 0.0
        library.logger.addHandler(self)
        library.logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        library.logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if found := self._pattern.search(record.getMessage()):
            self.n_bytes += float(found[1]) * (1 << 20)


def of_speed(path: Path, draft: str | None, native: str | None) -> Iterator[str]:
    """Yield the table of `edgespec bench`, and the comparison with llama.cpp's own program."""
    model = make_quant(path, "Q8_0")
    yield "Speed with Q8_0 weights:\n"
    options = ["-ngl", "all", "-q", "--mode", "auto", "--per-category", "1"]
    options += ["-md", draft, "-ngld", "all"] if draft else []
    yield "```text"
    printed = output([sys.executable, "-m", "edgespec", "bench", str(model), *options])
    yield printed.partition("\n\nSpeedup by category")[0]
    yield "```"
    if native:
        yield "\nSpeed over llama.cpp's own program:\n"
        yield output([sys.executable, str(HERE / "bench_native.py"), native, "--model", str(model), "-ngl", "999"])


def output(command: Sequence[str]) -> str:
    """Return what a program prints, or how it failed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return done.stdout.rstrip() if done.returncode == 0 else f"{' '.join(command)} failed ({done.returncode})"


def of_failures(failed: Sequence[str]) -> Iterator[str]:
    yield "Tests that failed:\n" if failed else "All tests that need a GPU passed."
    yield from (f"- {line}" for line in failed)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table, whose first row is the header."""
    rule = ["---", "---", *["---:"] * (len(rows[0]) - 2)]
    return (f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


if __name__ == "__main__":
    sys.exit(main())
