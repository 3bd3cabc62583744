"""The reports of benchmarks: one run, or two runs side by side, for a terminal; and a picture of the speedups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.bench.measure import BenchResult
from edgespec.bench.modes import PLAIN, parse_mode
from edgespec.bench.summary import ALL, Cell, Summary, cost_curve, loops_note, plain_spread, summarise
from edgespec.bench.tables import (
    NOTHING,
    Figures,
    Lines,
    duration,
    figure,
    interval,
    notes,
    percent,
    rate,
    stacked,
    times,
)
from edgespec.core.stats import Stats
from edgespec.errors import UsageError
from edgespec.extras import check_extra
from edgespec.text.figures import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

BUSY_SPREAD = 0.15  # a larger spread of equal work means that the machine was busy
REPEATED = 0.2  # share of repeated 4-grams that is worth a warning
MOST_POSITIONS = 8
SEEN = 0.01  # tokens gained per step, below which there is nothing to show
FEW_PROMPTS = 6  # with fewer, not even the whole range contains the median 95 times in 100
# Okabe and Ito's colour-blind safe colours
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#666666"


def table(result: BenchResult) -> RenderableType:
    """Return the full report of a result: conditions, figures, warnings."""
    summary = summarise(result.samples, result.modes)
    parts: list[RenderableType] = [Lines(list(_heading(result)))]
    parts += [_speed_table(summary, temperature) for temperature in summary.temperatures]
    if len(summary.categories) > 1:
        parts += [_category_table(summary, temperature) for temperature in summary.temperatures]
    for temperature in summary.temperatures:
        parts += [*_reach_table(summary, temperature), *_drafter_table(summary, temperature)]
    return stacked([*parts, notes([*_warnings(result, summary), *result.messages])])


def side_by_side(a: BenchResult, b: BenchResult) -> RenderableType:
    """Return the conditions in which two runs differ, and their speeds side by side."""
    differences = list(_differences(a, b))
    head = "These runs differ:" if differences else "Same machine, build, models, settings and prompts."
    parts: list[RenderableType] = [Lines([("", head)]), *([Lines(differences)] if differences else [])]
    left, right = (summarise(result.samples, result.modes) for result in (a, b))
    for temperature in dict.fromkeys([*left.temperatures, *right.temperatures]):
        rows = []
        for mode in dict.fromkeys([*left.modes, *right.modes]):
            cells = left.cell(mode, temperature), right.cell(mode, temperature)
            speeds, rates = ([getattr(cell, name, None) for cell in cells] for name in ("speedup", "tokens_per_s"))
            rows.append([mode, *map(times, speeds), _overlap(*cells), *map(rate, rates), times(_quotient(*rates))])
        header = ["mode", "A", "B", "intervals", "A tok/s", "B tok/s", "B / A"]
        parts.append(Figures(f"Speedup at temperature {temperature:g}", header, rows))
    return stacked(parts)


def run_line(started: str, version: str) -> str:
    return f"{clock_of(started)}, edgespec {version}"


def clock_of(started: str) -> str:
    """A time in UTC without seconds, from one in ISO 8601."""
    return f"{started[:16].replace('T', ' ')} UTC"


def machine_line(machine: Mapping[str, Any]) -> str:
    """Return processors and system in one line, as far as they are known."""
    cores = machine.get("physical_cores") or machine.get("logical_cores")
    parts = [machine.get("cpu"), counted(cores, "core") if cores else None, *(machine.get("gpus") or ())]
    return ", ".join(str(part) for part in [*parts, machine.get("system")] if part)


# --- conditions -------------------------------------------------------------------------------------------------------


def _heading(result: BenchResult) -> Iterator[tuple[str, str]]:
    settings = result.settings
    yield "run", run_line(result.started, result.edgespec)
    for role, model in result.models.items():
        if model:
            yield role, ", ".join(str(model[key]) for key in ("name", "description") if model.get(key))
    if machine := machine_line(result.machine):
        yield "machine", machine
    prompts = len({sample.item for sample in result.samples})
    parts = [counted(prompts, "prompt"), counted(settings.get("repeat") or 1, "repeat")]
    if settings.get("tokens"):
        parts.append(f"{settings['tokens']} tokens per answer")
    if settings.get("threads"):
        parts.append(counted(settings["threads"], "thread"))
    if settings.get("reference"):
        parts.append("reference answers")
    yield "settings", ", ".join(parts)
    curve = cost_curve(result.costs)
    if curve is not None:
        line = f"{duration(curve.pass_s)} for a pass over 1 token"
        if len(curve.target) > 1:
            wider = ", ".join(f"{cost:.2f} for {width}" for width, cost in curve.target.items() if width > 1)
            line += f"; relative to that, {wider} tokens"
        yield "costs", line + (f"; {curve.draft:.2f} for a draft pass" if curve.draft is not None else "")
    if not result.complete:
        yield "stopped", f"after {counted(len(result.samples), 'answer')}"


def _differences(a: BenchResult, b: BenchResult) -> Iterator[tuple[str, str]]:
    """The conditions in which two runs differ, with both values."""
    for name in ("edgespec", "machine", "build", "models", "settings", "complete"):
        left, right = (dict(_flat(getattr(result, name), name)) for result in (a, b))
        for key in dict.fromkeys([*left, *right]):
            if left.get(key) != right.get(key):
                yield key, f"A {_shown(left.get(key))}; B {_shown(right.get(key))}"
    prompts = [{sample.item for sample in result.samples} for result in (a, b)]
    if prompts[0] != prompts[1]:
        yield "prompts", f"A {len(prompts[0])}, B {len(prompts[1])}, {len(prompts[0] & prompts[1])} in common"


def _flat(value: object, name: str) -> Iterator[tuple[str, object]]:
    """The values of nested objects by their paths; the build flags of llama.cpp one by one."""
    if isinstance(value, str) and "|" in value:
        value = dict.fromkeys(flag.strip() for flag in value.split("|"))
        value = {flag: True for flag in value if flag}
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}")
    else:
        yield name, value


def _shown(value: object) -> str:
    return NOTHING if value is None or value == [] else str(value)


def _overlap(a: Cell | None, b: Cell | None) -> str:
    """Return whether the intervals separate the speedups of two runs."""
    ends = [(cell.speedup_low, cell.speedup_high) for cell in (a, b) if cell]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    if len(known) < 2:
        return NOTHING
    return "overlap" if known[0][0] <= known[1][1] and known[1][0] <= known[0][1] else "apart"


def _quotient(a: float | None, b: float | None) -> float | None:
    return b / a if a and b is not None else None


# --- tables -----------------------------------------------------------------------------------------------------------


#: The figures of a mode in all reports, by their headings.
SPEED: Mapping[str, Callable[[Cell], str]] = {
    "speed-\nup": lambda cell: times(cell.speedup),
    "95 %\ninterval": lambda cell: interval(cell.speedup_low, cell.speedup_high),
    "tok/s": lambda cell: rate(cell.tokens_per_s),
    "tok/\nstep": lambda cell: figure(cell.tokens_per_step),
    "acc.\n%": lambda cell: percent(cell.acceptance),
}


def by_category(
    temperature: float, rows: Mapping[str, Mapping[str, float | None]], bold: Collection[int] = ()
) -> Figures:
    """Return the table of speedups of each mode by category."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    header = ["mode", *(name.replace("_", "\n").replace(" ", "\n") for name in names)]
    lines = [[mode, *(times(row.get(name)) for name in names)] for mode, row in rows.items()]
    return Figures(f"Speedup by category, temperature {temperature:g}", header, lines, bold)


def busy(spread: float | None, what: str = "plain decoding") -> Iterator[str]:
    """Yield a warning if equal work took so much longer at times that other programs must have run."""
    if spread is not None and spread > BUSY_SPREAD:
        yield f"the machine was busy: {what} took up to {spread:.0%} longer at times".replace("%", " %")


def _speed_table(summary: Summary, temperature: float) -> Figures:
    columns: dict[str, Callable[[Cell], str]] = {
        "mode": lambda cell: cell.mode,
        **SPEED,
        "target/\ndraft/\nother %": lambda cell: _shares(cell.stats),
        "equal\n%": lambda cell: percent(cell.equal_share),
    }
    cells = summary.overall(temperature)
    return Figures.of(f"Temperature {temperature:g}", columns, cells, _fastest(cells))


def _category_table(summary: Summary, temperature: float) -> Figures:
    cells = [cell for cell in summary.overall(temperature) if cell.mode != PLAIN.name]
    rows = {cell.mode: {ALL: cell.speedup, **summary.by_category(cell.mode, temperature)} for cell in cells}
    return by_category(temperature, rows, _fastest(cells))


def _reach_table(summary: Summary, temperature: float) -> Iterator[Figures]:
    cells = [cell for cell in summary.overall(temperature) if sum(cell.reach) >= SEEN]
    if cells:
        n = min(MOST_POSITIONS, max(len(cell.reach) for cell in cells))
        rows = [[cell.mode, *map(percent, [*cell.reach, *[0.0] * n][:n])] for cell in cells]
        title = f"Share of steps with at least 1, 2, ... accepted draft tokens, %, temperature {temperature:g}"
        yield Figures(title, ["mode", *(str(at + 1) for at in range(n))], rows)


def _drafter_table(summary: Summary, temperature: float) -> Iterator[Figures]:
    """Yield the figures of each drafter in modes with the automatic draft length, if there are such modes."""
    rows = []
    for cell in summary.overall(temperature):
        sources = cell.stats.by_source if parse_mode(cell.mode, ()).pace == "auto" else {}
        for number, (name, source) in enumerate(sources.items()):
            gained_per_s = cell.stats.gained_per_s(name)
            rows.append(
                [
                    "" if number else cell.mode,
                    name,
                    str(source.asked),
                    str(source.proposed),
                    percent(source.accepted / source.proposed if source.proposed else None),
                    figure(source.seconds * 1e3 / source.asked if source.asked else None),
                    NOTHING if gained_per_s is None else f"{gained_per_s:+.1f}",
                ]
            )
    if rows:
        header = ["mode", "drafter", "asked,\ntimes", "drafted,\ntokens", "acc.\n%", "ms\neach", "tok/s\ngained"]
        yield Figures(f"Drafters, temperature {temperature:g}", header, rows)


def _fastest(cells: list[Cell]) -> list[int]:
    """The row of the fastest mode; of several the first."""
    known = [(cell.speedup, -row) for row, cell in enumerate(cells) if not cell.drafted_nothing and cell.speedup]
    return [-max(known)[1]] if known else []


def _shares(stats: Stats) -> str:
    parts_s = (stats.target_s, stats.draft_s, stats.other_s)
    return "/".join(f"{part_s / stats.generation_s * 100:.0f}" for part_s in parts_s) if stats.generation_s else NOTHING


# --- warnings ---------------------------------------------------------------------------------------------------------


def _warnings(result: BenchResult, summary: Summary) -> Iterator[str]:
    cells = [cell for temperature in summary.temperatures for cell in summary.overall(temperature)]
    idle = [f"{cell.mode} {_at(cell.temperature)}" for cell in cells if cell.drafted_nothing]
    if idle:
        yield f"nothing was drafted, so a speedup is noise: {', '.join(idle)}"
    yield from busy(plain_spread(result.samples))
    repeated = [
        f"{cell.category} {cell.repeated_4grams:.0%} {_at(cell.temperature)}"
        for cell in summary.cells
        if cell.mode == PLAIN.name and cell.category != ALL and cell.repeated_4grams > REPEATED
    ]
    if repeated:
        yield (
            "repetitive text flatters drafters that copy from earlier text; share of repeated 4-grams: "
            + ", ".join(repeated)
        )
    if loops := loops_note(result.samples):
        yield loops
    unequal = [(cell, cell.equal_share) for cell in cells if cell.equal_share is not None and cell.equal_share < 1]
    if unequal:
        shares = [f"{cell.mode} {1 - share:.1%} {_at(cell.temperature)}" for cell, share in unequal]
        yield f"texts that differ from plain decoding: {', '.join(shares)}"
    few = min((cell.prompts for cell in cells), default=FEW_PROMPTS)
    if few < FEW_PROMPTS:
        yield f"with {counted(few, 'prompt')} the real coverage of an interval is below 95 %"


def _at(temperature: float) -> str:
    return f"at temperature {temperature:g}"


# --- a picture --------------------------------------------------------------------------------------------------------


def check_plot(path: Path) -> None:
    """Raise UsageError for a file that is neither PNG nor SVG, and without matplotlib."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"cannot plot to {path.name}", hint="use a name that ends in .png or .svg")
    check_extra("plot", "plotting")


def plot_bench(result: BenchResult, path: Path) -> bytes:
    """Return a picture in the format of `path`: each mode's speedup with its interval, and a point per category."""
    from matplotlib.figure import Figure

    summary = summarise(result.samples, result.modes)
    modes = [mode for mode in summary.modes if mode != PLAIN.name]
    count = len(summary.temperatures)
    figure = Figure(figsize=(2.5 + 4.0 * count, 2.2 + 0.35 * len(modes)), layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for temperature, axes in zip(summary.temperatures, panels, strict=True):
        for number, category in enumerate(summary.categories):
            cells = [cell for mode in modes if (cell := summary.cell(mode, temperature, category)) and cell.speedup]
            heights = [modes.index(cell.mode) + 0.25 for cell in cells]  # below the interval of the mode
            style = {"marker": MARKERS[number % len(MARKERS)], "color": COLOURS[number % len(COLOURS)], "linestyle": ""}
            axes.plot([cell.speedup for cell in cells], heights, **style, label=category)
        for cell in summary.overall(temperature):
            if cell.mode != PLAIN.name and (speedup := cell.speedup):
                margins = [[speedup - (cell.speedup_low or speedup)], [(cell.speedup_high or speedup) - speedup]]
                axes.errorbar(speedup, modes.index(cell.mode), xerr=margins, fmt="ko", markersize=6, capsize=3)
        axes.axvline(1.0, color=GREY, linewidth=1, linestyle="--", zorder=0)
        axes.set_xlim(min(axes.get_xlim()[0], 0.9), max(axes.get_xlim()[1], 1.3))  # do not magnify noise
        axes.set_xlabel(f"speedup at temperature {temperature:g}\n(median over prompts, 95 % interval)")
    panels[0].set_yticks(range(len(modes)), modes, parse_math=False)
    panels[0].set_ylim(max(1, len(modes)) - 0.5, -0.5)
    for axes in figure.axes:
        axes.grid(color="#dddddd", linewidth=0.6)
    figure.axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=8.5)
    names = (str(model["name"]) for model in result.models.values() if model)
    figure.suptitle(", draft: ".join(names), x=0.01, ha="left", parse_math=False)
    figure.supxlabel(machine_line(result.machine), x=0.01, ha="left", fontsize=8, color=GREY, parse_math=False)
    return picture(figure, path)


def picture(figure: Figure, path: Path) -> bytes:
    """Return a figure in the format of `path`. Text of an SVG stays text; the same figure gives the same bytes."""
    from matplotlib import rc_context

    drawn, kind = BytesIO(), path.suffix.lower()[1:]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "edgespec"}):
        figure.savefig(drawn, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {})
    return drawn.getvalue()
