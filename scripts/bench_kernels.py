"""What exactness costs: llama.cpp's own kernels and attention beside those of an exact context, in turns.

    python scripts/bench_kernels.py smollm2
    python scripts/bench_kernels.py model.gguf --depths 200,800,2000 --repeat 15

For each depth of the context: milliseconds of a pass over one token, the same as a ratio of llama.cpp's defaults, what
wider passes cost in passes over one token, and the time of reading the prompt as a ratio of llama.cpp's defaults.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from edgespec.gguf_file.model_check import check_model
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.models.memory.defaults import exact_attention
from edgespec.models.memory.estimate import Plan
from edgespec.models.names.spec import resolve
from edgespec.runtime.fitting import repacks

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
TEXT = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parents[1].glob("docs/*.md")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--depths", default="200,800")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("-t", type=int, default=0, help="threads")
    args = parser.parse_args()
    depths = [int(depth) for depth in args.depths.split(",")]
    header = check_model(resolve(args.model).path)
    repacked = repacks(Plan(header, n_ctx=256, exact=True))
    settings: dict[str, dict[str, Any]] = {
        "llama.cpp": {"flash_attention": "auto"},
        "llama.cpp, -fa off": {"flash_attention": "off"},
        "exact": {"flash_attention": exact_attention(header, "f16"), "exact": True},
    }
    models = (
        {True: Model(header), False: Model(header, use_extra_bufts=False)} if not repacked else {True: Model(header)}
    )
    common: dict[str, Any] = {"n_ctx": max(depths) + WIDTHS[-1], "max_outputs": WIDTHS[-1], "threads": args.t}
    contexts = {
        name: Context(models[repacked or not how.get("exact")], **common, **how) for name, how in settings.items()
    }
    print(f"{'':8}{'':20}{'ms':>8}{'ratio':>7}{'prompt':>8}  " + "".join(f"{width:>7}" for width in WIDTHS[1:]))
    for depth in depths:
        measure(contexts, depth, args.repeat)


def measure(contexts: dict[str, Context], depth: int, repeat: int) -> None:
    tokens = next(iter(contexts.values())).model.tokenize(TEXT, add_special=True)[: depth + WIDTHS[-1]]
    if len(tokens) < depth + WIDTHS[-1]:
        sys.exit(f"the text has {len(tokens)} tokens: name smaller depths")
    prompts = {name: [read(context, tokens[:depth]) for _ in range(2)] for name, context in contexts.items()}
    passes: dict[tuple[str, int], list[float]] = {(name, width): [] for name in contexts for width in WIDTHS}
    for _ in range(repeat):
        for width in WIDTHS:
            for name, context in contexts.items():
                context.truncate(0, depth)
                passes[name, width].append(decode(context, tokens, depth, width))
    first = next(iter(contexts))
    for name in contexts:
        one = median(passes[name, 1])
        curve = "".join(f"{median(passes[name, width]) / one:7.2f}" for width in WIDTHS[1:])
        ratio, prompt = one / median(passes[first, 1]), min(prompts[name]) / min(prompts[first])
        print(f"{depth:<8}{name:20}{one * 1e3:8.2f}{ratio:7.2f}{prompt:8.2f}  {curve}", flush=True)


def read(context: Context, tokens: list[int]) -> float:
    context.forget(0)
    starts = range(0, len(tokens), context.n_batch)
    return sum(decode(context, tokens, start, min(context.n_batch, len(tokens) - start), rows=1) for start in starts)


def decode(context: Context, tokens: list[int], start: int, width: int, rows: int | None = None) -> float:
    """Seconds of one pass; `rows` of its last tokens give logits, all of them if none is given."""
    wanted = [index >= width - (rows or width) for index in range(width)]
    started_s = perf_counter()
    context.decode(tokens[start : start + width], range(start, start + width), [(0,)] * width, wanted)
    return perf_counter() - started_s


if __name__ == "__main__":
    main()
