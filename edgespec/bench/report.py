"""A benchmark for its reader: the table of speedups, where they come from, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgespec.bench.headroom import Headroom
from edgespec.bench.paired import ALL, PLAIN, Temperature, guessing
from edgespec.bench.summary import Cell, Result, Summary, summarise
from edgespec.bench.tables import NOTHING, Figures, Lines, stacked
from edgespec.core.theory import CostCurve
from edgespec.text.figures import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

BUSY_SPREAD = 0.15
REPEATED = 0.2
MOST_POSITIONS = 8
SEEN = 0.01  # tokens gained per step
FEW_PROMPTS = 6  # with fewer, not even the whole range contains the median 95 times in 100


def table(result: Result) -> RenderableType:
    """The full report of a result for a terminal: conditions, figures, conclusions."""
    summary = summarise(result)
    parts: list[RenderableType] = [Lines(list(_heading(result, summary)))]
    parts += [_main_table(summary, temperature) for temperature in summary.temperatures]
    if len(summary.categories) > 1:
        parts += [_category_table(summary, temperature) for temperature in summary.temperatures]
    for temperature in summary.temperatures:
        parts += [*_reach_table(summary, temperature), *_guesser_table(summary, temperature)]
    if summary.curve is not None:
        parts.append(Lines([("passes", curve_line(summary.curve))]))
    return stacked([*parts, Lines([("-", line) for line in verdicts(result, summary)])])


def cells(result: Result) -> list[dict[str, Any]]:
    """The cells of the summary as plain data."""
    return [asdict(cell) for cell in summarise(result).cells.values()]


# --- what was measured ------------------------------------------------------------------------------------------------


def _heading(result: Result, summary: Summary) -> Iterator[tuple[str, str]]:
    settings = result["settings"]
    started = str(result.get("started", ""))[:16].replace("T", " ")
    yield "run", f"{started} UTC, edgespec {result.get('edgespec', '')}"
    for role in ("target", "draft"):
        model = (result.get("models") or {}).get(role)
        if model:
            yield role, ", ".join(str(model[key]) for key in ("name", "description") if model.get(key))
    machine = machine_line(result.get("machine") or {})
    if machine:
        yield "machine", machine
    prompts = len({(sample["category"], sample["item"]) for sample in result["samples"]})
    parts = [counted(prompts, "prompt"), counted(settings.get("repeat") or 1, "repeat")]
    if settings.get("tokens"):
        parts.append(f"{settings['tokens']} tokens per answer")
    if settings.get("threads"):
        parts.append(counted(settings["threads"], "thread"))
    if settings.get("reference"):
        parts.append("reference answers")
    yield "settings", ", ".join(parts)
    if not result.get("complete", True):
        yield "stopped", f"after {counted(len(result['samples']), 'answer')}"


def machine_line(machine: Mapping[str, Any]) -> str:
    """Processors and system in one line, as far as they are known."""
    cores = machine.get("physical_cores") or machine.get("logical_cores")
    parts = [machine.get("cpu"), counted(cores, "core") if cores else None, *(machine.get("gpus") or ())]
    return ", ".join(str(part) for part in [*parts, machine.get("system")] if part)


def curve_line(curve: CostCurve) -> str:
    """t(n) and c."""
    wider = ", ".join(f"{width}: {cost:.2f}" for width, cost in curve.target.items() if width > 1)
    line = f"t(1) {duration(curve.pass_s)}" + (f"; t(n) / t(1) for n = {wider}" if wider else "")
    if curve.draft is not None:
        line += f"; c, the cost of a draft pass, {curve.draft:.2f} of t(1)"
    return line


# --- figures ----------------------------------------------------------------------------------------------------------


def _main_table(summary: Summary, temperature: float) -> Figures:
    found = [cell for mode in summary.modes if (cell := summary.cell(mode, temperature))]
    columns = {
        "mode": [cell.mode for cell in found],
        "speed-\nup": [times(cell.speedup) for cell in found],
        "95 %\ninterval": [
            NOTHING if cell.mode == PLAIN else interval(cell.speedup_low, cell.speedup_high) for cell in found
        ],
        "theory": [times(cell.predicted_speedup) for cell in found],
        "tok/s": [rate(cell.tokens_per_s) for cell in found],
        "tok/\nstep": [_figure(cell.tokens_per_round) for cell in found],
        "acc.\n%": [_percent(cell.acceptance) for cell in found],
        "target/\ndraft/\nother %": [_shares(cell) for cell in found],
        "equal\n%": [_percent(cell.equal_share) for cell in found],
        "J/tok": [_figure(cell.joules_per_token) for cell in found],
    }
    return Figures.of(f"Temperature {temperature:g}", columns, _fastest(found))


def _category_table(summary: Summary, temperature: float) -> Figures:
    names = [ALL, *summary.categories]
    modes = [mode for mode in summary.modes if mode != PLAIN and summary.cell(mode, temperature)]
    rows = []
    for mode in modes:
        row = [summary.cell(mode, temperature, name) for name in names]
        rows.append([mode, *(times(cell.speedup if cell else None) for cell in row)])
    overall = [cell for mode in modes if (cell := summary.cell(mode, temperature))]
    header = ["mode", *(name.replace("_", "\n").replace(" ", "\n") for name in names)]
    return Figures(f"Speedup by category, temperature {temperature:g}", header, rows, _fastest(overall))


def _reach_table(summary: Summary, temperature: float) -> Iterator[Figures]:
    found = [cell for mode in summary.modes if (cell := summary.cell(mode, temperature)) and sum(cell.reach) >= SEEN]
    if found:
        positions = range(min(MOST_POSITIONS, max(len(cell.reach) for cell in found)))
        rows = [
            [cell.mode, *(_percent(dict(enumerate(cell.reach)).get(at, 0.0)) for at in positions)] for cell in found
        ]
        title = f"Steps in which so many draft tokens or more were accepted, %, temperature {temperature:g}"
        yield Figures(title, ["mode", *(str(at + 1) for at in positions)], rows)


def _guesser_table(summary: Summary, temperature: float) -> Iterator[Figures]:
    """What each drafter did with the automatic draft length, if there is such a mode."""
    rows = [
        [
            "" if number else mode,
            drafter.name,
            str(drafter.asked),
            str(drafter.proposed),
            _percent(drafter.accepted / drafter.proposed if drafter.proposed else None),
            _figure(drafter.ms),
            NOTHING if drafter.gained_per_s is None else f"{drafter.gained_per_s:+.1f}",
        ]
        for mode in summary.modes
        if (parsed := guessing(mode)) and parsed.length is None and (cell := summary.cell(mode, temperature))
        for number, drafter in enumerate(cell.guessers)
    ]
    if rows:
        header = ["mode", "drafter", "asked,\ntimes", "drafted,\ntokens", "acc.\n%", "ms\neach", "tok/s\ngained"]
        yield Figures(f"Drafters, temperature {temperature:g}", header, rows)


def _fastest(found: list[Cell]) -> list[int]:
    drafted = [(cell.speedup, -number) for number, cell in enumerate(found) if not _drafted_nothing(cell)]
    known = [(speedup, place) for speedup, place in drafted if speedup is not None]
    return [-max(known)[1]] if known else []


def _drafted_nothing(cell: Cell) -> bool:
    """Whether the mode was plain decoding in effect."""
    return guessing(cell.mode) is not None and cell.acceptance is None


# --- words ------------------------------------------------------------------------------------------------------------


def verdicts(result: Result, summary: Summary) -> Iterator[str]:
    """Conclusions from the figures, and caveats."""
    idle = {mode for mode in summary.modes if (cell := summary.cell(mode)) and _drafted_nothing(cell)}
    families = {parsed.family for mode in summary.modes if mode not in idle and (parsed := guessing(mode))}
    for room in summary.headroom:
        if room.family in families and (len(room.fixed) > 2 or room.auto_speedup is not None):
            yield _headroom_verdict(room)
    if idle:
        names = ", ".join(mode for mode in summary.modes if mode in idle)
        yield f"nothing was drafted, so a speedup is noise: {names}"
    yield from _theory_verdict(summary)
    yield from _peer_verdict(summary)
    yield from _warnings(result, summary)
    yield from result.get("messages") or ()


def _headroom_verdict(room: Headroom) -> str:
    many = len(room.oracle_lengths) > 1
    line = f"{room.family} {_at(room.temperature)}{', mean of the categories' if many else ''}: "
    lengths = ", ".join(str(length) for length in room.fixed if length)
    if len(room.fixed) == 2:
        line += f"the only fixed length, {lengths}, reaches {times(room.fixed[int(lengths)])}"
    elif room.best_length:
        line += f"the best fixed length (of {lengths}) is {room.best_length}, {times(room.best_speedup)}"
    else:
        line += f"no fixed length (of {lengths}) is faster than plain decoding"
    if set(room.oracle_lengths.values()) != {room.best_length}:
        line += f"; the best for each category would reach {times(room.oracle_speedup)}"
    elif many and room.best_length and len(room.fixed) > 2:
        line += ", and is the best in every category"
    if room.auto_speedup is not None:
        line += f"; auto reaches {times(room.auto_speedup)}, {room.auto_speedup / room.best_speedup:.0%} of "
        line += "plain decoding" if not room.best_length else "the best fixed length" if len(room.fixed) > 2 else "it"
    return _percent_signs(line)


def _theory_verdict(summary: Summary) -> Iterator[str]:
    found = []
    for mode in summary.modes:
        parsed = guessing(mode)
        for temperature in summary.temperatures if parsed and parsed.length is not None else ():
            cell = summary.cell(mode, temperature)
            if cell and cell.speedup is not None and cell.predicted_speedup is not None:
                found.append((cell.speedup / cell.predicted_speedup, cell))
    if not found:
        return
    shares = [share for share, _ in found]
    _, worst = max(found, key=lambda pair: abs(pair[0] - 1))
    span, which = f"{min(shares):.0%}", "; "
    if len(found) > 1:
        span, which = f"{span} to {max(shares):.0%}", "; the largest difference: "
    yield _percent_signs(
        f"theory, E / (cK + t(K+1)): fixed lengths reach {span} of it{which}{worst.mode} {_at(worst.temperature)}, "
        f"{times(worst.predicted_speedup)} predicted from alpha = {worst.alpha:.2f}, {times(worst.speedup)} measured"
    )


def _peer_verdict(summary: Summary) -> Iterator[str]:
    """Whose drafts are better, independent of the program's speed."""
    cells = [(mode, summary.cell(mode)) for mode in summary.modes if mode != PLAIN]
    known = [(mode, cell.table_speedup) for mode, cell in cells if cell is not None and cell.table_speedup is not None]
    if any(guessing(mode) is None for mode, _ in known):
        figures = ", ".join(f"{mode} {times(speedup)}" for mode, speedup in known)
        yield f"counting target passes only, each at the t(n) of its width: {figures}"


def _warnings(result: Result, summary: Summary) -> Iterator[str]:
    spread = (result.get("load") or {}).get("spread")
    if spread is not None and spread > BUSY_SPREAD:
        yield _percent_signs(f"the machine was busy: the same work took up to {spread:.0%} longer at times")
    plain_cells = [
        cell
        for temperature in summary.temperatures
        for category in summary.categories
        if (cell := summary.cell(PLAIN, temperature, category))
    ]
    repeated = [
        f"{cell.category} {cell.repeated_4grams:.0%} {_at(cell.temperature)}"
        for cell in plain_cells
        if cell.repeated_4grams is not None and cell.repeated_4grams > REPEATED
    ]
    if repeated:
        line = "repetitive text flatters drafters that copy from earlier text; share of repeated 4-grams: "
        yield _percent_signs(line + ", ".join(repeated))
    unequal = [
        f"{mode} {1 - cell.equal_share:.1%}"
        for mode in summary.modes
        if (cell := summary.cell(mode)) and cell.equal_share is not None and cell.equal_share < 1
    ]
    if unequal:
        yield _percent_signs(f"texts that differ from plain decoding: {', '.join(unequal)}")
    few = [cell.items for cell in summary.cells.values() if cell.category == ALL and cell.temperature == ALL]
    if few and min(few) < FEW_PROMPTS:
        yield _percent_signs(f"with {counted(min(few), 'prompt')} the real coverage of an interval is below 95 %")
    if summary.unpaired:
        yield f"{counted(summary.unpaired, 'answer')} could not be compared with plain decoding"
    missing = [
        f"{mode} {_at(temperature)}"
        for mode in summary.modes
        for temperature in summary.temperatures
        if not summary.cell(mode, temperature)
    ]
    if missing:
        yield f"not measured: {', '.join(missing)}"


def _at(temperature: Temperature) -> str:
    return "at all temperatures" if isinstance(temperature, str) else f"at temperature {temperature:g}"


# --- numbers ----------------------------------------------------------------------------------------------------------


def times(speedup: float | None) -> str:
    return NOTHING if speedup is None else f"{speedup:.2f}x" if speedup < 9.995 else f"{speedup:.1f}x"


def interval(low: float | None, high: float | None) -> str:
    return NOTHING if low is None or high is None else f"{times(low)[:-1]}-{times(high)[:-1]}"


def rate(per_s: float | None) -> str:
    return NOTHING if per_s is None else f"{per_s:.0f}" if per_s >= 99.95 else f"{per_s:.1f}"


def _figure(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    """Rounded towards 0, so that 100 means all."""
    return NOTHING if share is None else f"{int(share * 100 + 1e-9)}"


def _shares(cell: Cell) -> str:
    shares = (cell.target_share, cell.draft_share, cell.other_share)
    known = [share for share in shares if share is not None]
    return "/".join(f"{share * 100:.0f}" for share in known) or NOTHING


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def _percent_signs(line: str) -> str:
    """With a non-breaking space in front."""
    return line.replace(" %", "%").replace("%", "\xa0%")
