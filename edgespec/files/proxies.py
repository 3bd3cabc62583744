"""The proxies of the environment, and the addresses of this machine, which are reached without one."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TypedDict
from urllib.parse import urlsplit

import psutil

from edgespec.errors import EdgespecError

PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY")
_NAMES = (*PROXIES, "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@contextmanager
def proxy_errors(kind: type[EdgespecError]) -> Iterator[None]:
    """Raise an error of this kind if an HTTP client that is made in this block cannot use the proxies and certificates
    of the environment."""
    try:
        yield
    except Exception as error:
        is_no_address = type(error).__name__ == "InvalidURL"  # of httpx or httpx2
        if not is_no_address and not isinstance(error, ImportError | ValueError | OSError):
            raise
        why = getattr(error, "strerror", None) or str(error)
        if is_no_address:
            why = "one of them is not an address"  # its message may contain part of a password
        elif isinstance(error, ImportError):
            why = "a SOCKS proxy needs the package socksio (pip install socksio)"
        names = given(*_NAMES)
        hint = f"check {', '.join(names)}" if names else ""
        raise kind("the proxy or certificate settings cannot be used", why=why, hint=hint) from error


def given(*variables: str) -> list[str]:
    """Return the names of these variables in the environment, in capital or small letters, that are not empty."""
    return [name for name in os.environ if name.upper() in variables and os.environ[name]]


def proxy_for(url: str) -> str:
    """Return the variable that names a proxy for a URL, and the proxy's address without its password; empty if the URL
    is reached directly."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = urllib.request.getproxies()
    found = next((scheme for scheme in (parts.scheme, "all") if proxies.get(scheme)), None)
    if found is None or is_this_machine(host) or urllib.request.proxy_bypass(host):
        return ""
    place = proxies[found].rpartition("@")[2].rpartition("://")[2].rstrip("/")
    name = f"{found}_proxy"
    return f"{name.upper() if name.upper() in os.environ else name} ({place})"


class ClientOptions(TypedDict):
    trust_env: bool
    verify: ssl.SSLContext


def client_options(url: str) -> ClientOptions:
    """Return options of an httpx2 client for a URL: no proxy for this machine, and the environment's certificates."""
    import httpx2

    verify = httpx2.create_ssl_context()  # without trust_env, a client would not read SSL_CERT_FILE either
    return {"trust_env": not is_this_machine(urlsplit(url).hostname or ""), "verify": verify}


def reach_directly(url: str) -> None:
    """Let HTTP clients of this process use no proxy for a URL of this machine."""
    host = ""
    with suppress(ValueError):
        host = urlsplit(url).hostname or ""
    if host and given(*PROXIES) and is_this_machine(host) and not urllib.request.proxy_bypass(host):
        hosts = ",".join(filter(None, (urllib.request.getproxies().get("no", ""), host)))
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = hosts


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine, by any of its names and addresses."""
    host = host.strip("[]").rstrip(".").lower()
    own = socket.gethostname().lower()
    if host == "localhost" or host.endswith(".localhost") or host in (own, own.partition(".")[0], f"{own}.local"):
        return True
    if (address := _address(host)) is not None:
        return address.is_loopback or address.is_unspecified or address in _own_addresses()
    return bool(host) and "." not in host and _resolves_here(host)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address; also one in a short form such as 127.1, or an IPv4 address in IPv6."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        return getattr(address, "ipv4_mapped", None) or address
    with suppress(OSError):
        return ipaddress.IPv4Address(socket.inet_aton(host))
    return None


@cache
def _own_addresses() -> frozenset[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    own = (_address(each.address) for addresses in psutil.net_if_addrs().values() for each in addresses)
    return frozenset(address for address in own if address is not None)


@cache
def _resolves_here(name: str) -> bool:
    """Return whether a name without a domain is one of this machine's, such as those in /etc/hosts."""
    with suppress(OSError, UnicodeError):
        found = (_address(str(place[0])) for *_, place in socket.getaddrinfo(name, None))
        return any(each is not None and (each.is_loopback or each in _own_addresses()) for each in found)
    return False
