"""The cost of drafters without a model: milliseconds per step and megabytes, after 8,192 tokens of Python source.

python scripts/measure_drafters.py                          tokens of the bundled target
python scripts/measure_drafters.py --corpus x.corpus        and this corpus ('edgespec corpus build')
python scripts/measure_drafters.py --vocabulary 151936      recycling with rows of another length
"""

from __future__ import annotations

import argparse
import sysconfig
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import mean, median
from time import perf_counter

import numpy as np

from edgespec.core.sampler import Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.datastore.corpus import Corpus, find
from edgespec.drafters.base import Budget, Drafter, Outcome
from edgespec.drafters.corpus import CorpusDrafter
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.recycling import RecyclingDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.llama.model import Model
from edgespec.models.names.spec import resolve

TOKENS = 8


@dataclass
class Text:
    """A sequence as drafters see it."""

    sampler: Sampler
    tokens: list[int] = field(default_factory=list)
    slot: int = 0
    is_draft_invariant: bool = True
    draws: bool = False
    round: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--corpus")
    parser.add_argument("--vocabulary", type=int, help="how long rows of logits are; the model's unless said")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=1000)
    args = parser.parse_args()
    with Model.load_vocabulary(resolve(args.model).path) as vocabulary:
        n_vocab = args.vocabulary or vocabulary.n_vocab
        tokens = list(islice(source_tokens(vocabulary), args.context + args.rounds))
    print(f"{'':22}{'ms per step':>12}{'most':>8}{'prefill, ms':>13}{'search, ms':>13}{'MB':>8}")
    for name in ("lookup", "suffix", "recycling", *(["corpus"] if args.corpus else [])):
        for leaves in (1,) if name == "lookup" else (1, 4):
            drafter = make(name, n_vocab, args.corpus)
            print(f"{f'{name}, {leaves} leaves' if leaves > 1 else name:22}", end="")
            print(measured(drafter, tokens, args.context, leaves, n_vocab), flush=True)


def source_tokens(vocabulary: Model) -> Iterator[int]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield from vocabulary.tokenize(path.read_text("utf-8"))


def make(name: str, n_vocab: int, corpus: str | None) -> Drafter:
    if name == "corpus":
        return CorpusDrafter(Corpus(find(str(corpus))).index)
    if name == "recycling":
        return RecyclingDrafter(n_vocab)
    return LookupDrafter() if name == "lookup" else SuffixDrafter()


def measured(drafter: Drafter, tokens: list[int], context: int, leaves: int, n_vocab: int) -> str:
    """A line: the mean and the slowest hundredth of steps, the first step, observing a row, the memory."""
    text, budget = (
        Text(Sampler(SamplingSettings(temperature=0), 0, 0, n_vocab), tokens[:context]),
        Budget(TOKENS, leaves),
    )
    random = np.random.default_rng(0)
    rows = [random.standard_normal(n_vocab).astype(np.float32) for _ in range(8)]
    looks: list[float] = []
    drafter.begin(text)
    if drafter.needs_logits:
        for number, token in enumerate(tokens[:context]):
            row = rows[number % len(rows)]
            outcome = Outcome(text, [token], [row].__getitem__)
            started_s = perf_counter()
            drafter.observe(outcome)
            looks.append(perf_counter() - started_s)
    started_s = perf_counter()
    drafter.propose([text], [budget])
    reading_s = perf_counter() - started_s
    rounds = []
    for token in tokens[context:]:
        text.tokens.append(token)
        started_s = perf_counter()
        drafter.propose([text], [budget])
        rounds.append(perf_counter() - started_s)
    tracemalloc.start()
    held = make_again(drafter, text, budget, n_vocab)
    megabytes = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    del held
    slowest = sorted(rounds)[-max(1, len(rounds) // 100)]
    looking = f"{median(looks) * 1e3:.3f}" if looks else "-"
    return f"{mean(rounds) * 1e3:>12.3f}{slowest * 1e3:>8.3f}{reading_s * 1e3:>13.1f}{looking:>13}{megabytes:>8.1f}"


def make_again(drafter: Drafter, text: Text, budget: Budget, n_vocab: int) -> Drafter:
    """A drafter like this one that has read the text, for counting what it holds."""
    if isinstance(drafter, CorpusDrafter):
        return drafter
    again = make(drafter.name, n_vocab, None)
    again.begin(text)
    again.propose([text], [budget])
    return again


if __name__ == "__main__":
    main()
