"""A comparison as one picture: how fast against how far from the reference, with the line that nothing beats."""

from __future__ import annotations

from math import ceil, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.bench.paired import PLAIN
from edgespec.bench.plot import COLOURS, GREY, MARKERS, legend_above, picture, tidy
from edgespec.bench.report import machine_line
from edgespec.compare.measure import Result
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(result: Result, path: Path) -> None:
    """Draw a result into `path`. Raises as `picture` does, and UsageError where there is nothing to draw."""
    divergences = {target["label"]: target["quality"]["kl"] for target in result["targets"] if target["quality"]}
    rows = [row for row in result["rows"] if row["tokens_per_s"] and row["target"] in divergences]
    if not rows:
        raise UsageError("there is nothing to draw", why="no file has both speed and quality")
    [name] = [target["name"] for target in result["targets"] if target["label"] == result["reference"]]
    with picture(path, f"Speed, and closeness to {name}", machine_line(result["machine"]), (8.5, 5)) as figure:
        _draw(figure.subplots(), rows, divergences, result["reference"])


def _draw(axes: Axes, rows: list[dict[str, Any]], divergences: dict[str, float], reference: str) -> None:
    """A colour for each file, a marker for each mode and draft."""
    labels = list(dict.fromkeys(row["target"] for row in rows))
    drafts = {row["draft"] for row in rows} - {None}
    way_of = [row["mode"] + (f", {row['draft']}" if row["draft"] and len(drafts) > 1 else "") for row in rows]
    ways = list(dict.fromkeys(way_of))
    best = sorted((row["tokens_per_s"], divergences[row["target"]]) for row in rows if row["is_best"])
    axes.plot(
        *zip(*best, strict=True),
        color=GREY,
        linewidth=1,
        linestyle="--",
        zorder=1,
        label="not beaten (hollow: not faster for sure)",
    )
    for row, way in zip(rows, way_of, strict=True):
        is_sure = row["mode"] == PLAIN or (row["speedup_low"] or 0) > 1
        colour = COLOURS[labels.index(row["target"]) % len(COLOURS)]
        axes.plot(
            row["tokens_per_s"],
            divergences[row["target"]],
            marker=MARKERS[ways.index(way) % len(MARKERS)],
            color=colour,
            markerfacecolor=colour if is_sure else "white",
            markersize=8,
            linestyle="",
            zorder=2,
        )
    for way in ways:
        axes.plot([], [], marker=MARKERS[ways.index(way) % len(MARKERS)], color=GREY, linestyle="", label=way)
    for label in labels:
        fastest = max(row["tokens_per_s"] for row in rows if row["target"] == label)
        axes.annotate(
            label, (fastest, divergences[label]), (8, -7), textcoords="offset points", va="center", parse_math=False
        )
    known = [value for value in divergences.values() if value > 0]
    if known:  # the reference's 0 has a place below the smallest
        axes.set_yscale("symlog", linthresh=min(known), linscale=0.5)
        decades = [10.0**k for k in range(ceil(log10(min(known))), ceil(log10(max(known))) + 1)]
        axes.set_ylim(bottom=-0.5 * min(known))
        axes.set_yticks([0, *decades], ["0", *(f"{decade:g}" for decade in decades)])
    axes.set_xlim(0, 1.15 * max(row["tokens_per_s"] for row in rows))
    axes.set_xlabel("tokens a second (median over prompts)")
    axes.set_ylabel(f"KL divergence from {reference}, nats a token", parse_math=False)
    legend_above(axes, 3)
    tidy(axes, "both")
