"""The report of a comparison: the files, their speed in each mode, and conclusions.

Files are measured one after another, so a ratio of two files' speeds is only reliable if the machine was equally busy
for both. Otherwise the conclusions give a range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import floor, inf, isfinite, log10
from typing import TYPE_CHECKING

from edgespec.bench.comparison import ComparedFile, Comparison, Row
from edgespec.bench.modes import PLAIN
from edgespec.bench.quality import Quality
from edgespec.bench.report import BUSY_SPREAD, FEW_PROMPTS, SPEED, busy, machine_line, run_line
from edgespec.bench.tables import NOTHING, Figures, Lines, duration, notes, percent, rate, stacked, times
from edgespec.text.figures import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

ALIKE = 0.03  # smaller differences are noise
BEST = "*"  # marks rows


def table(result: Comparison) -> RenderableType:
    """Return the full report of a result for a terminal."""
    parts: list[RenderableType] = [Lines(list(_heading(result))), _files(result)]
    if result.rows:
        parts.append(_speeds(result))
    lines = [*caveats(result), *conclusions(result), *_legend(result), *result.messages]
    return stacked([*parts, notes(lines)])


def uncertainty(result: Comparison) -> float:
    """Return the factor by which a ratio of two files' speeds may be wrong: the largest difference between measurements
    of about the same work; 1 if the machine was about equally busy all the time."""
    spread, again = _spread(result), result.reference_again or 1.0
    factor = max(1 + spread, again, 1 / again)
    return factor if factor > 1 + BUSY_SPREAD else 1.0


def caveats(result: Comparison) -> Iterator[str]:
    """Yield what to keep in mind about all conclusions on speed."""
    yield from busy(_spread(result), "about the same work")
    again = result.reference_again
    if again and max(again, 1 / again) > 1 + BUSY_SPREAD:
        yield f"at the end of this run, {result.reference} was {times(again)} as fast as in the table"


def conclusions(result: Comparison) -> Iterator[str]:
    """Yield the gains and losses of each file against the reference, and the best rows."""
    files = {file.label: file for file in result.files}
    base = files[result.reference]
    for file in files.values():
        if file is not base:
            yield f"{file.label}: {', '.join(_differences(result, file, base))}"
    best = [row for row in result.rows if row.is_best]
    if best and len({row.file for row in result.rows}) > 1:
        names = [f"{row.file} {way(result, row)}" for row in sorted(best, key=lambda row: -(row.tokens_per_s or 0))]
        yield f"best trade-offs of speed and closeness to {base.label}, fastest first: {'; '.join(names)}"
    yield from _fastest(result)


def way(result: Comparison, row: Row) -> str:
    """Return a row's mode, and the draft model if there are several."""
    drafts = {row.draft for row in result.rows} - {None}
    return f"{row.mode} by {row.draft}" if row.draft and len(drafts) > 1 else row.mode


def nats(value: float) -> str:
    """A divergence; very small ones are rounding."""
    return "0" if value < 5e-6 else f"{value:.2g}" if value >= 1e-4 else f"{value:.1e}"


# --- tables -----------------------------------------------------------------------------------------------------------


def _heading(result: Comparison) -> Iterator[tuple[str, str]]:
    settings = result.settings
    yield "run", run_line(result.started, result.edgespec)
    if line := machine_line(result.machine):
        yield "machine", line
    yield "files", ", ".join(file.name for file in result.files)
    asked = f"{counted(settings['prompts'], 'prompt')}, greedy answers of {settings['tokens']} tokens"
    yield "speed", asked + (f", {counted(settings['threads'], 'thread')}" if settings["threads"] else "")
    positions = max((file.quality.positions for file in result.files if file.quality), default=0)
    if positions:
        read = f"{positions} tokens of a text, {counted(settings['windows'], 'window')} of {settings['window']}"
        yield "quality", f"{read}; the reference is {result.reference}"
    if not result.complete:
        yield "stopped", "before the end"


def _files(result: Comparison) -> Figures:
    def other(text: Callable[[Quality], str]) -> Callable[[ComparedFile], str]:
        """A figure of the quality of all files but the reference."""
        return lambda file: NOTHING if not file.quality or file.label == result.reference else text(file.quality)

    columns: dict[str, Callable[[ComparedFile], str]] = {
        "file": lambda file: file.label,
        "MB": lambda file: f"{file.size_bytes / 1e6:.0f}",
        "KL": other(lambda quality: nats(quality.kl)),
        "KL\nmedian": other(lambda quality: nats(quality.kl_median)),
        "KL\n99 %": other(lambda quality: nats(quality.kl_99)),
        "same\ntop %": other(lambda quality: percent(quality.same_top, digits=1)),
        "perplexity": lambda file: (
            _with_error(file.quality.perplexity, file.quality.perplexity_error) if file.quality else NOTHING
        ),
        "of the\nreference's": other(
            lambda quality: _with_error(quality.perplexity_ratio, quality.perplexity_ratio_error)
        ),
    }
    return Figures.of("Files", columns, result.files)


def _speeds(result: Comparison) -> Figures:
    has_drafts = len({row.draft for row in result.rows} - {None}) > 1
    first_rows = {row.file: row for row in reversed(result.rows)}

    columns: dict[str, Callable[[Row], str]] = {
        "file": lambda row: row.file if first_rows[row.file] is row else "",
        "draft": lambda row: (has_drafts and row.draft) or NOTHING,
        "mode": lambda row: row.mode,
        **SPEED,
        "tok/s": lambda row: f"{BEST} " * row.is_best + rate(row.tokens_per_s),
        "first\ntoken": lambda row: NOTHING if row.first_token_s is None else duration(row.first_token_s),
        "memory\nMB": lambda row: f"{row.memory_bytes / 1e6:.0f}",
    }
    return Figures.of("Speed", columns, result.rows)


def _legend(result: Comparison) -> Iterator[str]:
    if any(row.is_best for row in result.rows):
        yield (
            f"{BEST} marks rows that none beats in both; files are measured one after another, modes of a file in turns"
        )
    if any(row.mode != PLAIN.name for row in result.rows):
        yield (
            "speedup is the median over prompts of the ratio to plain decoding of the same prompt, not the quotient of "
            "the medians in tok/s"
        )
    few = min((row.prompts for row in result.rows), default=FEW_PROMPTS)
    if few < FEW_PROMPTS:
        yield f"speeds over {counted(few, 'prompt')} say little (--per-category, --prompts)"


# --- sentences --------------------------------------------------------------------------------------------------------


def _differences(result: Comparison, file: ComparedFile, base: ComparedFile) -> Iterator[str]:
    yield _more(base.size_bytes / file.size_bytes, "smaller", "larger", "as large")
    plain, plain_base = (_plain_rate(result, each.label) for each in (file, base))
    if plain and plain_base:
        yield _speed(plain / plain_base, uncertainty(result))
        faster = [row for row in result.rows if row.file == file.label and row.is_faster]
        best = max(faster, key=lambda row: row.speedup or 0.0, default=None)
        if best and (best.speedup or 0) > 1 + ALIKE:
            yield f"speculative decoding ({way(result, best)}) makes it {times(best.speedup)} faster"
    if file.quality is not None:
        yield f"KL {nats(file.quality.kl)}"
        yield f"same most likely token at {percent(file.quality.same_top, digits=1)} % of the positions"
        yield f"perplexity {file.quality.perplexity_ratio:.3f} times the reference's"


def _fastest(result: Comparison) -> Iterator[str]:
    """Yield the fastest combination of weights and drafting on this machine, if there was a choice."""
    known = [(row.tokens_per_s, row) for row in result.rows if row.tokens_per_s and row.is_candidate]
    plain_speed, plain = max(
        ((speed, row) for speed, row in known if row.mode == PLAIN.name), key=lambda pair: pair[0], default=(0.0, None)
    )
    if plain is None or len(result.rows) < 2:
        return
    speed, fastest = max(known, key=lambda pair: pair[0])
    if fastest is plain:
        yield f"fastest on this machine: {plain.file} without drafting, {rate(speed)} tok/s"
        return
    yield (
        f"fastest on this machine: {fastest.file} with {way(result, fastest)}, {rate(speed)} tok/s, "
        f"{times(speed / plain_speed)} the fastest without drafting ({plain.file})"
    )


def _spread(result: Comparison) -> float:
    """Return how much the speed of plain decoding varied at most within a file."""
    return max((file.spread for file in result.files if file.spread is not None), default=0.0)


def _plain_rate(result: Comparison, label: str) -> float | None:
    return next((row.tokens_per_s for row in result.rows if (row.file, row.mode) == (label, PLAIN.name)), None)


def _speed(ratio: float, factor: float) -> str:
    """Say what a ratio of speeds means, with its range if it may be wrong by a factor."""
    found = _more(ratio, "faster", "slower", "as fast")
    return found if factor == 1 else f"{found} ({times(ratio / factor)} to {times(ratio * factor)} as fast: see above)"


def _more(factor: float, more: str, less: str, alike: str) -> str:
    if 1 - ALIKE <= factor <= 1 + ALIKE:
        return alike
    return f"{times(factor)} {more}" if factor > 1 else f"{times(1 / factor)} {less}"


def _with_error(value: float, error: float) -> str:
    """A figure with as many digits as its standard error justifies."""
    if not (isfinite(value) and 0 < error < inf):
        return f"{value:.4g}"
    digits = max(0, 1 - floor(log10(error)))
    return f"{value:.{digits}f} ±{error:.{digits}f}"
