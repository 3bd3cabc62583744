"""The sidecar of an output: a file with the settings of its job, which resumes only with the same settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from edgespec.batch.input import Figures
from edgespec.core.sampling import SamplingSettings
from edgespec.core.setting import facts_of
from edgespec.files.paths import write_whole
from edgespec.settings import Request

VERSION = 1


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The contents of a sidecar.

    Attributes:
        seed: the seed of the job, from which those of rows are computed.
        settings: the settings that texts depend on, by name.
        input: the figures of the input (`Inventory` in `input.py`), once a shard is finished.
    """

    seed: int
    settings: Mapping[str, object]
    input: Figures | None = None

    @classmethod
    def read(cls, file: Path) -> Sidecar:
        """Read a sidecar. Raises OSError, ValueError."""
        kept = json.loads(file.read_text(encoding="utf-8"))
        try:
            seed, input = int(kept["seed"]), kept.get("input")
            if kept["version"] != VERSION or (input and not {"digest", "lines", "rows"} <= input.keys()):
                raise ValueError("it was written by another version of edgespec")
            return cls(seed, dict(kept["settings"]), input)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError("its contents are invalid") from error

    def write(self, file: Path) -> None:
        """Write the sidecar. Raises OSError."""
        write_whole(file, json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n")

    def differences(self, settings: Mapping[str, object], seed: int | None) -> list[str]:
        """Return descriptions of the settings that have changed; a `seed` of None is unchanged."""
        before, now = dict(self.settings), json.loads(json.dumps(settings))
        if seed is not None:
            before["seed"], now["seed"] = self.seed, seed
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return [f"{name} was {in_few(before.get(name))}, is now {in_few(now.get(name))}" for name in names]


def texts_depend_on(
    model_facts: Mapping[str, object], request: Request, *, chat: bool, system: str | None, n: int = 1
) -> dict[str, object]:
    """Return all settings that texts depend on, except seeds, as plain data; `model_facts` are those of the model."""
    values = _compared(request) | _compared(request.sampling)
    return {**model_facts, "chat": chat, "system": system or "", "n": n, **values}


def _compared(settings: Request | SamplingSettings) -> dict[str, object]:
    """Return the values that texts depend on. Some are left out if they are the defaults, as in files of earlier
    versions of edgespec, which did not have them."""
    return {
        name: getattr(settings, name)
        for name, facts in facts_of(type(settings)).items()
        if facts.compared == "always" or (facts.compared == "if set" and getattr(settings, name) != facts.default)
    }


def in_few(value: object) -> str:
    """Return a setting in at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
