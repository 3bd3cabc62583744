"""Drafts made from the target itself: its first layers, or a copy with smaller weights. Made once, then cached.

A draft of the first layers (LayerSkip, arXiv 2404.16710) has the embeddings, the last norm and the output of the model,
so nothing has to be trained. Weights and metadata are copied, except for the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.errors import EdgespecError, UsageError, told_as
from edgespec.files.paths import derived_file, make_room
from edgespec.files.unfinished import becoming, check_destination
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model
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
    check_destination(destination, header.parts or (header.path,), b"GGUF")
    with told_as(EdgespecError, f"cannot write {destination}"), becoming(destination) as unfinished:
        _write(header, unfinished, layers, progress)


def _write(header: Header, path: Path, layers: int, progress: Callable[[float], None]) -> None:
    import gguf  # slow to import, and not needed to load a model

    readers = [gguf.GGUFReader(part) for part in header.parts or (header.path,)]
    tensors = [tensor for reader in readers for tensor in reader.tensors if _layer(tensor.name) < layers]
    writer = gguf.GGUFWriter(path, header.architecture)
    try:
        for entry in _metadata(readers[0], header, layers):
            writer.add_key_value(*entry)
        for tensor in tensors:
            shape = [int(n) for n in reversed(tensor.shape)]
            writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), tensor.data.nbytes, tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for number, tensor in enumerate(tensors, 1):
            writer.write_tensor_data(tensor.data)
            progress(number / len(tensors))
    finally:
        writer.close()


def _metadata(reader: Any, header: Header, layers: int) -> Iterator[tuple[Any, ...]]:
    """Yield the source's metadata for fewer layers: per-layer values are cut, split information is left out."""
    from gguf import GGUFValueType

    arch, depth = header.architecture, header.number("block_count")
    for name, field in reader.fields.items():
        if name.startswith(("GGUF.", "split.")) or name in ("general.architecture", f"{arch}.nextn_predict_layers"):
            continue
        value, kind, element = field.contents(), field.types[0], field.types[-1]
        if name == f"{arch}.block_count":
            value = layers
        elif kind == GGUFValueType.ARRAY and name.startswith(f"{arch}.") and len(value) == depth:
            value = value[:layers]
        yield name, value, kind, element if kind == GGUFValueType.ARRAY else None


def _layer(name: str) -> int:
    """Return the layer of a tensor; -1 for a tensor of no layer."""
    kind, _, rest = name.partition(".")
    return int(rest.partition(".")[0]) if kind == "blk" else -1
