"""OpenAI's batch format: its requests as settings, and answers as its objects.

It follows the public reference of the Batch, Chat Completions and Completions APIs. Fields that only OpenAI's service
needs are derived from the id of the row, so that two runs give the same bytes; times are 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import NotRequired, TypedDict

from edgespec.events import TokenEvent, ended_json
from edgespec.requests.bad_input import BadInputError, JsonObject, UnsupportedError
from edgespec.requests.fields import Fields, take_bans
from edgespec.requests.known_fields import BATCH_CHAT, BATCH_TEXT
from edgespec.requests.row import Id, Row, Sample, finite
from edgespec.requests.row_settings import take_constraint
from edgespec.settings import shown

INVALID, FAILED = "invalid_request_error", "server_error"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

_REQUEST = "batch_req_"

TokenBytes = Callable[[int], bytes]
"""The bytes of a token id."""


def is_openai(row: JsonObject) -> bool:
    return "body" in row or "url" in row


# --- requests ---------------------------------------------------------------------------------------------------------


def from_openai(row: JsonObject) -> dict[str, object]:
    """Return a batch request, without its id, as a row. Raises BadInputError."""
    if others := [name for name in row if name not in ("method", "url", "body")]:
        why = f"{shown(others[0])} is not supported"
        raise BadInputError(f"a batch request has custom_id, method, url and body; {why}")
    method, url, body = row.get("method", "POST"), row.get("url"), row.get("body")
    if method != "POST" or url not in (CHAT, TEXT):
        raise BadInputError(f"a batch request is POST to {CHAT} or {TEXT}, not {shown(method)} to {shown(url)}")
    if not isinstance(body, Mapping):
        raise BadInputError("the body of a batch request must be an object")
    known = BATCH_CHAT if url == CHAT else BATCH_TEXT
    unknown = {name: value for name, value in body.items() if name not in known and value is not None}
    fields = Fields({name: value for name, value in body.items() if name in known}, known)
    if fields.notes:  # a batch refuses unknown fields, within others too
        raise BadInputError(f"{fields.notes[0].removesuffix(' ignored')} is not supported")
    wanted, other = ("messages", "prompt") if url == CHAT else ("prompt", "messages")
    if wanted not in fields or body.get(other) is not None:
        raise BadInputError(f"the body of a request to {url} has {wanted}, not {other}")
    if fields.flag("stream"):
        raise BadInputError("stream must be false: a batch does not stream")
    settings = fields.rest() | unknown
    take_bans(settings)
    check_best_of(settings.pop("best_of", 1), settings.get("n", 1))
    if url == CHAT:
        take_logprobs(settings)
    if isinstance(seed := settings.get("seed"), int) and seed < 0:
        settings["seed"] = seed % 2**63
    return settings | take_constraint(settings)


def check_best_of(best_of: object, n: object) -> None:
    """Raise BadInputError unless all answers are returned, since this program ranks no answers."""
    if best_of not in (1, n):
        raise UnsupportedError("best_of", f"{shown(best_of)} answers cannot be ranked; only 1 or n is accepted")


def take_logprobs(fields: dict[str, object]) -> None:
    """Replace the two fields of a chat request for log-probabilities by one."""
    wanted, alternatives = fields.pop("logprobs", False), fields.pop("top_logprobs", None)
    if not isinstance(wanted, bool):
        raise BadInputError(f"logprobs of a chat must be true or false, not {shown(wanted)}", "logprobs")
    if wanted:
        fields["logprobs"] = 0 if alternatives is None else alternatives
    elif alternatives is not None:
        raise BadInputError("top_logprobs needs logprobs: true", "top_logprobs")


# --- results ----------------------------------------------------------------------------------------------------------


def answered(
    row: Row, answers: Sequence[Sample], *, model: str, token_bytes: TokenBytes, timings: Sequence[JsonObject]
) -> dict[str, object]:
    """Return the output object of a row; `timings` has an entry for each sample, or is empty."""
    is_chat = row.form == "chat.completion"
    choices = [
        {"index": index, **_choice(row, answer, token_bytes, is_chat=is_chat)} for index, answer in enumerate(answers)
    ]
    for choice, timing in zip(choices, timings, strict=False):
        choice["timings"] = timing
    n_prompt, n_completion = answers[0].stats.prompt_tokens, sum(answer.n_tokens for answer in answers)
    usage = {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_completion,
        "total_tokens": n_prompt + n_completion,
    }
    body = {
        "id": ("chatcmpl-" if is_chat else "cmpl-") + row.mark,
        "object": row.form,
        "created": 0,
        "model": model,
        "choices": choices,
        "usage": usage,
    }
    return _response(row.id, row.mark, 200, body)


def failed(id: Id | None, why: str, *, is_request: bool) -> dict[str, object]:
    """Return the output object of a failed row: a response that rejects the request, or an error."""
    if is_request:
        return _response(id, _mark(id), 400, {"error": {"message": why, "type": INVALID, "param": None, "code": None}})
    return {
        "id": _REQUEST + _mark(id),
        "custom_id": id,
        "response": None,
        "error": {"code": FAILED, "message": why},
    }


def is_refusal(row: JsonObject) -> bool:
    """True if an output object is a response that rejects the request."""
    response = row.get("response")
    return isinstance(response, Mapping) and response.get("status_code") != 200


def mark_in(row: JsonObject) -> str:
    """Return the mark of the row that an output object answers."""
    return str(row.get("id") or "").removeprefix(_REQUEST)


def _response(id: Id | None, mark: str, status: int, body: dict[str, object]) -> dict[str, object]:
    response = {"status_code": status, "request_id": f"req_{mark}", "body": body}
    return {"id": _REQUEST + mark, "custom_id": id, "response": response, "error": None}


def _mark(id: Id | None) -> str:
    return sha256(json.dumps(id).encode()).hexdigest()[:12]


def _choice(row: Row, answer: Sample, token_bytes: TokenBytes, *, is_chat: bool) -> dict[str, object]:
    logprobs: Mapping[str, object] | None = None
    if row.request.logprobs is not None and is_chat:
        logprobs = {"content": [token_logprob(event, token_bytes) for event in answer.tokens], "refusal": None}
    elif row.request.logprobs is not None:
        logprobs = text_logprobs(answer.tokens, token_bytes)
    message = {"role": "assistant", "content": answer.content, "refusal": None}
    said = {"message": message} if is_chat else {"text": answer.content}
    return {**said, "logprobs": logprobs, **ended_json(answer.finish_reason)}


class TokenLogprob(TypedDict):
    """The log-probability of a token in the format of Chat Completions, and those of its alternatives."""

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: NotRequired[list[TokenLogprob]]


def token_logprob(event: TokenEvent, token_bytes: TokenBytes) -> TokenLogprob:
    """Return the log-probabilities of a token in the format of Chat Completions."""
    top = [_with_bytes(token_bytes(token), logprob) for token, logprob in event.top_logprobs]
    return {**_with_bytes(token_bytes(event.id), event.logprob), "top_logprobs": top}


def _with_bytes(token: bytes, logprob: float | None) -> TokenLogprob:
    return {"token": token_text(token), "logprob": finite(logprob), "bytes": list(token)}


def token_text(token: bytes) -> str:
    """Return the text of a token. A part of a character is written as OpenAI does, such as `bytes:\\xe2\\x80`, so that
    different tokens have different texts."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def text_logprobs(tokens: Sequence[TokenEvent], token_bytes: TokenBytes, start: int = 0) -> dict[str, Sequence[object]]:
    """Return log-probabilities in the format of Completions, a list for each figure.

    Offsets count the characters of the answer, of which `start` were returned before.
    """
    offsets = [start]
    for event in tokens:
        offsets.append(offsets[-1] + len(event.text))
    return {
        "tokens": [token_text(token_bytes(event.id)) for event in tokens],
        "token_logprobs": [finite(event.logprob) for event in tokens],
        "top_logprobs": [_by_text(event, token_bytes) for event in tokens],
        "text_offset": offsets[:-1],
    }


def _by_text(event: TokenEvent, token_bytes: TokenBytes) -> dict[str, float | None] | None:
    """Return the alternatives to a token by their texts; None for the first token of a prompt.

    A token with the text of a likelier one gets its id for a name, as in vLLM: some vocabularies have a letter twice,
    as a piece and as a byte.
    """
    if event.part == "prompt" and event.logprob is None:
        return None
    found: dict[str, float | None] = {}
    for token, logprob in event.top_logprobs:
        text = token_text(token_bytes(token))
        found[f"token_id:{token}" if text in found else text] = finite(logprob)
    return found
