"""Ollama's API: converts bodies to chats and completions, and writes answers as lines of JSON."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar

from edgespec.dialects.calls import AnyCall
from edgespec.requests.bad_input import JsonObject, UnsupportedError, wrong
from edgespec.requests.fields import Fields
from edgespec.requests.forms import GenerateFields
from edgespec.requests.images import image_of
from edgespec.requests.known_fields import OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_SAMPLING
from edgespec.requests.openai import TokenLogprob, token_logprob
from edgespec.serve.chat import Call, Piece, Writer, line
from edgespec.serve.errors import Names, ollama_body
from edgespec.serve.openai import chat_of, text_of
from edgespec.serve.served import Served

LEVELS = ("low", "medium", "high")
LOWEST = -1e4  # in place of log-probabilities of minus infinity, which JSON does not have
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")  # of a duration of Go, such as 1h30m

# --- requests ---------------------------------------------------------------------------------------------------------


def ollama_chat(body: JsonObject, model: Served) -> Call:
    """Read a body of /api/chat. Raises BadInputError."""
    fields = Fields(body, OLLAMA_CHAT)
    chat = _common(fields)
    given = fields.take("messages")
    if isinstance(given, list):
        given = [_message(f"messages[{index}]", message) for index, message in enumerate(given)]
    chat["messages"] = given
    return chat_of(Fields(fields.rest() | chat, notes=fields.notes), model)


def ollama_generate(body: JsonObject, model: Served) -> Call:
    """Read a body of /api/generate. Raises BadInputError."""
    fields = Fields(body, OLLAMA_GENERATE)
    what = _common(fields)
    what |= {"add_system_prompt": False} if fields.rest().get("system") == "" else {}
    form = fields.read(GenerateFields)
    is_raw = form.raw or bool(form.suffix)  # chat templates have no place for a suffix
    if is_raw and form.system:
        raise UnsupportedError("system", "a raw prompt, or one with a suffix, has no system prompt")
    images = fields.take("images")
    if is_raw and images:
        raise UnsupportedError("images", "a raw prompt, or one with a suffix, has no images")
    if not is_raw:
        question = _seen("images", images, form.prompt) if images else form.prompt
        said = [("system", form.system)] if form.system else []
        what["messages"] = [{"role": role, "content": content} for role, content in (*said, ("user", question))]
        return chat_of(Fields(fields.rest() | what, notes=fields.notes), model)
    n_top = fields.take("top_logprobs", 0)
    if fields.flag("logprobs"):
        what["logprobs"] = n_top
    for name in ("enable_thinking", "reasoning_effort", "add_system_prompt"):  # which only chats read
        what.pop(name, None)
    what |= {"prompt": form.prompt, "suffix": form.suffix, "special": True}
    return text_of(Fields(fields.rest() | what, notes=fields.notes), model)


def unloads(body: JsonObject) -> bool:
    """Return whether a body without a prompt asks for its model to be unloaded: with a `keep_alive` of no time, as a
    number of seconds or a duration of Go. Raises BadInputError."""
    value = Fields(body).take("keep_alive", -1)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value == 0
    text = value.removeprefix("-") if isinstance(value, str) else ""
    if text == "0":
        return True
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise wrong("keep_alive", "be a number of seconds or a duration such as 5m", value)
    return not any(float(number) for number, _ in parts)


def _common(fields: Fields) -> dict[str, object]:
    """Take the fields of both endpoints, and return them as those of a chat. Raises BadInputError."""
    given = fields.mapping("options")  # JavaScript has no integers: some clients send 40.0
    whole = {name: int(value) for name, value in given.items() if isinstance(value, float) and value.is_integer()}
    options = Fields(given | whole, where="options")
    chat = {name: options.take(name) for name in OLLAMA_SAMPLING if name in options}
    n_predict = options.integer("num_predict", -1, -(2**31), 2**31 - 1)
    if n_predict > 0:  # others ask for no limit
        chat["max_tokens"] = n_predict
    chat["stream"] = fields.flag("stream", True)
    if format := fields.take("format"):
        if format != "json" and not isinstance(format, dict):
            raise wrong("format", "be json or a schema", format)
        is_schema = isinstance(format, dict)
        json_schema = {"type": "json_schema", "json_schema": {"schema": format}}
        chat["response_format"] = json_schema if is_schema else {"type": "json_object"}
    think = fields.take("think")
    if isinstance(think, bool):
        chat["enable_thinking"] = think
    elif think in LEVELS:
        chat["reasoning_effort"] = think
    elif think is not None:
        raise wrong("think", f"be true, false or one of {', '.join(LEVELS)}", think)
    return chat


def _message(where: str, given: object) -> object:
    """Return a message as OpenAI's chats have it."""
    if not isinstance(given, dict):
        return given
    fields = Fields(given, where=where)
    content = fields.take("content", "")
    if images := fields.take("images"):
        content = _seen(f"{where}.images", images, content)
    message = {"role": fields.take("role"), "content": content}
    if "thinking" in fields:
        message["reasoning_content"] = fields.take("thinking")
    if "tool_name" in fields:
        message["name"] = fields.take("tool_name")
    return fields.rest() | message


def _seen(where: str, images: object, text: object) -> list[object]:
    """Return images in base64 and the text after them as the parts of a message."""
    if not isinstance(images, list):
        raise wrong(where, "be a list of images in base64", images)
    for index, image in enumerate(images):
        image_of(f"{where}[{index}]", image)  # an error names this field
    sources = [{"type": "base64", "data": image} for image in images]
    return [*({"type": "image", "source": source} for source in sources), {"type": "text", "text": text}]


# --- answers ----------------------------------------------------------------------------------------------------------


class OllamaChatObject(Writer):
    """Writes the answer to a call of /api/chat, whole or as lines."""

    names: ClassVar[Names] = {
        **{name: f"options.{name}" for name in OLLAMA_SAMPLING},
        "max_tokens": "options.num_predict",
        "response_format": "format",
        "enable_thinking": "think",
        "reasoning_effort": "think",
    }
    media_type = "application/x-ndjson"
    error = staticmethod(ollama_body)
    ping = b""
    streams = True
    prompt: ClassVar[str] = "messages"  # the field without which a request only loads its model
    _is_chat = True

    @staticmethod
    def event(chunk: JsonObject) -> bytes:
        return f"{line(chunk)}\n".encode()

    def has_pieces(self, tool: AnyCall) -> bool:
        return False

    def whole(self) -> dict[str, object]:
        answer = self.answers[0]
        piece = Piece(0, "".join(answer.texts), "".join(answer.reasoning), end=answer.end, tokens=tuple(answer.tokens))
        return self._part(piece, answer.calls) | self._end(piece)

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        calls = [piece.tool] if isinstance(piece.tool, AnyCall) else []
        if piece.text or piece.reasoning or calls or (piece.tokens and self.call.wants_tokens):
            yield self._part(piece, calls) | {"done": False}
        if piece.end is not None:
            yield self._object(self.call.model) | self._end(piece)

    @classmethod
    def loaded(cls, model: str, *, is_unloaded: bool) -> dict[str, object]:
        """Return the answer to a request that only loads or unloads a model."""
        return cls._object(model) | {"done": True, "done_reason": "unload" if is_unloaded else "load"}

    @classmethod
    def _object(cls, model: str, text: str = "", **more: object) -> dict[str, object]:
        """Return an object with a text, and what else the model says."""
        created = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        message = {"role": "assistant", "content": text, **more}
        said = {"message": message} if cls._is_chat else {"response": text, **more}
        return {"model": model, "created_at": created, **said}

    def _part(self, piece: Piece, calls: list[AnyCall]) -> dict[str, object]:
        said: dict[str, object] = {"thinking": piece.reasoning} if piece.reasoning else {}
        if calls:
            said["tool_calls"] = [_tool_call(call) for call in calls]
        made = self._object(self.call.model, piece.text, **said)
        if self.call.wants_tokens and piece.tokens:
            made["logprobs"] = [_finite(token_logprob(event, self.call.token_bytes)) for event in piece.tokens]
        return made

    def _end(self, piece: Piece) -> dict[str, object]:
        assert piece.end is not None
        stats, reason = piece.end.stats, piece.end.reason
        return {
            "done": True,
            "done_reason": "length" if reason == "length" else "stop",
            **piece.end.more,
            "total_duration": time.perf_counter_ns() - self.call.started_ns,
            "load_duration": 0,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": round(stats.prompt_s * 1e9),
            "eval_count": piece.end.n_tokens,
            "eval_duration": round(stats.generation_s * 1e9),
        }


class OllamaObject(OllamaChatObject):
    """Writes the answer to a call of /api/generate, whole or as lines."""

    names: ClassVar[Names] = {**OllamaChatObject.names, "messages": "prompt"}
    prompt = "prompt"
    _is_chat = False


def _finite(token: TokenLogprob) -> dict[str, object]:
    """Return the log-probabilities of a token with a number for each, as Ollama's clients need them."""
    top = [_finite(other) for other in token.get("top_logprobs", ())]
    more = {"top_logprobs": top} if "top_logprobs" in token else {}
    return {**token, "logprob": LOWEST if token["logprob"] is None else token["logprob"], **more}


def _tool_call(call: AnyCall) -> dict[str, object]:
    function = {"index": call.number, "name": call.name, "arguments": json.loads(call.arguments)}
    return {"id": call.id, "function": function}
