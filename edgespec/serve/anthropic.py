"""Anthropic's Messages: converts bodies to chats, and writes answers as blocks and events."""

from __future__ import annotations

import binascii
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar

from edgespec.dialects.calls import AnyCall, CallPiece, CutCall, ToolCall
from edgespec.requests.bad_input import BadInputError, JsonObject, object_in, wrong
from edgespec.requests.documents import with_texts
from edgespec.requests.fields import Fields, content_of
from edgespec.requests.forms import Thinking
from edgespec.requests.images import parts_of
from edgespec.requests.known_fields import MESSAGES
from edgespec.requests.messages import call_of, message_of
from edgespec.serve.chat import BlockObject, Call, End, Event, Events
from edgespec.serve.errors import Names, anthropic_body
from edgespec.serve.openai import chat_of
from edgespec.serve.provider_tools import take_functions
from edgespec.serve.served import Served
from edgespec.settings import Message, moved, shown

_FOREIGN = ("server_tool_use", "mcp_tool_use", "_tool_result", "container_upload")
_BILLING = re.compile("x-anthropic-billing-header:.*")
SIGNATURE = "edgespec"
CHOICES = {"auto": "auto", "none": "none", "any": "required"}

# --- requests ---------------------------------------------------------------------------------------------------------


def message_call(body: JsonObject, model: Served, *, counts: bool = False) -> Call:
    """Read a body of /v1/messages, or with `counts` of /v1/messages/count_tokens. Raises BadInputError."""
    fields = Fields(body, MESSAGES)
    if not counts and "max_tokens" not in fields:
        raise BadInputError("max_tokens is missing", "max_tokens")
    system = _without_billing(fields.take("system"))
    messages = [*_messages(system, fields.take("messages"), fields.notes)]
    chat = take_functions(fields, ("custom", None), "input_schema")
    chat |= {"add_system_prompt": False} if system in ("", []) else {}
    chat |= _choice(fields.within("tool_choice"))
    given = fields.mapping("thinking")
    if given.get("type") == "disabled":
        given.pop("budget_tokens", None)  # has no effect, so it may be invalid
    thinking = Fields(given, where="thinking").read(Thinking)
    if thinking.type is not None:
        chat["enable_thinking"] = thinking.type != "disabled"
    if thinking.budget_tokens is not None:
        chat["reasoning_budget"] = thinking.budget_tokens
    if "top_k" in fields:
        chat["top_k"] = fields.integer("top_k", 0, 0, 2**31 - 1)
    output = fields.within("output_config")
    if "effort" in output:
        chat["reasoning_effort"] = output.take("effort")
    if "format" in output:
        chat["response_format"] = output.take("format")
    call = chat_of(Fields(fields.rest() | chat, notes=fields.notes), model, messages)
    call.eager = _eager(body.get("tools"))
    return call


def _eager(tools: object) -> frozenset[str]:
    """Return the names of the tools whose arguments are sent as they come."""
    objects = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return frozenset(str(tool.get("name")) for tool in objects if tool.get("eager_input_streaming") is True)


def count_call(body: JsonObject, model: Served) -> Call:
    """Read a body of /v1/messages/count_tokens. Raises BadInputError."""
    return message_call(body, model, counts=True)


def _messages(system: object, given: object, notes: list[str]) -> Iterator[Message]:
    if system:
        yield message_of("system", content_of("system", system))
    if not isinstance(given, list) or not given:
        raise BadInputError("messages must be a list of at least one message", "messages")
    for index, message in enumerate(with_texts("messages", given)):
        fields = object_in(message)
        role = fields.get("role")
        if role not in ("user", "assistant", "system"):
            raise wrong(f"messages[{index}]", "have the role user, assistant or system", role)
        yield from _parted(f"messages[{index}].content", role, fields.get("content"), notes)


def _without_billing(system: object) -> object:
    """Leave out the block that Claude Code begins its prompt with. It is for the service of the provider and differs in
    each session, so that no session could use the cached prompt of another one."""
    if not isinstance(system, list):
        return system
    return [block for block in system if not (isinstance(block, dict) and _BILLING.fullmatch(str(block.get("text"))))]


def _parted(where: str, role: str, content: object, notes: list[str]) -> Iterator[Message]:
    """Yield the messages of a chat for a message of blocks. In a chat each result of a tool is a separate message.
    Notes name blocks about tools that the service of a provider ran, which are left out."""
    parts, reasoning, calls, n_results = [], [], [], 0
    for index, block in enumerate(_blocks(where, [] if content is None and role == "assistant" else content)):
        at = f"{where}[{index}]"
        fields, kind = Fields(block, where=at), block.get("type")
        if kind == "tool_result" and role == "user":
            n_results += 1
            said, images = parts_of(f"{at}.content", _with_references(f"{at}.content", fields.take("content", "")))
            if fields.take("is_error") is True:  # chat templates have no field for errors
                said, images = f"Error: {said}", moved(images, len("Error: "))
            yield message_of("tool", said, images, tool_call_id=fields.text("tool_use_id"))
        elif kind == "tool_use" and role == "assistant":
            function = {"name": fields.take("name"), "arguments": fields.take("input")}
            calls.append(call_of(at, fields.text("id"), Fields(function, where=at)))
        elif kind == "thinking" and role == "assistant":
            reasoning.append(str(fields.take("thinking", "") or _reasoning_in(str(fields.take("signature")))))
        elif isinstance(kind, str) and kind.endswith(_FOREIGN):
            notes.append(f"{at} is left out: blocks of type {shown(kind)} do not exist here")
        elif kind != "redacted_thinking":
            parts.append(block)
    if role == "assistant":
        yield message_of(role, content_of(where, parts), reasoning="\n".join(reasoning), tool_calls=calls)
    elif parts or not n_results:
        yield message_of(role, *parts_of(where, parts))


def _reasoning_in(signature: str) -> str:
    """Return the reasoning that a signature has, as `_signature` has written it."""
    kind, _, text = signature.partition(":")
    with suppress(ValueError):
        return binascii.a2b_base64(text.encode(), strict_mode=True).decode() if kind == SIGNATURE else ""
    return ""


def _signature(reasoning: str) -> str:
    """Return the signature of a block whose reasoning is not shown. Clients send blocks back as they are, and the next
    prompt needs the reasoning."""
    return f"{SIGNATURE}:{binascii.b2a_base64(reasoning.encode(), newline=False).decode()}"


def _with_references(where: str, content: object) -> object:
    """Replace references to tools, which a client's search for tools has found, with texts. The tools themselves are
    among those of the request."""
    if not isinstance(content, list):
        return content
    return [_without_reference(f"{where}[{index}]", part) for index, part in enumerate(content)]


def _without_reference(where: str, part: object) -> object:
    if not isinstance(part, dict) or part.get("type") != "tool_reference":
        return part
    return f"The tool {Fields(part, where=where).text('tool_name')} can be called now."


def _blocks(where: str, given: object) -> list[dict[str, object]]:
    blocks = [{"type": "text", "text": given}] if isinstance(given, str) else given
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise wrong(where, "be a string or a list of blocks", given)
    return blocks


def _choice(given: Fields) -> dict[str, object]:
    alone, kind = given.flag("disable_parallel_tool_use"), given.take("type")
    parallel = {"parallel_tool_calls": False} if alone else {}
    if kind == "tool":
        return parallel | {"tool_choice": {"type": "function", "function": {"name": given.take("name")}}}
    if kind is not None and CHOICES.get(str(kind)) is None:
        raise wrong("tool_choice", "have the type auto, any, tool or none", kind)
    return parallel | ({"tool_choice": CHOICES[str(kind)]} if kind else {})


# --- answers ----------------------------------------------------------------------------------------------------------


class Members:
    """The text of a JSON object that arrives in pieces, up to the end of its last complete member.

    As in Anthropic's API, a member of the arguments of a call is sent when it is complete. So the arguments of a call
    that is cut off are still an object.
    """

    def __init__(self) -> None:
        self.text = ""
        self._held = ""
        self._depth = 0
        self._in_text = self._is_escaped = False

    def add(self, text: str) -> str:
        """Take more of the text. Return what follows the text so far."""
        before, self._held = len(self._held), self._held + text
        end = 0
        for place, character in enumerate(text, before):
            if self._in_text:
                self._in_text = self._is_escaped or character != '"'
                self._is_escaped = character == "\\" and not self._is_escaped
            elif character == '"':
                self._in_text = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                end = place + 1 if not self._depth else end
            elif character == "," and self._depth == 1:
                end = place
        ended, self._held = self._held[:end], self._held[end:]
        self.text += ended
        return ended

    def closed(self) -> str:
        """Return the end of an object that gets no more members."""
        end = "}" if self.text else "{}"
        self.text += end
        return end


class MessageObject(BlockObject):
    """Writes the answer to a call as Anthropic's object, whole or as events."""

    names: ClassVar[Names] = {
        "stop": "stop_sequences",
        "tools[].function.parameters": "tools[].input_schema",
        "tools[].function": "tools[]",
        "enable_thinking": "thinking",
        "reasoning_budget": "thinking.budget_tokens",
        "response_format": "output_config.format",
    }
    kinds = ("thinking", "text")
    error = staticmethod(anthropic_body)

    def __init__(self, call: Call, body: JsonObject) -> None:
        super().__init__(call, body)
        thinking = body.get("thinking")
        self._omits_thinking = isinstance(thinking, dict) and thinking.get("display") == "omitted"
        self._input: Members | None = None  # of the last call, unless its arguments are sent as they come
        self._omitted = ""  # of the last block
        self.object = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }

    def _first(self) -> Events:
        yield {"type": "message_start", "message": self.object}

    def _tool(self, tool: CallPiece | AnyCall) -> Events:
        if isinstance(tool, CallPiece) and not tool.text:
            self._input = None if tool.name in self.call.eager else Members()
            yield from self._begin({"type": "tool_use", "id": tool.id, "name": tool.name, "input": {}})
        elif isinstance(tool, CallPiece):
            yield from self._more_input(self._input.add(tool.text) if self._input else tool.text)
        else:
            members = self._input
            if isinstance(tool, CutCall) and members:
                yield from self._more_input(members.closed())
            whole = tool.arguments if isinstance(tool, ToolCall) else members.text if members else "{}"
            self._blocks[-1]["input"] = json.loads(whole)
            yield from self._close()

    def _more_input(self, text: str) -> Events:
        if text:
            yield self._delta("input_json_delta", partial_json=text)

    def _more(self, kind: str, text: str) -> Events:
        if not self._is_open or self._blocks[-1]["type"] != kind:
            yield from self._begin({"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {}))
        if kind == "thinking" and self._omits_thinking:
            self._omitted += text
            return
        self._blocks[-1][kind] += text
        yield self._delta(f"{kind}_delta", **{kind: text})

    def _delta(self, kind: str, **what: str) -> Event:
        return {"type": "content_block_delta", "index": self._number, "delta": {"type": kind, **what}}

    def _begin(self, block: JsonObject) -> Events:
        yield from self._close()
        self._is_open = True
        self._blocks.append(dict(block))
        yield {"type": "content_block_start", "index": self._number, "content_block": block}

    def _close(self, *, is_cut: bool = False) -> Events:
        if self._is_open:
            self._is_open = False
            if self._omitted:
                signature, self._omitted = _signature(self._omitted), ""
                self._blocks[-1]["signature"] = signature
                yield self._delta("signature_delta", signature=signature)
            yield {"type": "content_block_stop", "index": self._number}

    def _ended(self, end: End) -> dict[str, object]:
        reason = {"length": "max_tokens", "tool_calls": "tool_use"}.get(end.reason, "end_turn")
        is_cut = reason == "end_turn" and end.cut in self.call.requests[0].stop
        usage = {
            "input_tokens": end.stats.prompt_tokens - end.stats.cached_tokens,
            "cache_read_input_tokens": end.stats.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": end.n_tokens,
        }
        return {
            "content": self._blocks,
            "stop_reason": "stop_sequence" if is_cut else reason,
            "stop_sequence": end.cut if is_cut else None,
            "usage": usage,
        }

    def _last(self, end: End) -> Events:
        delta = {name: self.object[name] for name in ("stop_reason", "stop_sequence")}
        figures = {name: self.object[name] for name in ("usage", "timings", "seed")}
        yield {"type": "message_delta", "delta": delta, **figures, **end.more}
        yield {"type": "message_stop"}
