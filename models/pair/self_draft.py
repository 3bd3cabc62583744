"""Drafts made from the target itself: its first layers, or a copy with smaller weights. Made once, then cached.

A draft of the first layers (LayerSkip, arXiv 2404.16710) has the embeddings, the last norm and the output of the model,
so nothing has to be trained. Weights and metadata are copied, except for the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.files.paths import derived_file, make_room
from edgespec.files.unfinished import check_destination
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model
from edgespec.gguf_file.writing import Entry, open_file, write_file
from edgespec.llama.quantize import TYPES, quantize


def self_draft(source: Path, what: str, progress: Callable[[float], None] = lambda done: None) -> Path:
    """Return the file of the draft that `what` names; make a missing file. Raises UsageError, ModelFileError."""
    if not (what.isascii() and what.isdigit()) and what.upper() not in TYPES:
        types = ", ".join(TYPES)
        raise UsageError(f"self:{what} is not a draft", hint=f"use a number of layers (self:8) or a type: {types}")
    path = derived_file("drafts", source, what)
    if path.is_file():
        return path
    progress(0.0)
    make_room(path.parent, source.stat().st_size, "a draft")
    if what.isdigit():
        slice_layers(source, path, int(what), progress)
    else:
        quantize(source, path, what, again=True, progress=progress)
    return path


def slice_layers(
    source: Path, destination: Path, layers: int, progress: Callable[[float], None] = lambda done: None
) -> None:
    """Write the first `layers` layers of a model; `destination` appears when it is complete.

    Raises UsageError, ModelNotFoundError, ModelFileError, and EdgespecError if the file cannot be written.
    """
    header = check_model(source)
    depth = header.number("block_count")
    if not 1 <= layers < depth:
        raise UsageError(f"{source.name} has {depth} layers: a draft can have the first 1 to {depth - 1}, not {layers}")
    check_destination(destination, header.files, b"GGUF")
    entries, tensors = open_file(header)
    kept = {name: tensor for name, tensor in tensors.items() if _layer(name) < layers}
    write_file(destination, header.architecture, _metadata(entries, header, layers), kept, progress)


def _metadata(entries: Iterable[Entry], header: Header, layers: int) -> Iterator[Entry]:
    """Yield the source's metadata for fewer layers: per-layer values are cut."""
    arch, depth = header.architecture, header.number("block_count")
    sections = f"{arch}.rope.dimension_sections"  # four numbers, however many layers there are
    for name, value, kind, element in entries:
        if name == f"{arch}.nextn_predict_layers":
            continue
        if name == f"{arch}.block_count":
            value = layers
        elif element is not None and name.startswith(f"{arch}.") and len(value) == depth and name != sections:
            value = value[:layers]
        yield Entry(name, value, kind, element)


def _layer(name: str) -> int:
    """Return the layer of a tensor; -1 for a tensor of no layer."""
    kind, _, rest = name.partition(".")
    return int(rest.partition(".")[0]) if kind == "blk" else -1
