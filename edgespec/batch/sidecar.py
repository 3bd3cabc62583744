"""The sidecar of an output: a file with the settings of its job, which resumes only with the same settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from edgespec.core.sampling import SamplingSettings
from edgespec.errors import UsageError, told_as
from edgespec.files.paths import write_whole
from edgespec.gguf_file.adapters import parse_adapters
from edgespec.gguf_file.chat_templates import chat_templates
from edgespec.gguf_file.header import Header, read_header
from edgespec.models.memory.fit import wanted_attention
from edgespec.settings import LoadSettings, Request

VERSION = 1
N_PROBES, PROBE_BYTES = 64, 4096  # samples of the weights, which are too large to read entirely
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
    of_model: Mapping[str, Any], request: Request, *, chat: bool, system: str | None, n: int = 1
) -> dict[str, Any]:
    """Return all settings that texts depend on, except seeds, as plain data; `of_model` has those of the model."""
    names = [field.name for field in fields(Request) if field.name not in _OF_A_ROW | _OF_DRAFTS]
    values = {name: getattr(request, name) for name in names}
    values = {name: value for name, value in values.items() if name not in _NEW or value != getattr(Request(), name)}
    sampling = {field.name: getattr(request.sampling, field.name) for field in fields(SamplingSettings)}
    usual = SamplingSettings()
    sampling = {name: value for name, value in sampling.items() if name not in _NEW or value != getattr(usual, name)}
    return {**of_model, "chat": chat, "system": system or "", "n": n, **values, **sampling}


def of_model(header: Header, load: LoadSettings) -> dict[str, Any]:
    """Return the properties of a loaded model that texts depend on. `header` has all parts of a split target."""
    adapters = [[_digest(read_header(adapter.path)), adapter.scale] for adapter in parse_adapters(load.lora)]
    made: dict[str, Any] = {"lora": adapters} if adapters else {}
    if load.chat_template is not None or load.chat_template_file is not None:
        text = chat_templates(header, load.chat_template, load.chat_template_file).default
        made["chat template"] = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return made | {
        "model": header.path.name,
        "model size": header.size_bytes,
        "model digest": _digest(header),
        "exact": load.exact,
        "strict": load.strict,
        "cache_type_k": load.cache_type_k,
        "cache_type_v": load.cache_type_v,
        "flash_attention": wanted_attention(load, exact=load.exact or load.strict),
    }


def _digest(header: Header) -> str:
    """Return a digest of the header and of samples of the weights. Raises UsageError."""
    digest = sha256()
    for file in header.files:
        with told_as(UsageError, f"cannot read {header.path}"), file.open("rb") as data:
            size_bytes = data.seek(0, os.SEEK_END)
            data.seek(0)
            if file == header.path:
                digest.update(data.read(_header_bytes(header)))
            for probe in range(N_PROBES):
                data.seek(size_bytes * probe // N_PROBES)
                digest.update(data.read(PROBE_BYTES))
    return digest.hexdigest()[:32]


def _header_bytes(header: Header) -> int:
    offsets = [tensor.offset for tensor in header.tensors.values() if tensor.part == 0]
    return min(offsets, default=header.size_bytes)


def in_few(value: Any) -> str:
    """Return a setting in at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
