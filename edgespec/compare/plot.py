"""A comparison as one picture: speed against distance from the reference, with the Pareto front."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.bench.paired import PLAIN
from edgespec.bench.plot import COLOURS, GREY, MARKERS, legend_above, picture, tidy
from edgespec.bench.report import machine_line
from edgespec.compare.doubts import is_doubtful
from edgespec.compare.figures import is_faster
from edgespec.compare.measure import Result
from edgespec.compare.report import way
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RING, POINT = 14, 7  # sizes of markers
LABEL_WIDTH, LABEL_HEIGHT = 70, 12  # minimum distance of labels in points
DECADES = 3  # the most decades with ticks between powers of ten

Row = Mapping[str, Any]


def plot(result: Result, path: Path) -> None:
    """Draw a result into `path`. Raises as `picture` does, and UsageError if there is nothing to draw."""
    divergences = {target["label"]: target["quality"]["kl"] for target in result["targets"] if target["quality"]}
    rows = [row for row in result["rows"] if row["tokens_per_s"] and row["target"] in divergences]
    if not rows:
        raise UsageError("there is nothing to plot", why="no file has both speed and quality")
    [name] = [target["name"] for target in result["targets"] if target["label"] == result["reference"]]
    reference = name if name == result["reference"] else f"{name} ({result['reference']})"
    below = ["the machine was busy or runs differ: speeds are approximate"] if is_doubtful(result) else []
    machine = machine_line(result["machine"])
    title = f"Speed of each file, and its divergence from {reference}"
    with picture(path, title, "; ".join([machine, *below] if machine else below), (8.5, 5.5)) as figure:
        axes = figure.subplots()
        _scale(axes, rows, divergences, result["reference"])
        _draw(axes, rows, [way(result, row) for row in rows], divergences)
        figure.draw_without_rendering()  # where labels are to be apart depends on the layout
        _label(axes, rows, divergences)


def _scale(axes: Axes, rows: Sequence[Row], divergences: Mapping[str, float], reference: str) -> None:
    """Speed from left to right, distance from bottom to top; the reference's 0 is placed below the others."""
    from matplotlib.ticker import NullLocator

    axes.set_xlim(0, 1.2 * max(row["tokens_per_s"] for row in rows))
    axes.set_xlabel("tokens per second, median over prompts (right is faster)")
    scale = f"0 is {reference} itself"
    if known := [value for value in divergences.values() if value > 0]:
        scale = f"log scale, {scale}"
        axes.set_yscale("symlog", linthresh=min(known), linscale=0.5)
        axes.set_ylim(-0.5 * min(known), 1.6 * max(known))
        ticks = [0.0, *_ticks(min(known), max(known))]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_yticks([0.0], ["0"])
    axes.set_ylabel(
        f"mean KL divergence from {reference}, nats per token\n(lower is closer; {scale})", parse_math=False
    )


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from one below `low` to a little above `high`, for a logarithmic scale."""
    steps = (1, 2, 5) if log10(high / low) <= DECADES else (1,)
    decades = range(floor(log10(low)), floor(log10(high)) + 2)
    ticks = [step * 10.0**k for k in decades for step in steps if step * 10.0**k <= 1.6 * high]
    return ticks[bisect_right(ticks, low) - 1 :]


def _draw(axes: Axes, rows: Sequence[Row], ways: Sequence[str], divergences: Mapping[str, float]) -> None:
    """A colour for each file, a marker for each mode and draft, a ring around Pareto-optimal points."""
    colours, different = _colours(rows), list(dict.fromkeys(ways))
    best = sorted((row["tokens_per_s"], divergences[row["target"]]) for row in rows if row["is_best"])
    line: dict[str, Any] = {"color": GREY, "linewidth": 1, "linestyle": "--", "zorder": 1}
    ring: dict[str, Any] = {"marker": "o", "markersize": RING, "markerfacecolor": "none", "markeredgecolor": GREY}
    if best:
        axes.plot(*zip(*best, strict=True), **line, **ring, label="no other is both faster and closer")
    is_any_unsure = False
    for row, each in zip(rows, ways, strict=True):
        is_sure = row["mode"] == PLAIN or is_faster(row["speedup_low"], row["tokens_per_round"])
        is_any_unsure = is_any_unsure or not is_sure
        colour = colours[row["target"]]
        axes.plot(
            row["tokens_per_s"],
            divergences[row["target"]],
            marker=MARKERS[different.index(each) % len(MARKERS)],
            color=colour,
            markerfacecolor=colour if is_sure else "white",
            markersize=POINT,
            linestyle="",
            zorder=2,
        )
    for number, each in enumerate(different):
        axes.plot([], [], marker=MARKERS[number % len(MARKERS)], color=GREY, linestyle="", label=each)
    if is_any_unsure:
        axes.plot(
            [],
            [],
            marker="s",
            markerfacecolor="white",
            markeredgecolor=GREY,
            linestyle="",
            label="hollow: not certainly faster than plain",
        )
    legend_above(axes, 3)
    tidy(axes, "both")


def _label(axes: Axes, rows: Sequence[Row], divergences: Mapping[str, float]) -> None:
    """Each file's name beside its fastest point, moved above names in its way."""
    fastest: dict[str, float] = {}
    colours = _colours(rows)
    for row in rows:
        fastest[row["target"]] = max(fastest.get(row["target"], 0.0), row["tokens_per_s"])
    points_per_pixel = 72 / axes.figure.dpi
    taken: list[tuple[float, float]] = []
    for label in sorted(fastest, key=lambda label: divergences[label]):
        x, y = axes.transData.transform((fastest[label], divergences[label])) * points_per_pixel
        free = y
        for other_x, other_y in sorted(taken, key=lambda place: place[1]):
            if abs(x - other_x) < LABEL_WIDTH and abs(free - other_y) < LABEL_HEIGHT:
                free = other_y + LABEL_HEIGHT
        taken.append((x, free))
        axes.annotate(
            label,
            (fastest[label], divergences[label]),
            (11, free - y),
            textcoords="offset points",
            va="center",
            color=colours[label],
            parse_math=False,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            zorder=1.5,  # below the points
        )


def _colours(rows: Sequence[Row]) -> dict[str, str]:
    """By file."""
    labels = dict.fromkeys(row["target"] for row in rows)
    return {label: COLOURS[number % len(COLOURS)] for number, label in enumerate(labels)}
