"""The overhead of a step beside its native passes, compared with the arithmetic of native speculative decoding.

    python scripts/inflate_gguf.py --pair bench
    python scripts/bench_rounds.py bench/target-q8_0.gguf bench/draft-30.gguf -t 2
    python scripts/bench_rounds.py demo demo:draft

For each length K, greedy, prompts interleaved with measurements of t(K+1), a target pass over K + 1 tokens, and of c, a
draft pass over one token, both at the depth of the answer. A native loop without overhead would generate
E / (K c + t(K+1)) tokens a second, E being the tokens per step. "of native" is the rate measured divided by that,
"outside" the share of the answer's time that was spent outside `llama_decode`. Medians over the prompts.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import edgespec
from edgespec.drafters.model import ModelDrafter
from edgespec.llama.context import Context
from edgespec.runtime.runtime import Runtime

PROMPTS = [
    "def quicksort(xs):",
    "import os\n",
    "class Stack:\n",
    "for line in",
    "x = [",
    "while True:",
    "try:",
    "def main(",
]
LENGTHS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt's answer: tokens per second, those of a native loop, share outside the passes, E, c, t(K+1)."""

    rate: float
    native: float
    outside: float
    tokens_per_round: float
    draft_pass_s: float
    target_pass_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("draft_model")
    parser.add_argument("-n", type=int, default=48, help="tokens per answer")
    parser.add_argument("-t", type=int, default=0, help="threads")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--temp", type=float, default=0.0)
    args = parser.parse_args()
    print(f"{'K':>3}{'tokens/s':>10}{'native':>9}{'of native':>11}{'outside':>9}{'E':>7}{'c ms':>8}{'t(K+1) ms':>11}")
    for length in (0, *LENGTHS):
        with edgespec.load(
            args.model,
            draft_model=args.draft_model,
            spec_type="draft",
            spec_draft_n_max=length,
            pace=f"fixed:{length}" if length else "off",
            threads=args.t,
            ctx_size=1024,
        ) as llm:
            measure(llm, PROMPTS[0], args)  # warm up
            answers = [measure(llm, prompt, args) for prompt in PROMPTS[: args.prompts]]
        of_native = median(answer.rate / answer.native for answer in answers)
        rate, native, outside, tokens, draft_s, target_s = (
            median(getattr(answer, name) for answer in answers) for name in Answer.__dataclass_fields__
        )
        print(
            f"{length:>3}{rate:>10.1f}{native:>9.1f}{of_native:>11.3f}{outside:>9.1%}{tokens:>7.2f}"
            f"{draft_s * 1e3:>8.2f}{target_s * 1e3:>11.2f}",
            flush=True,
        )


def measure(llm: Runtime, prompt: str, args: argparse.Namespace) -> Answer:
    """One answer between two measurements of the passes it consists of."""
    width = 1 + llm.engine.speculator.n_max
    drafts = [drafter.context for drafter in llm.engine.speculator.drafters if isinstance(drafter, ModelDrafter)]
    before = passes(llm, width, drafts)
    rate, outside, tokens_per_round = answer_rate(llm, prompt, [llm.context, *drafts], args)
    after = passes(llm, width, drafts)
    draft_s, target_s = ((left + right) / 2 for left, right in zip(before, after, strict=True))
    native = tokens_per_round / ((width - 1) * draft_s + target_s)
    return Answer(rate, native, outside, tokens_per_round, draft_s, target_s)


def answer_rate(
    llm: Runtime, prompt: str, contexts: list[Context], args: argparse.Namespace
) -> tuple[float, float, float]:
    """Tokens per second after the first step that could draft, share outside the passes, tokens per step."""
    started_s = native_s = 0.0
    counted = rounds = last_step = 0
    for event in llm.generate(prompt, max_tokens=args.n, temperature=args.temp, seed=1, ignore_eos=True):
        if event.id < 0:
            break
        if event.round != last_step:  # its tokens came after the time measured so far
            last_step = event.round
            if event.round == 1:  # it includes the draft model's prefill
                started_s, native_s = perf_counter(), sum(context.decode_s for context in contexts)
            else:
                rounds += 1
        counted += event.round > 1
    took_s = perf_counter() - started_s
    native_s = sum(context.decode_s for context in contexts) - native_s
    assert bool(llm.stats.proposed) == bool(llm.engine.speculator.n_max), llm.notes
    return counted / took_s, 1 - native_s / took_s, counted / max(1, rounds)


def passes(llm: Runtime, width: int, drafts: list[Context], repeat: int = 5) -> tuple[float, float]:
    """Median seconds of a draft pass over one token (0 without a draft) and of a target pass over `width`."""
    return (
        median(pass_s(drafts[0], 1) for _ in range(repeat)) if drafts else 0.0,
        median(pass_s(llm.context, width) for _ in range(repeat)),
    )


def pass_s(context: Context, width: int) -> float:
    """Seconds of one pass over `width` tokens behind those that are in the cache."""
    held = n = context.length(0)
    if not held:
        n = 16
        context.decode([1] * n, range(n), [(0,)] * n, [False] * n)
    start_s = context.decode_s
    context.decode([1] * width, range(n, n + width), [(0,)] * width, [True] * width)
    took_s = context.decode_s - start_s
    context.truncate(0, held)
    return took_s


if __name__ == "__main__":
    main()
