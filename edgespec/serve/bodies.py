"""Reads the bodies of requests within limits of size, time and memory, and parses them without delaying other requests.

Parsed values take up to a hundred times the bytes that were sent, and Python parses without letting other threads run;
so the values of a body are counted before the body is parsed.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from starlette.types import Receive

from edgespec.serve.errors import ApiError, unavailable
from edgespec.serve.threads import in_thread
from edgespec.text import strict_json

MAX_BODY = 16 * 2**20  # bytes
MAX_HELD = 8 * MAX_BODY  # of all requests that are open, without the first bytes of each
MAX_VALUES = 2**19  # of a body
SMALL = 2**16  # bytes of a body that count in a separate limit, which a few large bodies cannot exhaust
VALUE = 96  # bytes that a value takes once it is parsed

BODY_S = 60.0  # for all of a body to arrive
STALL_S = 10.0  # how late a body may be at the least rate
LEAST_RATE = 2**14  # bytes a second
BEHIND_S = 1.0  # a body that is this late makes room for others

_STRING = re.compile(rb'"[^"]*+"')


@dataclass(slots=True, eq=False)
class Body:
    """A request's body: its size, how many bytes of it count in the limit of small bodies and in that of all others,
    and while it arrives, when it is too late."""

    is_read: bool = False
    size: int = 0
    small: int = 0
    large: int = 0
    late_s: float = 0.0
    timeout: asyncio.Timeout | None = None


class Bodies:
    """Reads and parses bodies, with limits to all that are held at a time."""

    def __init__(self, max_body: int = MAX_BODY, max_held: int = MAX_HELD, max_values: int = MAX_VALUES) -> None:
        self._max_body, self._max_held, self._max_values = max_body, max_held, max_values
        self._small = self._large = 0  # bytes that are held
        self._arriving: set[Body] = set()
        self._parsing = asyncio.Semaphore(1)

    async def read(self, body: Body, receive: Receive, announced: int) -> object:
        """Return a body as parsed JSON. The body counts as held until `let_go`. Raises ApiError."""
        if announced > self._max_body:
            self._too_large()
        try:
            async with asyncio.timeout(STALL_S) as body.timeout:
                self._arriving.add(body)
                data = await self._read(body, receive)
        except TimeoutError as error:
            raise ApiError(
                408, f"the body came too slowly: it may take {BODY_S:.0f} seconds, and pause for {STALL_S:.0f}"
            ) from error
        finally:
            self._arriving.discard(body)
        count, parse = partial(count_values, data, self._max_values), partial(parsed, data)
        is_small = len(data) <= SMALL
        n_values = count() if is_small else await in_thread(count, "counts values", self._parsing)
        if n_values > self._max_values:
            raise ApiError(413, f"a body may have {self._max_values:,} values", code="body_too_large")
        self._hold(body, n_values * VALUE)
        return parse() if is_small else await in_thread(parse, "parses a body", self._parsing)  # one at a time

    def let_go(self, body: Body) -> None:
        """The body no longer counts as held."""
        self._small -= body.small
        self._large -= body.large
        body.small = body.large = 0

    async def _read(self, body: Body, receive: Receive) -> bytes:
        parts: list[bytes] = []
        now_s = asyncio.get_running_loop().time
        until_s, body.late_s = now_s() + BODY_S, now_s() + STALL_S
        while not body.is_read:
            message = await receive()
            if message["type"] != "http.request":
                raise ApiError(400, "the body ended early")
            parts.append(message.get("body", b""))
            body.is_read = not message.get("more_body", False)
            body.size += len(parts[-1])
            if body.size > self._max_body:
                self._too_large()
            self._hold(body, len(parts[-1]))
            body.late_s = min(now_s() + STALL_S, body.late_s + len(parts[-1]) / LEAST_RATE)
            if body in self._arriving and body.timeout is not None:
                body.timeout.reschedule(min(body.late_s, until_s))
        return b"".join(parts)

    def _hold(self, body: Body, n_bytes: int) -> None:
        """Count bytes of a body, the first ones as small. If there are too many of all bodies, uploads slower than
        the least rate are given up, the slowest first. Raises ApiError if there are still too many."""
        small = min(n_bytes, SMALL - body.small)
        body.small, self._small = body.small + small, self._small + small
        body.large, self._large = body.large + n_bytes - small, self._large + n_bytes - small
        if self._large > self._max_held:
            behind_s = asyncio.get_running_loop().time() + STALL_S - BEHIND_S
            late = [other for other in self._arriving if other is not body and other.late_s <= behind_s and other.large]
            for slow in sorted(late, key=lambda other: other.late_s):
                if self._large > self._max_held and slow.timeout is not None:
                    self.let_go(slow)
                    self._arriving.discard(slow)
                    slow.timeout.reschedule(0.0)  # ends its request with 408
        if max(self._large, self._small) > self._max_held:
            raise unavailable("too many large requests are open: try again later", code="too_much")

    def _too_large(self) -> NoReturn:
        raise ApiError(413, f"a body may have {self._max_body:,} bytes", code="body_too_large")


def count_values(data: bytes, most: int) -> int:
    """Return the number of values in JSON, or a few more, without parsing it. More than `most` need not be counted."""
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * (most + 1):  # two strings, a name and a text, for each value
        return most + 1
    marks = _STRING.sub(b"", plain)
    return 1 + sum(map(marks.count, (b",", b"[", b"{")))


def parsed(data: bytes) -> object:
    """Parse JSON. Raises ApiError for invalid JSON, and for numbers and texts that JSON cannot contain."""
    try:
        return strict_json.parsed(data)
    except RecursionError as error:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from error
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}"[:300], code="invalid_json") from error
