"""The report of `edgespec tune` and its advice: which drafters to use, with which draft length, and how to keep that.

The present setting stays unless another way is certainly faster: of a dozen ways, one looks faster by chance.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

from edgespec.bench.modes import PLAIN
from edgespec.bench.report import FEW_PROMPTS, SPEED, busy, by_category
from edgespec.bench.summary import Cell, bootstrap_interval, median
from edgespec.bench.tables import Figures, Lines, duration, notes, percent, stacked
from edgespec.bench.tune import TOKENS, Candidate, DraftCost, Tuned
from edgespec.core.sampling import SamplingSettings
from edgespec.settings import fixed_length
from edgespec.text.figures import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

WORTH_IT = 1.02  # ratio of speeds that is worth a change
ALIKE = 0.03  # smaller differences are noise: the simpler way is preferred
ERROR = 0.05  # probability of a wrong change, shared by all ways that are compared
LEAST_PROMPTS = 6  # with fewer, not even the whole range contains the median 95 times in 100
DISTURBED = 0.9  # passes over one token: a wider pass cannot be cheaper


@dataclass(frozen=True, slots=True)
class Gain:
    """A measured ratio of speeds with its 95 % interval, which is unknown for a single prompt."""

    value: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Gain | None:
        """Return the median of ratios; None for no ratio."""
        value = median(ratios)
        return None if value is None else cls(value, *(bootstrap_interval(ratios) or (None, None)))

    def __str__(self) -> str:
        spread = "" if self.low is None or self.high is None else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.value:.2f}x{spread}"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The way to decode that is recommended at one temperature.

    Attributes:
        best: this way, which may be plain decoding
        gain: its speed over plain decoding
        over_current: its speed over the present setting, if it is another way
        rival: a way that looks faster than `best`, without certainty
        best_fixed: the fastest way with a fixed draft length
    """

    temperature: float
    best: Candidate
    gain: Gain
    over_current: Gain | None
    rival: Candidate | None
    best_fixed: Candidate | None


@dataclass(frozen=True, slots=True)
class Advice:
    """The recommendation in a sentence, and the commands that make it permanent; none if nothing changes."""

    choices: tuple[Recommendation, ...]
    sentence: str
    commands: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        choices = [
            {
                "temperature": choice.temperature,
                "mode": choice.best.mode.name,
                "draft_model": None if choice.best.draft is None else str(choice.best.draft),
                "is_current": choice.best.is_current,
                "gain": asdict(choice.gain),
                "over_current": choice.over_current and asdict(choice.over_current),
            }
            for choice in self.choices
        ]
        return {"choices": choices, "sentence": self.sentence, "commands": list(self.commands)}


def advise(found: Tuned) -> Advice:
    """Return the advice for the temperature of the user, which is the last one."""
    choices = tuple(choice for t in found.temperatures if (choice := choose(found.candidates, t)) is not None)
    if found.cheapest < DISTURBED:
        why = "another program disturbed the measurement: a wide pass appeared cheaper than one over a single token"
        return Advice(choices, f"no advice, since {why}; close other programs and run tune again")
    if not choices or choices[-1].temperature != found.temperatures[-1]:
        if len(found.candidates) > 1 and all(found.temperatures[-1] in each.cells for each in found.candidates):
            return Advice(choices, "no advice, since nothing was drafted for these prompts")
        return Advice(choices, "no advice, since there was no time for two answers; run tune again with more --seconds")
    return Advice(choices, _sentence(choices), tuple(_commands(choices[-1], found.pace)))


def choose(candidates: Sequence[Candidate], temperature: float) -> Recommendation | None:
    """Return what to use at a temperature; None if nothing was measured at it.

    Of ways that are about as fast as the fastest, the simplest is taken: the present setting, then one without weights,
    then the automatic draft length. It replaces the present setting, or plain decoding if that was not measured, only
    if it is certainly faster. Plain decoding replaces a setting that is certainly slower.
    """
    plain = next((c for c in candidates if c.mode == PLAIN and temperature in c.cells), None)
    known = {c: gain for c in candidates if c is not plain and (gain := _gain(c, temperature)) is not None}
    if plain is None or not known:
        return None
    current = next((c for c in known if c.is_current), None)
    top = max(gain.value for gain in known.values())
    alike = [c for c, gain in known.items() if gain.value >= top * (1 - ALIKE)]
    best = min(alike, key=lambda c: (c is not current, c.has_weights, c.mode.pace != "auto", -known[c].value))
    fixed = [c for c in known if fixed_length(c.mode.pace)]
    best_fixed = max(fixed, key=lambda c: known[c].value, default=None)
    ratios = _over(best, current, temperature)
    over_current = Gain.of(ratios) if current is not None and best is not current else None
    if best is not current and known[best].value >= WORTH_IT and _is_certain(ratios, len(known)):
        return Recommendation(temperature, best, known[best], over_current, None, best_fixed)
    rival = best if best is not current and known[best].value >= WORTH_IT else None
    slower = [1 / ratio for ratio in current.ratios[temperature].values()] if current is not None else []
    if current is not None and not _is_certain(slower, len(known)):
        return Recommendation(temperature, current, known[current], None, rival, best_fixed)
    return Recommendation(temperature, plain, Gain(1.0, 1.0, 1.0), Gain.of(slower), rival, best_fixed)


def _gain(candidate: Candidate, temperature: float) -> Gain | None:
    """Return the speed over plain decoding; None if it was not measured, or if nothing was drafted."""
    cell = candidate.cells.get(temperature)
    if cell is None or cell.speedup is None or cell.drafted_nothing:
        return None
    return Gain(cell.speedup, cell.speedup_low, cell.speedup_high)


def _over(candidate: Candidate, current: Candidate | None, temperature: float) -> list[float]:
    """Return the speed over the present setting by prompt, from the same load if possible; over plain decoding if the
    present setting was not measured."""
    own = candidate.ratios[temperature]
    if current is None:
        return [*own.values()]
    others = candidate.beside.get(current.mode, current.ratios)[temperature]
    return [ratio / others[item] for item, ratio in own.items() if item in others]


def _is_certain(ratios: Sequence[float], n_compared: int) -> bool:
    """True if the median ratio is certainly above 1, although the best of several ways was picked."""
    found = bootstrap_interval(ratios, 1 - ERROR / n_compared)
    return len(ratios) >= LEAST_PROMPTS and found is not None and found[0] > 1 and (median(ratios) or 0) >= WORTH_IT


# --- sentences --------------------------------------------------------------------------------------------------------


def _sentence(choices: Sequence[Recommendation]) -> str:
    """Return the advice in one sentence, about the temperature of the user first."""
    main, *others = reversed(choices)
    return "; ".join([_what(main), *(_also(other, main) for other in others)])


def _what(choice: Recommendation) -> str:
    best, at = choice.best, f"at temperature {choice.temperature:g}"
    if best.mode == PLAIN:
        text = f"no drafter is certainly faster than plain decoding {at}"
        if choice.over_current is not None:
            text = f"use no drafters: plain decoding is {choice.over_current} as fast as the present setting {at}"
    else:
        verb = "keep the present setting," if best.is_current else "use"
        text = f"{verb} {named(best)}: {choice.gain} as fast as plain decoding {at}"
        if best.is_current and (choice.gain.low is None or choice.gain.low <= 1):
            text += ", which is not certainly faster"
        if choice.over_current is not None:
            text += f", and {choice.over_current} as fast as the present setting"
        fixed = choice.best_fixed
        if fixed is not None and fixed is not best and fixed is not choice.rival:
            text += f", where the best fixed draft length reaches {_value(fixed, choice.temperature)}"
    if choice.rival is not None:
        text += (
            f" ({named(choice.rival)} may be faster, {_value(choice.rival, choice.temperature)}: "
            "more --seconds on a quiet machine would show it)"
        )
    return text


def _also(choice: Recommendation, main: Recommendation) -> str:
    at = f"at temperature {choice.temperature:g}"
    if choice.best.mode == PLAIN:
        return f"{at} no drafter is certainly faster than plain decoding"
    if choice.best is main.best:
        return f"{at} it is {choice.gain}"
    return f"{at} {'the present setting' if choice.best.is_current else named(choice.best)} is best, {choice.gain}"


def _value(candidate: Candidate, temperature: float) -> str:
    return f"{candidate.cells[temperature].speedup:.2f}x"


def named(candidate: Candidate) -> str:
    """Return a way to decode in words."""
    length = fixed_length(candidate.mode.pace)
    tokens = f"drafts of {length} token{'s' * (length > 1)}" if length else "the automatic draft length"
    by = f" of {candidate.draft_name}" if candidate.draft else ""
    return f"{candidate.mode.spec_type}{by} with {tokens}"


def _commands(choice: Recommendation, pace: str) -> Iterator[str]:
    """Yield the commands that make a choice permanent, in place of a setting with this pace."""
    best = choice.best
    if best.is_current or (best.mode == PLAIN and choice.over_current is None):
        return
    if best.draft is not None:
        yield shlex.join(["edgespec", "config", "set", "draft-model", best.draft_name])
    yield shlex.join(["edgespec", "config", "set", "spec-type", best.mode.spec_type])
    if best.mode != PLAIN and best.mode.pace != pace:
        yield shlex.join(["edgespec", "config", "set", "pace", best.mode.pace])


# --- the report -------------------------------------------------------------------------------------------------------


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
        name = cost.draft.name if cost.draft else "in the model's file"
        yield cost.drafter, "; ".join([name, *_facts(cost)])
    settings = [
        f"{each.name.replace('_', '-')} {value:g}"
        for each in fields(SamplingSettings)
        if isinstance(value := getattr(found.sampling, each.name), int | float)
        and (value != each.default or each.name == "temperature")
    ]
    yield "sampling", ", ".join(settings) + ("; measured at temperature 0, too" if len(found.temperatures) > 1 else "")
    yield "answers", f"{TOKENS} tokens each"


def _facts(cost: DraftCost) -> Iterator[str]:
    if cost.cost is not None:
        pays = "never pays off"
        if cost.break_even is not None:
            pays = f"pays off if {percent(cost.break_even)}\xa0% of its tokens are accepted"
        yield f"a draft of {counted(cost.length, 'token')} takes {cost.cost:.2f} target passes, and {pays}"
    if cost.alpha is not None:
        yield f"{percent(cost.alpha)}\xa0% are accepted"


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
