"""Errors for clients: OpenAI's object, with the additional fields of llama.cpp's server.

Every format is converted to that of chats; errors have the names of fields that the client sent.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from edgespec.errors import EdgespecError, ImageError, PromptTooLongError, UsageError
from edgespec.requests.bad_input import BadInputError, JsonObject, UnsupportedError
from edgespec.requests.known_fields import ALIASES
from edgespec.settings import shown

log = logging.getLogger(__name__)

INVALID = "invalid_request_error"
IMAGE = "invalid_image"
CHANGING = ("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/")
"""Ollama's endpoints that change the models of a machine, which this server does not have."""

Names = Mapping[str, str]
"""Names of the converted fields, each with the name that was sent; [] matches any number in brackets."""

SCHEMAS = {
    "response_format": "response_format",
    "text": "text.format",
    "output_config": "output_config.format",
    "format": "format",
    "tools": "tools",
}
"""Fields that may contain a schema for the answer, each with the name of the schema in an error."""


_OF_A_TOOL = re.compile(r"#/\$defs/([^/ ]+)/properties/arguments")  # where `request_tools.py` puts the schema of a tool


class ApiError(Exception):
    """An error for a client: an HTTP status, and the fields of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        more: JsonObject | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type, self.param, self.code = status, message, type, param, code
        self.headers, self.more = dict(headers or {}), dict(more or {})

    def body(self) -> dict[str, object]:
        said = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": said | self.more}


ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
}


def anthropic_body(error: ApiError) -> dict[str, object]:
    """Return an error as Anthropic's clients expect it. Some of them look for Anthropic's words for a prompt that is
    too long, and for an image that cannot be used, which they leave out of the next request."""
    message, counts = error.message, error.more
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"
        if "n_prompt_tokens" in counts:
            message = f"prompt is too long: {counts['n_prompt_tokens']} tokens > {counts['n_ctx']} maximum"
    elif error.code == IMAGE:
        message = f"Could not process image: {message}"
    kind = "api_error" if error.code == "engine_error" else ANTHROPIC_TYPES.get(error.status, INVALID)
    return {"type": "error", "error": {"type": kind, "message": message, **error.more}}


def ollama_body(error: ApiError) -> dict[str, object]:
    """Return an error as Ollama's clients expect it."""
    return {"error": error.message}


def body_for(path: str, error: ApiError) -> dict[str, object]:
    """Return the error object in the style of an endpoint."""
    if path.startswith("/api/"):
        return ollama_body(error)
    return anthropic_body(error) if path.startswith("/v1/messages") else error.body()


def unavailable(message: str, *, code: str) -> ApiError:
    """Return an error that asks the client to try again later."""
    return ApiError(503, message, type="unavailable_error", code=code, headers={"Retry-After": "5"})


def busy(n_waiting: int) -> ApiError:
    """Return the error for a full queue."""
    return unavailable(f"{n_waiting} answers are waiting already: try again later", code="queue_full")


def no_route(method: str, path: str, methods: Iterable[str] = ()) -> ApiError:
    """Return the error for an unknown path, or for a known path that accepts only `methods`."""
    if allowed := ", ".join(sorted(methods)):
        why = f"{shown(path)} does not accept {method}, only {allowed}"
        return ApiError(405, why, code="method_not_allowed", headers={"Allow": allowed})
    why = f"{method} {shown(path)} not found on this server"
    if path.startswith(CHANGING):
        why += ": this server does not download, change or delete models; 'edgespec pull' and 'edgespec rm' do"
    return ApiError(404, why, type="not_found_error", code="unknown_url")


def error_for(error: BaseException) -> ApiError:
    """Return the error that a client gets for any exception. Defects of this program are logged. A repeated request
    would fail again, so a header asks clients not to repeat it."""
    once = {"x-should-retry": "false"}
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BadInputError):
        code = "unsupported_parameter" if isinstance(error, UnsupportedError) else None
        return ApiError(400, str(error), param=error.where, code=code)
    if isinstance(error, PromptTooLongError):
        return _overflow(error)
    if not isinstance(error, EdgespecError):
        log.error("unexpected %s", type(error).__name__, exc_info=error)
        return ApiError(500, f"unexpected {type(error).__name__}", type="server_error", headers=once)
    message = error.line
    if isinstance(error, UsageError):
        return ApiError(400, message, param=error.field or None, code=IMAGE if isinstance(error, ImageError) else None)
    return ApiError(503, message, type="server_error", code="engine_error", headers=once)


def drop_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error that was handled.

    Some of their frames refer to the error itself. Such a cycle would keep a body, which may be large, in memory until
    the next garbage collection.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _overflow(error: PromptTooLongError) -> ApiError:
    """Describe a prompt that does not fit in OpenAI's words: agents search for them, and shorten the conversation."""
    more: dict[str, int] = {}
    if error.n_tokens is None or error.n_ctx is None:  # so many characters that the tokens were not counted
        message = f"smaller than the prompt: {error.what}."
    else:
        message = f"{error.n_ctx} tokens. However, your {error.field} resulted in {error.n_tokens} tokens."
        more = {"n_prompt_tokens": error.n_tokens, "n_ctx": error.n_ctx}
    return ApiError(
        400,
        f"This model's maximum context length is {message} Please reduce the length of the {error.field}.",
        type="exceed_context_size_error",
        param=error.field,
        code="context_length_exceeded",
        more=more,
    )


# --- fields by the names that were sent -------------------------------------------------------------------------------


@contextmanager
def sent_as(names: Names) -> Iterator[None]:
    """Turn errors of this block into ApiErrors, in which fields have the names that were sent."""
    try:
        yield
    except (ApiError, BadInputError, EdgespecError) as error:
        told = error_for(error)
        _rename(told, names)
        raise told from (error.__cause__ if told is error else error)


def names_in(body: JsonObject, names: Names) -> Names:
    """Return the names of a format, and the aliases that a body uses, without fields that the body sets directly."""
    aliases = {known: alias for alias, known in ALIASES.items() if alias in body}
    schema = next((name for field, name in SCHEMAS.items() if body.get(field)), "json_schema")
    known = {**names, **aliases, "json_schema": schema}
    return {read: sent for read, sent in known.items() if read not in body}


def _rename(error: ApiError, names: Names) -> None:
    """Replace the name of the field in an error: the longest known name with which the name begins."""
    read = error.param or ""
    number = re.search(r"\[\d+\]", read)
    index = number[0] if number else "[]"
    known = {name.replace("[]", index): sent.replace("[]", index) for name, sent in names.items()}
    error.message = _OF_A_TOOL.sub(lambda found: f"tool {found[1].replace('~1', '/')}, #", error.message)
    begins = [name for name in known if read == name or read.startswith((f"{name}.", f"{name}["))]
    if not begins:
        return
    name = max(begins, key=len)
    error.param = sent = known[name] + read[len(name) :]
    error.message = re.sub(rf"(?<![\w.]){re.escape(read)}(?!\w)", lambda _: sent, error.message)
