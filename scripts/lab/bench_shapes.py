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
(`edgespec/llama/trimmed_output.py`).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

from shapes import SHAPES, Models

from edgespec.bench.measure import machine
from edgespec.runtime import drafting
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings

WIDTHS = (1, 2, 3, 4, 8)
WHOLE, TRIMMED = "mtp, whole output", "mtp, trimmed"
WAYS = (WHOLE, TRIMMED, "assistant", "eagle3")


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
        print(f"| {' | '.join([name, *measured(SHAPES[name], args)])} |", flush=True)


def measured(models: Models, args: argparse.Namespace) -> list[str]:
    """Return the cells of a row of the table."""
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
                    spec_draft_n_max=7, ctx_size=2048, threads=args.t, store=False, gpu_layers=0,
                )  # fmt: skip
                started_s = perf_counter()
                with Runtime(settings) as llm:
                    loaded_s, memory = perf_counter() - started_s, resident()
                    costs = llm.measure_costs(WIDTHS, repeat=args.repeat)
            drafts[way] = costs["step"][settings.spec_type] / costs["target"]["1"]
        size = path.stat().st_size
    target = costs["target"]
    ratios = [f"{target[str(width)] / target['1']:.2f}" for width in WIDTHS[1:]]
    first = [f"{size / 1e9:.2f}", f"{loaded_s:.1f}", f"{memory / 1e9:.2f}", f"{1000 * target['1']:.1f}"]
    return [*first, *ratios, *(f"{drafts[way]:.3f}" if way in drafts else "-" for way in WAYS)]


def resident() -> float:
    """Return the bytes of main memory that the process uses."""
    import psutil

    return float(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main()
