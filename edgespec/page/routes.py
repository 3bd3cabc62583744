"""The endpoints of the page: its files, the chats of the user, and answers."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from edgespec import __version__
from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.events import TokenEvent
from edgespec.files.images import media_type
from edgespec.page import views
from edgespec.page.chats import Chats, image_data, usual_settings
from edgespec.page.same_user import is_other_user
from edgespec.page.streams import Calls, Emit, PageAnswer
from edgespec.page.views import View
from edgespec.requests.bad_input import BadInputError, JsonObject
from edgespec.requests.fields import Fields, object_of
from edgespec.serve.app import Handler, Route, Server, json_response, root
from edgespec.serve.chat import End, EventStyle
from edgespec.serve.errors import ApiError, no_route
from edgespec.serve.guard import PAGE_FILES, is_own_page
from edgespec.serve.served import Served
from edgespec.serve.sse import EventStream
from edgespec.serve.threads import emitted, in_thread

STATIC = Path(__file__).parent / "static"
POLICY = "; ".join((
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "font-src 'self'",
    "connect-src 'self'",
    "manifest-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
))  # fmt: skip
OWN = {"Cross-Origin-Resource-Policy": "same-origin", "X-Content-Type-Options": "nosniff"}
HEADERS = {**OWN, "Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
SCRIPT = "text/javascript; charset=utf-8"  # the registry of Windows may say otherwise, and no browser would run it
MOST_LISTED = 1000  # chats, and messages of a search


class PageStyle(EventStyle):
    """The form of events for the page."""

    @staticmethod
    def error(error: ApiError) -> View:
        return {"type": "error", "message": error.message, "code": error.code}


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a server. Without a key (`has_key`), only programs of the same user may use it."""

    chats: Chats
    has_key: bool
    calls: Calls = field(default_factory=Calls)

    def routes(self) -> list[Route]:
        """Return the endpoints of the page."""
        return [
            ("GET", ("/",), _index),
            ("GET", (f"{PAGE_FILES}{{name:path}}",), _static),
            ("GET", ("/page/state",), self._own(self._state)),
            ("GET", ("/page/chats",), self._own(self._listed)),
            ("GET", ("/page/chat",), self._own(self._chat)),
            ("POST", ("/page/chat",), self._own(self._changed)),
            ("GET", ("/page/branches",), self._own(self._branches)),
            ("GET", ("/page/tokens",), self._own(self._tokens)),
            ("GET", ("/page/image",), self._own(self._image)),
            ("GET", ("/page/export",), self._own(self._export)),
            ("POST", ("/page/files",), self._own(self._read)),
            ("POST", ("/page/decision",), self._own(self._decide)),
            ("POST", ("/page/answer",), self._own(self._streaming(PageAnswer.answer))),
            ("POST", ("/page/race",), self._own(self._streaming(PageAnswer.race))),
        ]

    def _own(self, handler: Handler) -> Handler:
        """Return an endpoint that only the page itself may ask, whatever other pages `--cors` allows."""

        async def checked(server: Server, request: Request) -> Response:
            if "origin" in request.headers and not is_own_page(request.headers):
                raise _forbidden("origin", "only this server's own page may use its chats")
            if not self.has_key and await in_thread(partial(_is_other_user, request), "looks who asks"):
                raise _forbidden("other_user", "another user of this machine started this server: chats need a key")
            return await handler(server, request)

        return checked

    # --- what the page shows ------------------------------------------------------------------------------------------

    async def _state(self, server: Server, request: Request) -> Response:
        places = await server.pool.places()
        offer = (await server.pool.place("")).offer

        def state() -> View:
            models = {place.offer.name: view for place in places if (view := views.model(place)) is not None}
            return {
                "version": __version__,
                "models": [*models.values()],
                "model": offer.name if offer.name in models else next(iter(models), None),
                "system": offer.system,
                "settings": views.settings(usual_settings(offer)),
                "saved": self.chats.store.unwritable is None,
                "tools": self.chats.tool_servers,
            }

        return await self._answered(state)

    async def _listed(self, server: Server, request: Request) -> Response:
        asked = request.query_params
        limit = asked.get("limit", "")
        n_chats = min(int(limit[:9]), MOST_LISTED) if limit.isdecimal() else MOST_LISTED
        return await self._answered(partial(self.chats.found, asked.get("query", ""), n_chats))

    async def _chat(self, server: Server, request: Request) -> Response:
        offer, places = (await server.pool.place("")).offer, await server.pool.places()
        return await self._answered(partial(self.chats.view, offer, places, request.query_params.get("id", "")))

    async def _changed(self, server: Server, request: Request) -> Response:
        offer, places = (await server.pool.place("")).offer, await server.pool.places()
        return await self._answered(partial(self.chats.change, offer, places, object_of(request.scope["body"])))

    async def _branches(self, server: Server, request: Request) -> Response:
        offer = (await server.pool.place("")).offer
        return await self._answered(partial(self.chats.branches, offer, request.query_params.get("id", "")))

    async def _tokens(self, server: Server, request: Request) -> Response:
        return await self._answered(partial(self.chats.tokens, request.query_params.get("key", "")))

    async def _image(self, server: Server, request: Request) -> Response:
        data = await in_thread(partial(image_data, request.query_params.get("name", "")), "reads an image")
        return Response(
            data, media_type=media_type(data), headers=OWN | {"Content-Security-Policy": "default-src 'none'"}
        )

    async def _export(self, server: Server, request: Request) -> Response:
        asked = request.query_params
        text, name = await in_thread(
            partial(self.chats.export, asked.get("id", ""), asked.get("format", "md")), "exports a chat"
        )
        headers = OWN | {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="{name}"'}
        return PlainTextResponse(text, headers=headers)

    async def _read(self, server: Server, request: Request) -> Response:
        body = Fields(object_of(request.scope["body"]))
        name, text = body.text("name"), body.text("data")

        def read() -> View:
            try:
                data = base64.b64decode(text, validate=True)
            except ValueError as error:
                raise BadInputError("data must be base64", "data") from error
            return self.chats.read(name, data)

        return await self._answered(read)

    async def _decide(self, server: Server, request: Request) -> Response:
        return json_response(self.calls.decide(object_of(request.scope["body"])))

    async def _answered(self, work: Callable[[], View]) -> Response:
        response = json_response(await in_thread(work, "reads chats"))
        response.headers.update(OWN | {"Cache-Control": "no-store"})
        return response

    # --- answers ------------------------------------------------------------------------------------------------------

    def _streaming(self, work: Callable[[PageAnswer, Emit], None]) -> Handler:
        """Return an endpoint that sends the events of `work`, and stops it when the client leaves."""

        async def handler(server: Server, request: Request) -> Response:
            body = object_of(request.scope["body"])
            fields, cancel = Fields(body), CancelFlag()
            name, chat = fields.text("model"), fields.text("chat") or None

            def answered(served: Served, emit: Emit) -> None:
                with self.chats.answering(place.offer, chat, served) as session:
                    work(PageAnswer(self.chats, self.calls, session, body, cancel), emit)

            async def events() -> AsyncGenerator[JsonObject, None]:
                if place.living is None:
                    yield {"type": "loading", "what": place.offer.name, "done": None}
                async with server.pool.lend(name) as served:
                    served.check_generates()
                    request.scope["record"] |= {"model": served.name, "stream": True}
                    if n_before := max(0, served.n_open + 1 - served.n_slots):
                        yield {"type": "waiting", "n": n_before}
                    with server.pool.counted(served, 1):
                        async for event in emitted(partial(answered, served), "answers the page", cancel):
                            if isinstance(event, TokenEvent):
                                stats = event.stats or Stats()
                                server.count(request, End(str(event.finish_reason), stats, stats.generated_tokens))
                            else:
                                yield event

            place = await server.pool.place(name)
            return EventStream(events(), PageStyle)

        return handler


async def _index(server: Server, request: Request) -> Response:
    """Return the page to browsers. Other clients ask whether the server runs."""
    if "text/html" not in request.headers.get("accept", ""):
        return await root(server, request)
    return FileResponse(STATIC / "index.html", headers=HEADERS)


async def _static(server: Server, request: Request) -> Response:
    try:
        response = await StaticFiles(directory=STATIC).get_response(request.path_params["name"], request.scope)
    except HTTPException as error:
        raise no_route(request.method, request.url.path) from error
    response.headers.update(HEADERS)
    if response.status_code == 200 and request.path_params["name"].endswith(".js"):
        response.headers["Content-Type"] = SCRIPT
    return response


def _is_other_user(request: Request) -> bool:
    client, server = request.scope.get("client"), request.scope.get("server")
    return client is not None and server is not None and is_other_user(client, server)


def _forbidden(code: str, why: str) -> ApiError:
    return ApiError(403, why, type="permission_error", code=code)
