"""The projector of a model: the file with which it sees, where the programs that download models put it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgespec.errors import ModelFileError, ModelNotFoundError
from edgespec.gguf_file.header import Header, read_header
from edgespec.models.hub.quants import ranked_projectors
from edgespec.models.names.ollama import ollama_projector

WIDTH = "clip.vision.projection_dim"  # of its rows, in files that were converted for any model but the first ones
KINDS = ("clip.projector_type", "clip.vision.projector_type")
_QWEN2, _QWEN3 = ("qwen2vl",), ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe")
OWN: Mapping[object, tuple[str, ...]] = {
    "qwen2vl_merger": _QWEN2,
    "qwen2.5vl_merger": _QWEN2,
    "qwen2.5o": _QWEN2,
    "qwen3vl_merger": _QWEN3,
    "gemma3": ("gemma3",),
    "gemma3nv": ("gemma3n",),
    "gemma4v": ("gemma4",),
    "gemma4uv": ("gemma4",),
    "llama4": ("llama4",),
    "cogvlm": ("cogvlm",),
    "lfm2": ("lfm2", "lfm2moe"),
    "glm4v": ("glm4", "glm4moe"),
    "kimivl": ("deepseek2",),
}
"""The architectures of kinds of projectors that were trained with one family of models (llama.cpp's conversion/). Other
kinds, such as that of LLaVA, occur with many architectures."""
WITH_OWN = (*_QWEN2, "qwen3vl", "qwen3vlmoe", "gemma3", "gemma3n", "gemma4", "llama4", "cogvlm")
"""Architectures that have no other kinds."""


def projector_of(header: Header) -> Path | None:
    """Return the projector of a model if there is one on this machine."""
    return next(iter(projectors_of(header)), None)


def projectors_of(header: Header) -> list[Path]:
    """Return the projectors of a model on this machine, the preferred one first.

    They are files `mmproj*.gguf` in the folder of the model, or a layer of the same model of Ollama. A folder may hold
    several models: projectors for models of another architecture or width are passed over.
    """
    if found := ollama_projector(header.path):
        return [found]
    name = header.path.name
    files = [file.name for file in header.path.parent.glob("*.gguf") if _belongs(file.name, name)]
    fitting = [file for file in files if _fits(header.path.with_name(file), header)]
    return [header.path.with_name(file) for file in ranked_projectors(fitting)]


def _belongs(file: str, model: str) -> bool:
    """Return whether a file is a projector by its name, which may begin with the repository as the model's does."""
    before, found, _ = file.lower().partition("mmproj")
    return bool(found) and model.lower().startswith(before)


def _fits(file: Path, header: Header) -> bool:
    try:
        found = read_header(file)
    except (ModelFileError, ModelNotFoundError):
        return True  # the error is shown when an image is to be read
    width = found.metadata.get(WIDTH)
    is_wide = found.architecture == "clip" and width in (None, header.number("embedding_length"))
    kind = next((found.metadata[key] for key in KINDS if key in found.metadata), None)
    architectures = OWN.get(kind)
    if architectures is None:
        return is_wide and (kind is None or header.architecture not in WITH_OWN)
    return is_wide and header.architecture in architectures
