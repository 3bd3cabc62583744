"""Resident memory: what edgespec adds to llama.cpp's own, and whether it stays flat.

    python scripts/bench_memory.py [--model x.gguf] [-n 10000]

Two child processes load the same file with the same context: one through the binding alone, one through edgespec.
The difference of their resident sizes after a first answer is edgespec's own; then `-n` tokens are generated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import psutil


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("-n", type=int, default=10_000, help="tokens to generate")
    parser.add_argument("--child", choices=("native", "edgespec"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child == "native":
        native_child(args.model)
    elif args.child == "edgespec":
        edgespec_child(args.model, args.n)
    else:
        base = float(run_child("native", args))
        first, last = (float(part) for part in run_child("edgespec", args).split())
        print(f"llama.cpp alone        {base:8.1f} MB")
        print(f"edgespec, first answer {first:8.1f} MB  (+{first - base:.1f})")
        print(f"after {args.n:6d} tokens    {last:8.1f} MB  (+{last - first:.1f})")


def run_child(kind: str, args: argparse.Namespace) -> str:
    command = [sys.executable, __file__, "--child", kind, "--model", args.model, "-n", str(args.n)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def native_child(model: str) -> None:
    """Target and context through ctypes, one decode, nothing else of ours."""
    import ctypes

    import llama_cpp.llama_cpp as api

    from edgespec.models.names.spec import resolve

    quiet = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(quiet, ctypes.c_void_p(0))
    handle = api.llama_model_load_from_file(str(resolve(model).path).encode(), api.llama_model_default_params())
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_outputs_max = 1024, 512, 512, 1
    context = api.llama_init_from_model(handle, params)
    tokens = (api.llama_token * 4)(5, 6, 7, 8)
    api.llama_decode(context, api.llama_batch_get_one(tokens, 4))
    print(resident_mb())


def edgespec_child(model: str, n: int) -> None:
    import edgespec

    with edgespec.load(model, spec_type="none", ctx_size=1024) as llm:
        list(llm.generate("def", max_tokens=64))
        first = resident_mb()
        made = 0
        while made < n:
            made += len(list(llm.generate("import os\n", max_tokens=500, seed=made, ignore_eos=True))) - 1
        print(first, resident_mb())


def resident_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


if __name__ == "__main__":
    main()
