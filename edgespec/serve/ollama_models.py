"""The models of the server as Ollama's API describes them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from edgespec.dialects.about import knows_tools, reasons
from edgespec.errors import EdgespecError
from edgespec.gguf_file.chat_templates import ChatTemplates, chat_templates
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import is_embedding
from edgespec.gguf_file.pooling import RANK, pooling_of
from edgespec.gguf_file.walk import Array
from edgespec.models.names.catalog import SAMPLING
from edgespec.models.names.local import LocalModel, local_model
from edgespec.models.names.other_programs import bare
from edgespec.models.names.projectors import projector_of
from edgespec.models.names.spec import resolve
from edgespec.requests.row import finite
from edgespec.serve.pool import Place
from edgespec.settings import Request
from edgespec.text.figures import count_of, iso

VERSION = "0.12.11"  # the first version of Ollama that has everything that is answered here
FOREVER_S = 10**9


def listed(place: Place) -> dict[str, object] | None:
    """Return a model as /api/tags lists it, or None if its file cannot be read."""
    if (model := described(place)) is None:
        return None
    name, modified = bare(place.offer.name), iso(model.modified_s or 0)
    content = f"{name} {model.size_bytes} {modified}"  # for Ollama it is the manifest, which other models lack
    return {
        "name": name,
        "model": name,
        "modified_at": modified,
        "size": model.size_bytes,
        "digest": hashlib.sha256(content.encode()).hexdigest(),
        "details": _details(model),
    }


def described(place: Place) -> LocalModel | None:
    """Return the description of a model's file, or None if it cannot be read."""
    try:
        path = resolve(place.offer.settings.model).path
        about = path.stat()
        return _described(path, about.st_size, about.st_mtime_ns)
    except (EdgespecError, OSError):
        return None


@lru_cache(maxsize=1024)
def _described(path: Path, size: int, changed_ns: int) -> LocalModel:
    """Return the description of a file with this size and time."""
    return local_model(str(path), embeds=True)


def running(place: Place) -> dict[str, object] | None:
    """Return a loaded model as /api/ps lists it."""
    about, served = listed(place), place.living
    if about is None or served is None:
        return None
    del about["modified_at"]
    idle_s = place.offer.idle_s
    unused_s = 0 if place.users else time.monotonic() - place.used_s
    expires_s = time.time() + (FOREVER_S if idle_s is None else idle_s - unused_s)
    return about | {"expires_at": iso(expires_s), "size_vram": 0, "context_length": served.n_ctx}


def shown(place: Place) -> dict[str, object]:
    """Return the description of a model for /api/show. Raises EdgespecError."""
    model = local_model(place.offer.settings.model, embeds=True)
    header = model.header
    assert header is not None  # local_model reads it
    settings = place.offer.settings
    templates = chat_templates(header, settings.chat_template, settings.chat_template_file)
    system, parameters = place.offer.system, _parameters(place)
    return {
        "modelfile": "\n".join([f"# {place.offer.name}", *_modelfile(system, parameters)]) + "\n",
        "parameters": "\n".join(f"{name:30} {value}" for name, value in parameters.items()),
        "template": templates.default,
        "system": system,
        "details": _details(model),
        "model_info": _metadata(header),
        "capabilities": _capabilities(header, templates, sees=sees(place, header)),
        "modified_at": iso(model.modified_s or 0),
    }


def _parameters(place: Place) -> dict[str, int | float]:
    """Return the settings of answers that differ from the defaults."""
    asked, usual = place.offer.defaults, Request()
    found = {name: getattr(asked.sampling, name) for name in SAMPLING} | {"repeat_limit": asked.repeat_limit}
    return {name: value for name, value in found.items() if value != getattr(usual.sampling, name, 0)}


def _modelfile(system: str, parameters: Mapping[str, int | float]) -> Iterator[str]:
    """Yield the lines of a Modelfile with these settings."""
    if system:
        yield f'SYSTEM """{system}"""'
    for name, value in parameters.items():
        yield f"PARAMETER {name} {value}"


def _details(model: LocalModel) -> dict[str, object]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": count_of(model.n_params),
        "quantization_level": model.quantisation,
    }


def _metadata(header: Header) -> dict[str, object]:
    known = {"general.parameter_count": header.n_params} | header.metadata
    return {name: _as_json(value) for name, value in known.items()}


def _as_json(value: object) -> object:
    """Return a value of the metadata for JSON. Vocabularies are null, as in Ollama."""
    if isinstance(value, tuple):
        return [_as_json(part) for part in value]
    if isinstance(value, Array):
        return None
    return finite(value) if isinstance(value, float) else value


def sees(place: Place, header: Header) -> bool:
    """Return whether a model reads images."""
    named = place.offer.settings.mmproj
    return projector_of(header) is not None if named is None else named != "none"


def _capabilities(header: Header, templates: ChatTemplates, *, sees: bool) -> list[str]:
    if is_embedding(header):
        return [] if pooling_of(header) == RANK else ["embedding"]
    found = ["completion", *(["vision"] if sees else [])]
    found += ["tools"] if knows_tools(templates.of(has_tools=True)) else []
    found += ["thinking"] if reasons(templates.default) else []
    return found
