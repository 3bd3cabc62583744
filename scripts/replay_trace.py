"""Replay other draft-length policies on a recorded run.

    python scripts/replay_trace.py trace.jsonl [more.jsonl ...] [--source draft] [--lengths lengths.png]

A trace is recorded by a run that decodes plainly, with an unverified draft at every token:

    edgespec run -m x.gguf -md y.gguf --pace off --trace trace.jsonl "..."

One table a file, over its answers one after the other: speed-up against plain decoding by the costs in the trace,
tokens per step, mean length, and the share of the drafter's passes that gave no accepted token. `*` marks the best
fixed length. "oracle" knows the text and is what no policy can exceed. The last line is the mean over the files.
`--lengths` draws how this project's pace changed its lengths along the answers; it needs matplotlib.

`--overlap C` is for target and draft on two devices: a pass of the drafter takes C passes of the target over one token,
and the table has both speed-ups, with drafting before each pass of the target and beside it. Passes of the target cost
what the trace says, or with `--flat` what is assumed of GPUs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from edgespec.bench.plot import check_plot
from edgespec.bench.replay import Replay, Tape, replay_all
from edgespec.engine.calibrate import OFFLOADED
from edgespec.engine.trace import Trace, read_trace
from edgespec.errors import EdgespecError, UsageError

SHOWN_FIXED = (1, 2, 3, 4, 6, 8, 12, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="trace.jsonl")
    parser.add_argument("--source", default="draft", help="the drafter to replay: draft, lookup")
    parser.add_argument("--lengths", type=Path, metavar="out.png", help="draw the draft lengths of this project's pace")
    parser.add_argument("--overlap", type=float, metavar="C", help="the drafter has a device of its own")
    parser.add_argument("--flat", action="store_true", help="passes of the target cost what is assumed of GPUs")
    args = parser.parse_args()
    console = Console()
    try:
        if args.lengths is not None:
            check_plot(args.lengths)
        replays = {path: replay_file(path, args.source, args.overlap, flat=args.flat) for path in args.files}
        overlapped = {
            path: replay_file(path, args.source, args.overlap, flat=args.flat, overlaps=True)
            for path in (args.files if args.overlap else ())
        }
        for path, results in replays.items():
            show(console, str(path), results, overlapped.get(path))
        console.print(f"mean speed-up over {len(replays)} traces: {means(replays.values())}")
        if overlapped:
            console.print(f"overlapped: {means(overlapped.values())}")
        if args.lengths is not None:
            draw(args.lengths, replays)
    except EdgespecError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def replay_file(
    path: Path, source: str, step: float | None = None, *, flat: bool = False, overlaps: bool = False
) -> dict[str, Replay]:
    """Every policy over the answers of a file, each of which it meets as the next one of the same pair."""
    traces = [priced(trace, source, step, flat=flat) for trace in read_trace(path)]
    tapes = [replace(Tape.of(trace, source), overlaps=overlaps) for trace in traces]
    if not tapes:
        raise UsageError(f"the trace {path} has no answer")
    return {result.policy: result for result in replay_all(tapes)}


def priced(trace: Trace, source: str, step: float | None, *, flat: bool) -> Trace:
    """A trace with other costs: a pass of the drafter in passes of the target over one token, and those as assumed."""
    plain_s, costs = min(trace.costs["target"].values()), dict(trace.costs)
    if flat:
        costs["target"] = {str(width): plain_s * cost for width, cost in OFFLOADED.items()}
    if step is not None:
        costs |= {"step": {source: step * plain_s}, "read": {}}
    return replace(trace, costs=costs)


def means(replays: Collection[dict[str, Replay]]) -> str:
    """Of the policies that all files have."""
    common = set[str].intersection(*({*results} for results in replays))
    means = {name: fmean(results[name].speedup for results in replays) for name in common}
    best = max((name for name in means if name.startswith("fixed")), key=means.__getitem__, default="plain")
    oracle = f", oracle {means['oracle']:.3f}" if "oracle" in means else ""
    return f"auto {means['auto']:.3f}, best fixed length ({best}) {means[best]:.3f}{oracle}"


def show(console: Console, title: str, results: dict[str, Replay], overlapped: dict[str, Replay] | None) -> None:
    fixed = [name for name in results if name.startswith("fixed")]
    best = max(fixed, key=lambda name: results[name].speedup, default="")
    shown = {f"fixed {k}" for k in SHOWN_FIXED} | {best}
    table = Table(title=title, caption=f"no draft longer than {len(fixed)} tokens was recorded")
    table.add_column("policy", no_wrap=True)
    for column in ("speedup", *(["overlapped"] if overlapped else []), "tokens/step", "mean length", "passes wasted"):
        table.add_column(column, justify="right")
    for name, result in results.items():
        if name in fixed and name not in shown:
            continue
        table.add_row(
            f"{name} *" if name == best else name,
            f"{result.speedup:.3f}",
            *([f"{overlapped[name].speedup:.3f}" if name in overlapped else ""] if overlapped else []),
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
