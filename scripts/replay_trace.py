"""Replay other draft-length policies on a recorded run.

    python scripts/replay_trace.py trace.jsonl [more.jsonl ...] [--source draft] [--lengths lengths.png]

A trace is recorded by a run that decodes plainly, with an unverified draft at every token:

    edgespec run -m x.gguf -md y.gguf --pace off --trace trace.jsonl "..."

One table a file, over its answers one after the other: speed-up against plain decoding by the costs in the trace,
tokens per step, mean length, and the share of the drafter's passes that gave no accepted token. `*` marks the best
fixed length. "oracle" knows the text and is what no policy can exceed. The last line is the mean over the files.
`--lengths` draws how this project's pace changed its lengths along the answers; it needs matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from edgespec.bench.plot import check_plot
from edgespec.bench.replay import Replay, Tape, replay_all
from edgespec.engine.trace import read_trace
from edgespec.errors import EdgespecError, UsageError

SHOWN_FIXED = (1, 2, 3, 4, 6, 8, 12, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="trace.jsonl")
    parser.add_argument("--source", default="draft", help="the drafter to replay: draft, lookup")
    parser.add_argument("--lengths", type=Path, metavar="out.png", help="draw the draft lengths of this project's pace")
    args = parser.parse_args()
    console = Console()
    try:
        if args.lengths is not None:
            check_plot(args.lengths)
        replays = {path: replay_file(path, args.source) for path in args.files}
        for path, results in replays.items():
            show(console, str(path), results)
        means = {
            name: fmean(results[name].speedup for results in replays.values())
            for name in replays[args.files[0]]
            if all(name in results for results in replays.values())
        }
        best = max((name for name in means if name.startswith("fixed")), key=means.__getitem__, default="plain")
        console.print(
            f"mean speed-up over {len(replays)} traces: auto {means['auto']:.3f}, best fixed length ({best}) "
            f"{means[best]:.3f}, oracle {means['oracle']:.3f}"
        )
        if args.lengths is not None:
            draw(args.lengths, replays)
    except EdgespecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def replay_file(path: Path, source: str) -> dict[str, Replay]:
    """Every policy over the answers of a file, each of which it meets as the next one of the same pair."""
    tapes = [Tape.of(trace, source) for trace in read_trace(path)]
    if not tapes:
        raise UsageError(f"the trace {path} has no answer")
    return {result.policy: result for result in replay_all(tapes)}


def show(console: Console, title: str, results: dict[str, Replay]) -> None:
    fixed = [name for name in results if name.startswith("fixed")]
    best = max(fixed, key=lambda name: results[name].speedup, default="")
    shown = {f"fixed {k}" for k in SHOWN_FIXED} | {best}
    table = Table(title=title, caption=f"no draft longer than {len(fixed)} tokens was recorded")
    table.add_column("policy", no_wrap=True)
    for column in ("speedup", "tokens/step", "mean length", "passes wasted"):
        table.add_column(column, justify="right")
    for name, result in results.items():
        if name in fixed and name not in shown:
            continue
        table.add_row(
            f"{name} *" if name == best else name,
            f"{result.speedup:.3f}",
            f"{result.tokens_per_round:.2f}",
            f"{result.mean_length:.2f}",
            f"{result.wasted:.0%}",
        )
    console.print(table)


def draw(path: Path, replays: dict[Path, dict[str, Replay]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.5 * len(replays)), layout="constrained")
    rows = figure.subplots(len(replays), squeeze=False)
    for axes, (file, results) in zip(rows[:, 0], replays.items(), strict=True):
        auto = results["auto"]
        axes.step(auto.positions, auto.lengths, where="post", linewidth=0.8)
        axes.set(title=file.name, xlabel="token of the answers", ylabel="verified tokens")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise EdgespecError(f"cannot write {path}", why=str(error)) from error


if __name__ == "__main__":
    main()
