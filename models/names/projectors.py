"""The projector of a model: the file with which it sees, where the programs that download models put it."""

from __future__ import annotations

from pathlib import Path

from edgespec.errors import ModelFileError, ModelNotFoundError
from edgespec.gguf_file.header import Header, read_header
from edgespec.models.hub.quants import projector_in
from edgespec.models.names.ollama import ollama_projector

WIDTH = "clip.vision.projection_dim"  # of its rows, in files that were converted for any model but the first ones


def projector_of(header: Header) -> Path | None:
    """Return the projector of a model if there is one on this machine.

    It is a file `mmproj*.gguf` in the folder of the model, or a layer of the same model of Ollama. A folder may hold
    several models: projectors for models of another width are passed over.
    """
    if found := ollama_projector(header.path):
        return found
    name = header.path.name
    files = [file.name for file in header.path.parent.glob("*.gguf") if _belongs(file.name, name)]
    fitting = [file for file in files if _fits(header.path.with_name(file), header)]
    return header.path.with_name(projector_in(fitting)[0]) if fitting else None


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
    return found.architecture == "clip" and width in (None, header.number("embedding_length"))
