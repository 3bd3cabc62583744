"""Measure models of published shapes that have random weights: passes, drafts of their heads, load time and memory.

    python scripts/lab/bench_shapes.py Qwen3.5-0.8B Qwen3.5-4B
    python scripts/lab/bench_shapes.py --repeat 9 -t 4 Qwen3.5-9B

The files are made in a temporary folder, one model at a time. Their types are those of Q4_K_M: Q4_K, and Q6_K for the
embeddings and for half of the matrices `ffn_down`; gpt-oss has MXFP4 experts and Q8_0, heads have Q8_0. What such a
model writes has no meaning, so it says nothing about accepted drafts, but its passes cost what those of the trained
model cost. `scripts/lab/shapes.py` has the shapes.

The table on stdout, in Markdown, has the size of the file, the seconds until it is loaded, the main memory, the time of
a pass over one token, passes over several tokens in units of it, and the time of a draft token of each head in the same
unit. An MTP block drafts with the whole output matrix, and with the rows of 32,768 tokens
(`edgespec/llama/head_context.py`).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

from shapes import SHAPES, Models

from edgespec.bench.measure import machine
from edgespec.runtime import drafting
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings, Offload

WIDTHS = (1, 2, 3, 4, 8)
WHOLE, TRIMMED = "mtp, whole output", "mtp, trimmed"
WAYS = (WHOLE, TRIMMED, "assistant", "eagle3")


@dataclass(frozen=True, slots=True)
class Figures:
    """The measurements of a model of one shape.

    Attributes:
        size_bytes, memory_bytes: of its file, and of the main memory of this process while it is loaded
        passes_s: the time of a target pass by its width
        drafts: the time of a draft token of each head, in passes over one token
    """

    size_bytes: int
    loaded_s: float
    memory_bytes: float
    passes_s: dict[int, float]
    drafts: dict[str, float]

    def ratio(self, width: int) -> float:
        """Return the time of a pass in passes over one token."""
        return self.passes_s[width] / self.passes_s[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure models of published shapes that have random weights")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"{', '.join(SHAPES)}; all without")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("-t", type=int, default=0, help="threads")
    args = parser.parse_args()
    if unknown := {*args.shapes}.difference(SHAPES):
        parser.error(f"unknown shape: {', '.join(sorted(unknown))}")
    print(f"{machine()['cpu']}, {args.t or os.cpu_count()} threads\n")
    passes = [f"{width}{', ms' if width == 1 else ''}" for width in WIDTHS]
    columns = ["model", "file, GB", "load, s", "memory, GB", *passes, *(f"draft, {way}" for way in WAYS)]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in args.shapes or SHAPES:
        found = measured(SHAPES[name], WIDTHS, args.repeat, args.t)
        print(f"| {' | '.join([name, *cells(found)])} |", flush=True)


def measured(models: Models, widths: Sequence[int], repeat: int, threads: int = 0, gpu_layers: Offload = 0) -> Figures:
    """Measure a model of this shape with each of its heads."""
    drafts: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path, head = Path(folder) / "model.gguf", Path(folder) / "head.gguf"
        models.target.write(path)
        ways = [WHOLE, TRIMMED] if models.has_block else []
        for way in [*ways, *models.heads]:
            if way in models.heads:
                models.heads[way].write(head)
            with patch.object(drafting, "trimmed_output", lambda *args: None) if way == WHOLE else nullcontext():
                settings = LoadSettings(
                    str(path), draft_model=str(head) if way in models.heads else None, spec_type=way.partition(",")[0],
                    spec_draft_n_max=7, ctx_size=2048, threads=threads, store=False, gpu_layers=gpu_layers,
                    gpu_layers_draft=gpu_layers,
                )  # fmt: skip
                started_s = perf_counter()
                with Runtime(settings) as llm:
                    loaded_s, memory = perf_counter() - started_s, resident()
                    costs = llm.measure_costs(widths, repeat=repeat)
            drafts[way] = costs["step"][settings.spec_type] / costs["target"]["1"]
        size = path.stat().st_size
    return Figures(size, loaded_s, memory, {width: costs["target"][str(width)] for width in widths}, drafts)


def cells(found: Figures) -> list[str]:
    """Return the cells of a row of the table."""
    ratios = [f"{found.ratio(width):.2f}" for width in WIDTHS[1:]]
    memory = [f"{found.size_bytes / 1e9:.2f}", f"{found.loaded_s:.1f}", f"{found.memory_bytes / 1e9:.2f}"]
    drafts = [f"{found.drafts[way]:.3f}" if way in found.drafts else "-" for way in WAYS]
    return [*memory, f"{1000 * found.passes_s[1]:.1f}", *ratios, *drafts]


def resident() -> float:
    """Return the bytes of main memory that the process uses."""
    import psutil

    return float(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main()
