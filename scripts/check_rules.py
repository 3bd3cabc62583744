"""List every outcome of one step for small vocabularies: how far each rule is from the target's distribution.

    python scripts/check_rules.py                    three tokens: quick
    python scripts/check_rules.py --vocab 4

"error" is the largest difference in the probability of a sequence of as many tokens as the draft is deep and one more,
rounding apart it is 0 for a rule that keeps the distribution; "accepted" is the mean number of accepted draft tokens.
Typical acceptance changes the distribution, and its error says by how much.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from edgespec.core.verify import block, rejection, typical

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from enumeration import (
    Drafting,
    Model,
    Rule,
    chain,
    drawn,
    enumerate_step,
    error,
    likeliest,
    likeliest_and_drawn,
    pairs,
    plain,
    tree,
)

CASES: list[tuple[str, Rule, int, Drafting]] = [
    ("rejection, one drawn", rejection, 1, chain(1)),
    ("rejection, two drawn", rejection, 1, tree(drawn(2))),
    ("rejection, two likeliest", rejection, 1, tree(likeliest(2))),
    ("rejection, likeliest and one drawn", rejection, 1, tree(likeliest_and_drawn(2))),
    ("rejection, two levels of two drawn", rejection, 2, tree(drawn(2), drawn(2))),
    ("rejection, chain of three", rejection, 3, chain(3)),
    ("block, chain of three", block, 3, chain(3)),
    ("rejection, drawn, then looked up", rejection, 3, tree(drawn(1), likeliest(1), likeliest(1))),
    ("block, drawn, then looked up", block, 3, tree(drawn(1), likeliest(1), likeliest(1))),
    ("typical, chain of three", typical, 3, chain(3)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, choices=(3, 4), default=3, help="tokens of the vocabulary")
    models = pairs(parser.parse_args().vocab)
    for name, rule, depth, drafting in CASES:
        print(f"{name:42}{'error':>8}{'accepted':>10}")
        worst = max(print_row(pair, rule, depth, drafting, *models[pair]) for pair in models)
        print(f"  {'worst':40}{worst:8.1e}\n")


def print_row(pair: str, rule: Rule, depth: int, drafting: Drafting, target: Model, drafter: Model) -> float:
    emitted = enumerate_step(rule, drafting, target, drafter, depth + 1)
    wrong = error(emitted.joint, plain(target, depth + 1))
    print(f"  {pair:40}{wrong:8.1e}{emitted.accepted:10.4f}")
    return wrong


if __name__ == "__main__":
    main()
