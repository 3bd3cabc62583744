"""Pictures of the speedups of a benchmark."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from edgespec.bench.measure import BenchResult
from edgespec.bench.modes import PLAIN
from edgespec.bench.report import machine_line
from edgespec.bench.summary import summarise
from edgespec.errors import UsageError

# Okabe and Ito's colour-blind safe colours
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#666666"


def check_plot(path: Path) -> None:
    """Raise UsageError for a file that is neither PNG nor SVG, and without matplotlib."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"cannot plot to {path.name}", hint="use a name that ends in .png or .svg")
    if find_spec("matplotlib") is None:
        raise UsageError("plotting needs matplotlib", hint=f"{sys.executable} -m pip install matplotlib")


def plot_bench(result: BenchResult, path: Path) -> bytes:
    """Return a picture in the format of `path`: each mode's speedup with its interval, and a point per category."""
    summary = summarise(result.samples, result.modes)
    modes = [mode for mode in summary.modes if mode != PLAIN.name]
    count = len(summary.temperatures)
    figure, panels = _figure(2.5 + 4.0 * count, 2.2 + 0.35 * len(modes), count)
    for temperature, axes in zip(summary.temperatures, panels, strict=True):
        for number, category in enumerate(summary.categories):
            cells = [cell for mode in modes if (cell := summary.cell(mode, temperature, category)) and cell.speedup]
            heights = [modes.index(cell.mode) + 0.25 for cell in cells]  # below the interval of the mode
            axes.plot([cell.speedup for cell in cells], heights, **_style(number, number), label=category)
        for cell in summary.overall(temperature):
            if cell.mode != PLAIN.name and (speedup := cell.speedup):
                margins = [[speedup - (cell.speedup_low or speedup)], [(cell.speedup_high or speedup) - speedup]]
                axes.errorbar(speedup, modes.index(cell.mode), xerr=margins, fmt="ko", markersize=6, capsize=3)
        axes.axvline(1.0, color=GREY, linewidth=1, linestyle="--", zorder=0)
        axes.set_xlim(min(axes.get_xlim()[0], 0.9), max(axes.get_xlim()[1], 1.3))  # do not magnify noise
        axes.set_xlabel(f"speedup at temperature {temperature:g}\n(median over prompts, 95 % interval)")
    panels[0].set_yticks(range(len(modes)), modes, parse_math=False)
    panels[0].set_ylim(max(1, len(modes)) - 0.5, -0.5)
    names = (str(model["name"]) for model in result.models.values() if model)
    return _drawn(figure, path, ", draft: ".join(names), result.machine)


def _figure(width: float, height: float, panels: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, panels, sharey=True, squeeze=False)[0]


def _drawn(figure: Any, path: Path, title: str, machine: dict[str, Any]) -> bytes:
    from matplotlib import rc_context

    for axes in figure.axes:
        axes.grid(color="#dddddd", linewidth=0.6)
    figure.axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=8.5)
    figure.suptitle(title, x=0.01, ha="left", parse_math=False)
    figure.supxlabel(machine_line(machine), x=0.01, ha="left", fontsize=8, color=GREY, parse_math=False)
    drawn, kind = BytesIO(), path.suffix.lower()[1:]
    # Text of an SVG stays text; a picture of the same result is the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "edgespec"}):
        figure.savefig(drawn, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {})
    return drawn.getvalue()


def _style(marker: int, colour: int) -> dict[str, Any]:
    return {"marker": MARKERS[marker % len(MARKERS)], "color": COLOURS[colour % len(COLOURS)], "linestyle": ""}
