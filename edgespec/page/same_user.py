"""Whether a client on this machine belongs to the user who started the server.

Other users of a machine can connect to 127.0.0.1, too. Without a key, only programs of the same user may read chats.
"""

from __future__ import annotations

import ipaddress
import os
import struct
from contextlib import suppress
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ROOT = 0


def is_other_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Return whether the connection from `client` belongs to another user; False if the system does not say."""
    ends = (_end(*client), _end(*server))
    for table in TABLES:
        with suppress(OSError):
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                _, local, remote, *rest = line.split()
                if (_parsed(local), _parsed(remote)) == ends:
                    return int(rest[4]) not in (os.getuid(), ROOT)
    return False


End = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


def _end(host: str, port: int) -> End:
    return _mapped(ipaddress.ip_address(host)), port


def _parsed(text: str) -> End:
    """Return an end of a connection as the kernel writes it: words of the address in the order of this machine."""
    address, _, port = text.partition(":")
    words = [int(address[start : start + 8], 16) for start in range(0, len(address), 8)]
    return _mapped(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))), int(port, 16)


def _mapped(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an IPv4 address that is written as an IPv6 address as what it is."""
    return getattr(address, "ipv4_mapped", None) or address
