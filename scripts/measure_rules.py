"""Mean tokens per step of verification rules and draft shapes on the same prompts.

    python scripts/measure_rules.py                      the bundled pair, 40 prompts
    python scripts/measure_rules.py --model t.gguf --draft-model d.gguf -n 96

For the verify rules the target writes a text for each prompt, plainly. Then each rule makes one step after every token
of it, which is counted and taken back: so all of them are asked the same questions, and no text that runs into a loop
favours one of them. Coupled pays with some accepted tokens for the same text with every seed; block never accepts fewer
than rejection in the mean.

Chains and trees of the same number of tokens write whole answers under the coupled rule, which are the same for all of
them: trees learn from earlier acceptance. Counts, no times: the machine does not matter.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from check_exact import NAMES, STARTS

import edgespec
from edgespec.cancel import CancelFlag
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.core.verify import VerifyRule
from edgespec.runtime.runtime import Runtime

TEMPERATURES = (0.0, 0.7, 1.0)

Text = tuple[list[int], int]
"""Tokens of a prompt and its answer, and how many of them are the prompt's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft-model")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("-n", type=int, default=64, help="tokens per text")
    parser.add_argument("-t", type=int, default=0, help="threads")
    args = parser.parse_args()
    prompts = [STARTS[i % len(STARTS)].format(name) for i, name in enumerate(NAMES)][: args.prompts]

    def load(**settings: Any) -> Runtime:
        common = {"draft_model": args.draft_model, "threads": args.t, "spec_type": "draft"}
        return edgespec.load(args.model, **common | settings)

    with load(spec_type="none") as llm:
        texts = {temperature: write(llm, prompts, args.n, temperature) for temperature in TEMPERATURES}
    print("tokens per step and its standard error, acceptance rate")
    print(f"{'':34}" + "".join(f"{f'T {temperature}':>22}" for temperature in TEMPERATURES))
    rules: tuple[VerifyRule, ...] = ("coupled", "rejection", "block", "typical")
    for n_max in (3, 8):
        with load(pace=f"fixed:{n_max}") as llm:
            for rule in rules:
                show(f"chain of {n_max}, {rule}", llm, texts, rule)
    print("whole answers")
    for n_max, leaves in ((3, 1), (3, 2), (6, 1), (6, 4), (12, 1), (12, 8)):
        with load(pace=f"fixed:{n_max}", spec_tree=leaves) as llm:
            show_answers(
                f"tree of {n_max}, {leaves} leaves" if leaves > 1 else f"chain of {n_max}", llm, prompts, args.n
            )


def write(llm: Runtime, prompts: Sequence[str], n: int, temperature: float) -> list[Text]:
    texts = []
    for seed, prompt in enumerate(prompts):
        tokens = llm.model.tokenize(prompt, add_special=True)
        events = llm.generate(prompt, max_tokens=n, temperature=temperature, seed=seed)
        texts.append((tokens + [event.id for event in events if event.id >= 0], len(tokens)))
    return texts


def show(label: str, llm: Runtime, texts: dict[float, list[Text]], rule: VerifyRule) -> None:
    cells = []
    for temperature, written in texts.items():
        emitted: list[int] = []
        proposed = accepted = 0
        for tokens, n_prompt in written:
            one_step(llm, tokens[:n_prompt], temperature, rule, n_decoded=0)  # reads the prompt
            for n in range(n_prompt + 1, len(tokens)):
                stats = one_step(llm, tokens[:n], temperature, rule, n_decoded=n - 1)
                emitted.append(stats.generated_tokens)
                proposed, accepted = proposed + stats.proposed, accepted + stats.accepted
        error = stdev(emitted) / len(emitted) ** 0.5
        cells.append(f"{mean(emitted):.3f} ±{error:.3f} {f'({accepted / max(1, proposed):.0%})':>6}")
    print(f"{label:34}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def show_answers(label: str, llm: Runtime, prompts: Sequence[str], n: int) -> None:
    cells = []
    for temperature in TEMPERATURES:
        tokens = rounds = proposed = accepted = 0
        for seed, prompt in enumerate(prompts):
            for _ in llm.generate(prompt, max_tokens=n, temperature=temperature, seed=seed, ignore_eos=True):
                pass
            stats = llm.stats
            # The first token comes from the prompt's pass, before anything can be drafted.
            tokens, rounds = tokens + stats.generated_tokens - 1, rounds + stats.rounds - 1
            proposed, accepted = proposed + stats.proposed, accepted + stats.accepted
        cells.append(f"{tokens / rounds:.3f} {f'({accepted / max(1, proposed):.0%})':>13}")
    print(f"{label:34}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def one_step(llm: Runtime, tokens: list[int], temperature: float, rule: VerifyRule, *, n_decoded: int) -> Stats:
    """A step after `tokens`, of which `n_decoded` are in the cache, with a seed that is not the text's."""
    engine = llm.engine
    sampler = Sampler(SamplingSettings(temperature=temperature), 10**6 + len(tokens), 0, llm.model.n_vocab)
    most = 1 + engine.speculator.n_max
    sequence = engine.add(tokens, sampler, most, CancelFlag(), rule=rule, n_cached=n_decoded)
    engine.step()
    engine.finish(sequence)
    return sequence.stats


if __name__ == "__main__":
    main()
