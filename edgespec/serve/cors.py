"""Web pages of other origins: the headers with which browsers let them use the server (CORS)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

Headers = list[tuple[bytes, bytes]]

TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
MOST_NAMES = 128  # in one preflight
USUAL = b"authorization, content-type, x-api-key"
EXPOSED = b"allow, retry-after, www-authenticate, x-should-retry"
"""Headers of answers that the official SDKs read, and that browsers would hide from pages."""


def origin_is(origin: str, host: str) -> bool:
    """Return whether a page of this origin was served by the host that it asks."""
    try:
        return "//" in origin and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:  # not a URL, such as http://[
        return False


def allowing(origins: Sequence[str], origin: str | None) -> Headers:
    """Return the headers of every answer to a page of an allowed origin; none for other pages and for programs."""
    if origin is None or not ("*" in origins or origin in origins):
        return []
    return [
        (b"access-control-allow-origin", origin.encode("latin-1", "replace")),
        (b"access-control-expose-headers", EXPOSED),
        (b"vary", b"Origin"),
    ]


def preflight(headers: Headers) -> Headers:
    """Return the headers that answer a preflight request. Each SDK sends other headers (x-stainless-lang,
    anthropic-version), so all headers that the browser names are allowed: the origin and the key protect the server."""
    asked = dict(headers)
    names = [name.strip() for name in asked.get(b"access-control-request-headers", b"").split(b",")]
    valid = [name for name in names[:MOST_NAMES] if TOKEN.fullmatch(name)]
    answer = [
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", b", ".join(valid) or USUAL),
        (b"access-control-max-age", b"600"),
        (b"vary", b"Access-Control-Request-Headers"),
    ]
    if asked.get(b"access-control-request-private-network") == b"true":  # a public page that asks this machine
        answer.append((b"access-control-allow-private-network", b"true"))
    return answer
