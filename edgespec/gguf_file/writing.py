"""Write GGUF files: new ones, and copies with other metadata or tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import EdgespecError, told_as
from edgespec.files.unfinished import becoming
from edgespec.gguf_file.header import Header

#: The numbers or bytes of a tensor, row length last, and their type (gguf.GGMLQuantizationType)
Stored = tuple[NDArray[np.generic], int]


class Entry(NamedTuple):
    """An entry of the metadata, as the arguments of gguf's `add_key_value`: a list has the type of its elements."""

    key: str
    value: Any
    type: int
    element: int | None = None


_VALUES = {"str": "STRING", "bool": "BOOL", "int": "UINT32", "float": "FLOAT32", "list": "ARRAY"}


def write_file(
    path: Path,
    architecture: str,
    entries: Iterable[Entry],
    tensors: Mapping[str, Stored],
    progress: Callable[[float], None] = lambda done: None,
) -> None:
    """Write a file, which appears when it is complete. Raises EdgespecError if the file cannot be written."""
    import gguf  # slow to import, and not needed to load a model

    with told_as(EdgespecError, f"cannot write {path}"), becoming(path) as unfinished:
        writer = gguf.GGUFWriter(unfinished, architecture)
        try:
            for entry in entries:
                writer.add_key_value(*entry)
            for name, (data, type) in tensors.items():
                writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, type)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for number, (data, _) in enumerate(tensors.values(), 1):
                writer.write_tensor_data(data)
                progress(number / len(tensors))
        except OSError as error:
            if error.errno is None:  # numpy only says how much it wrote
                why = "the disk is full, or a file on it cannot be as large"
                raise EdgespecError(f"cannot write {path}", why=why) from error
            raise
        finally:
            writer.close()


def typed(values: Mapping[str, object]) -> Iterator[Entry]:
    """Yield entries for plain values: texts, numbers, and lists of them."""
    from gguf import GGUFValueType

    for key, value in values.items():
        yield Entry(key, value, GGUFValueType[_VALUES[value.__class__.__name__]])


def stored(values: NDArray[np.generic], type: str) -> Stored:
    """Return a tensor in this type, or as F16 where its rows are no whole number of blocks; vectors stay F32."""
    import gguf

    kind = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else type]
    if values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = gguf.GGMLQuantizationType.F16
    return gguf.quants.quantize(np.ascontiguousarray(values, np.float32), kind), kind


def stored_ids(ids: NDArray[np.int64]) -> Stored:
    """Return a list of token ids as a tensor."""
    import gguf

    return np.ascontiguousarray(ids, np.int64), gguf.GGMLQuantizationType.I64


def open_file(header: Header) -> tuple[list[Entry], dict[str, Stored]]:
    """Return the entries, without information about parts, and the tensors of a file, memory-mapped, to be copied."""
    import gguf

    readers = [gguf.GGUFReader(part) for part in header.files]
    entries = []
    for name, field in readers[0].fields.items():
        if not name.startswith(("GGUF.", "split.")) and name != "general.architecture":
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            entries.append(Entry(name, field.contents(), field.types[0], element))
    return entries, {tensor.name: (tensor.data, tensor.tensor_type) for each in readers for tensor in each.tensors}
