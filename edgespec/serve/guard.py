"""The checks that every request has to pass before its body is used: the path, the client and the size.

The server runs where browsers run. A web page of any origin can send requests to it, and a name that resolves to this
machine makes them same-origin (DNS rebinding). So Host and Origin are checked, and bodies of pages must be
application/json, which a page cannot send to another origin without asking first. Programs send no Origin and no
Sec-Fetch headers. Their bodies are read without a check of the type, because curl declares JSON as form data.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from edgespec.serve.bodies import MAX_BODY, MAX_HELD, MAX_VALUES, SMALL, Bodies, Body
from edgespec.serve.chat import line
from edgespec.serve.errors import ApiError, body_for, drop_frames, no_route
from edgespec.serve.origins import ALL, allowing, matcher
from edgespec.settings import shown

DRAIN_S = 5.0  # for a client to stop sending a body that is refused: many clients read the answer only after that
MOST_SHOWN = 120  # characters of an origin
OPEN_TO_ALL = ("/", "/health", "/v1/health")  # without a key, as the files of the page are
PAGE_FILES = "/page/static/"
EXPOSED = ("allow", "retry-after", "www-authenticate", "x-should-retry")
"""Headers of answers that the official SDKs read, and that browsers would hide from pages."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The clients that may use the server.

    Attributes:
        api_key: The key that each client has to send; empty: none.
        hosts: Names of this server in addition to those of the machine; None: any name.
        origins: The origins of web pages that may use the server, or patterns (`serve/origins.py`).
    """

    api_key: str = ""
    hosts: tuple[str, ...] | None = ()
    origins: tuple[str, ...] = ()
    max_body: int = MAX_BODY
    max_held: int = MAX_HELD
    max_values: int = MAX_VALUES


def guards(rules: Rules, routes: Sequence[Route] = ()) -> list[Middleware]:
    """Return what goes in front of an application. Each SDK sends other headers (x-stainless-lang, anthropic-version),
    so pages of allowed origins may send any: the origin and the key protect the server."""
    cors = Middleware(
        Cors,
        allow_origins=(ALL,) if ALL in rules.origins else (),
        allow_origin_regex=matcher(rules.origins).pattern,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=EXPOSED,
        allow_private_network=True,
    )
    return [cors, Middleware(Guard, rules, routes)]


class Cors(CORSMiddleware):
    """Lets pages of allowed origins use the server. All other pages may send requests, too, but only to read why
    `Guard` refuses them."""

    def preflight_response(self, request_headers: Headers) -> Response:
        origin = request_headers["origin"]
        if self.is_allowed_origin(origin):
            return super().preflight_response(request_headers)
        asked = request_headers.get("access-control-request-headers", "")
        headers = {"Access-Control-Allow-Methods": "GET, POST", "Access-Control-Allow-Headers": asked}
        headers |= {"Access-Control-Allow-Origin": origin, "Access-Control-Max-Age": "0", "Vary": "Origin"}
        return Response(headers=headers)


class Guard:
    """Refuses requests, or reads their bodies into `scope["body"]`. `scope["is_large"]` says that reading the fields of
    a body takes long, `scope["route_path"]` which of the routes it is."""

    def __init__(self, app: ASGIApp, rules: Rules, routes: Sequence[Route]) -> None:
        self._app, self._rules, self._routes = app, rules, routes
        self._allowed = matcher(rules.origins)
        self._bodies = Bodies(rules.max_body, rules.max_held, rules.max_values)
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in rules.hosts or ())}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = Body(is_read=scope["method"] != "POST")
        try:
            try:
                await self._check(scope, receive, body)
            except ApiError as error:
                self._bodies.let_go(body)  # before the rest of it is awaited
                drop_frames(error)
                await _refuse(error, scope["path"], send, None if body.is_read else receive)
            else:
                await self._app(scope, receive, send)
        finally:
            self._bodies.let_go(body)
            scope.pop("body", None)

    async def _check(self, scope: Scope, receive: Receive, body: Body) -> None:
        """Raises ApiError for a request that is refused."""
        headers = Headers(scope=scope)
        self._check_host(headers)
        self._check_origin(headers)
        self._check_key(scope["path"], headers)
        self._check_route(scope)
        if scope["method"] == "POST":
            is_json = headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
            if not is_json and _is_of_page(headers):
                raise ApiError(415, "a web page must send the body as Content-Type: application/json")
            length = headers.get("content-length", "")
            announced = int(length[:20]) if length.isascii() and length.isdigit() else 0
            scope["body"] = await self._bodies.read(body, receive, announced)
            scope["is_large"] = body.size > SMALL

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if self._rules.hosts is not None and (len(given) != 1 or not self._is_ours(given[0])):
            name = _name_of(given[0]) if len(given) == 1 else ""
            why = f"{shown(name)} is not one of this server's names"
            raise _forbidden("host", why, f"allow it with --allow-host {name}" if name else "", headers)

    def _is_ours(self, host: str) -> bool:
        name = _name_of(host)
        return name in self._names or name.endswith(".localhost") or _is_address(name)

    def _check_origin(self, headers: Headers) -> None:
        """Accept pages of this server itself, pages of allowed origins, and programs, which send no origin."""
        origin = headers.get("origin")
        if origin is None or self._allowed.fullmatch(origin) or is_own_page(headers):
            return
        why = f"pages of the origin {origin[:MOST_SHOWN]!r} may not use this server"
        allowed = allowing(origin)
        raise _forbidden("origin", why, f"allow them with --cors '{allowed}' when starting it" * bool(allowed), headers)

    def _check_key(self, path: str, headers: Headers) -> None:
        key = self._rules.api_key
        if not key or path in OPEN_TO_ALL or path.startswith(PAGE_FILES):
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode("latin-1", "replace"), key.encode()):
            raise ApiError(
                401,
                "a valid key is needed: Authorization: Bearer KEY, or x-api-key",
                type="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_route(self, scope: Scope) -> None:
        """Find the route, so that an unknown path is reported before its body is judged."""
        path = scope["path"].rstrip("/") or "/"  # the application redirects from a path with a slash at its end
        methods: set[str] = set()
        for route in self._routes:
            match, _ = route.matches({**scope, "path": path})
            if match is Match.FULL:
                scope["route_path"] = route.path
                return
            methods |= (route.methods or set()) if match is Match.PARTIAL else set()
        if self._routes:
            raise no_route(scope["method"], scope["path"], methods)


def _forbidden(code: str, why: str, hint: str, headers: Headers) -> ApiError:
    """Return a refusal that the page which sent the request can read."""
    origin = headers.get("origin")
    readable = {} if origin is None else {"Access-Control-Allow-Origin": origin}
    message = f"{why}; {hint}" if hint else why
    return ApiError(403, message, type="permission_error", code=code, headers=readable)


def check_may_load(headers: Headers) -> None:
    """Raises ApiError for a GET request of a page of another site that may not load a model.

    Browsers send no Origin for an image, so such a request passes `Guard` from any page.
    """
    if "origin" not in headers and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        why = "a page of another origin may load a model only with a request that has an Origin"
        raise _forbidden("origin", why, "use fetch() in its usual mode (cors)", headers)


def is_own_page(headers: Headers) -> bool:
    """Return whether a request with an Origin is from a page of this server."""
    origin = headers.get("origin", "")
    with suppress(ValueError):  # not a URL, such as http://[
        is_web = origin.startswith(("http://", "https://"))
        return is_web and urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    return False


def _is_of_page(headers: Headers) -> bool:
    return "origin" in headers or any(name.startswith("sec-fetch-") for name in headers)


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.rpartition(":")[0] if ":" in host else host


def _is_address(name: str) -> bool:
    """Return whether a host is given as an address, which no resolver can change."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


async def _refuse(error: ApiError, path: str, send: Send, receive: Receive | None) -> None:
    """Send an error. Then read what is left of the body, if `receive` is given: many clients read no answer before they
    have sent their body."""
    body = line(body_for(path, error)).encode()
    extra = {"content-length": str(len(body)), "content-type": "application/json", "connection": "close"}
    headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers | extra).items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while receive is not None and (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b""})
