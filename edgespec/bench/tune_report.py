"""The report of `edgespec tune` for a terminal: what passes and drafts cost, all candidates, and the advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from edgespec.bench.advice import Advice
from edgespec.bench.report import FEW_PROMPTS, SPEED, busy, by_category
from edgespec.bench.summary import Cell
from edgespec.bench.tables import Figures, Lines, duration, notes, percent, stacked
from edgespec.bench.tune import TOKENS, DraftCost, Tuned
from edgespec.core.sampling import SamplingSettings
from edgespec.text.figures import counted

if TYPE_CHECKING:
    from rich.console import RenderableType


def table(found: Tuned, advice: Advice) -> RenderableType:
    """Return the full report."""
    widths = sorted(found.curve.target)
    costs = ["cost", *(f"{found.curve.target[width]:.2f}" for width in widths)]
    passes = Figures("Cost of a target pass, relative to a pass over one token", ["tokens", *map(str, widths)], [costs])
    parts: list[RenderableType] = [Lines(list(_heading(found))), passes]
    parts += [_speeds(found, advice, temperature) for temperature in found.temperatures]
    parts.append(_categories(found))
    lines = list(_notes(found))
    parts += [notes(lines)] if lines else []
    labels = ["to keep it", *[""] * len(advice.commands)]
    parts.append(Lines([("recommendation", advice.sentence), *zip(labels, advice.commands, strict=False)]))
    if advice.commands:
        note = "these settings hold for all models; in an edgespec.toml, they hold in its folder only"
        parts.append(Lines([("", note)]))
    return stacked(parts)


def _heading(found: Tuned) -> Iterator[tuple[str, str]]:
    yield "model", f"{found.model}, {duration(found.curve.pass_s)} for a pass over one token"
    for cost in found.costs:
        name = cost.draft.stem if cost.draft else "in the model's file"
        yield cost.drafter, ", ".join([name, *_facts(cost)])
    changed = [
        f"{each.name.replace('_', '-')} {value:g}"
        for each in fields(SamplingSettings)
        if isinstance(value := getattr(found.sampling, each.name), int | float) and value != each.default
    ]
    yield "sampling", ", ".join(changed) + ("; the same at temperature 0" if len(found.temperatures) > 1 else "")
    yield "answers", f"{TOKENS} tokens each"


def _facts(cost: DraftCost) -> Iterator[str]:
    draft = f"a draft of {counted(cost.length, 'token')}"
    if cost.cost is not None:
        yield f"{draft} takes {cost.cost:.2f} target passes"
    if cost.alpha is not None:
        yield f"{percent(cost.alpha)} % of its tokens are accepted"
    if cost.cost is not None:
        yield "which never pays" if cost.break_even is None else f"which pays from {percent(cost.break_even)} %"


def _speeds(found: Tuned, advice: Advice, temperature: float) -> Figures:
    known = [candidate for candidate in found.candidates if temperature in candidate.cells]
    drafts = {candidate.draft for candidate in known} - {None}
    kinds = {candidate.mode.name for candidate in known if candidate.draft}
    is_ambiguous = len({(c.mode.name, c.draft) for c in known if c.draft}) > len(kinds)
    chosen = {id(choice.best) for choice in advice.choices if choice.temperature == temperature}
    cells = []
    for candidate in known:
        name = candidate.mode.name + (" *" if candidate.is_current else "")
        if is_ambiguous and candidate.draft and len(drafts) > 1:
            name += f"\n  {candidate.draft.stem}"
        cells.append(replace(candidate.cells[temperature], mode=name))
    columns: dict[str, Callable[[Cell], str]] = {
        "mode": lambda cell: cell.mode,
        **SPEED,
        "prompts": lambda cell: str(cell.prompts),
    }
    bold = [row for row, candidate in enumerate(known) if id(candidate) in chosen]
    return Figures.of(f"Temperature {temperature:g}; * is the present setting", columns, cells, bold)


def _categories(found: Tuned) -> Figures:
    """Return the speedups by category of the ways with the automatic draft length, at the temperature of the user."""
    temperature = found.temperatures[-1]
    known = [c for c in found.candidates if c.mode.pace == "auto" and c.mode.spec_type != "none"]
    return by_category(
        temperature, {c.mode.name: c.by_category[temperature] for c in known if temperature in c.by_category}
    )


def _notes(found: Tuned) -> Iterator[str]:
    for each in found.left_out:
        yield f"{each.draft} was not measured: {each.why}"
    if not found.is_complete:
        yield "stopped early: the recommendation covers only what was measured"
    yield from busy(found.spread)
    few = min((cell.prompts for c in found.candidates for cell in c.cells.values()), default=FEW_PROMPTS)
    if few < FEW_PROMPTS:
        yield f"some figures are from {counted(few, 'prompt')} only: more --seconds make them more reliable"
    yield from found.messages
