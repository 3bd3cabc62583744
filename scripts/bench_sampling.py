"""Measure what one row of logits costs in the sampling chain: median microseconds per row, beside the budget.

    python scripts/bench_sampling.py [--vocab 151936] [--rows 300]

Eight rows of normal logits (standard deviation 2.5) take turns, so that they come from memory rather than from the
first caches; "peaked" rows have 300 tokens raised by 12, like a model that is fairly sure; "draft" is what a draft
costs on them. On an AMD EPYC with AVX-512 and other work running, 151,936 tokens, peaked: the default chain 122,
greedy 23 (a draft 147), temperature alone 456, top-p alone 274.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from edgespec.core.candidates import draft_candidates
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import FloatRow, SamplingSettings

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
CASES: list[tuple[str, SamplingSettings, float | None]] = [
    ("top-k 40, top-p .95, min-p .05, T .8", SamplingSettings(), 300),
    ("the same with penalties over 64", SamplingSettings(repeat_penalty=1.1, presence_penalty=0.1), None),
    ("the same with typical-p .9", SamplingSettings(typical_p=0.9), None),
    ("greedy", SamplingSettings(temperature=0), 100),
    ("temperature .8 alone", SamplingSettings(**OFF), 1000),  # type: ignore[arg-type]
    ("top-p .95 alone", SamplingSettings(**(OFF | {"top_p": 0.95})), None),  # type: ignore[arg-type]
    ("min-p .05 alone", SamplingSettings(**(OFF | {"min_p": 0.05})), None),  # type: ignore[arg-type]
    ("top-p .95 and min-p .05", SamplingSettings(top_k=0), None),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Median cost of the sampling chain for one row of logits.")
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--rows", type=int, default=300, help="rows to measure for each median")
    options = parser.parse_args()
    flat = make_rows(options.vocab)
    peaked = [raise_some(row) for row in flat]
    print(f"{'median us per row, V = ' + str(options.vocab):40}{'flat':>8}{'peaked':>8}{'draft':>8}{'budget':>8}")
    for name, settings, budget in CASES:
        sampler = Sampler(settings, seed=1, sample=0, n_vocab=options.vocab)
        costs = [median_us(sampler, rows, options.rows, draft) for rows, draft in ((flat, 0), (peaked, 0), (peaked, 1))]
        print(f"{name:40}" + "".join(f"{cost:8.0f}" for cost in costs) + (f"{budget:8.0f}" if budget else ""))


def make_rows(n_vocab: int) -> list[FloatRow]:
    return [np.random.default_rng(i).normal(0, 2.5, n_vocab).astype(np.float32) for i in range(8)]


def raise_some(row: FloatRow) -> FloatRow:
    row = row.copy()
    row[np.random.default_rng(0).choice(len(row), min(300, len(row)), replace=False)] += 12
    return row


def median_us(sampler: Sampler, rows: list[FloatRow], n: int, draft: int) -> float:
    tokens = np.random.default_rng(1).integers(0, sampler.n_vocab, 500).tolist()
    elapsed_s = []
    for position in range(n + 10):
        row = rows[position % len(rows)]
        started = time.perf_counter()
        if draft:
            draft_candidates(sampler, row, tokens, position, 1)
        else:
            sampler.choose(row, tokens, position)
        elapsed_s.append(time.perf_counter() - started)
    return float(np.median(elapsed_s[10:])) * 1e6


if __name__ == "__main__":
    main()
