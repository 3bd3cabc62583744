"""Pictures of measurements: the speedups of a benchmark; speed and quality of compared files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.bench.compared import Comparison
from edgespec.bench.comparison_report import way
from edgespec.bench.measure import BenchResult
from edgespec.bench.modes import PLAIN
from edgespec.bench.report import machine_line
from edgespec.bench.summary import summarise
from edgespec.errors import EdgespecError, UsageError, told_as

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
# Okabe and Ito's colour-blind safe colours, in an order in which they also differ in grey
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000")
MARKERS = ("o", "s", "^", "D", "v")
GREY = "#666666"


def check_plot(path: Path) -> None:
    """Raises UsageError for what is neither PNG nor SVG, and without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"cannot plot to {path.name}", hint="use a name that ends in .png or .svg")
    if find_spec("matplotlib") is None:
        raise UsageError(
            "plotting needs matplotlib, which is not installed", hint=f"{sys.executable} -m pip install matplotlib"
        )


def plot_bench(result: BenchResult, path: Path) -> None:
    """Draw the speedup of each mode at each temperature, with intervals. Raises UsageError, EdgespecError."""
    summary = summarise(result)
    modes = [mode for mode in summary.modes if mode != PLAIN.name]
    names = [str(model["name"]) for model in result.models.values() if model]
    count = len(summary.temperatures)
    height = 1.6 + max(2.0, len(modes) * (0.16 + 0.16 * count))
    with _picture(path, ", drafted by ".join(names), machine_line(result.machine), (8.5, height)) as axes:
        for number, temperature in enumerate(summary.temperatures):
            offset = (number - (count - 1) / 2) * min(0.22, 0.8 / count)
            cells = [cell for mode in modes if (cell := summary.cell(mode, temperature)) and cell.speedup is not None]
            speedups = [cell.speedup or 0.0 for cell in cells]
            below = [s - (cell.speedup_low or s) for s, cell in zip(speedups, cells, strict=True)]
            above = [(cell.speedup_high or s) - s for s, cell in zip(speedups, cells, strict=True)]
            axes.errorbar(
                speedups,
                [modes.index(cell.mode) + offset for cell in cells],
                xerr=[below, above],
                fmt=MARKERS[number % len(MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                markersize=5.5,
                capsize=2.5,
                label=f"temp {temperature:g}",
            )
        axes.axvline(1.0, color=GREY, linewidth=1, linestyle="--", zorder=0)
        axes.set_yticks(range(len(modes)), modes, parse_math=False)
        axes.set_ylim(max(1, len(modes)) - 0.5, -0.5)
        axes.set_xlabel("speedup, median over prompts with 95 % interval")
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.9), max(high, 1.3))  # do not magnify noise


@contextmanager
def _picture(path: Path, title: str, machine: str, size: tuple[float, float]) -> Iterator[Axes]:
    """Yield axes to draw in, then write the picture to `path`. Raises UsageError as `check_plot`, EdgespecError."""
    check_plot(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text of an SVG stays text; a picture of the same result is the same file.
    with rc_context({"font.size": 9.5, "svg.fonttype": "none", "svg.hashsalt": "edgespec"}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        yield axes
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=8.5)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, parse_math=False)
        figure.supxlabel(machine, x=0.01, ha="left", fontsize=8, color=GREY, parse_math=False)
        dated = {"Date": None} if path.suffix.lower() == ".svg" else {}
        with told_as(EdgespecError, f"cannot write {path}"):
            figure.savefig(path, dpi=150, metadata=dated)


def plot_comparison(result: Comparison, path: Path) -> None:
    """Draw the speed of each row against the divergence of its file from the reference, with rings around the rows that
    no other beats in both. Raises UsageError, EdgespecError."""
    divergences = {file.label: file.quality.kl for file in result.files if file.quality}
    points = [(row, row.tokens_per_s, divergences[row.file]) for row in result.rows if row.file in divergences]
    known = [(row, speed, kl) for row, speed, kl in points if speed]
    if not known:
        raise UsageError("there is nothing to plot", why="no file has both speed and quality")
    files = list(dict.fromkeys(row.file for row, _, _ in known))
    ways = list(dict.fromkeys(way(result, row) for row, _, _ in known))
    title = f"Speed of each file, and its divergence from {result.reference}"
    with _picture(path, title, machine_line(result.machine), (8.5, 5.5)) as axes:
        for row, speed, kl in known:
            colour = COLOURS[files.index(row.file) % len(COLOURS)]
            marker = MARKERS[ways.index(way(result, row)) % len(MARKERS)]
            # hollow: perhaps not faster than plain decoding
            axes.plot(speed, kl, marker, color=colour, markerfacecolor=colour if row.is_candidate else "white")
            if row.is_best:
                axes.plot(speed, kl, "o", markersize=14, markerfacecolor="none", markeredgecolor=GREY)
            if speed == max(each for other, each, _ in known if other.file == row.file):
                axes.annotate(
                    row.file,
                    (speed, kl),
                    (11, 0),
                    textcoords="offset points",
                    va="center",
                    color=colour,
                    parse_math=False,
                )
        for number, each in enumerate(ways):
            axes.plot([], [], MARKERS[number % len(MARKERS)], color=GREY, label=each)
        axes.set_xlim(0, 1.2 * max(speed for _, speed, _ in known))
        axes.set_xlabel("tokens per second, median over prompts (right is faster)")
        if positive := [kl for _, _, kl in known if kl > 0]:
            axes.set_yscale("symlog", linthresh=min(positive), linscale=0.5)
        axes.set_ylabel(f"mean KL divergence from {result.reference}, nats per token (lower is closer)")
