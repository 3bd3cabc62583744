"""Draw the charts of docs/performance.md from the tables on that page.

    plot_performance.py

writes speed.svg and drafting.svg in docs/performance (needs matplotlib). After a change of a table, run it again.
"""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.figure import Figure

from edgespec.bench.report import COLOURS, GREY, picture

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
CHARTS = PAGE.parent / "performance"
LLAMA_CPP = GREY, "#b3b3b3"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    head, *models = table(page, "| model | llama.cpp, best n-gram setting |")
    named = [re.sub(", (?=Q|F)", "\n", name) for name, *_ in models]
    speeds = {"llama.cpp, plain": [1.0] * len(models)} | {
        title: [float(row[at]) for row in models] for at, title in enumerate(head[1:-1], start=1)
    }
    chart = bars(named, speeds, (*LLAMA_CPP, *COLOURS[:2]), "times as fast as llama.cpp without drafts")
    save(chart, "Two cores of an Intel Xeon (AVX-512 VNNI), nine prompts, temperature 0", CHARTS / "speed.svg")

    (_, *titles), *rows, (_, *means) = table(page, "| kind of text |")
    gains = {
        f"{title} (mean {mean})": [float(row[at]) for row in rows]
        for at, (title, mean) in enumerate(zip(titles, means, strict=True), start=1)
    }
    chart = bars([kind for kind, *_ in rows], gains, COLOURS, "times as fast as without drafts")
    chart.axes[0].axhline(1, color=GREY, linewidth=1, linestyle="--", zorder=0)
    save(chart, "1.1 billion parameters in Q4_K_M, two cores of an Intel Xeon, no draft model", CHARTS / "drafting.svg")


def table(page: str, head: str) -> list[list[str]]:
    """Return the cells of the table that begins with this line: its head and its rows."""
    lines = page[page.index(head) :].split("\n\n")[0].splitlines()
    rows = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def bars(names: list[str], values: dict[str, list[float]], colours: tuple[str, ...], label: str) -> Figure:
    """Return a chart with a group of bars for each name, in which each key of `values` has a bar with its value."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes, share = figure.subplots(), 0.82 / len(values)
    for number, (key, heights) in enumerate(values.items()):
        places = [place + share * (number + 0.5) - 0.41 for place in range(len(names))]
        drawn = axes.bar(places, heights, share, color=colours[number], label=key)
        axes.bar_label(drawn, fmt="%.2f", fontsize=7, padding=1)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel(label)
    axes.margins(x=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, columnspacing=1.2, frameon=False, fontsize=8.5)
    return figure


def save(figure: Figure, caption: str, path: Path) -> None:
    """Write a chart with a caption below it."""
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=8, color=GREY)
    path.write_bytes(picture(figure, path))


if __name__ == "__main__":
    main()
