"""Draw the draft trees of one answer, each node with its drafter and its path probability.

    python scripts/show_tree.py demo "import os, sys" --rounds 8 9 -n 64
    python scripts/show_tree.py target.gguf "Why?" --draft-model draft.gguf --tokens 12 --leaves 6

A star marks accepted nodes.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

import edgespec
from edgespec.core.draft import Draft
from edgespec.core.stats import Stats
from edgespec.runtime.runtime import Runtime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("prompt")
    parser.add_argument("--draft-model")
    parser.add_argument("--spec-type", default="auto")
    parser.add_argument("--tokens", type=int, default=8, help="nodes of a tree")
    parser.add_argument("--leaves", type=int, default=4)
    parser.add_argument("--rounds", type=int, nargs="+", help="which steps (default: all)")
    parser.add_argument("-n", type=int, default=32, help="tokens of the answer")
    parser.add_argument("--temp", type=float, default=0.0)
    args = parser.parse_args()
    console = Console(highlight=False)
    with edgespec.load(
        args.model,
        draft_model=args.draft_model,
        spec_type=args.spec_type,
        spec_tree=args.leaves,
        pace=f"fixed:{args.tokens}",
        store=False,
    ) as llm:
        drafts = watched(llm)
        for _ in llm.generate(args.prompt, max_tokens=args.n, temperature=args.temp, seed=1):
            pass
        for number, (draft, path) in enumerate(drafts):
            if draft and (args.rounds is None or number in args.rounds):
                console.print(drawn(llm, draft, path, f"step {number}: {len(path)} of {len(draft)} accepted"))


def watched(llm: Runtime) -> list[tuple[Draft, list[int]]]:
    """What each step of the next answers verifies and accepts, as they come."""
    seen: list[tuple[Draft, list[int]]] = []
    count = Stats.count_round

    def counting(stats: Stats, draft: Draft, path: list[int], emitted: int) -> None:
        seen.append((draft, path))
        count(stats, draft, path, emitted)

    Stats.count_round = counting  # type: ignore[method-assign, assignment]
    return seen


def drawn(llm: Runtime, draft: Draft, path: list[int], title: str) -> Tree:
    tree = Tree(title)
    branches = {-1: tree}
    for node, reach in enumerate(draft.reaches()):
        text = llm.model.token_bytes(draft.tokens[node]).decode("utf-8", "replace")
        star = " *" if node in path else ""
        label = escape(f"{text!r}  {draft.source_of(node)} {reach:.2f}{star}")
        branches[node] = branches[draft.parents[node]].add(label)
    return tree


if __name__ == "__main__":
    main()
