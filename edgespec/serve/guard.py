"""What a request has to pass before anything looks into it: who asks, from where, and how much.

The server runs where browsers run. A web page of any origin can send requests to it, and a name that resolves to this
machine makes them same-origin (DNS rebinding); so Host and Origin are checked, and bodies must be application/json,
which a page cannot send elsewhere without being allowed to.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.routing import Match, Route

from edgespec.serve.bodies import MAX_BODY, MAX_HELD, MAX_VALUES, SMALL, Bodies, Body
from edgespec.serve.chat import line
from edgespec.serve.cors import Headers, allowing, origin_is, preflight
from edgespec.serve.errors import ApiError, body_for, no_route

DRAIN_S = 5.0  # for a client to stop sending a body that is refused: before that many do not read the answer
OPEN_TO_ALL = ("/health", "/v1/health")  # without a key

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may ask. `hosts` are names of this server beside those of the machine, None: any. `origins` are those of web
    pages that may ask, "*" all."""

    api_key: str = ""
    hosts: tuple[str, ...] | None = ()
    origins: tuple[str, ...] = ()
    max_body: int = MAX_BODY
    max_held: int = MAX_HELD
    max_values: int = MAX_VALUES


class Guard:
    """Refuses requests, reads bodies into `scope["body"]` (`scope["is_large"]`: to work on one takes long), and answers
    preflights, in front of an ASGI application."""

    def __init__(self, app: App, rules: Rules, routes: Sequence[Route] = ()) -> None:
        self._app, self._rules, self._routes = app, rules, routes
        self._bodies = Bodies(rules.max_body, rules.max_held, rules.max_values)
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in rules.hosts or ())}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        allowed = allowing(self._rules.origins, _header(scope["headers"], b"origin"))

        async def send_with_cors(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *allowed]
            await send(message)

        scope["sent"] = sent = Body(is_read=scope["method"] != "POST")
        try:
            if await self._passes(scope, receive, send_with_cors, may_ask_first=bool(allowed)):
                await self._app(scope, receive, send_with_cors)
        finally:
            self._bodies.let_go(sent)
            scope.pop("body", None)

    async def _passes(self, scope: Scope, receive: Receive, send: Send, *, may_ask_first: bool) -> bool:
        """Whether the application is to answer: nothing else has."""
        headers = scope["headers"]
        try:
            self._check_host(headers)
            self._check_origin(headers, _header(headers, b"origin"))
            if scope["method"] == "OPTIONS" and may_ask_first:
                await _respond(send, 204, b"", preflight(headers))
                return False
            self._check_key(scope["path"], headers)
            if scope["method"] == "POST":
                self._check_route(scope)
                scope["body"] = await self._body(scope, receive)
                scope["is_large"] = scope["sent"].size > SMALL
        except ApiError as error:
            body = line(body_for(scope["path"], error)).encode()
            extra = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
            extra.append((b"content-type", b"application/json"))
            extra.append((b"connection", b"close"))
            await _respond(send, error.status, body, extra, None if scope["sent"].is_read else receive)
            return False
        return True

    def _check_host(self, headers: _Headers) -> None:
        if self._rules.hosts is None:
            return
        given = [value for name, value in headers if name == b"host"]
        if len(given) != 1 or not self._is_ours(given[0].decode("latin-1")):
            raise ApiError(
                403, "this Host is not one of this server's names (--allow-host)", type="permission_error", code="host"
            )

    def _is_ours(self, host: str) -> bool:
        name = _name_of(host)
        return name in self._names or name.endswith(".localhost") or _is_address(name)

    def _check_origin(self, headers: Headers, origin: str | None) -> None:
        """A page of this server itself may ask, and programs, which send none."""
        if origin is None or "*" in self._rules.origins or origin in self._rules.origins:
            return
        if not origin_is(origin, _header(headers, b"host") or ""):
            raise ApiError(
                403, "web pages of this origin may not use this server (--cors)", type="permission_error", code="origin"
            )

    def _check_key(self, path: str, headers: _Headers) -> None:
        key = self._rules.api_key
        if not key or path in OPEN_TO_ALL:
            return
        kind, _, token = (_header(headers, b"authorization") or "").partition(" ")
        given = token.strip() if kind.lower() == "bearer" else _header(headers, b"x-api-key") or ""
        if not hmac.compare_digest(given.encode("latin-1", "replace"), key.encode()):
            raise ApiError(
                401,
                "a valid key is needed: Authorization: Bearer KEY, or x-api-key",
                type="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_route(self, scope: Scope) -> None:
        """Refuse an unknown path before the body is judged. Raises ApiError."""
        path = scope["path"].rstrip("/")  # The application redirects from a path with a slash at its end.
        matches = [(route.matches({**scope, "path": path})[0], route) for route in self._routes]
        if matches and not any(match is Match.FULL for match, _ in matches):
            methods = {method for match, route in matches if match is Match.PARTIAL for method in route.methods or ()}
            raise no_route(scope["method"], scope["path"], methods)

    async def _body(self, scope: Scope, receive: Receive) -> Any:
        headers = scope["headers"]
        kind = (_header(headers, b"content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, "the body must be sent as Content-Type: application/json")
        length = _header(headers, b"content-length") or "0"
        announced = int(length[:20]) if length.isascii() and length.isdigit() else 0
        return await self._bodies.read(scope["sent"], receive, announced)


_Headers = Headers


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.rpartition(":")[0] if ":" in host else host


def _is_address(name: str) -> bool:
    """An address stands for itself, whatever a resolver says."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _header(headers: Headers, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in headers if key == name), None)


async def _respond(send: Send, status: int, body: bytes, headers: Headers, receive: Receive | None = None) -> None:
    """An answer; with `receive` what is left of the body is read first, since many read no answer before it is sent."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while receive is not None and (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b""})
