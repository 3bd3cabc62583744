"""The models of the server as Ollama's API describes them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

from edgespec.errors import EdgespecError
from edgespec.gguf_file.header import Array, Header
from edgespec.models.names.local import LocalModel, local_model
from edgespec.serve.pool import Place
from edgespec.text.figures import count_of

VERSION = "0.12.11"  # of the API: that of the first Ollama with all that is answered here


def listed(place: Place) -> dict[str, Any] | None:
    """Return a model as /api/tags lists it, or None if its file cannot be read."""
    try:
        model = local_model(place.offer.settings.model)
    except EdgespecError:
        return None
    name, modified = place.offer.name, _time(model.modified_s or 0)
    about = f"{name} {model.size_bytes} {modified}"
    return {
        "name": name,
        "model": name,
        "modified_at": modified,
        "size": model.size_bytes,
        "digest": hashlib.sha256(about.encode()).hexdigest(),  # Ollama's names a manifest, which no other file has
        "details": _details(model),
    }


def running(place: Place) -> dict[str, Any] | None:
    """Return a loaded model as /api/ps lists it."""
    about, served = listed(place), place.living
    if about is None or served is None:
        return None
    del about["modified_at"]
    until_s = place.used_s and place.offer.idle_s
    expires = datetime.now(UTC) + timedelta(seconds=until_s or 10**9)
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
    return {name: None if isinstance(value, Array) else value for name, value in known.items()}


def _capabilities(template: str) -> list[str]:
    found = ["completion"]
    if template:
        found.append("tools")
    if "enable_thinking" in template or "<think>" in template:
        found.append("thinking")
    return found


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
