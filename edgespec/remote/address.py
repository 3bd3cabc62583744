"""The address of a server, as users write it, and its key."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from edgespec.errors import UsageError, told_as

MOST_KEY = 4096  # bytes


def base_url(text: str) -> str:
    """Return the URL without the path of an API; `http://` may be left out. Raises UsageError."""
    url = text.strip() if "://" in text else f"http://{text.strip()}"
    hint = "for example http://127.0.0.1:8080"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError("this is not the URL of a server", why=str(error), hint=hint) from error
    if parts.username is not None or parts.password is not None:  # not repeated here
        raise UsageError("a server's URL must not contain a password", hint="put the key into EDGESPEC_API_KEY")
    if (
        parts.scheme not in ("http", "https")
        or not host
        or parts.query
        or parts.fragment
        or not url.isprintable()
        or " " in url
    ):
        raise UsageError(f"{text[:200]!r} is not the URL of a server", hint=hint)
    path = parts.path.rstrip("/").removesuffix("/v1")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}{'' if port is None else f':{port}'}{path}"


def read_key(file: Path) -> str:
    """Return the key in a file, without the line end. Raises UsageError, which does not show the key."""
    with told_as(UsageError, f"the key cannot be read from {file}"), file.open("rb") as opened:
        data = opened.read(MOST_KEY + 1)
    return checked_key(data.decode("latin-1").strip(), str(file))


def checked_key(key: str, source: str) -> str:
    """Return a key. Raises UsageError if it is not allowed in a header."""
    if not key or len(key) > MOST_KEY or not key.isascii() or not key.isprintable():
        raise UsageError(f"{source} holds no key", why="a key is one line of printable ASCII characters")
    return key
