"""HTTP with one server: its address and key as users write them, requests, streams of events, and errors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import httpx2

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.errors import GenerationError, LostError, PromptTooLongError, UsageError
from edgespec.files.proxies import client_options, proxy_errors, proxy_for
from edgespec.runtime.worker import LoadingStoppedError
from edgespec.text.printable import one_line

POLL_S = 0.03  # how long a cancel may go unnoticed
CONNECT_S = 10.0
SILENCE_S = 120.0  # servers send pings in streams more often
LOADING_S = 600.0  # for other responses, before which the server may load a model
RETRY_S, MOST_RETRY_S = 2.0, 60.0  # before a busy server is asked again, if it names no time
MOST_SAID = 500  # characters of a message
MOST_KEY = 4096  # bytes
KEY_HINT = "EDGESPEC_API_KEY holds the key"
_COUNTS = ("n_prompt_tokens", "n_ctx")  # in the error about a prompt that is too long

Made = TypeVar("Made")


class Connection(Closable):
    """A connection to the server at `url`. A separate thread speaks HTTP, so that waiting can be cancelled."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url, self._has_key, self._proxy = url, bool(key), proxy_for(url)
        with proxy_errors(UsageError):
            self._client = httpx2.AsyncClient(
                base_url=url,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                limits=httpx2.Limits(max_connections=None),
                **client_options(url),
            )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"client of {url}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._loop.is_running():
            with suppress(TimeoutError):
                self.submit(self._end()).result(CONNECT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.aclose()

    def submit(self, work: Coroutine[object, object, Made]) -> concurrent.futures.Future[Made]:
        """Start work in the thread; cancelling the future cancels the work and its HTTP request."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait_for(self, work: Coroutine[object, object, Made], cancel: CancelFlag | None = None) -> Made:
        """Return the result of work in the thread. Raises LoadingStoppedError when `cancel` is set before."""
        future = self.submit(work)
        try:
            while not (cancel is not None and cancel.is_set()):
                if concurrent.futures.wait([future], POLL_S if cancel is not None else None).done:
                    return future.result()
            raise LoadingStoppedError(f"stopped waiting for {self.url}")
        finally:
            future.cancel()

    def reply(self, path: str, body: Mapping[str, Any], within_s: float) -> dict[str, Any]:
        """Return the JSON object that answers a short request. Raises EdgespecError, also if there is none in time."""
        try:
            return self.wait_for(asyncio.wait_for(self.ask("POST", path, body), within_s))
        except TimeoutError as error:
            raise LostError(f"{self.url} does not reply", why=f"nothing arrived within {within_s:g} s") from error

    # --- requests, in the loop ----------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> dict[str, Any]:
        """Return the JSON object that answers a request. Raises EdgespecError."""
        async with self._response(method, path, body, query=query) as response:
            await response.aread()
            return self._object(response)

    async def stream(
        self, path: str, body: Mapping[str, object], waiting: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the objects of a stream. A server that is too busy is asked again; `waiting` is called before.

        Raises EdgespecError.
        """
        async with self._response("POST", path, body, waiting) as response:
            try:
                async for event in httpx2.EventSource(response):
                    if event.data == "[DONE]":
                        return
                    chunk = json.loads(event.data)
                    if not isinstance(chunk, dict):
                        raise ValueError("a chunk is no object")
                    if chunk.get("error"):
                        self._raise(chunk, 400)
                    yield chunk
            except (httpx2.SSEError, ValueError) as error:
                raise self.stranger(str(error)) from error
        raise LostError(f"{self.url} went away in the middle of the answer", why="the stream ended early")

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        waiting: Callable[[], None] = lambda: None,
        query: Mapping[str, str] | None = None,
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request until the server is not too busy, and yield the response if it succeeded."""
        is_begun, is_pinged = False, body is None or body.get("stream")
        timeout = httpx2.Timeout(SILENCE_S if is_pinged else LOADING_S, connect=CONNECT_S, pool=None)
        try:
            while True:
                asked = self._client.stream(method, path, json=body, params=query or None, timeout=timeout)
                async with asked as response:
                    wait_s = _busy_s(response)
                    if wait_s is None:
                        if response.status_code != 200:
                            await response.aread()
                            self._refused(response)
                        is_begun = True
                        yield response
                        return
                waiting()
                await asyncio.sleep(wait_s)
        except httpx2.SSEError:
            raise
        except httpx2.TransportError as error:
            what = f"{self.url} went away in the middle of the answer" if is_begun else f"cannot reach {self.url}"
            why = str(error) or type(error).__name__
            hint = "is 'edgespec serve' running there?"
            if self._proxy:
                what += f" through {self._proxy}"
                hint = "check the variable, or name the host in NO_PROXY"
            raise LostError(what, why=why, hint=hint) from error

    # --- what servers say ---------------------------------------------------------------------------------------------

    def _object(self, response: httpx2.Response) -> dict[str, Any]:
        try:
            value = response.json()
        except ValueError as error:
            raise self.stranger("it does not answer with JSON") from error
        if not isinstance(value, dict):
            raise self.stranger("it does not answer with a JSON object")
        return value

    def _refused(self, response: httpx2.Response) -> NoReturn:
        status = response.status_code
        if status == 401:
            what = "does not accept this key" if self._has_key else "needs a key"
            raise UsageError(f"{self.url} {what}", hint=KEY_HINT)
        if 300 <= status < 400:
            raise self.stranger(f"it redirects to {one_line(response.headers.get('location', ''))[:MOST_SAID]}")
        try:
            body = self._object(response)
        except UsageError as error:
            if self._proxy:
                why = f"status {status} is from it or from the server"
                hint = "check the variable (http://name:password@host:port), or name the host in NO_PROXY"
                raise UsageError(f"cannot ask {self.url} through {self._proxy}", why=why, hint=hint) from error
            raise self.stranger(f"{response.request.url.path} is answered with status {status}") from error
        self._raise(body, status)

    def _raise(self, body: Mapping[str, object], status: int) -> NoReturn:
        """Raise the error that a server has sent."""
        error = body.get("error")
        told = error if isinstance(error, Mapping) else {"message": error or body.get("detail") or f"status {status}"}
        message, code = one_line(str(told.get("message")))[:MOST_SAID], told.get("code")
        if code == "context_length_exceeded" or told.get("type") == "exceed_context_size_error":
            n_tokens, n_ctx = (n if isinstance(n := told.get(name), int) else None for name in _COUNTS)
            hint = "shorten it, or start the server with a larger context (-c)"
            raise PromptTooLongError(message, hint=hint, n_tokens=n_tokens, n_ctx=n_ctx)
        if code == "engine_error" or told.get("type") == "server_error" or (status >= 500 and status != 501):
            raise GenerationError(message, hint=f"said by {self.url}")
        raise UsageError(message, hint=f"said by {self.url}")

    def stranger(self, why: str) -> UsageError:
        return UsageError(
            f"{self.url} is not a server of edgespec or llama.cpp", why=why, hint="use the URL that 'serve' prints"
        )


def _busy_s(response: httpx2.Response) -> float | None:
    """Return the seconds to wait if the server was too busy for a request, else None."""
    told = response.headers.get("retry-after")
    if response.status_code not in (429, 503) or told is None:
        return None
    return min(float(told), MOST_RETRY_S) if told.isascii() and told.isdigit() else RETRY_S


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
    is_http = parts.scheme in ("http", "https") and host and url.isprintable() and " " not in url
    if not is_http or parts.query or parts.fragment:
        raise UsageError(f"{text[:200]!r} is not the URL of a server", hint=hint)
    path = parts.path.rstrip("/").removesuffix("/v1")
    name = f"[{host}]" if host and ":" in host else host
    return f"{parts.scheme}://{name}{'' if port is None else f':{port}'}{path}"


def checked_key(key: str, source: str) -> str:
    """Return a key. Raises UsageError if it is not allowed in a header."""
    if not key or len(key) > MOST_KEY or not key.isascii() or not key.isprintable():
        raise UsageError(f"{source} holds no key", why="a key is one line of printable ASCII characters")
    return key
