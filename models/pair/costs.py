"""The costs of a pair's passes on this machine, measured by earlier runs; nothing is loaded."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.core.policy.costs import Costs
from edgespec.core.theory import CostCurve, cost_curve
from edgespec.files.paths import cache_dir, file_facts, read_cache
from edgespec.settings import HEADS

FOLDER = "pace"  # where `edgespec.engine.calibrate.CostModelCache` saves what it learned about each pair
DRAFTERS = ("draft", *HEADS)  # the keys of draft models and heads in the costs
ALPHAS = (0.4, 0.6, 0.8)
_DAMAGES = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Predicted:
    """At acceptance rate `alpha`: the best draft length, 0 for none, and its speedup."""

    alpha: float
    length: int
    speedup: float


def measured_curve(target: Path, draft: Path) -> CostCurve | None:
    """Return the last measured costs of this pair, under any settings; None unless draft tokens and wider passes were
    measured."""
    wanted = file_facts(target), file_facts(draft)
    for name in _newest_first():
        with suppress(*_DAMAGES):
            state = json.loads(read_cache(f"{FOLDER}/{name}") or "{}")
            facts = state["facts"]
            if _file(facts["target"]) == wanted[0] and wanted[1] in map(_file, facts["drafts"]):
                curve = _curve(state["costs"])
                if curve is not None:
                    return curve
    return None


def predicted(curve: CostCurve) -> list[Predicted]:
    """Return the predicted speedup for each of `ALPHAS`."""
    return [Predicted(alpha, *curve.best(alpha)) for alpha in ALPHAS]


def _newest_first() -> list[str]:
    with suppress(OSError):
        files = [file for file in (cache_dir() / FOLDER).iterdir() if file.suffix == ".json"]
        return [file.name for file in sorted(files, key=lambda file: -file.stat().st_mtime_ns)]
    return []


def _file(model: dict[str, Any]) -> list[Any]:
    """Return what identifies the file, as `file_facts` does."""
    return [model["file"], model["size"], model["mtime"]]


def _curve(stored: dict[str, Any]) -> CostCurve | None:
    """Return the measurement at the smallest context depth. Raises what `Costs.restore` does."""
    costs = Costs({1: 1.0})
    costs.restore(stored)
    target, step = costs.measured()
    drafting = next((step[name, 1, 1] for name in DRAFTERS if (name, 1, 1) in step), None)
    return cost_curve({"target": target, "draft": drafting}) if len(target) > 1 and drafting is not None else None
