"""Workers that lend memory and compute over llama.cpp's RPC protocol: their addresses and their devices.

llama.cpp ends the process if it cannot reach a worker or does not understand it. So workers are asked here first: for
the version of the protocol, the number of devices, and the memory of each.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.errors import GenerationError, UsageError

PROTOCOL = 7  # RPC_PROTO_MAJOR_VERSION
DEFAULT_PORT = 50052
MOST_WORKERS = 16  # and their devices: GGML_RPC_MAX_SERVERS, LLAMA_MAX_DEVICES
LOST = "the connection to a worker broke off:"
LOST_HINT = "start it again, or look at the network between; then repeat the request"

ANSWER_S = 5.0
_GET_ALIGNMENT, _GET_DEVICE_MEMORY, _HELLO, _DEVICE_COUNT = 1, 11, 14, 15
_CAPABILITIES = 24  # bytes; none are offered
_ADDRESS = re.compile(r"([\w.-]+)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class RemoteDevice:
    """A device of a worker. The protocol does not name kinds of devices, but their alignment differs."""

    address: str
    index: int
    free_bytes: int
    total_bytes: int
    alignment: int


class WorkerUnreachableError(GenerationError):
    """A worker cannot be used, or does not answer."""

    lost_workers = True


def parse_addresses(texts: str | Sequence[str]) -> tuple[str, ...]:
    """Return each address as HOST:PORT. An entry of the list may have several, separated by commas. Raises
    UsageError."""
    found = []
    texts = [texts] if isinstance(texts, str) else texts
    for text in filter(None, (part.strip() for given in texts for part in given.split(","))):
        match = _ADDRESS.fullmatch(text)
        port = int(match[2] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise UsageError(f"{text} is not the address of a worker", hint="`rpc=HOST:PORT`, such as 10.0.0.2:50052")
        found.append(f"{match[1]}:{port}")
    return tuple(found)


def probe(address: str, *, answer_s: float = ANSWER_S) -> list[RemoteDevice]:
    """Return the devices of the worker at HOST:PORT. Raises WorkerUnreachableError."""
    host, _, port = address.rpartition(":")
    try:
        numeric = str(socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        with socket.create_connection((numeric, int(port)), timeout=answer_s) as connection:
            return _ask(connection, f"{numeric}:{port}")
    except TimeoutError as error:
        raise WorkerUnreachableError(
            f"the worker {address} does not answer",
            why=f"it was silent for {answer_s:g} s",
            hint="a worker serves one program at a time: end the other one, or start another worker",
        ) from error
    except (OSError, ValueError) as error:
        raise WorkerUnreachableError(
            f"cannot use the worker {address}",
            why=getattr(error, "strerror", None) or str(error),
            hint=f"start it there, of the same version as here: edgespec rpc-worker --port {port}",
        ) from error


def _ask(connection: socket.socket, numeric: str) -> list[RemoteDevice]:
    """Raises OSError, and ValueError for a reply that llama.cpp would not accept."""
    major, minor, patch = _call(connection, _HELLO, bytes(_CAPABILITIES), f"<BBBx{_CAPABILITIES}x")
    if major != PROTOCOL or minor > 0:
        raise ValueError(f"it speaks version {major}.{minor}.{patch} of the protocol, this build {PROTOCOL}.0")
    (count,) = _call(connection, _DEVICE_COUNT, b"", "<I")
    if not 0 < count <= MOST_WORKERS:
        raise ValueError(f"it offers {count} devices")
    found = []
    for index in range(count):
        device = struct.pack("<I", index)
        free, total = _call(connection, _GET_DEVICE_MEMORY, device, "<QQ")
        (alignment,) = _call(connection, _GET_ALIGNMENT, device, "<Q")
        found.append(RemoteDevice(numeric, index, free, total, alignment))
    return found


def _call(connection: socket.socket, command: int, data: bytes, reply: str) -> tuple[int, ...]:
    """Send a command, and return the numbers of the reply, which must have this format."""
    size = struct.calcsize(reply)
    try:
        connection.sendall(struct.pack("<BQ", command, len(data)) + data)
        if struct.unpack("<Q", _received(connection, 8)) != (size,):
            raise ValueError("its answer is not of this protocol")
        return struct.unpack(reply, _received(connection, size))
    except ConnectionError as error:  # a reset, if it had not read all that was sent
        raise ValueError("it closed the connection") from error


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ValueError("it closed the connection")
        data += part
    return data
