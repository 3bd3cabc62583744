"""Results saved as they come, keyed by what was measured, so that a stopped comparison can resume."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from edgespec import __version__
from edgespec.bench.suites import Item
from edgespec.datastore.corpus import find
from edgespec.files.paths import file_facts, read_cache, write_cache
from edgespec.llama.library import build_id
from edgespec.settings import LoadSettings

VERSION = 2

Key = dict[str, Any]


def speed_key(settings: LoadSettings, modes: Sequence[str], items: Sequence[Item], tokens: int) -> Key:
    """What speeds depend on: files, how they are loaded, machine and build, the prompts."""
    held = {name: value for name, value in asdict(settings).items() if not name.endswith("model")}
    return {
        **_common("speed", Path(settings.model)),
        "edgespec": __version__,
        "draft": file_facts(Path(settings.draft_model)) if settings.draft_model else None,
        "corpus": file_facts(find(settings.corpus)) if settings.corpus else None,
        "settings": held,
        "modes": list(modes),
        "prompts": _digest([asdict(item) for item in items]),
        "tokens": tokens,
    }


def quality_key(target: Path, reference: Path, settings: LoadSettings, windows: Sequence[Sequence[int]]) -> Key:
    """What quality figures depend on: both files, the text, and how rows are computed."""
    names = ("gpu_layers", "cache_type_k", "cache_type_v", "flash_attention")
    return {
        **_common("quality", target),
        "reference": file_facts(reference),
        "settings": {name: getattr(settings, name) for name in names},
        "text": _digest(windows),
    }


def recall(key: Key) -> dict[str, Any] | None:
    """What was saved under `key`, if anything."""
    try:
        kept = json.loads(read_cache(_name(key)) or "null")
    except ValueError:
        return None
    return kept["result"] if isinstance(kept, dict) and kept.get("key") == json.loads(json.dumps(key)) else None


def keep(key: Key, result: Mapping[str, Any]) -> bool:
    """Save `result`; False if the cache cannot be written."""
    return write_cache(_name(key), json.dumps({"key": key, "result": result}))


def _common(kind: str, target: Path) -> Key:
    return {"version": VERSION, "kind": kind, "build": build_id(), "target": file_facts(target)}


def _name(key: Key) -> str:
    return f"compare/{key['kind']}-{_digest(key)[:24]}.json"


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
