"""OpenAI's Responses: converts bodies to chats, and writes answers as items and events. No response is stored."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any, ClassVar

from edgespec.dialects.calls import AnyCall, CallPiece, CutCall
from edgespec.requests.bad_input import BadInputError, JsonObject, UnsupportedError, object_in, wrong
from edgespec.requests.documents import with_texts
from edgespec.requests.fields import Fields, content_of
from edgespec.requests.images import parts_of
from edgespec.requests.known_fields import RESPONSES
from edgespec.requests.messages import call_of, message_of, role_in
from edgespec.serve.chat import BlockObject, Call, End, Event, Events
from edgespec.serve.errors import ApiError, Names
from edgespec.serve.openai import chat_of
from edgespec.serve.provider_tools import ClientTools, take_functions
from edgespec.serve.served import Served
from edgespec.settings import Image, Message, shown

_TEXT = {"format": "response_format", "verbosity": "verbosity"}
_CALLS = {
    *("function_call", "custom_tool_call", "mcp_call", "local_shell_call", "shell_call", "apply_patch_call"),
    "computer_call",
}

# --- requests ---------------------------------------------------------------------------------------------------------


def response_call(body: JsonObject, model: Served) -> Call:
    """Read a body of /v1/responses. Raises BadInputError."""
    fields = Fields(body, RESPONSES)
    instructions = fields.take("instructions")
    messages = [*_messages(instructions, fields.take("input"), fields.notes)]
    chat = take_functions(fields, ("function",), "parameters")
    chat |= {"add_system_prompt": False} if instructions == "" else {}
    if "tool_choice" in fields:
        chat["tool_choice"] = _choice(fields.take("tool_choice"))
    text = fields.within("text")
    chat |= {sent: text.take(name) for name, sent in _TEXT.items() if name in text}
    if (effort := fields.within("reasoning").take("effort")) is not None:
        chat["reasoning_effort"] = effort
    if not isinstance(included := fields.take("include", []), list):
        raise wrong("include", "be a list", included)
    if "message.output_text.logprobs" in included:  # the rest is sent anyway, or belongs to tools that are not here
        raise UnsupportedError("include", "only /v1/chat/completions returns log-probabilities")
    return chat_of(Fields(fields.rest() | chat, notes=fields.notes), model, messages)


def _choice(given: object) -> object:
    """Return the choice of a tool as chats have it."""
    choice = object_in(given)
    kind = choice.get("type")
    if kind in ("function", "custom"):
        group, name = choice.get("namespace"), choice.get("name")
        return {"type": kind, kind: {"name": f"{group}.{name}" if group else name}}
    if kind == "allowed_tools":
        return {"type": kind, kind: {"mode": choice.get("mode"), "tools": choice.get("tools")}}
    return given


def _messages(instructions: object, given: object, notes: list[str]) -> Iterator[Message]:
    if instructions:
        yield message_of("system", content_of("instructions", instructions))
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise wrong("input", "be a string or a list of items", given)
    answer: dict[str, Any] = {}  # several items of the assistant are one message
    for index, item in enumerate(with_texts("input", given)):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise wrong(where, "be an object", item)
        fields = Fields(item, where=where)
        kind = fields.take("type", "message")
        is_answer = kind == "message" and item.get("role") == "assistant"
        is_output = isinstance(kind, str) and kind.endswith("_call_output")
        if not (kind in ("message", "reasoning", *_CALLS) or is_output):
            if kind == "item_reference" or not isinstance(kind, str):
                raise UnsupportedError(where, f"items of type {shown(kind)} do not exist here")
            notes.append(f"{where} is left out: items of type {shown(kind)} do not exist here")
            continue
        if answer and kind not in _CALLS and not (is_answer and not answer["content"]):
            yield message_of("assistant", **answer)
            answer = {}
        if kind in ("reasoning", *_CALLS) or is_answer:
            _add(answer or (answer := {"content": ""}), where, str(kind), fields)
        elif is_output:
            output = _output(f"{where}.output", fields.take("output", ""))
            yield message_of("tool", *output, tool_call_id=fields.text("call_id"))
        else:
            yield message_of(role_in(fields, where), *parts_of(f"{where}.content", fields.take("content")))
        if kind == "mcp_call":  # an item with its result
            yield message_of("assistant", **answer)
            answer = {}
            result = fields.take("output") or fields.take("error") or ""
            yield message_of("tool", result if isinstance(result, str) else json.dumps(result))
    if answer:
        yield message_of("assistant", **answer)


def _output(where: str, given: object) -> tuple[str, tuple[Image, ...]]:
    """Return the text and the images of a result. Objects that are no parts of messages are written as JSON."""
    parts = list[object]()
    for part in given if isinstance(given, list) else [given]:
        if isinstance(part, dict) and part.get("type") is None:  # of a shell
            part = json.dumps(part, ensure_ascii=False)
        elif isinstance(part, dict) and part["type"] == "computer_screenshot":
            part = part | {"type": "input_image"}
        parts.append(part)
    return parts_of(where, parts)


def _add(answer: dict[str, Any], where: str, kind: str, fields: Fields) -> None:
    """Add an item to the message of an earlier answer."""
    if kind in _CALLS:
        answer.setdefault("tool_calls", []).append(_call(where, kind, fields))
    elif kind == "message":
        answer["content"] = content_of(f"{where}.content", fields.take("content", ""))
    else:
        parts = fields.take("content") or fields.take("summary") or []
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise BadInputError(f"content of {where} must be a list of parts, not {shown(parts)}", where)
        answer["reasoning"] = "\n".join(str(part.get("text", "")) for part in parts)


def _call(where: str, kind: str, fields: Fields) -> dict[str, object]:
    """Return a call of a tool. Tools that are not functions are called by the names of their types."""
    id, group = fields.text("call_id"), fields.text("namespace")
    if kind == "custom_tool_call":
        given = {"name": fields.take("name"), "arguments": {"input": fields.text("input")}}
    elif kind in ("function_call", "mcp_call"):
        given = {"name": fields.take("name"), "arguments": fields.take("arguments")}
    else:
        action = fields.take("action") or fields.take("operation")
        given = {"name": kind.removesuffix("_call"), "arguments": action}
    if group:
        given["name"] = f"{group}.{given['name']}"
    return call_of(where, id, Fields(given, where=where))


# --- answers ----------------------------------------------------------------------------------------------------------


class ResponseObject(BlockObject):
    """Writes the answer to a call as OpenAI's object, whole or as events. Its blocks are called items."""

    names: ClassVar[Names] = {
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "response_format": "text.format",
        "tools[].function": "tools[]",
        "tool_choice.allowed_tools": "tool_choice",
        "enable_thinking": "reasoning.effort",
    }
    kinds = ("reasoning", "message")

    def __init__(self, call: Call, body: JsonObject) -> None:
        super().__init__(call, body)
        sampling = call.requests[0].sampling
        self.object = {
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
        }
        self._n_events = 0
        self._tools = ClientTools(body)

    def _event(self, kind: str, **what: object) -> Event:
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **what}

    def _first(self) -> Events:
        yield self._event("response.created", response=self.object)
        yield self._event("response.in_progress", response=self.object)

    def has_pieces(self, tool: AnyCall) -> bool:
        return not self._tools.is_custom(tool)

    def _tool(self, tool: CallPiece | AnyCall) -> Events:
        if self._tools.is_custom(tool):  # is sent when it is complete
            if isinstance(tool, AnyCall):
                yield from self._custom(tool)
        elif isinstance(tool, AnyCall):
            item = self._blocks[-1]
            item["arguments"] = tool.arguments
            done = {"name": item["name"], "arguments": tool.arguments}
            yield self._event("response.function_call_arguments.done", **self._where(), **done)
            yield from self._close(is_cut=isinstance(tool, CutCall))
        elif tool.text:
            yield self._event("response.function_call_arguments.delta", **self._where(), delta=tool.text)
        else:
            what = {"call_id": tool.id, **self._tools.named(tool), "arguments": ""}
            yield from self._begin("function_call", "fc", what)

    def _custom(self, tool: AnyCall) -> Events:
        said = self._tools.input_of(tool)
        yield from self._begin("custom_tool_call", "ctc", {"call_id": tool.id, **self._tools.named(tool), "input": ""})
        self._blocks[-1]["input"] = said
        yield self._event("response.custom_tool_call_input.delta", **self._where(), delta=said)
        yield self._event("response.custom_tool_call_input.done", **self._where(), input=said)
        yield from self._close()

    def _where(self) -> dict[str, object]:
        return {"item_id": self._blocks[-1]["id"], "output_index": self._number}

    def _more(self, kind: str, text: str) -> Events:
        is_message = kind == "message"
        part = "output_text" if is_message else "reasoning_text"
        logprobs: dict[str, list[object]] = {"logprobs": []} if is_message else {}
        if not self._is_open or self._blocks[-1]["type"] != kind:
            about: dict[str, object] = {"role": "assistant"} if is_message else {"summary": []}
            yield from self._begin(kind, "msg" if is_message else "rs", about | {"content": []})
            empty = {"type": part, "text": "", **({"annotations": []} if is_message else {}), **logprobs}
            yield self._event("response.content_part.added", **self._where(), content_index=0, part=dict(empty))
            self._blocks[-1]["content"] = [empty]
        self._blocks[-1]["content"][0]["text"] += text
        yield self._event(f"response.{part}.delta", **self._where(), content_index=0, delta=text, **logprobs)

    def _begin(self, kind: str, prefix: str, what: JsonObject) -> Events:
        yield from self._close()
        self._is_open = True
        self._blocks.append({"type": kind, "id": f"{prefix}_{secrets.token_hex(12)}", "status": "in_progress", **what})
        item = dict(self._blocks[-1])
        yield self._event("response.output_item.added", output_index=self._number, item=item)

    def _close(self, *, is_cut: bool = False) -> Events:
        if not self._is_open:
            return
        self._is_open, item = False, self._blocks[-1]
        item["status"] = "incomplete" if is_cut else "completed"
        for part in item.get("content", ()):
            where = {**self._where(), "content_index": 0}
            said = {name: part[name] for name in ("text", "logprobs") if name in part}
            yield self._event(f"response.{part['type']}.done", **where, **said)
            yield self._event("response.content_part.done", **where, part=part)
        yield self._event("response.output_item.done", output_index=self._number, item=item)

    def _ended(self, end: End) -> dict[str, object]:
        is_whole = end.reason != "length"
        usage = {
            "input_tokens": end.stats.prompt_tokens,
            "input_tokens_details": {"cached_tokens": end.stats.cached_tokens},
            "output_tokens": end.n_tokens,
            "output_tokens_details": {"reasoning_tokens": end.n_reasoning},
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

    @staticmethod
    def error(error: ApiError) -> dict[str, object]:
        """Return an error as an event that also has OpenAI's error object, for clients that look for one."""
        return {"type": "error", "message": error.message, "code": error.code, "param": error.param, **error.body()}
