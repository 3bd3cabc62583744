"""Does drafting change a text? Answers the same prompts with and without the draft and counts equal texts.

    python scripts/check_exact.py [--model demo] [--draft-model x.gguf] [--prompts 50] [-n 64]

Where two texts differ it prints the first differing token and how close the two best tokens were there: rounding of
the native kernels can only flip choices that are almost ties.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import zip_longest

import edgespec
from edgespec.events import TokenEvent

STARTS = ["def {}(", "class {}:\n", "import {}\n", "What does {} do?", "{} = "]
NAMES = ["fibonacci", "path", "Queue", "shutil.copytree", "os.walk", "json", "result", "Parser", "itertools.chain", "x"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft-model")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("-n", type=int, default=64)
    args = parser.parse_args()
    prompts = [start.format(name) for name in NAMES for start in STARTS][: args.prompts]
    with (
        edgespec.load(args.model, spec_type="none") as plain,
        edgespec.load(args.model, draft_model=args.draft_model) as drafted,
    ):
        for temperature in (0.0, 0.8):
            equal = proposed = accepted = rounds = tokens = 0
            for seed, prompt in enumerate(prompts):
                want, got = (
                    list(llm.generate(prompt, max_tokens=args.n, temperature=temperature, seed=seed))
                    for llm in (plain, drafted)
                )
                difference = first_difference(want, got)
                equal += difference is None
                if difference is not None:
                    print(f"  T {temperature} seed {seed} {prompt!r}: token {difference[0]} differs, {difference[1]}")
                stats = drafted.stats
                proposed, accepted = proposed + stats.proposed, accepted + stats.accepted
                rounds, tokens = rounds + stats.rounds, tokens + stats.generated_tokens
            print(
                f"temperature {temperature}: {equal} of {len(prompts)} texts equal; {accepted} of {proposed} drafted "
                f"tokens accepted ({accepted / max(1, proposed):.0%}), {tokens / max(1, rounds):.2f} tokens a round"
            )


def first_difference(want: Sequence[TokenEvent], got: Sequence[TokenEvent]) -> tuple[int, str] | None:
    """Index of the first token that differs, and the top-2 gap of both runs there."""
    for index, (left, right) in enumerate(zip_longest(want, got)):
        if left is None or right is None or left.id != right.id:
            gaps = [f"{event.gap:.4f}" for event in (left, right) if event is not None]
            return index, f"top-2 gap {' and '.join(gaps)}"
    return None


if __name__ == "__main__":
    main()
