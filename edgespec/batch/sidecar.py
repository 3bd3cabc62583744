"""The sidecar of an output: a file with the settings of its job, which resumes only with the same settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from edgespec.core.sampling import SamplingSettings
from edgespec.files.paths import write_whole
from edgespec.settings import Request

VERSION = 1
_OF_A_ROW = {"prompt", "messages", "seed", "sample", "sampling", "reference", "left", "lenient", "remembered"}
_OF_A_ROW |= {"min_tokens", "stop_token_ids", "bad_words", "cache_prompt", "prompt_tokens", "lora"}  # have no options
_OF_A_ROW |= {"infill", "n_indent", "t_max_predict_ms", "return_progress", "raw_marks", "must_call", "parallel_calls"}
# Left out if they have their default, as in files of earlier versions.
_NEW = {
    "reasoning_budget",
    "repeat_limit",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
}
_NEW |= {"dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"}
_OF_DRAFTS = {"spec_type", "pace", "draft_n_max"}


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The contents of a sidecar.

    Attributes:
        seed: the seed of the job, from which those of rows are computed.
        settings: the settings that texts depend on, by name.
        input: the figures of the input (`shards.Inventory`), once a shard is finished.
    """

    seed: int
    settings: Mapping[str, Any]
    input: Mapping[str, Any] | None = None

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

    def differences(self, settings: Mapping[str, Any], seed: int | None) -> list[str]:
        """Return descriptions of the settings that have changed; a `seed` of None is unchanged."""
        before, now = dict(self.settings), json.loads(json.dumps(settings))
        if seed is not None:
            before["seed"], now["seed"] = self.seed, seed
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return [f"{name} was {in_few(before.get(name))}, is now {in_few(now.get(name))}" for name in names]


def texts_depend_on(
    model_facts: Mapping[str, Any], request: Request, *, chat: bool, system: str | None, n: int = 1
) -> dict[str, Any]:
    """Return all settings that texts depend on, except seeds, as plain data; `model_facts` are those of the model."""
    names = [field.name for field in fields(Request) if field.name not in _OF_A_ROW | _OF_DRAFTS]
    values = {name: getattr(request, name) for name in names}
    values = {name: value for name, value in values.items() if name not in _NEW or value != getattr(Request(), name)}
    sampling = {field.name: getattr(request.sampling, field.name) for field in fields(SamplingSettings)}
    usual = SamplingSettings()
    sampling = {name: value for name, value in sampling.items() if name not in _NEW or value != getattr(usual, name)}
    return {**model_facts, "chat": chat, "system": system or "", "n": n, **values, **sampling}


def in_few(value: Any) -> str:
    """Return a setting in at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
