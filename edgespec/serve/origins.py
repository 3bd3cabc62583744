"""The origins of pages that may use the server: exact ones, and patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable

ALL, OPAQUE = "*", "null"  # every origin; that of local files and of sandboxed frames of any site
DEFAULT_PORTS = {"http": "80", "https": "443"}
_NOT_OF_PAGES = {"ws": "http", "wss": "https", "file": OPAQUE}  # what a page has instead
_LOWER = (*DEFAULT_PORTS, "chrome-extension", "moz-extension")
_CHANGING = ("vscode-webview",)  # each page has another host

_PARTS = re.compile(r"(?P<scheme>[^:/]+)://(?P<host>\[[^\]]*\]|[^:/]*)(?::(?P<port>[^/]*))?")
_HOST = re.compile(r"\*|\[[0-9A-Fa-f:.]+\]|(\*\.)?[\w.~+-]+", re.ASCII)


def checked_origin(text: str) -> str:
    """Return an origin or a pattern. Raises ValueError for a text that matches no origin that a browser sends.

    A pattern has `*` for the whole host, for the labels before a domain, or for the port.
    """
    if text in (ALL, OPAQUE):
        return text
    if re.search(r"[\s,;]", text):
        raise ValueError(f"{text!r} must be one origin; repeat the option for several")
    if "://" not in text:
        raise ValueError(f"{text!r} has no scheme; an origin is written as https://example.org")
    origin, rest = re.fullmatch(r"(.*?://[^/?#]*)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    if rest:
        raise ValueError(f"{text!r} has a path, and browsers send none; use {origin}")
    found = _PARTS.fullmatch(text)
    scheme, host, port = found.groups() if found else (text.partition("://")[0], "", None)
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        raise ValueError(f"{text!r} must begin with a scheme in lower case, such as https")
    if scheme in _NOT_OF_PAGES:
        raise ValueError(f"no page has the scheme {scheme}; use {_NOT_OF_PAGES[scheme]}")
    if not host.isascii() and "*" not in host:
        raise ValueError(f"{text!r} is not ASCII; browsers send {_in_ascii(host)}")
    if not _HOST.fullmatch(host):
        raise ValueError(f"{text!r} has no valid host; * stands for the whole host or for what is before a domain")
    if scheme in _LOWER and host != host.lower():
        raise ValueError(f"{text!r} matches nothing, since browsers send lower case; use {text.lower()}")
    if port is not None and port != "*" and not (re.fullmatch(r"[1-9]\d{0,4}", port) and int(port) < 2**16):
        raise ValueError(f"{text!r} has no valid port; * stands for any")
    if port is not None and port == DEFAULT_PORTS.get(scheme):
        raise ValueError(f"{text!r} matches nothing, since browsers leave out the default port; use {scheme}://{host}")
    return text


def matcher(origins: Iterable[str]) -> re.Pattern[str]:
    """Return an expression that matches the origins that are allowed."""
    return re.compile("|".join(map(_expression, origins)) or r"(?!)")


def allowing(origin: str) -> str:
    """Return the value of --cors that would allow an origin; empty if none would."""
    scheme = origin.partition("://")[0]
    try:
        return checked_origin(f"{scheme}://*" if scheme in _CHANGING else origin)
    except ValueError:
        return ""


def _expression(origin: str) -> str:
    if origin == ALL:
        return ".*"
    expression = re.escape(origin)
    expression = re.sub(r"(?<=:)\\\*$", r"\\d+", expression).replace(r":\d+", r"(:\d+)?")
    expression = re.sub(r"(?<=://)\\\*$", "[^/]+", expression)
    return expression.replace(r"\*", r"[^/:]+")


def _in_ascii(host: str) -> str:
    try:
        return host.lower().encode("idna").decode()
    except UnicodeError:
        return "another name"
