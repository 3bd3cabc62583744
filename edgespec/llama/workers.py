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

CONNECT_S, ANSWER_S = 5.0, 5.0
_GET_ALIGNMENT, _GET_MAX_SIZE, _GET_DEVICE_MEMORY, _HELLO, _DEVICE_COUNT = 1, 2, 11, 14, 15
_CAPABILITIES = 24  # bytes; none are offered
_ADDRESS = re.compile(r"([\w.-]+)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class RemoteDevice:
    """A device of a worker. The protocol does not name kinds of devices, but their alignment and their largest buffer
    differ."""

    address: str
    index: int
    free_bytes: int
    total_bytes: int
    alignment: int
    max_size: int


def parse_addresses(texts: str | Sequence[str]) -> tuple[str, ...]:
    """Return each address as HOST:PORT. An entry of the list may have several, separated by commas. Raises
    UsageError."""
    found = []
    texts = [texts] if isinstance(texts, str) else texts
    for text in filter(None, (part.strip() for given in texts for part in given.split(","))):
        match = _ADDRESS.fullmatch(text)
        port = int(match[2] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise UsageError(f"{text} is not the address of a worker", hint="--rpc HOST:PORT, such as 10.0.0.2:50052")
        found.append(f"{match[1]}:{port}")
    for address in found:
        if found.count(address) > 1:
            raise UsageError(f"the worker {address} is named twice")
    if len(found) > MOST_WORKERS:
        raise UsageError(f"{len(found)} workers are too many", why=f"llama.cpp uses {MOST_WORKERS} at most")
    return tuple(found)


def probe(address: str, *, connect_s: float = CONNECT_S, answer_s: float = ANSWER_S) -> list[RemoteDevice]:
    """Return the devices of the worker at HOST:PORT. Raises GenerationError."""
    host, _, port = address.rpartition(":")
    try:
        numeric = str(socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        why = f"{host} has no IPv4 address ({error.strerror or error})"
        raise GenerationError(f"cannot reach the worker {address}", why=why) from error
    try:
        connection = socket.create_connection((numeric, int(port)), timeout=connect_s)
    except TimeoutError as error:
        raise _busy(address, f"it did not accept the connection within {connect_s:g} s") from error
    except OSError as error:
        raise GenerationError(
            f"cannot reach the worker {address}",
            why=error.strerror or str(error),
            hint=f"start it there: edgespec rpc-worker --port {port}",
        ) from error
    with connection:
        connection.settimeout(answer_s)
        try:
            return _ask(connection, address, f"{numeric}:{port}")
        except TimeoutError as error:
            raise _busy(address, f"it did not answer within {answer_s:g} s") from error
        except (OSError, EOFError) as error:
            raise _no_worker(address, "it closed the connection") from error


def _busy(address: str, why: str) -> GenerationError:
    return GenerationError(
        f"the worker {address} does not answer",
        why=why,
        hint="a worker serves one program at a time: end the other one, or start another worker; or it is no worker",
    )


def _no_worker(address: str, why: str) -> GenerationError:
    return GenerationError(
        f"{address} is no worker that this program can use",
        why=why,
        hint="is that the port of 'edgespec rpc-worker', of the same version as here?",
    )


def _ask(connection: socket.socket, address: str, numeric: str) -> list[RemoteDevice]:
    hello = _call(connection, address, _HELLO, bytes(_CAPABILITIES), 4 + _CAPABILITIES)
    major, minor, patch = hello[:3]
    if major != PROTOCOL or minor > 0:
        raise _no_worker(address, f"it speaks version {major}.{minor}.{patch} of the protocol, this build {PROTOCOL}.0")
    (count,) = struct.unpack("<I", _call(connection, address, _DEVICE_COUNT, b"", 4))
    if not 0 < count <= MOST_WORKERS:
        raise _no_worker(address, f"it offers {count} devices")
    found = []
    for index in range(count):
        device = struct.pack("<I", index)
        free, total = struct.unpack("<QQ", _call(connection, address, _GET_DEVICE_MEMORY, device, 16))
        (alignment,) = struct.unpack("<Q", _call(connection, address, _GET_ALIGNMENT, device, 8))
        (max_size,) = struct.unpack("<Q", _call(connection, address, _GET_MAX_SIZE, device, 8))
        found.append(RemoteDevice(numeric, index, free, total, alignment, max_size))
    return found


def _call(connection: socket.socket, address: str, command: int, data: bytes, size: int) -> bytes:
    """Send a command, and return the reply, which must have this size."""
    connection.sendall(struct.pack("<BQ", command, len(data)) + data)
    (said,) = struct.unpack("<Q", _received(connection, 8))
    if said != size:
        raise _no_worker(address, "its answer is not of this protocol")
    return _received(connection, size)


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
