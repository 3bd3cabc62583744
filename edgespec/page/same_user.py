"""Whether a client on this machine belongs to the user who started the server.

Other users of a machine can connect to 127.0.0.1, too. Without a key, only programs of the same user may read chats.
"""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ROOT = 0
ESTABLISHED = "01"


def is_other_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Return whether the connection from `client` belongs to another user; False if the system does not say.

    A client that has closed its end counts as another user: the system forgets whose it was, but the request is here.
    """
    if not any(table.exists() for table in TABLES):
        return False
    theirs, ours = _ends(client, server), _ends(server, client)
    for _ in range(2):  # if the client closes its end during the first look, the second one finds neither end
        is_connected = False
        for state, ends, uid, inode in _connections():
            if ends in theirs:
                return inode == "0" or uid not in (os.getuid(), ROOT)
            is_connected |= ends in ours and state == ESTABLISHED
        if not is_connected:
            return True
    return False  # the client is not in these tables, such as a browser on Windows that uses a server in WSL


def _connections() -> Iterator[tuple[str, tuple[str, str], int, str]]:
    """Yield the state, the ends, the user and the inode of each connection; the inode of a closed end is 0."""
    for table in TABLES:
        with suppress(OSError):
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                _, local, remote, state, _, _, _, uid, _, inode, *_ = line.split()
                yield state, (local, remote), int(uid), inode


def _ends(one: tuple[str, int], other: tuple[str, int]) -> list[tuple[str, str]]:
    """Return the ends of a connection as the tables write them: IPv4 addresses are in both tables."""
    return [*zip(_written(*one), _written(*other), strict=True)]


def _written(host: str, port: int) -> list[str]:
    """Return an end of a connection as the tables write it: words of the address in the order of this machine."""
    address = ipaddress.ip_address(host)
    four = address if address.version == 4 else address.ipv4_mapped
    packed = [address.packed] if four is None else [four.packed, bytes(10) + b"\xff\xff" + four.packed]
    return [_words(each) + f":{port:04X}" for each in packed]


def _words(packed: bytes) -> str:
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))
