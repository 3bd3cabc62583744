"""The trace of a text that changes its character: reference answers of the bench, forced one after the other.

    python scripts/trace_text.py demo code_editing-04 writing-03 -o change.jsonl --pace off
    python scripts/replay_trace.py change.jsonl --source lookup --lengths change.png

The prompt is the first one's. For each part the lengths of the verified drafts are printed; the second command
draws those that the measured pace would choose, with a line where the text changes. A toy model writes no such texts
itself; what passes cost and what lookup finds does not depend on that.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import edgespec
from edgespec.bench.questions import ask
from edgespec.bench.suites import shipped
from edgespec.engine.trace import read_trace
from edgespec.errors import EdgespecError, UsageError
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("items", nargs="+", metavar="item", help="such as chat-01 (edgespec/bench/suites)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="trace.jsonl")
    parser.add_argument("-md", "--draft-model")
    parser.add_argument("--spec-type", default="lookup", choices=("draft", "lookup"))
    parser.add_argument("--pace", default="auto")
    parser.add_argument("-t", type=int, default=0, help="threads")
    args = parser.parse_args()
    try:
        with edgespec.load(
            args.model, draft_model=args.draft_model, spec_type=args.spec_type, pace=args.pace, threads=args.t
        ) as llm:
            request, starts = forced(llm, args.items)
            with llm.recording(args.output, request) as recorder:
                recorder.begin({"parts": starts})
                for _ in llm.answer(request):
                    pass
    except EdgespecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    tell(args.output, args.items, [*starts, len(request.reference)])


def forced(llm: Runtime, names: list[str]) -> tuple[Request, list[int]]:
    """The first item's prompt, answered by all items' answers, and where each of these begins."""
    items = {item.id: item for item in shipped()}
    unknown = [name for name in names if name not in items]
    if unknown:
        raise UsageError(f"there is no item {unknown[0]}", hint=f"one of {', '.join(items)}")
    first, *others = ask(llm, [items[name] for name in names], None, reference=True)[0]
    text, starts = list(first.request.reference), [0]
    for question in others:
        starts.append(len(text))
        text += question.request.reference
    return replace(first.request, max_tokens=len(text), reference=tuple(text)), starts


def tell(path: Path, names: list[str], bounds: list[int]) -> None:
    [trace] = read_trace(path)
    for name, (start, end) in zip(names, pairwise(bounds), strict=True):
        steps = [step for step in trace.rounds if start <= step.position < end]
        lengths = [max((draft.verified for draft in step.drafts), default=0) for step in steps]
        print(f"{name:24}{end - start:5} tokens{len(steps):5} steps, mean draft length {fmean(lengths):.2f}")


if __name__ == "__main__":
    main()
