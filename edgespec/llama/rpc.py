"""llama.cpp's RPC backend: use the devices of workers on other machines, or be such a worker."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep

from edgespec.errors import UsageError
from edgespec.llama.device_lost import end
from edgespec.llama.library import api, ggml_function
from edgespec.llama.workers import LOST, LOST_HINT, MOST_WORKERS, RemoteDevice, probe

# A worker sends nothing while it computes, so the limit is longer than any pass should take. A machine or a network
# that has failed is noticed sooner.
SILENCE_S, PROBE_AFTER_S, PROBES = 300, 5, 5
_FILES = Path("/dev/fd")


def has_rpc() -> bool:
    """Return whether this build of llama.cpp can use workers and be a worker."""
    return bool(_backend())


def offers(addresses: Sequence[str]) -> list[RemoteDevice]:
    """Return the devices of all workers, with numeric addresses. Raises UsageError if this build has no RPC, and
    WorkerUnreachableError with the address of a worker that cannot be used."""
    if not has_rpc():
        raise UsageError(
            "this build of llama.cpp has no RPC backend, which `rpc` needs",
            hint="build it with -DGGML_RPC=on in CMAKE_ARGS",
        )
    found: list[RemoteDevice] = []
    for address in addresses:
        offered = probe(address)
        if any(device.address == offered[0].address for device in found):
            raise UsageError(f"the worker {address} is named twice", why=f"it is {offered[0].address}")
        found += offered
    if len(found) > MOST_WORKERS:
        raise UsageError(f"the workers have {len(found)} devices", why=f"llama.cpp uses {MOST_WORKERS} at most")
    return found


def handles(devices: Sequence[RemoteDevice]) -> list[int]:
    """Return llama.cpp's handles of these devices. They must have been probed: llama.cpp ends the process if it cannot
    reach a device.

    The devices are not registered: only models that are loaded with them use them. If a device is lost, the process
    reports it on stderr and ends, instead of aborting.
    """
    _used.update(device.address for device in devices)
    ggml_function("ggml_set_abort_callback", ctypes.c_void_p, ctypes.c_void_p)(_on_abort)
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(_procedure("ggml_backend_rpc_add_server"))
    get = ggml_function("ggml_backend_reg_dev_get", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return [int(get(add(device.address.encode()), device.index)) for device in devices]


def guard(addresses: Sequence[str]) -> int:
    """Let the connections to these workers fail if nothing is received for too long. Return their number.

    The sockets belong to llama.cpp, which sets no time-outs.
    """
    n = 0
    for connection in connections(addresses):
        _set_limits(connection)
        n += 1
    return n


def connections(addresses: Sequence[str]) -> Iterator[socket.socket]:
    """Yield the connections of this process to these numeric addresses, on systems that list open files."""
    wanted = {(host, int(port)) for host, _, port in (address.rpartition(":") for address in addresses)}
    numbers = [int(path.name) for path in _FILES.iterdir()] if _FILES.is_dir() else []
    for number in numbers:
        with suppress(OSError):  # closed meanwhile, or not connected
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as connection:
                    if connection.family == socket.AF_INET and connection.getpeername() in wanted:
                        yield connection


def _set_limits(connection: socket.socket) -> None:
    limit = struct.pack("@ll", SILENCE_S, 0)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    gone_ms = 1000 * PROBE_AFTER_S * (PROBES + 1)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_AFTER_S),
        ("TCP_KEEPALIVE", PROBE_AFTER_S),  # the same on macOS
        ("TCP_KEEPINTVL", PROBE_AFTER_S),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", gone_ms),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # type: ignore[untyped-decorator]
def _on_abort(message: bytes) -> None:
    """End the process with a reason. llama.cpp aborts after this call, so the process cannot continue."""
    text = message.decode("utf-8", "replace")
    if not any(words in text for words in _LOSSES):
        os.write(2, f"{text}\n".encode())
        return
    sleep(0.2)  # a process that dies closes one socket after the other
    used = sorted(_used)
    which = [address for address in used if not _is_listening(address)] or used
    what = f"{LOST} {which[0]}" if len(which) == 1 else f"{LOST} one of {', '.join(which)}"
    end(what, LOST_HINT)


def _is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


_LOSSES = ("Remote RPC server", "Failed to connect to", "RPC handshake failed")
_used: set[str] = set()


def serve(host: str, port: int, devices: Sequence[int], threads: int, cache: str | None) -> None:
    """Serve these devices to one client after the other. Returns only if it cannot listen. llama.cpp writes to stdout
    when clients connect and disconnect."""
    start = ctypes.CFUNCTYPE(
        None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
    )(_procedure("ggml_backend_rpc_start_server"))
    array = (ctypes.c_void_p * len(devices))(*devices)
    start(f"{host}:{port}".encode(), os.fsencode(cache) if cache else None, threads, len(devices), array)


def _backend() -> int | None:
    by_name = ggml_function("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p)
    backend: int | None = by_name(b"RPC") if api.llama_supports_rpc() else None
    return backend


def _procedure(name: str) -> int:
    get = ggml_function("ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
    return int(get(_backend(), name.encode()))
