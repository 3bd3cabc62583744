"""Does drafting change a text? Answers the same prompts plainly and with every drafting method, and counts equal texts.

    python scripts/check_exact.py                        40 prompts x temperature 0, 0.7, 1.0 x 2 seeds, bundled pair
    python scripts/check_exact.py --prompts 200          hours
    python scripts/check_exact.py --model t.gguf --draft-model d.gguf

Once as it is, once with `strict` (chains only), where every text must be equal. Elsewhere the rounding of the native
kernels can change a choice between tokens that are almost tied, and texts need not be equal: each first difference is
listed with the lead of the best token over the second there, and whether the measured rounding explains it, which
takes the edges of top-k, top-p and min-p into account as well. Ends with exit code 1 if a strict text differs, if a
difference is no near-tie, or if an active drafter was never accepted.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

import edgespec
from edgespec.core.draft import Draft
from edgespec.datastore.corpus import build
from edgespec.drafters.base import Budget, DraftContext, Drafter
from edgespec.events import TokenEvent
from edgespec.llama.model import Model
from edgespec.models.names.spec import resolve
from edgespec.runtime.runtime import Runtime

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from other_vocabulary import permute_vocabulary

STARTS = ["def {}(", "class {}:\n", "import {}\n", "What does {} do?", "{} = "]
NAMES = """fibonacci path Queue shutil.copytree os.walk json result Parser itertools.chain x Stack read_file socket
threading.Lock main logging re.compile Node visit encode asyncio.run Counter tokenize walk_tree datetime copy Thread
random.choice values test_add zipfile Decimal is_valid csv.reader Handler urlparse to_bytes Enum pickle.dumps setUp
close""".split()  # noqa: SIM905
TEMPERATURES = (0.0, 0.7, 1.0)
ALL = {"spec_type": "suffix,recycling,corpus,draft", "corpus": "CORPUS"}
TREE = {"spec_tree": 4, "pace": "fixed:6"}
MODES: dict[str, dict[str, Any]] = {
    "draft": {"spec_type": "draft"},
    "draft, tree": {"spec_type": "draft"} | TREE,
    "lookup": {"spec_type": "lookup"},
    "suffix": {"spec_type": "suffix"},
    "suffix, tree": {"spec_type": "suffix"} | TREE,
    "recycling": {"spec_type": "recycling"},
    "recycling, tree": {"spec_type": "recycling"} | TREE,
    "corpus": {"spec_type": "corpus", "corpus": "CORPUS"},
    "self:8": {"spec_type": "self:8"},
    "self:Q2_K": {"spec_type": "self:Q2_K"},
    "other vocabulary": {"spec_type": "draft", "draft_model": "OTHER"},
    "lookup, draft": {"spec_type": "lookup,draft"},
    "all": ALL,
    "all, tree": ALL | TREE,
    "all, auto": ALL | {"pace": "auto"},
    "always wrong": {"spec_type": "lookup"},
    "and all": ALL,
}
WRONG = ("always wrong", "and all")  # modes with a drafter that is always wrong, alone or before the others


class Wrong(Drafter):
    """Drafts what the text will not say: for each token the next one in the vocabulary."""

    name = "wrong"
    n_prompt = 0
    truth: tuple[int, ...] = ()

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._draft(sequence, budget.tokens) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _draft(self, sequence: DraftContext, n_max: int) -> Draft:
        start = len(sequence.tokens) - self.n_prompt
        drafted = [token + 1 for token in self.truth[start : start + n_max]]
        return Draft.chain(drafted, [0.5] * len(drafted), self.name)


@dataclass
class Count:
    """The result of one drafting method at one temperature."""

    texts: int = 0
    equal: int = 0
    proposed: int = 0
    accepted: int = 0
    rounds: int = 0
    tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft-model")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("-n", type=int, default=48, help="tokens per answer")
    parser.add_argument("-t", type=int, default=0, help="threads")
    args = parser.parse_args()
    prompts = [start.format(name) for name in NAMES for start in STARTS][: args.prompts]
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(check(args, prompts, make_files(args, Path(folder))))


def make_files(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """A corpus and a draft of another vocabulary, by what `MODES` calls them."""
    files = {"CORPUS": folder / "x.corpus", "OTHER": folder / "other.gguf"}
    with Model.load_vocabulary(resolve(args.model).path) as vocabulary:
        build(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")), vocabulary, files["CORPUS"])
    draft = resolve(args.draft_model).path if args.draft_model else resolve(args.model).default_draft
    if draft is None:
        sys.exit("name a draft model (--draft-model)")
    permute_vocabulary(draft, files["OTHER"], renamed=0.2)
    return {name: str(path) for name, path in files.items()}


def check(args: argparse.Namespace, prompts: Sequence[str], files: dict[str, str]) -> bool:
    """Whether something is wrong."""
    failed = False
    for strict in (False, True):
        print(f"{'strict' if strict else 'not strict'}: {len(prompts)} prompts x {args.seeds} seeds of {args.n} tokens")
        print(f"{'':18}{'T':>4}{'equal texts':>16}{'accepted':>10}{'tokens/step':>14}")
        for mode, temperature, count in compare(args, prompts, files, strict=strict):
            rate = count.accepted / max(1, count.proposed)
            print(
                f"{mode:18}{temperature:4}{f'{count.equal} of {count.texts}':>16}{rate:>10.1%}"
                f"{count.tokens / max(1, count.rounds):>14.2f}" + gaps(count),
                flush=True,
            )
            for line in count.unexplained:
                print(f"    {line}")
            failed |= bool(count.unexplained) or (strict and count.equal < count.texts)
            failed |= mode not in WRONG and not count.accepted
    return failed


def gaps(count: Count) -> str:
    if not count.gaps:
        return ""
    return f"   leads where they differ: median {median(count.gaps):.3f}, most {max(count.gaps):.3f}"


def compare(
    args: argparse.Namespace, prompts: Sequence[str], files: dict[str, str], *, strict: bool
) -> Iterator[tuple[str, float, Count]]:
    settings: dict[str, Any] = {"draft_model": args.draft_model, "threads": args.t, "strict": strict, "store": False}
    if not strict:
        settings["flash_attention"] = "on"  # as trees have it, so that all compare with the same plain text
    with ExitStack() as stack:
        plain = stack.enter_context(edgespec.load(args.model, **settings | {"spec_type": "none"}))
        for temperature in TEMPERATURES:
            jobs = [(prompt, seed) for seed in range(args.seeds) for prompt in prompts]
            asked = {"max_tokens": args.n, "temperature": temperature}
            wanted = [list(plain.generate(prompt, seed=seed, **asked)) for prompt, seed in jobs]
            for mode, how in MODES.items():
                if strict and how.get("spec_tree"):
                    continue
                how = {name: files.get(value, value) for name, value in how.items()}
                with edgespec.load(args.model, measure_rounding=True, **settings | {"pace": "fixed:3"} | how) as llm:
                    count = Count()
                    wrong = Wrong()
                    if mode in WRONG:
                        llm.engine.speculator.drafters = (
                            [wrong, *llm.engine.speculator.drafters] if mode == "and all" else [wrong]
                        )
                    for (prompt, seed), want in zip(jobs, wanted, strict=True):
                        wrong.truth = tuple(event.id for event in want if event.id >= 0)
                        wrong.n_prompt = len(llm.model.tokenize(prompt, add_special=True))
                        add(count, llm, prompt, want, list(llm.generate(prompt, seed=seed, **asked)))
                    yield mode, temperature, count


def add(count: Count, llm: Runtime, prompt: str, want: list[TokenEvent], got: list[TokenEvent]) -> None:
    stats = llm.stats
    count.texts += 1
    count.proposed, count.accepted = count.proposed + stats.proposed, count.accepted + stats.accepted
    count.rounds, count.tokens = count.rounds + stats.rounds, count.tokens + stats.generated_tokens
    for index, (left, right) in enumerate(zip_longest(want, got)):
        if left is None or right is None or left.id != right.id:
            if right is not None:
                count.gaps.append(right.gap)
            if right is None or not right.near_tie:
                count.unexplained.append(f"{prompt!r} token {index}: {left} instead of {right}")
            return
    count.equal += 1


if __name__ == "__main__":
    main()
