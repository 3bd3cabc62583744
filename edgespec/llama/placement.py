"""The devices that the weights of a model are loaded on, as parameters of llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from edgespec.gguf_file.header import EXPERTS
from edgespec.llama import rpc
from edgespec.llama.library import api, ggml_function
from edgespec.llama.workers import RemoteDevice


def on_workers(params: Any, remote: Sequence[tuple[RemoteDevice, int]], experts: Sequence[bytes]) -> object:
    """Put this number of layers on each of these devices, in this order, and the output and experts in main memory.

    The caller must keep the returned object alive until the model is loaded.
    """
    # llama.cpp starts the next device at the first layer beyond a share, and counts the output as the last layer.
    # The halves put each boundary between two layers.
    shares = [float(layers) for _, layers in remote]
    shares[0] -= 0.5
    shares[-1] += 1.5
    split = (ctypes.c_float * int(api.llama_max_devices()))(*shares)
    params.n_gpu_layers = sum(layers for _, layers in remote) + 1
    params.tensor_split = ctypes.cast(split, ctypes.POINTER(ctypes.c_float))
    return split, on_devices(params, rpc.handles([device for device, _ in remote]), [*_OUTPUT, *experts])


def on_devices(params: Any, handles: Sequence[int], in_main_memory: Sequence[bytes]) -> object:
    """Use these devices, but keep the weights whose names match one of the patterns in main memory.

    The caller must keep the returned object alive until the model is loaded.
    """
    devices = (ctypes.c_void_p * (len(handles) + 1))(*handles, None)
    main_memory = ggml_function("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
    chosen = [_Override(pattern, main_memory) for pattern in in_main_memory]
    overrides = (_Override * (len(chosen) + 1))(*chosen)
    params.devices = ctypes.cast(devices, ctypes.c_void_p)
    params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    return devices, overrides


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override"""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


_OUTPUT = (rb"^output", rb"^token_embd\.")  # the embeddings may serve as the output too


def experts_of(n_layers: int) -> list[bytes]:
    """Return a pattern for the names of the experts in the first layers.

    It is one pattern for all layers, because llama.cpp compiles each pattern for each tensor.
    """
    layers = "|".join(map(str, range(n_layers)))
    return [rf"^blk\.({layers})\.{EXPERTS}".encode()] if n_layers else []
