"""How comparable the speeds of two files are: they are measured one after another, some perhaps in earlier runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from edgespec.bench.report import BUSY_SPREAD, times
from edgespec.compare.measure import Result
from edgespec.text.figures import counted, percent

KEPT = "^"


@dataclass(slots=True, frozen=True)
class Doubt:
    """Why a ratio of speeds is unreliable; `factor` is the possible error, None if unknown."""

    factor: float | None
    why: str


def doubt_about(result: Result, label: str) -> Doubt | None:
    """The doubt about a file's speed relative to the reference."""
    load, runs = result["load"], _runs(result, label)
    again = [load["reference_again"].get(run) for run in runs]
    spreads = [load["spread"].get(name) for name in (label, result["reference"])]
    known = [1 + spread for spread in spreads if spread is not None]
    known += [max(rate, 1 / rate) for rate in again if rate is not None]
    if None in again:
        return Doubt(None, "a run was stopped before it could check whether the machine changed")
    factor = max(known, default=1.0)
    if any(each > 1 + BUSY_SPREAD for each in known):
        return Doubt(factor, "the machine was busy at times")
    if len(runs | _runs(result, result["reference"])) > 1:
        return Doubt(factor, "measured in different runs")
    return None


def is_doubtful(result: Result) -> bool:
    """Whether there is a doubt about any file's speed."""
    labels = {row["target"] for row in result["rows"]} - {result["reference"]}
    return any(doubt_about(result, label) for label in labels)


def doubts(result: Result) -> Iterator[str]:
    """Caveats of all verdicts on speed."""
    yield from _kept(result)
    load = result["load"]
    spread = max((spread for spread in load["spread"].values() if spread is not None), default=0.0)
    if spread > BUSY_SPREAD:
        yield f"the machine was busy: about the same work took up to {percent(spread)} longer at times"
    again = load["reference_again"].get(result["started"])
    if again is not None and (result["reference"] in _kept_speeds(result) or max(again, 1 / again) > 1 + BUSY_SPREAD):
        yield (
            f"plain decoding of {result['reference']}, measured again at the end of this run, was {times(again)} as "
            "fast as in the table"
        )


def is_kept(result: Result, row: dict[str, Any]) -> bool:
    """Whether a row is, at least in part, from an earlier run."""
    return any(run != result["started"] for run in row["runs"])


def ago(time: str, now: str) -> str:
    """Age at `now`; both in ISO 8601."""
    minutes = round((datetime.fromisoformat(now) - datetime.fromisoformat(time)).total_seconds() / 60)
    for unit, size in (("day", 24 * 60), ("hour", 60), ("minute", 1)):
        if minutes >= size:
            n = round(minutes / size)
            return f"{counted(n, unit)} ago"
    return "a moment ago"


def _kept(result: Result) -> Iterator[str]:
    """Which parts are from which earlier run."""
    runs: dict[str, dict[str, list[str]]] = {}
    for label, speed_runs in _kept_speeds(result).items():
        for run in speed_runs:
            what = "part of the speed" if len(_runs(result, label)) > 1 else "the speed"
            runs.setdefault(run, {}).setdefault(what, []).append(label)
    for target in result["targets"]:
        if target["quality_run"] not in (None, result["started"]):
            runs.setdefault(target["quality_run"], {}).setdefault("the quality", []).append(target["label"])
    for run in sorted(runs):
        of = [f"{what} of {', '.join(labels)}" for what, labels in runs[run].items()]
        yield f"{KEPT} is from an earlier run, started {ago(run, result['started'])}: {' and '.join(of)}"


def _kept_speeds(result: Result) -> dict[str, list[str]]:
    """The earlier runs that measured speeds of a file, by file."""
    labels = (target["label"] for target in result["targets"])
    kept = {label: sorted(_runs(result, label) - {result["started"]}) for label in labels}
    return {label: runs for label, runs in kept.items() if runs}


def _runs(result: Result, label: str) -> set[str]:
    return {run for row in result["rows"] if row["target"] == label for run in row["runs"]}
