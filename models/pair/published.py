"""Published draft heads: a folder with `config.json` and safetensors files, read without PyTorch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError, UsageError, told_as

_MOST_CONFIG_BYTES = 1 << 20
_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64, "I32": np.int32,
    "BOOL": np.bool_,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Published:
    """A head as it was published; `tensors` are gguf's `LocalTensor` by their names in the files."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Any]

    def values(self, name: str) -> NDArray[Any]:
        """Return a tensor as numpy has it; bfloat16 as float32."""
        tensor = self.tensors[name]
        values = np.frombuffer(tensor.mmap_bytes(), _DTYPES[tensor.dtype]).reshape(tensor.shape)
        if tensor.dtype == "BF16":  # the upper half of a float32
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values


def read_published(folder: Path) -> Published:
    """Read the headers of a folder's files. Raises UsageError, ModelFileError."""
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise UsageError(
            f"{folder} is not a published draft head",
            why="there is no config.json" if folder.is_dir() else "there is no such folder",
            hint="give the folder of a downloaded repository, or the repository itself: owner/name",
        )
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = sorted(file.name for kind in ("*.bin", "*.pt") for file in folder.glob(kind))
        why = "there is no .safetensors file"
        if pickled:
            why = f"{pickled[0]} is a pickle, which can run any program when it is read; only safetensors are read"
        raise UsageError(f"{folder} cannot be converted", why=why)
    with told_as(ModelFileError, f"{folder} cannot be read"):
        if config_file.stat().st_size > _MOST_CONFIG_BYTES:
            raise ModelFileError(f"{config_file} is too large to be a configuration")
        config = _config(config_file)
        tensors = {name: tensor for file in files for name, tensor in _tensors(file).items()}
    return Published(folder, config, tensors)


def _config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file} is not JSON", why=str(error)) from error
    if not isinstance(config, dict):
        raise ModelFileError(f"{file} is not the configuration of a model")
    inner = config.get("transformer_layer_config")  # of the library speculators
    return {**inner, **config} if isinstance(inner, dict) else config


def _tensors(file: Path) -> dict[str, Any]:
    """Return the tensors of a file. Raises ModelFileError if it is damaged, or has a type that cannot be read."""
    from gguf.utility import SafetensorsLocal

    try:
        tensors = SafetensorsLocal(file).tensors
        n_bytes = file.stat().st_size
        for name, tensor in tensors.items():
            place = tensor.data_range
            if tensor.dtype not in _DTYPES:
                raise ValueError(f"tensor {name!r} has the type {tensor.dtype}, not one of {', '.join(_DTYPES)}")
            size = math.prod(tensor.shape) * np.dtype(_DTYPES[tensor.dtype]).itemsize
            is_shape = all(isinstance(n, int) and n > 0 for n in tensor.shape)
            if not is_shape or size != place.size or not 0 < size <= n_bytes - place.offset:
                raise ValueError(f"tensor {name!r} has the wrong size")
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise ModelFileError(f"{file} cannot be read", why=str(error), hint="download it again") from error
    return dict(tensors)
