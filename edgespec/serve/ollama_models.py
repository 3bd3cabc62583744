"""The models of the server as Ollama's API describes them."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from edgespec.errors import EdgespecError
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.walk import Array
from edgespec.models.names.local import LocalModel, local_model
from edgespec.models.names.ollama import PREFIX
from edgespec.models.names.spec import resolve
from edgespec.serve.pool import Place
from edgespec.text.figures import count_of

VERSION = "0.12.11"  # the first version of Ollama that has everything that is answered here
FOREVER_S = 10**9


def listed(place: Place) -> dict[str, Any] | None:
    """Return a model as /api/tags lists it, or None if its file cannot be read."""
    try:
        path = resolve(place.offer.settings.model).path
        model = _described(path, path.stat().st_size, path.stat().st_mtime_ns)
    except (EdgespecError, OSError):
        return None
    name, modified = place.offer.name.removeprefix(PREFIX), _time(model.modified_s or 0)
    about = f"{name} {model.size_bytes} {modified}"
    return {
        "name": name,
        "model": name,
        "modified_at": modified,
        "size": model.size_bytes,
        "digest": hashlib.sha256(about.encode()).hexdigest(),  # in Ollama that of the manifest, which other models lack
        "details": _details(model),
    }


@lru_cache(maxsize=1024)
def _described(path: Path, size: int, changed_ns: int) -> LocalModel:
    """Return the description of a file with this size and time."""
    return local_model(str(path))


def running(place: Place) -> dict[str, Any] | None:
    """Return a loaded model as /api/ps lists it."""
    about, served = listed(place), place.living
    if about is None or served is None:
        return None
    del about["modified_at"]
    idle_s = place.offer.idle_s
    left_s = FOREVER_S if idle_s is None else idle_s if place.users else place.used_s + idle_s - time.monotonic()
    expires = datetime.now(UTC) + timedelta(seconds=left_s)
    return about | {"expires_at": expires.isoformat(), "size_vram": 0, "context_length": served.n_ctx}


def shown(place: Place) -> dict[str, Any]:
    """Return the description of a model for /api/show. Raises EdgespecError."""
    model = local_model(place.offer.settings.model)
    header = model.header
    assert header is not None  # local_model reads it
    template = str(header.metadata.get("tokenizer.chat_template", ""))
    return {
        "modelfile": f"# {place.offer.name}\n",
        "parameters": "",
        "template": template,
        "details": _details(model),
        "model_info": _metadata(header),
        "capabilities": _capabilities(template),
        "modified_at": _time(model.modified_s or 0),
    }


def _details(model: LocalModel) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": count_of(model.n_params),
        "quantization_level": model.quantisation,
    }


def _metadata(header: Header) -> dict[str, Any]:
    """Return the metadata of a file; long lists are null, as in Ollama."""
    known = {"general.parameter_count": header.n_params} | header.metadata
    return {name: None if _is_long(value) else value for name, value in known.items()}


def _is_long(value: Any) -> bool:
    """Return whether JSON has no short form for a value: a vocabulary, or a number that is not finite."""
    return isinstance(value, Array) or (isinstance(value, float) and not isfinite(value))


def _capabilities(template: str) -> list[str]:
    found = ["completion"]
    if template:
        found.append("tools")
    if "enable_thinking" in template or "<think>" in template:
        found.append("thinking")
    return found


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
