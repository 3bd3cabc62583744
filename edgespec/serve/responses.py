"""OpenAI's Responses: converts bodies to chats, and writes answers as items and events. No response is stored."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from edgespec.batch.bad_input import BadInputError, UnsupportedError, wrong
from edgespec.batch.fields import Fields, content_of
from edgespec.batch.known import RESPONSES
from edgespec.batch.openai import token_logprob
from edgespec.serve.chat import BlockObject, Call, End, Event, Events, Piece
from edgespec.serve.errors import ApiError
from edgespec.serve.messages import call_of, message_of, role_in, take_functions
from edgespec.serve.openai import chat_of
from edgespec.serve.served import Served
from edgespec.serve.tools.formats import ToolCall
from edgespec.settings import Message, shown

LOGPROBS = "message.output_text.logprobs"

# --- requests ---------------------------------------------------------------------------------------------------------


def response_call(body: Mapping[str, Any], model: Served) -> Call:
    """Read a body of /v1/responses. Raises BadInputError."""
    fields = Fields(body, RESPONSES)
    messages = [*_messages(fields.take("instructions"), fields.take("input"))]
    chat = take_functions(fields, ("function",), "parameters")
    if "tool_choice" in fields:
        choice = fields.take("tool_choice")
        is_named = isinstance(choice, dict) and choice.get("type") == "function"
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}} if is_named else choice
    format = fields.within("text").take("format")
    if isinstance(format, dict) and format.get("type") == "json_schema":
        format = {"type": "json_schema", "json_schema": format}
    if format is not None:
        chat["response_format"] = format
    if (effort := fields.within("reasoning").take("effort")) is not None:
        chat["reasoning_effort"] = effort
    chat |= _logprobs(fields)
    return chat_of(Fields(fields.rest() | chat, notes=fields.notes), model, messages)


def _logprobs(fields: Fields) -> dict[str, Any]:
    """Return the fields of a chat for the log-probabilities that a body asks for. Raises BadInputError.

    Everything else that `include` may name is sent anyway, or belongs to tools that the server does not have.
    """
    included, alternatives = fields.take("include", []), fields.take("top_logprobs", 0)
    if not isinstance(included, list):
        raise wrong("include", "be a list", included)
    return {"logprobs": True, "top_logprobs": alternatives} if alternatives or LOGPROBS in included else {}


def _messages(instructions: Any, given: Any) -> Iterator[Message]:
    if instructions is not None:
        yield message_of("system", content_of("instructions", instructions))
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise wrong("input", "be a string or a list of items", given)
    answer: dict[str, Any] = {}  # several items of the assistant are one message
    for index, item in enumerate(given):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise wrong(where, "be an object", item)
        fields = Fields(item, where=where)
        kind = fields.take("type", "message")
        is_answer = kind == "message" and item.get("role") == "assistant"
        if answer and kind != "function_call" and not (is_answer and not answer["content"]):
            yield message_of("assistant", **answer)
            answer = {}
        if kind in ("reasoning", "function_call") or is_answer:
            _add(answer or (answer := {"content": ""}), where, kind, fields)
        elif kind == "function_call_output":
            output = content_of(f"{where}.output", fields.take("output"))
            yield message_of("tool", output, tool_call_id=fields.text("call_id"))
        elif kind == "message":
            yield message_of(role_in(fields, where), content_of(f"{where}.content", fields.take("content")))
        else:
            raise UnsupportedError(where, f"items of type {shown(kind)} do not exist here")
    if answer:
        yield message_of("assistant", **answer)


def _add(answer: dict[str, Any], where: str, kind: str, fields: Fields) -> None:
    """Add an item to the message of an earlier answer."""
    if kind == "function_call":
        answer.setdefault("tool_calls", []).append(call_of(where, fields.text("call_id"), fields))
    elif kind == "message":
        answer["content"] = content_of(f"{where}.content", fields.take("content"))
    else:
        parts = fields.take("content") or []
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise BadInputError(f"content of {where} must be a list of parts, not {shown(parts)}", where)
        answer["reasoning"] = "\n".join(str(part.get("text", "")) for part in parts)


# --- answers ----------------------------------------------------------------------------------------------------------


class ResponseObject(BlockObject):
    """Writes the answer to a call as OpenAI's object, whole or as events. Its blocks are called items."""

    def __init__(self, call: Call, body: Mapping[str, Any], model: Served | None = None) -> None:
        self._token_bytes = model.token_bytes if model is not None else None
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text has not been sent
        sampling = call.requests[0].sampling
        super().__init__(
            call,
            {
                "id": f"resp_{secrets.token_hex(12)}",
                "object": "response",
                "created_at": int(time.time()),
                "status": "in_progress",
                "model": call.model,
                "error": None,
                "incomplete_details": None,
                "instructions": body.get("instructions"),
                "max_output_tokens": body.get("max_output_tokens"),
                "metadata": body.get("metadata") or {},
                "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
                "previous_response_id": None,
                "store": False,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "text": body.get("text") or {"format": {"type": "text"}},
                "tool_choice": body.get("tool_choice") or "auto",
                "tools": body.get("tools") or [],
                "truncation": "disabled",
                "usage": None,
                "output": [],
            },
        )
        self._n_events = self._n_reasoning = 0

    def _event(self, kind: str, **what: Any) -> Event:
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **what}

    def _first(self) -> Events:
        yield self._event("response.created", response=self.object)
        yield self._event("response.in_progress", response=self.object)

    def chunks(self, piece: Piece) -> Events:
        if self._token_bytes is not None and self.call.wants_tokens:
            self._logprobs += [token_logprob(event, self._token_bytes) for event in piece.tokens]
        yield from super().chunks(piece)

    def _reasoning(self, text: str) -> Events:
        self._n_reasoning += 1
        self._logprobs.clear()  # only those of the text are sent
        return self._more("reasoning", "reasoning_text", text)

    def _text(self, text: str) -> Events:
        return self._more("message", "output_text", text)

    def _tool(self, tool: ToolCall) -> Events:
        self._logprobs.clear()
        yield from self._begin("function_call", "fc", {"call_id": tool.id, "name": tool.name, "arguments": ""})
        where = self._where()
        yield self._event("response.function_call_arguments.delta", **where, delta=tool.arguments)
        self._blocks[-1]["arguments"] = tool.arguments
        done = {"name": tool.name, "arguments": tool.arguments}
        yield self._event("response.function_call_arguments.done", **where, **done)

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._blocks[-1]["id"], "output_index": self._number}

    def _more(self, kind: str, part: str, text: str) -> Events:
        if not self._is_open or self._blocks[-1]["type"] != kind:
            is_message = kind == "message"
            more: dict[str, Any] = {"role": "assistant"} if is_message else {"summary": []}
            yield from self._begin(kind, "msg" if is_message else "rs", more | {"content": []})
            empty: dict[str, Any] = {"type": part, "text": ""}
            if is_message:
                empty |= {"annotations": [], "logprobs": []}
            more = {"logprobs": []} if is_message else {}  # another list, since the one in `empty` grows
            yield self._event("response.content_part.added", **self._where(), content_index=0, part={**empty, **more})
            self._blocks[-1]["content"] = [empty]
        part_now = self._blocks[-1]["content"][0]
        part_now["text"] += text
        more = {"logprobs": self._new_logprobs(part_now)} if kind == "message" else {}
        yield self._event(f"response.{part}.delta", **self._where(), content_index=0, delta=text, **more)

    def _new_logprobs(self, part: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the log-probabilities that were not sent yet, and add them to the part, which has all of them."""
        new, self._logprobs = self._logprobs, []
        part["logprobs"] += new
        return new

    def _begin(self, kind: str, prefix: str, what: Mapping[str, Any]) -> Events:
        yield from self._close()
        self._is_open = True
        self._blocks.append({"type": kind, "id": f"{prefix}_{secrets.token_hex(12)}", "status": "in_progress", **what})
        item = dict(self._blocks[-1])
        yield self._event("response.output_item.added", output_index=self._number, item=item)

    def _close(self, end: End | None = None) -> Events:
        if not self._is_open:
            return
        self._is_open, item = False, self._blocks[-1]
        item["status"] = "incomplete" if end is not None and end.reason == "length" else "completed"
        for part in item.get("content", ()):
            where, more = {**self._where(), "content_index": 0}, dict[str, Any]()
            if item["type"] == "message":
                self._new_logprobs(part)  # of tokens at the end that added no text
                more = {"logprobs": part["logprobs"]}
            yield self._event(f"response.{part['type']}.done", **where, text=part["text"], **more)
            yield self._event("response.content_part.done", **where, part=part)
        yield self._event("response.output_item.done", output_index=self._number, item=item)

    def _ended(self, end: End) -> dict[str, Any]:
        is_whole = end.reason != "length"
        usage = {
            "input_tokens": end.stats.prompt_tokens,
            "input_tokens_details": {"cached_tokens": end.stats.cached_tokens},
            "output_tokens": end.n_tokens,
            "output_tokens_details": {"reasoning_tokens": self._n_reasoning},
            "total_tokens": end.stats.prompt_tokens + end.n_tokens,
        }
        return {
            "status": "completed" if is_whole else "incomplete",
            "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
            "output": self._blocks,
            "usage": usage,
        }

    def _last(self, end: End) -> Events:
        yield self._event(f"response.{self.object['status']}", response=self.object)


def error_event(error: ApiError) -> dict[str, Any]:
    """Return an error as an event that also has OpenAI's error object, for clients that look for one."""
    return {"type": "error", "message": error.message, "code": error.code, "param": error.param, **error.body()}
