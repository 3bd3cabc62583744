"""A benchmark as one picture: speedups with their intervals, and the cost of wider passes of the target."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgespec.bench.paired import PLAIN
from edgespec.bench.report import duration, machine_line
from edgespec.bench.summary import Result, Summary, summarise
from edgespec.core.theory import CostCurve
from edgespec.errors import EdgespecError, UsageError, told_as

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
# Okabe and Ito's colour-blind safe colours, in an order in which they also differ in grey
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000")
MARKERS = ("o", "s", "^", "D", "v")
GREY = "#666666"
MOST_MARKED = 4  # positions: further ones would lie on each other


def check_plot(path: Path) -> None:
    """Raises UsageError for what is neither PNG nor SVG, and without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"cannot plot to {path.name}", hint="use a name that ends in .png or .svg")
    if find_spec("matplotlib") is None:
        raise UsageError(
            "plotting needs matplotlib, which is not installed", hint=f"{sys.executable} -m pip install matplotlib"
        )


@contextmanager
def picture(path: Path, title: str, machine: str, size: tuple[float, float]) -> Iterator[Figure]:
    """A figure to draw in, which is then written to `path`. Raises UsageError as `check_plot` does, EdgespecError."""
    check_plot(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text of an SVG stays text; a picture of the same result is the same file.
    with rc_context({"font.size": 9.5, "svg.fonttype": "none", "svg.hashsalt": "edgespec"}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, parse_math=False)
        figure.supxlabel(machine, x=0.01, ha="left", fontsize=8, color=GREY, parse_math=False)
        dated = {"Date": None} if path.suffix.lower() == ".svg" else {}
        with told_as(EdgespecError, f"cannot write {path}"):
            figure.savefig(path, dpi=150, metadata=dated)


def plot(result: Result, path: Path) -> None:
    """Draw a result into `path`. Raises as `picture` does."""
    summary = summarise(result)
    modes = [mode for mode in summary.modes if mode != PLAIN and summary.cell(mode)]
    height = 1.9 + max(2.4, len(modes) * (0.16 + 0.16 * len(summary.temperatures)))
    machine = machine_line(result.get("machine") or {})
    with picture(path, _models(result), machine, (13.5, height)) as figure:
        parts = figure.subplots(
            1, 2 if summary.curve is None else 3, width_ratios=(1.5, 1, 1)[: 2 + bool(summary.curve)]
        )
        _draw_speedups(parts[0], summary, modes)
        _draw_reach(parts[1], summary, modes)
        if summary.curve is not None:
            _draw_passes(parts[2], summary.curve)


def legend_above(axes: Axes, columns: int) -> None:
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0,
        ncols=columns,
        columnspacing=1.2,
        frameon=False,
        fontsize=8.5,
    )


def tidy(axes: Axes, grid: Literal["x", "both"]) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_speedups(axes: Axes, summary: Summary, modes: list[str]) -> None:
    """A row for each mode, with a point for each temperature."""
    count = len(summary.temperatures)
    for number, temperature in enumerate(summary.temperatures):
        offset = (number - (count - 1) / 2) * min(0.22, 0.8 / count)
        rows, speedups, below, above = [], [], [], []
        for row, mode in enumerate(modes):
            cell = summary.cell(mode, temperature)
            if cell is None or cell.speedup is None:
                continue
            rows.append(row + offset)
            speedups.append(cell.speedup)
            below.append(0.0 if cell.speedup_low is None else cell.speedup - cell.speedup_low)
            above.append(0.0 if cell.speedup_high is None else cell.speedup_high - cell.speedup)
        axes.errorbar(
            speedups,
            rows,
            xerr=[below, above],
            fmt=MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            markersize=5.5,
            capsize=2.5,
            linewidth=1.4,
            label=f"temp {temperature:g}",
        )
    axes.axvline(1.0, color=GREY, linewidth=1, linestyle="--", zorder=0)
    axes.set_yticks(range(len(modes)), modes, parse_math=False)
    axes.set_ylim(max(1, len(modes)) - 0.5, -0.5)
    axes.set_xlabel("speedup, median over prompts with 95 % interval")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.9), max(high, 1.3))  # do not magnify noise
    legend_above(axes, 5)
    tidy(axes, "x")


def _draw_reach(axes: Axes, summary: Summary, modes: list[str]) -> None:
    """On the rows of the speedups, the share of steps in which 1, 2, ... draft tokens or more were accepted."""
    count = len(summary.temperatures)
    for number, temperature in enumerate(summary.temperatures):
        for row, mode in enumerate(modes):
            cell = summary.cell(mode, temperature)
            height = row + (number - (count - 1) / 2) * min(0.3, 0.8 / count)
            for at, share in enumerate(cell.reach[:MOST_MARKED] if cell else ()):
                colour = COLOURS[number % len(COLOURS)]
                axes.plot(100 * share, height, color=colour, marker=f"${at + 1}$", markersize=6, linestyle="")
    axes.set_yticks(range(len(modes)), [])
    axes.set_ylim(max(1, len(modes)) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of steps with 1, 2, ... draft tokens accepted")
    tidy(axes, "both")


def _draw_passes(axes: Axes, curve: CostCurve) -> None:
    """t(n) / t(1), beside the cost of as many passes over one token."""
    from matplotlib.ticker import MaxNLocator

    widths, costs = list(curve.target), list(curve.target.values())
    axes.plot(widths, costs, color=COLOURS[0], marker=MARKERS[0], markersize=5, label="measured")
    axes.plot(
        [1, widths[-1]], [1, widths[-1]], color=GREY, linewidth=1, linestyle="--", label="n passes over one token"
    )
    axes.set_ylim(0, max(2.0, 1.15 * max(costs)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("n, tokens in one target pass")
    axes.set_ylabel("cost of the pass, t(n) / t(1)")
    draft = "" if curve.draft is None else f", a draft pass {curve.draft:.2f} t(1)"
    axes.set_title(f"t(1) = {duration(curve.pass_s)}{draft}", loc="left", fontsize=9.5)
    axes.legend(loc="lower right", frameon=False, fontsize=8.5)
    tidy(axes, "both")


def _models(result: Result) -> str:
    models: Mapping[str, Any] = result.get("models") or {}
    names = [str(models[role]["name"]) for role in ("target", "draft") if models.get(role)]
    return ", drafted by ".join(names)
