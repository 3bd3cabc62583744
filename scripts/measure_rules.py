"""What the rules and shapes of drafting give: mean tokens per round on the same prompts, with fixed lengths.

    python scripts/measure_rules.py                      the bundled pair, 40 prompts
    python scripts/measure_rules.py --model t.gguf --draft-model d.gguf -n 96

First the verify rules on the same chains: coupled pays for the same text with every seed by some accepted tokens,
block never accepts fewer than rejection. Then chains against trees of the same number of tokens. Counts, no times: the
machine does not matter.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from check_exact import NAMES, STARTS

import edgespec
from edgespec.runtime import Runtime

TEMPERATURES = (0.0, 0.7, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft-model")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("-n", type=int, default=128, help="tokens per answer")
    parser.add_argument("-t", type=int, default=0, help="threads")
    args = parser.parse_args()
    prompts = [STARTS[i % len(STARTS)].format(name) for i, name in enumerate(NAMES)][: args.prompts]

    def load(**settings: Any) -> Runtime:
        return edgespec.load(args.model, draft_model=args.draft_model, threads=args.t, **settings)

    print("tokens per round, accepted share of the draft")
    print(f"{'':34}" + "".join(f"{f'T {temperature}':>16}" for temperature in TEMPERATURES))
    for n_max in (3, 8):
        with load(spec_draft_n_max=n_max) as llm:
            for rule in ("coupled", "rejection", "block", "typical"):
                show(f"chain of {n_max}, {rule}", llm, prompts, args.n, verify=rule)
    for n_max, leaves in ((3, 2), (6, 1), (6, 4), (12, 1), (12, 8)):
        with load(spec_draft_n_max=n_max, spec_tree=leaves) as llm:
            shape = f"tree of {n_max}, {leaves} leaves" if leaves > 1 else f"chain of {n_max}"
            for rule in ("coupled", "rejection"):
                show(f"{shape}, {rule}", llm, prompts, args.n, verify=rule)


def show(label: str, llm: Runtime, prompts: Iterable[str], n: int, **settings: Any) -> None:
    cells = []
    for temperature in TEMPERATURES:
        tokens = rounds = proposed = accepted = 0
        for seed, prompt in enumerate(prompts):
            for _ in llm.generate(
                prompt, max_tokens=n, temperature=temperature, seed=seed, ignore_eos=True, **settings
            ):
                pass
            stats = llm.stats
            # The first token comes out of the prompt's pass, before anything could be guessed.
            tokens, rounds = tokens + stats.generated_tokens - 1, rounds + stats.rounds - 1
            proposed, accepted = proposed + stats.proposed, accepted + stats.accepted
        cells.append(f"{tokens / rounds:.3f} {f'({accepted / max(1, proposed):.0%})':>6}")
    print(f"{label:34}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
