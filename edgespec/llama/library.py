"""The native library: its log, its build, its devices, and the machine's threads and memory."""

from __future__ import annotations

import collections
import ctypes
import functools
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import psutil

# GNU OpenMP reads this variable when it is loaded: it says how long threads spin before they sleep, while they wait for
# the next pass and, in builds made elsewhere, for each other. By default they spin for milliseconds, and two programs
# on the same cores slow each other down a hundredfold (docs/performance.md).
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# ggml reads this one: a crash would print a backtrace, for which it runs a debugger if there is one.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

import llama_cpp
from llama_cpp._ctypes_extensions import load_shared_library
from llama_cpp._ggml import libggml, libggml_base_path

from edgespec.llama.backends import LEFT_OUT, load_backends
from edgespec.llama.device_lost import end_if_lost

if TYPE_CHECKING:
    from _ctypes import CFuncPtr
    from ctypes import _CDataType

api: ModuleType = llama_cpp.llama_cpp
"""The ctypes binding, for this package only."""

logger = logging.getLogger("edgespec.llama")
# A library does not write to the terminal; the command line decides what is shown.
logger.addHandler(logging.NullHandler())

# ggml_log_level: none, debug, info, warn, error, and the continuation of a line
_LEVELS = (logging.DEBUG, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)
_ERROR = 4
_CGROUP = Path("/sys/fs/cgroup")
_complaints: collections.deque[str] = collections.deque(maxlen=8)


@api.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes | None, _user_data: object) -> None:
    """Send one line of llama.cpp's log to `logging`, and keep its errors to explain a failure."""
    line = (text or b"").decode("utf-8", "replace").strip()
    if not line or line == ".":
        return
    if level == _ERROR:
        end_if_lost(line)
        _complaints.append(line)
    logger.log(_LEVELS[level], "%s", line)


# Importing the binding installs a callback that prints to stderr; ours replaces it before anything is logged.
api.llama_log_set(_log, None)
CPU_LIBRARY = load_backends()
"""The library of the CPU backend in a portable build, which has one for each level of instructions; else None."""
api.llama_backend_init()


@contextmanager
def complaints() -> Iterator[collections.deque[str]]:
    """The errors that llama.cpp logs inside the block, oldest first."""
    _complaints.clear()
    yield _complaints


def first_complaint(lines: Sequence[str]) -> str:
    """Return the first error of a failure, without the C++ function that logged it."""
    if not lines:
        return "the native library gave no reason"
    _, found, rest = lines[0].partition(": ")
    return rest if found and " " not in lines[0].partition(": ")[0] else lines[0]


@dataclass(frozen=True, slots=True)
class Device:
    """One compute device of this build, with llama.cpp's handle; memory in bytes.

    Attributes:
        backend: The part of llama.cpp that drives the device, such as "CUDA", "Vulkan" or "MTL".
        bus_id: The address on the PCI bus, such as "0000:c1:00.0"; empty if it is unknown.
    """

    name: str
    description: str
    kind: str
    free_bytes: int
    total_bytes: int
    handle: int = 0
    backend: str = ""
    bus_id: str = ""

    @property
    def is_integrated(self) -> bool:
        """True for a GPU that shares the memory of the CPU."""
        return self.kind == "integrated GPU"


class _Properties(ctypes.Structure):
    """ggml_backend_dev_props"""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", ctypes.c_bool * 16),  # more than there are
    )


_KINDS = {0: "CPU", 1: "GPU", 2: "integrated GPU", 3: "accelerator"}
_GPU_KINDS = ("GPU", "integrated GPU")


def devices() -> list[Device]:
    """Return all devices that the build can use, the CPU included."""
    return [_device(handle) for handle in _handles()]


def _handles() -> list[int]:
    get = ggml_function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return [int(get(index)) for index in range(ggml_function("ggml_backend_dev_count", ctypes.c_size_t)())]


def gpu_names() -> dict[str, int]:
    """Return the names of all GPUs, with llama.cpp's handles. Unlike `devices`, this takes no memory of a GPU."""
    kind = ggml_function("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    name = ggml_function("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    return {name(handle).decode(): handle for handle in _handles() if _KINDS.get(kind(handle)) in _GPU_KINDS}


def _device(handle: int) -> Device:
    found = _Properties()
    properties = ggml_function("ggml_backend_dev_get_props", None, ctypes.c_void_p, ctypes.POINTER(_Properties))
    backend_of = ggml_function("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)
    backend_name = ggml_function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    properties(handle, ctypes.byref(found))
    return Device(
        found.name.decode(),
        found.description.decode("utf-8", "replace"),
        _KINDS.get(found.type, "other"),
        _free(found.memory_free, found.memory_total),
        found.memory_total,
        handle,
        backend_name(backend_of(handle)).decode(),
        (found.device_id or b"").decode(),
    )


def _free(free_bytes: int, total_bytes: int) -> int:
    """Return the free memory; none if a driver reports more in use than there is, since llama.cpp's number wraps."""
    return 0 if total_bytes and free_bytes > total_bytes else free_bytes


def gpus(names: Sequence[str] = ()) -> list[Device]:
    """Return the GPUs with these names, in this order; by default those that layers would be spread over.

    Integrated ones are used only if there are no others, and a GPU that two backends drive is used by the first.
    """
    if names:
        handles = gpu_names()
        return [_device(handles[name]) for name in names]
    usual = _of_first_kind(devices(), *_GPU_KINDS)
    first = {device.bus_id: device for device in reversed(usual) if device.bus_id}
    usual = [device for device in usual if device is first.get(device.bus_id, device)]
    # Not every backend knows the address of an integrated GPU.
    return [device for device in usual if device.kind == "GPU" or device.backend == usual[0].backend]


def offered_devices() -> list[Device]:
    """Return the devices that a worker offers: the GPUs, or else the CPU."""
    return _of_first_kind(devices(), "GPU", "CPU")


def _of_first_kind(found: Sequence[Device], *kinds: str) -> list[Device]:
    return next((some for kind in kinds if (some := [device for device in found if device.kind == kind])), [])


def has_discrete_gpu() -> bool:
    """Return whether there is a GPU that gets layers by default: integrated ones get them only if asked for."""
    return supports_gpu() and not all(gpu.is_integrated for gpu in gpus())


def supports_gpu() -> bool:
    """Return whether layers can be offloaded: the build has a GPU backend, and there is a device."""
    return bool(api.llama_supports_gpu_offload()) and bool(gpu_names())


def gpu_backends() -> list[str]:
    """Return the GPU backends of this build in lower case, such as "vulkan", whether or not they have a device."""
    count = ggml_function("ggml_backend_reg_count", ctypes.c_size_t)
    get = ggml_function("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t)
    name = ggml_function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    found = [name(get(index)).decode().lower() for index in range(count())]
    return [name for name in dict.fromkeys([*found, *LEFT_OUT]) if name not in ("cpu", "rpc", "blas")]


def build_flags() -> str:
    """Return llama.cpp's own line of instruction sets and options, `AVX2 = 1 | ...`."""
    return str(api.llama_print_system_info().decode("utf-8", "replace"))


def library_path() -> Path:
    """Return the path of the loaded llama.cpp shared library."""
    return Path(api._lib._name)


def build_id() -> str:
    """Return a name for this build on this machine: measurements with one need not hold for another.

    It covers all libraries of the build, since each backend may be a separate one that can be replaced alone.
    """
    chosen = CPU_LIBRARY or library_path()
    files = (path for path in sorted(chosen.parent.iterdir()) if "ggml" in path.name or "llama" in path.name)
    facts = [(path.name, stat.st_size, stat.st_mtime_ns) for path in files if (stat := path.stat())]
    digest = sha256(repr(facts).encode()).hexdigest()[:16]
    return f"{llama_cpp.__version__}-{chosen.stem}-{digest}-{platform.node()}-{platform.machine()}"


def default_threads() -> int:
    """Return the number of physical cores this process may use; hyper-threads only slow down matrix products."""
    physical = _performance_cores() or psutil.cpu_count(logical=False) or os.cpu_count() or 1
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity masks
        allowed = os.cpu_count() or physical
    return max(1, min(physical, allowed))


def available_memory_bytes() -> int:
    """Return the memory that a new allocation can get, within the control group's limit if there is one."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((_CGROUP / name).read_text("ascii")) for name in ("memory.max", "memory.current"))
        accounts = dict(line.split() for line in (_CGROUP / "memory.stat").read_text("ascii").splitlines())
    except (OSError, ValueError):  # no control group, or one without a limit ("max")
        return free
    # Cached files can be dropped, but not those of a tmpfs, which the count includes.
    return min(free, limit - used + int(accounts.get("file", 0)) - int(accounts.get("shmem", 0)))


def total_memory_bytes() -> int:
    return int(psutil.virtual_memory().total)


def _performance_cores() -> int:
    """Return the number of Apple's performance cores, which would wait for the efficiency cores; 0 elsewhere."""
    if sys.platform != "darwin":
        return 0
    asked = subprocess.run(["sysctl", "-n", "hw.perflevel0.physicalcpu"], capture_output=True, text=True, check=False)
    return int(asked.stdout) if asked.stdout.strip().isdigit() else 0


def ggml_function(name: str, result: type[_CDataType] | None, *arguments: type[_CDataType]) -> CFuncPtr:
    """Return a function of ggml, which is split into two libraries.

    Except on Windows, a lookup in the first library also finds the functions of the second.
    """
    function: CFuncPtr = getattr(libggml if hasattr(libggml, name) else _ggml_base(), name)
    function.restype, function.argtypes = result, list(arguments)
    return function


@functools.cache  # each load puts the folder on PATH once more
def _ggml_base() -> ctypes.CDLL:
    library: ctypes.CDLL = load_shared_library("ggml-base", libggml_base_path)
    return library


def cpu_function(name: str, result: type[_CDataType] | None, *arguments: type[_CDataType]) -> CFuncPtr:
    """Return a function that the CPU backend offers by name, wherever its library is."""
    device = ggml_function("ggml_backend_dev_by_type", ctypes.c_void_p, ctypes.c_int)(0)
    backend = ggml_function("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)(device)
    address = ggml_function("ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
    return ctypes.CFUNCTYPE(result, *arguments)(address(backend, name.encode()))


def _is_set_function() -> CFuncPtr:
    """Return an abort callback that checks whether a C string is not empty: `strlen` over the flag's one byte.

    llama.cpp calls it for every graph node, where a Python function would slow decoding down.
    """
    libc = ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)
    callback: CFuncPtr = ctypes.cast(libc.strlen, api.ggml_abort_callback)
    return callback


IS_SET = _is_set_function()
