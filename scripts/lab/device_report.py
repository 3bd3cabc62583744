"""Measure edgespec on the device of this machine, a GPU or only the CPU, and print a report in Markdown.

    python scripts/lab/device_report.py --native native/bin/llama-speculative-simple
    python scripts/lab/device_report.py model.F16.gguf --shape Qwen3.5-4B --output report.md

The report has the device, its classes of widths and its memory (GPUs only), texts and drafts of each kind of head, the
costs of passes and of drafts for models of published shapes, overlap, speed, and what follows from them. A part that
this device cannot have is named as skipped. It is printed, and written to a file part by part.

On a GPU, a model is quantised to the types of a table. Without one, the bundled model is inflated to 0.9 billion
parameters (5 GB of disk space). llama.cpp's own program needs a model with a chat template for the comparison of speed
(docs/bench.md). `scripts/check_gpu` calls this: with --device after the tests, whose failures it passes on.
"""

from __future__ import annotations

import argparse
import logging
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import psutil
from bench_shapes import Figures
from head_report import Checked, checked, conclusions, of_heads, of_overlap, of_shapes, table, tiny_pairs
from head_report import measured as measured_shapes
from shapes import SHAPES

from edgespec import __version__
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
from edgespec.llama.model import LlamaModel
from edgespec.models.memory.estimate import MemoryPlan, estimate
from edgespec.models.names.spec import resolve

HERE = Path(__file__).parent
SMALL = ["Qwen3.5-0.8B", "LFM2.5-1.2B"]  # shapes that a laptop measures in minutes
BUSY = 0.25  # share of the cores that others use
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
    parser.add_argument("--native", help="llama.cpp's llama-speculative-simple, built for this device")
    parser.add_argument("--failed", action="append", default=None, help="a test that failed; '' if all passed")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="a shape to measure (default: small ones)")
    parser.add_argument("--repeat", type=int, default=5, help="how often passes are measured")
    parser.add_argument("--output", type=Path, default=Path("report.md"), help="the file of the report")
    parser.add_argument("--context", type=int, default=4096, help="tokens of context while measuring classes")
    parser.add_argument("--width", default="1792", help="of the model that is made")
    parser.add_argument("--layers", default="23", help="of the model that is made")
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with args.output.open("w", encoding="utf-8") as file:
        for part in parts(args):
            text = "\n".join(part) + "\n"
            print(text, flush=True)
            print(text, file=file, flush=True)
    print(f"device_report: written to {args.output}", file=sys.stderr)
    return 0


def parts(args: argparse.Namespace) -> Iterator[Iterable[str]]:
    """Yield the parts of the report, each when it has been measured."""
    started_s = time.monotonic()
    yield of_machine()
    path = None
    if args.model:
        path = resolve(args.model).path
    elif gpus():
        path = inflated(args.width, args.layers)
    yield of_types(path, args.context) if gpus() and path else skipped_types()
    with tempfile.TemporaryDirectory() as folder:
        heads = []
        for pair in tiny_pairs(Path(folder)):
            print(f"device_report: checking {pair.kind} ({pair.about})", file=sys.stderr)
            heads.append(checked(pair, args.native))
    yield of_heads(heads, args.native)
    names = args.shape or (SMALL if not gpus() else [*SMALL, "Qwen3.5-4B", "Gemma 4 E4B"])
    shapes = measured_shapes(names, args.repeat, "all" if gpus() else 0)
    yield of_shapes(shapes)
    yield of_overlap()
    yield of_speed(path, None if args.model else "demo:draft", args.native) if path else skipped_speed()
    yield [*of_failures(args.failed), *of_conclusions(heads, shapes, args.native, time.monotonic() - started_s)]


def of_conclusions(
    heads: Sequence[Checked], shapes: Mapping[str, Figures], native: str | None, seconds: float
) -> Iterator[str]:
    """Yield the last section: what follows from the measurements."""
    yield "## What follows\n"
    for line in conclusions(heads, shapes, native):
        yield f"- {line}"
    if not gpus():
        yield "- nothing about GPUs: the parts that need one were skipped, and all figures are those of the CPU"
    yield f"\nThe report took {seconds / 60:.0f} minutes."


def inflated(width: str, layers: str) -> Path:
    """Return the bundled model with this width and this number of layers, which is made once."""
    path = cache_dir() / f"demo-{width}-{layers}.F16.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(HERE / "inflate_gguf.py"), "demo", "-o", str(path), "--type", "F16"]
        subprocess.run([*command, "--width", width, "--layers", layers], check=True, stdout=sys.stderr)
    return path


def of_machine() -> Iterator[str]:
    """Yield what was measured, on which devices and with which build."""
    yield f"# edgespec on {(gpus()[0].description if gpus() else machine()['cpu'])}\n"
    yield (
        "Made by `scripts/check_gpu`: whether drafts of each kind of draft head leave texts as they are on this "
        "device, and what passes and drafts cost. The last section says what follows.\n"
    )
    for gpu in gpus():
        driver = driver_of(gpu.description, gpu.backend) or "unknown"
        yield f"- {gpu.name}: {gpu.description}, {gpu.total_bytes / 1e9:.1f} GB, {gpu.backend}, driver {driver}"
    about = machine()
    cores = f"{about['physical_cores'] or about['logical_cores']} cores, {about['memory_bytes'] / 1e9:.0f} GB"
    yield f"- {about['cpu']}, {cores}, {library.default_threads()} threads; {about['system']}"
    yield f"- edgespec {__version__}{commit()}, {described_build()}; {datetime.now():%Y-%m-%d}"
    load = psutil.getloadavg()[0]
    if load > BUSY * (about["logical_cores"] or 1):
        yield f"- other programs were busy (load {load:.1f} at the start), so times are longer than on a quiet machine"


def commit() -> str:
    """Return the commit of this checkout, if git knows it."""
    command = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    with suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return f" ({done.stdout.strip()})" if done.returncode == 0 else ""
    return ""


def skipped_types() -> Iterator[str]:
    yield "## Classes of widths, and memory of the GPU\n"
    yield "Skipped: llama.cpp sees no GPU ('edgespec doctor' says why). On the CPU all widths give the same bits."


def skipped_speed() -> Iterator[str]:
    yield "## Speed\n"
    yield "Skipped: without a GPU the speed of a large model takes long. 'edgespec tune MODEL' measures it for a model."


def of_types(path: Path, n_ctx: int) -> Iterator[str]:
    """Yield tables of the classes of widths, the times of passes, and the memory, for each type of weights."""
    yield "## Classes of widths, and memory of the GPU\n"
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
    print(f"device_report: measuring {type}", file=sys.stderr)
    plan = MemoryPlan(check_model(path), n_ctx=n_ctx, max_outputs=WIDEST)
    plan = replace(plan, gpu_layers=plan.n_layers)
    with (
        Buffers() as buffers,
        LlamaModel(plan.header, gpu_layers=plan.gpu_layers) as model,
        Context(model, plan) as context,
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
    yield "## Speed\n\nWith Q8_0 weights:\n"
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


def of_failures(failed: Sequence[str] | None) -> Iterator[str]:
    yield "## Tests\n"
    lines = [line for line in failed or () if line]
    if failed is None:
        yield "Skipped: the tests that need a GPU were not run (`scripts/check_gpu --device`).\n"
    else:
        yield "Tests that failed:\n" if lines else "All tests that need a GPU passed.\n"
        yield from (f"- {line}" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
