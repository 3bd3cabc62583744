"""A comparison for its reader: the files, how fast each is in every mode, and what that means."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, inf, isfinite, log10
from typing import TYPE_CHECKING, Any

from edgespec.bench import tables
from edgespec.bench.paired import PLAIN
from edgespec.bench.report import interval, machine_line, rate, times
from edgespec.bench.tables import NOTHING, Figures, Lines, stacked
from edgespec.compare.doubts import KEPT, Doubt, doubt_about, doubts, is_doubtful, is_kept
from edgespec.compare.figures import is_faster
from edgespec.compare.measure import Result
from edgespec.text.figures import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

FEW_PROMPTS = 6
ALIKE = 0.03  # smaller differences are noise
BEST = "*"


def table(result: Result) -> RenderableType:
    """The full report of a result for a terminal."""
    parts: list[RenderableType] = [Lines(list(_heading(result))), _files(result)]
    if result["rows"]:
        parts.append(_speeds(result))
    lines = [*doubts(result), *verdicts(result), *_legend(result), *result["messages"]]
    return stacked([*parts, Lines([("-", line.replace(" %", "\xa0%")) for line in lines])])


def to_csv(result: Result) -> str:
    """A line per row below a line of names, with the figures of its file; start times of runs are separated by
    spaces."""
    files = {target["label"]: target for target in result["targets"]}
    lines = []
    for row in result["rows"]:
        target = files[row["target"]]
        about = {name: target[name] for name in ("file", "quantisation", "size_bytes", "quality_run")}
        greedy = {f"greedy_{name}": value for name, value in target["greedy"].items()}
        lines.append(row | {"runs": " ".join(row["runs"])} | about | greedy | (target["quality"] or {}))
    return tables.to_csv(lines)


def verdicts(result: Result) -> Iterator[str]:
    """What each file gains and loses against the reference, and which rows are worth choosing."""
    files = {target["label"]: target for target in result["targets"]}
    base = files[result["reference"]]
    for label, target in files.items():
        if target is not base:
            yield f"{label}: {', '.join(_differences(result, target, base))}"
    best = [row for row in result["rows"] if row["is_best"]]
    if best and len({row["target"] for row in result["rows"] if row["tokens_per_s"]}) > 1:
        names = [f"{row['target']} {way(result, row)}" for row in sorted(best, key=lambda row: -row["tokens_per_s"])]
        unsure = "as far as these speeds can be compared, " if is_doubtful(result) else ""
        what = f"best trade-offs of speed and closeness to {base['label']}"
        yield f"{unsure}{what}, fastest first: {'; '.join(names)}"
    yield from _fastest(result)


def _fastest(result: Result) -> Iterator[str]:
    """The fastest combination of weights and drafting on this machine, if there was a choice."""
    known = [row for row in result["rows"] if row["tokens_per_s"]]
    rows = [row for row in known if row["mode"] == PLAIN or _is_faster(row)]
    plain = max((row for row in rows if row["mode"] == PLAIN), key=lambda row: float(row["tokens_per_s"]), default=None)
    if plain is None or len(known) < 2:
        return
    fastest = max(rows, key=lambda row: float(row["tokens_per_s"]))
    unsure = "as far as these speeds can be compared, the " if is_doubtful(result) else ""
    if fastest is plain:
        speed = rate(plain["tokens_per_s"])
        yield f"{unsure}fastest on this machine: {plain['target']} without drafting, {speed} tok/s"
        return
    gain = times(fastest["tokens_per_s"] / plain["tokens_per_s"])
    yield (
        f"{unsure}fastest on this machine: {fastest['target']} with {way(result, fastest)}, "
        f"{rate(fastest['tokens_per_s'])} tok/s, {gain} the fastest without drafting ({plain['target']})"
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def _heading(result: Result) -> Iterator[tuple[str, str]]:
    settings = result["settings"]
    yield "run", f"{result['started'][:16].replace('T', ' ')} UTC, edgespec {result['edgespec']}"
    machine = machine_line(result["machine"])
    if machine:
        yield "machine", machine
    yield "files", ", ".join(target["name"] for target in result["targets"])
    asked = f"{settings['prompts']} prompts, greedy answers of {settings['tokens']} tokens"
    if settings["threads"]:
        asked += f", {settings['threads']} threads"
    yield "speed", asked.replace(" 1 threads", " 1 thread").replace("1 prompts", "1 prompt")
    positions = [target["quality"]["positions"] for target in result["targets"] if target["quality"]]
    if positions:
        count = "1 window" if settings["windows"] == 1 else f"{settings['windows']} windows"
        read = f"{max(positions)} tokens of a text, {count} of {settings['window']}"
        yield "quality", f"{read}; the reference is {result['reference']}"
    if not result["complete"]:
        yield "stopped", "before the end" + (": --resume continues from here" if result["parts"]["kept"] else "")


def _files(result: Result) -> Figures:
    columns: dict[str, list[str]] = {
        name: [] for name in ("file", "MB", "KL", "KL\nmedian", "KL\n99 %", "same\ntop %", "perplexity",
                              "of the\nreference's", "greedy\nsame %")
    }  # fmt: skip
    for target in result["targets"]:
        quality, label = target["quality"], target["label"]
        is_reference = label == result["reference"]
        is_new = target["quality_run"] in (None, result["started"])
        cells = [label if is_new else f"{label} {KEPT}", f"{target['size_bytes'] / 1e6:.0f}"]
        if quality is None:
            cells += [NOTHING] * 6
        else:
            nearness = (quality["kl"], quality["kl_median"], quality["kl_99"])
            cells += [NOTHING] * 4 if is_reference else [*map(nats, nearness), _percent(quality["same_top"])]
            cells.append(_with_error(quality["perplexity"], quality["perplexity_error"]))
            ratio = _with_error(quality["perplexity_ratio"], quality["perplexity_ratio_error"])
            cells.append(NOTHING if is_reference else ratio)
        cells.append(NOTHING if is_reference else _percent(target["greedy"]["until_they_part"]))
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    return Figures.of("Files", columns)


def _speeds(result: Result) -> Figures:
    columns: dict[str, list[str]] = {
        name: [] for name in ("", "file", "draft", "mode", "tok/s", "speedup", "95 %\ninterval", "first\ntoken",
                              "tok/\nstep", "memory\nMB")
    }  # fmt: skip
    before = None
    for row in result["rows"]:
        is_new, before = row["target"] != before, row["target"]
        low, high = row["speedup_low"], row["speedup_high"]
        first = row["first_token_s"]
        marks = (BEST if row["is_best"] else "") + (KEPT if is_kept(result, row) else "")
        cells = [
            row["target"] if is_new else "",
            row["draft"] or NOTHING,
            row["mode"],
            f"{marks} {rate(row['tokens_per_s'])}".lstrip(),
            times(row["speedup"]),
            interval(low, high),
            NOTHING if first is None else f"{first:.2f} s" if first >= 0.0995 else f"{first * 1e3:.0f} ms",
            NOTHING if row["tokens_per_round"] is None else f"{row['tokens_per_round']:.2f}",
            f"{row['memory_bytes'] / 1e6:.0f}",
        ]
        for column, cell in zip(list(columns.values())[1:], cells, strict=True):
            column.append(cell)
    del columns[""]
    if len({row["draft"] for row in result["rows"]} - {None}) < 2:
        del columns["draft"]
    return Figures.of("Speed", columns)


# --- words ------------------------------------------------------------------------------------------------------------


def _differences(result: Result, target: dict[str, Any], base: dict[str, Any]) -> Iterator[str]:
    yield _more(base["size_bytes"] / target["size_bytes"], "smaller", "larger", "as large")
    plain, plain_base = (_row(result, each["label"], PLAIN) for each in (target, base))
    if plain and plain_base and plain["tokens_per_s"] and plain_base["tokens_per_s"]:
        yield _speed(plain["tokens_per_s"] / plain_base["tokens_per_s"], doubt_about(result, target["label"]))
        faster = [row for row in result["rows"] if row["target"] == target["label"] and _is_faster(row)]
        best = max(faster, key=lambda row: float(row["speedup"]), default=None)
        if best and best["speedup"] > 1 + ALIKE:
            yield f"speculative decoding ({way(result, best)}) makes it {times(best['speedup'])} faster"
    quality = target["quality"]
    if quality is not None:
        yield f"KL {nats(quality['kl'])}"
        yield f"same most likely token at {_percent(quality['same_top'])} % of the positions"
        yield f"perplexity {quality['perplexity_ratio']:.3f} times the reference's"


def _is_faster(row: dict[str, Any]) -> bool:
    return is_faster(row["speedup_low"], row["tokens_per_round"])


def _row(result: Result, label: str, mode: str) -> dict[str, Any] | None:
    return next((row for row in result["rows"] if (row["target"], row["mode"]) == (label, mode)), None)


def _speed(ratio: float, doubt: Doubt | None) -> str:
    """What a ratio of speeds says, no more than is certain."""
    if doubt is None:
        return _more(ratio, "faster", "slower", "as fast")
    if doubt.factor is None:
        return f"perhaps {_more(ratio, 'faster', 'slower', 'as fast')} (uncertain: {doubt.why})"
    low, high = ratio / doubt.factor, ratio * doubt.factor
    if low <= 1 <= high:
        return f"faster or slower is uncertain ({times(low)} to {times(high)} as fast: {doubt.why})"
    bounds = (low, high) if low > 1 else (1 / high, 1 / low)
    return f"about {_more(ratio, 'faster', 'slower', 'as fast')} ({' to '.join(map(times, bounds))}: {doubt.why})"


def _more(factor: float, more: str, less: str, alike: str) -> str:
    if 1 - ALIKE <= factor <= 1 + ALIKE:
        return alike
    return f"{times(factor)} {more}" if factor > 1 else f"{times(1 / factor)} {less}"


def way(result: Result, row: dict[str, Any]) -> str:
    """A mode, and the draft model if there are several."""
    drafts = {row["draft"] for row in result["rows"]} - {None}
    return f"{row['mode']} by {row['draft']}" if row["draft"] and len(drafts) > 1 else str(row["mode"])


def _legend(result: Result) -> Iterator[str]:
    if any(row["is_best"] for row in result["rows"]):
        yield (
            f"{BEST} marks rows that none beats in both; files are measured one after another, modes of a file in turns"
        )
    if any(row["mode"] != PLAIN for row in result["rows"]):
        yield (
            "speedup is the median over prompts of the ratio to plain decoding of the same prompt, not the quotient "
            "of the tok/s beside it, which are medians of their own"
        )
    few = min((row["prompts"] for row in result["rows"]), default=FEW_PROMPTS)
    if few < FEW_PROMPTS:
        yield f"speeds over {counted(few, 'prompt')} say little (--per-category, --prompts)"


# --- numbers ----------------------------------------------------------------------------------------------------------


def nats(value: float) -> str:
    """A divergence; very small ones are rounding."""
    return "0" if value < 5e-6 else f"{value:.2g}" if value >= 1e-4 else f"{value:.1e}"


def _with_error(value: float, error: float) -> str:
    """A figure with as many digits as its standard error justifies."""
    if not (isfinite(value) and 0 < error < inf):
        return f"{value:.4g}"
    digits = max(0, 1 - floor(log10(error)))
    return f"{value:.{digits}f} ±{error:.{digits}f}"


def _percent(share: float | None) -> str:
    """Rounded towards 0, so that 100 means all."""
    return NOTHING if share is None else f"{int(share * 1000 + 1e-9) / 10:g}"
