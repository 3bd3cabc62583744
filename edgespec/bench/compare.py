"""Two benchmark results side by side: first how their conditions differ, then how their figures differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.bench.paired import PLAIN
from edgespec.bench.report import rate, times
from edgespec.bench.summary import Cell, Result, Summary, summarise
from edgespec.bench.tables import NOTHING, Figures, Lines, stacked
from edgespec.errors import UsageError, told_as

if TYPE_CHECKING:
    from rich.console import RenderableType

VERSION = 1
_SAMPLE = {
    "mode": str,
    "temperature": int | float,
    "category": str,
    "item": str,
    "repeat": int,
    "tokens_per_s": int | float | None,
}
_MAKING = ("edgespec", "machine", "build", "models", "settings", "complete")


def load_result(path: Path) -> Result:
    """The result that `bench` wrote to `path`. Raises UsageError for any other file."""
    hint = "give a file written by edgespec bench"
    try:
        with told_as(UsageError, f"cannot read {path}", hint=hint):
            result = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a bench result", why="it is not JSON", hint=hint) from error
    version = result.get("version") if isinstance(result, dict) else None
    if type(version) is int and version > VERSION:
        raise UsageError(
            f"{path} was written by a newer edgespec",
            why=f"it has version {version}; this edgespec reads version {VERSION}",
            hint="update",
        )
    if type(version) is not int or version != VERSION or not _is_complete(result):
        raise UsageError(f"{path} is not a bench result", why="it is JSON, but in another format", hint=hint)
    return dict(result)


def compare(a: Result, b: Result) -> RenderableType:
    """The differences between the runs A and B."""
    differences = list(_differences(a, b))
    parts: list[RenderableType] = []
    head = "These runs differ:" if differences else "Same machine, build, models, settings and prompts."
    parts.append(Lines([("", head)]))
    if differences:
        parts.append(Lines(differences))
    left, right = summarise(a), summarise(b)
    temperatures = dict.fromkeys([*left.temperatures, *right.temperatures])
    parts += [_figures(left, right, temperature) for temperature in temperatures]
    return stacked(parts)


def _figures(left: Summary, right: Summary, temperature: float) -> Figures:
    rows = []
    for mode in dict.fromkeys([*left.modes, *right.modes]):
        a, b = left.cell(mode, temperature), right.cell(mode, temperature)
        if a is None and b is None:
            continue
        speedups, rates = [_speedup(a), _speedup(b)], [_rate(a), _rate(b)]
        intervals = NOTHING if mode == PLAIN else _intervals(a, b)
        rows.append(
            [mode, *map(times, speedups), _quotient(*speedups), intervals, *map(rate, rates), _quotient(*rates)]
        )
    header = ["mode", "A", "B", "B / A", "intervals", "A tok/s", "B tok/s", "B / A"]
    return Figures(f"Speedup at temperature {temperature:g}", header, rows)


def _intervals(a: Cell | None, b: Cell | None) -> str:
    """Whether the intervals separate the speedups."""
    if not (a and b) or a.speedup_low is None or b.speedup_low is None:
        return NOTHING
    assert a.speedup_high is not None and b.speedup_high is not None
    return "overlap" if a.speedup_low <= b.speedup_high and b.speedup_low <= a.speedup_high else "apart"


def _quotient(a: float | None, b: float | None) -> str:
    return times(b / a if a and b is not None else None)


def _speedup(cell: Cell | None) -> float | None:
    return cell.speedup if cell else None


def _rate(cell: Cell | None) -> float | None:
    return cell.tokens_per_s if cell else None


# --- how they were made -----------------------------------------------------------------------------------------------


def _differences(a: Result, b: Result) -> Iterator[tuple[str, str]]:
    left, right = (dict(_flat({name: result.get(name) for name in _MAKING})) for result in (a, b))
    for name in dict.fromkeys([*left, *right]):
        if left.get(name) != right.get(name):
            yield name, _beside(left.get(name), right.get(name))
    prompts = [{(sample["category"], sample["item"]) for sample in result["samples"]} for result in (a, b)]
    if prompts[0] != prompts[1]:
        yield "prompts", f"A {len(prompts[0])}, B {len(prompts[1])}, {len(prompts[0] & prompts[1])} in common"


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested objects under its path."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _beside(a: object, b: object) -> str:
    """Two values; for build flags only those that differ."""
    left, right = (_flags(value) for value in (a, b))
    if len(left) > 1 and len(right) > 1:
        gone, new = ([part for part in ours if part not in theirs] for ours, theirs in ((left, right), (right, left)))
        return f"only A {_shown(gone)}; only B {_shown(new)}"
    return f"A {_shown(a)}; B {_shown(b)}"


def _flags(value: object) -> list[str]:
    return [flag.strip() for flag in value.split("|") if flag.strip()] if isinstance(value, str) else []


def _shown(value: object) -> str:
    if value is None or value == []:
        return NOTHING
    shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return shown[:12] + "..." if len(shown) == 64 else shown  # a SHA-256


def _is_complete(result: dict[str, Any]) -> bool:
    """Whether everything is there that the figures need."""
    samples = result.get("samples")
    return (
        isinstance(result.get("settings"), dict)
        and isinstance(samples, list)
        and all(_is_sample(sample) for sample in samples)
    )


def _is_sample(sample: object) -> bool:
    return isinstance(sample, dict) and all(
        name in sample and isinstance(sample[name], kind) for name, kind in _SAMPLE.items()
    )
