"""Writing a GGUF file again with smaller weights, by llama.cpp's own quantiser."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from edgespec.errors import ModelFileError, UsageError
from edgespec.header import Header
from edgespec.llama.library import api, complaints, default_threads, first_complaint
from edgespec.model_check import check_model

# Those that need no importance matrix
_NAMES = """F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_M Q4_K_S Q4_1 Q4_0 IQ4_NL IQ4_XS Q3_K_L Q3_K_M Q3_K_S
Q2_K"""
TYPES: dict[str, int] = {
    name: int(getattr(api, f"LLAMA_FTYPE_{'ALL' if name == 'F32' else 'MOSTLY'}_{name}")) for name in _NAMES.split()
}
"""llama.cpp's file types (llama_ftype) by name."""


def quantize(source: Path, destination: Path, type: str, *, threads: int = 0, again: bool = False) -> None:
    """Write the model `source`, whose weights are F32, F16 or BF16, as `type` ("Q4_K_M") to `destination`.

    `again` takes one that is quantised already too, which loses twice.
    K-quants take rows of 256 weights; llama.cpp gives other rows a type near by. `destination` appears when it is
    complete and replaces what was there. Raises UsageError, ModelNotFoundError, ModelFileError.
    """
    type = type.upper()
    if type not in TYPES:
        raise UsageError(f"cannot quantise to {type!r}", hint=f"take one of {', '.join(TYPES)}")
    header = check_model(source)
    _check(header, destination, again=again)
    params = api.llama_model_quantize_default_params()
    params.ftype = TYPES[type]
    params.allow_requantize = again
    params.nthread = threads or default_threads()
    unfinished = destination.with_name(f"{destination.name}.{os.getpid()}.part")
    try:
        with complaints() as lines:
            failed = api.llama_model_quantize(os.fsencode(source), os.fsencode(unfinished), ctypes.byref(params))
        if failed or not unfinished.is_file():
            hint = f"is there room in {destination.parent}, and may it be written to?"
            raise ModelFileError(f"cannot quantise {source} to {type}", why=first_complaint(lines), hint=hint)
        unfinished.replace(destination)
    finally:
        unfinished.unlink(missing_ok=True)


def is_quantised(header: Header) -> bool:
    """Whether weights have lost something already."""
    return bool(_lossy_types(header))


def _lossy_types(header: Header) -> set[str]:
    return {tensor.type for tensor in header.tensors.values()} - {"F32", "F16", "BF16"}


def _check(header: Header, destination: Path, *, again: bool) -> None:
    if not destination.parent.is_dir():
        raise UsageError(f"cannot write {destination}", why=f"there is no folder {destination.parent}")
    if destination.is_dir():
        raise UsageError(f"cannot write {destination}", why="it is a folder", hint="name a file in it")
    if destination.exists() and any(destination.samefile(part) for part in header.parts or (header.path,)):
        raise UsageError(f"cannot quantise {header.path} onto itself", hint="name another file to write to")
    if not again and (small := sorted(_lossy_types(header))):
        raise ModelFileError(
            f"cannot quantise {header.path}",
            why=f"it is quantised already ({', '.join(small)}), and doing it twice loses twice",
            hint="start from the F16, BF16 or F32 file of the same model",
        )
