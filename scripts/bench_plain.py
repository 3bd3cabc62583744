"""Plain decoding against llama-cpp-python's own `Llama`: same file, threads and prompts, interleaved, greedy.

    python scripts/bench_plain.py                    the bundled target
    python scripts/bench_plain.py --random 0.5       a random target of about 0.5 billion parameters, Q8_0
    python scripts/bench_plain.py --model x.gguf

Prints tokens per second of both (medians over the prompts) and the median of the ratios prompt by prompt. `Llama` is
timed twice: as a stream of text, which is what `edgespec` gives, and as its bare generator of token ids.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from math import nan
from pathlib import Path
from time import perf_counter

import llama_cpp
import numpy as np

import edgespec
from edgespec.llama import kernels
from edgespec.models.names.spec import resolve

PROMPTS = [
    "def quicksort(xs):",
    "import os\n",
    "class Stack:\n",
    "for line in",
    "The file",
    "x = [",
    "while True:",
    "try:",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--random", type=float, metavar="BILLIONS", help="make a random target of this size")
    parser.add_argument("-n", type=int, default=64, help="tokens per answer")
    parser.add_argument("-t", type=int, default=2, help="threads")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_random(Path(folder), args.random) if args.random else resolve(args.model).path
        compare(path, args.n, args.t, text=not args.random)


def write_random(folder: Path, billions: float) -> Path:
    """A random Llama of roughly `billions` parameters."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
    from tiny_gguf import write_model

    width = 1536
    layers = max(1, round(billions * 1e9 / (9 * width * width)))
    print(f"writing a random model of {layers} layers of {width}", file=sys.stderr)
    return write_model(folder / "random.gguf", "llama", width=width, n_layers=layers, type="Q8_0")


def compare(path: Path, n: int, threads: int, *, text: bool) -> None:
    """Time both on every prompt, in turns, and print the table."""
    native = llama_cpp.Llama(str(path), n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)
    with edgespec.load(
        str(path), spec_type="none", threads=threads, threads_batch=threads, ctx_size=1024, flash_attention="off"
    ) as llm:
        runs: dict[str, Callable[[str], Iterator[object]]] = {
            "edgespec": lambda p: llm.generate(p, max_tokens=n, temperature=0, ignore_eos=True),
            "Llama, text": lambda p: native.create_completion(p, max_tokens=n, temperature=0, stream=True),
            "Llama, ids": lambda p: native_ids(native, p, n),
        }
        if not text:  # the bytes of a random model are no text, and Llama holds them back
            del runs["Llama, text"]
        rates: dict[str, list[float]] = {name: [] for name in runs}
        for prompt in PROMPTS[:1] + PROMPTS:  # the first is the warm-up
            for name, start in runs.items():
                native.reset()
                kernels.use(kernels.STOCK)  # edgespec's own passes set theirs again
                rates[name].append(rate(start(prompt), n))
    print(f"{'':12}  tokens/s  edgespec / it")
    for name, values in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(rates["edgespec"][1:], values[1:], strict=True)]
        print(f"{name:12}  {np.nanmedian(values[1:]):8.1f}  {np.nanmedian(ratios):13.3f}")


def native_ids(native: llama_cpp.Llama, prompt: str, n: int) -> Iterator[int]:
    ids = native.tokenize(prompt.encode())
    for _, token in zip(range(n), native.generate(ids, temp=0), strict=False):
        yield token


def rate(events: Iterator[object], n: int) -> float:
    """Tokens a second from the first event to the last, NaN for an answer that ended early."""
    next(events)
    started_s = perf_counter()
    count = sum(1 for _ in events)
    return (n - 1) / (perf_counter() - started_s) if count >= n - 1 else nan


if __name__ == "__main__":
    main()
