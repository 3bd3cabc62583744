"""Read weights of a GGUF file as numbers, row by row, from any weight type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError
from edgespec.gguf_file.header import Header

AT_ONCE = 4096  # rows


def read_rows(header: Header, name: str, rows: Sequence[int] | None = None) -> NDArray[np.float32]:
    """Return float32[n, row length]: some or all rows of a tensor; for a vector float32[length].

    Raises ModelFileError if there is no such tensor, or if its type cannot be read.
    """
    import gguf

    info = header.tensors.get(name)
    if info is None:
        raise ModelFileError(f"{header.path} has no tensor {name!r}")
    kind = gguf.GGMLQuantizationType[info.type]
    n_rows = int(np.prod(info.shape[1:], dtype=np.int64))
    path: Path = header.parts[info.part] if header.parts else header.path
    raw: NDArray[np.uint8] = np.memmap(path, np.uint8, "r", info.offset, (n_rows, info.size_bytes // n_rows))
    wanted = np.arange(n_rows) if rows is None else np.asarray(rows)
    found = np.empty((len(wanted), info.shape[0]), np.float32)
    try:
        for start in range(0, len(wanted), AT_ONCE):
            part: Any = np.ascontiguousarray(raw[wanted[start : start + AT_ONCE]])
            if kind == gguf.GGMLQuantizationType.F16:
                found[start : start + AT_ONCE] = part.view(np.float16)
            elif kind == gguf.GGMLQuantizationType.F32:
                found[start : start + AT_ONCE] = part.view(np.float32)
            else:
                found[start : start + AT_ONCE] = gguf.quants.dequantize(part, kind)
    except NotImplementedError as error:
        raise ModelFileError(f"the weights of {header.path} cannot be read", why=f"{name} is {info.type}") from error
    return found if len(info.shape) > 1 else found[0]
