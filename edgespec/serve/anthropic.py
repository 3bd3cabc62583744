"""Anthropic's Messages: bodies into those of a chat, pieces of answers into its blocks and events."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from edgespec.serve.chat import Call, End, Piece, timings
from edgespec.serve.errors import BadFieldError, unsupported
from edgespec.serve.fields import Fields
from edgespec.serve.openai import chat_call
from edgespec.serve.pool import Served
from edgespec.settings import shown

IGNORED = ("container", "context_management", "mcp_servers", "inference_geo", "output_config", "betas", "cache_control")
CHOICES = {"auto": "auto", "none": "none", "any": "required"}

# --- what comes in ----------------------------------------------------------------------------------------------------


def message_call(body: Mapping[str, Any], model: Served, *, counts: bool = False) -> Call:
    """A body of /v1/messages, or of /v1/messages/count_tokens. Raises BadFieldError."""
    fields = Fields(body)
    for name in IGNORED:
        fields.take(name)
    for name in ("n", "logprobs", "top_logprobs", "response_format"):
        if name in fields:
            raise unsupported(name, "messages do not have it")
    if not counts and "max_tokens" not in fields:
        raise BadFieldError("max_tokens", "max_tokens is missing")
    chat: dict[str, Any] = {"messages": _messages(fields.take("system"), fields.take("messages"))}
    if "stop_sequences" in fields:
        chat["stop"] = fields.take("stop_sequences")
    tools = fields.take("tools", [])
    if not isinstance(tools, list):
        raise BadFieldError("tools", f"tools must be a list, not {shown(tools)}")
    if tools:
        chat["tools"] = [_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools)]
    chat |= _choice(fields.mapping("tool_choice"))
    thinking = fields.mapping("thinking").get("type")
    if thinking is not None:
        chat["enable_thinking"] = thinking != "disabled"
    return chat_call(fields.rest() | chat, model)


async def count_tokens(body: Mapping[str, Any], model: Served) -> dict[str, int]:
    """How many tokens the prompt of a body has."""
    request = message_call(body, model, counts=True).requests[0]
    return {"input_tokens": await model.ask(lambda worker: worker.prompt_length(request))}


def _messages(system: Any, given: Any) -> list[dict[str, Any]]:
    made = []
    if system:
        made.append({"role": "system", "content": _text("system", system)})
    if not isinstance(given, list) or not given:
        raise BadFieldError("messages", "messages must be a list of at least one message")
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant"):
            raise BadFieldError(where, f"{where} must have the role user or assistant, not {shown(role)}")
        made += _parted(f"{where}.content", role, message.get("content"))
    return made


def _parted(where: str, role: str, content: Any) -> Iterator[dict[str, Any]]:
    """A message of blocks: results of tools are messages of their own in a chat."""
    texts, calls, reasoning, n_results = [], [], [], 0
    for block in [{"type": "text", "text": content}] if isinstance(content, str) else _blocks(where, content):
        kind = block.get("type")
        if kind == "tool_result" and role == "user":
            n_results += 1
            said = _text(where, block.get("content") or "")
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": said}
        elif kind == "tool_use" and role == "assistant":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "thinking" and role == "assistant":
            reasoning.append(str(block.get("thinking", "")))
        elif kind != "redacted_thinking":
            texts.append(_text(where, [block]))
    if role == "user" and (texts or not n_results):
        yield {"role": "user", "content": "\n".join(texts)}
    if role == "assistant":
        more: dict[str, Any] = {"tool_calls": calls} if calls else {}
        yield {"role": role, "content": "\n".join(texts), "reasoning_content": "\n".join(reasoning) or None, **more}


def _blocks(where: str, given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(block, dict) for block in given):
        raise BadFieldError(where, f"{where} must be a string or a list of blocks, not {shown(given)}")
    return given


def _text(where: str, given: Any) -> str:
    """A string, or blocks of text."""
    if isinstance(given, str):
        return given
    texts = []
    for block in _blocks(where, given):
        text = block.get("text")
        if block.get("type") != "text":
            raise unsupported(where, f"blocks of type {shown(block.get('type'))} are no text")
        if not isinstance(text, str):
            raise BadFieldError(where, f"a block of {where} must have a text, not {shown(text)}")
        texts.append(text)
    return "\n".join(texts)


def _tool(where: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadFieldError(where, f"{where} must be an object, not {shown(given)}")
    if given.get("type", "custom") not in ("custom", None):
        raise unsupported(where, f"tools of type {shown(given['type'])} are not here")
    function = {"name": given.get("name"), "description": given.get("description")}
    return {"type": "function", "function": function | {"parameters": given.get("input_schema")}}


def _choice(given: Mapping[str, Any]) -> dict[str, Any]:
    kind = given.get("type", "auto")
    if kind == "tool":
        return {"tool_choice": {"type": "function", "function": {"name": given.get("name")}}}
    if not isinstance(kind, str) or kind not in CHOICES:
        raise BadFieldError("tool_choice", f"tool_choice must have the type auto, any, tool or none, not {shown(kind)}")
    return {"tool_choice": CHOICES[kind]} if given else {}


# --- what goes out ----------------------------------------------------------------------------------------------------


class Answer:
    """Anthropic's object for the answer to a call, whole or in events."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._content: list[dict[str, Any]] = []
        self._open = ""  # the type of the block that is not at its end
        self._message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }

    async def whole(self, pieces: AsyncIterator[Piece]) -> dict[str, Any]:
        """The message."""
        async for piece in pieces:
            for event in self._events(piece):
                if event["type"] == "message_delta":
                    more = {name: event[name] for name in ("usage", "timings", "seed")}
                    return {**self._message, **event["delta"], "content": self._content, **more}
        raise AssertionError("an answer has an end")

    async def events(self, pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a stream; closing this closes `pieces`."""
        async with aclosing(pieces):
            is_new = True
            async for piece in pieces:
                if is_new:
                    is_new = False
                    yield {"type": "message_start", "message": self._message}
                for event in self._events(piece):
                    yield event

    def _events(self, piece: Piece) -> Iterator[dict[str, Any]]:
        if piece.reasoning:
            yield from self._more("thinking", "thinking", piece.reasoning)
        if piece.text:
            yield from self._more("text", "text", piece.text)
        if piece.tool is not None:
            tool = piece.tool
            block = {"type": "tool_use", "id": tool.id, "name": tool.name, "input": {}}
            yield from self._begin(block)
            delta = {"type": "input_json_delta", "partial_json": tool.arguments}
            yield {"type": "content_block_delta", "index": len(self._content) - 1, "delta": delta}
            self._content[-1] = block | {"input": json.loads(tool.arguments)}
            yield from self._close()
        if piece.end is not None:
            yield from self._close()
            yield self._last(piece.end)
            yield {"type": "message_stop"}

    def _more(self, kind: str, name: str, text: str) -> Iterator[dict[str, Any]]:
        if self._open != kind:
            yield from self._begin({"type": kind, name: ""} | ({"signature": ""} if kind == "thinking" else {}))
        self._content[-1][name] += text
        delta = {"type": f"{kind}_delta", name: text}
        yield {"type": "content_block_delta", "index": len(self._content) - 1, "delta": delta}

    def _begin(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._close()
        self._open = block["type"]
        self._content.append(dict(block))
        yield {"type": "content_block_start", "index": len(self._content) - 1, "content_block": block}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._open:
            self._open = ""
            yield {"type": "content_block_stop", "index": len(self._content) - 1}

    def _last(self, end: End) -> dict[str, Any]:
        stops, cut = self._call.requests[0].stop, end.cut
        reason = {"length": "max_tokens", "tool_calls": "tool_use"}.get(end.reason, "end_turn")
        usage = {
            "input_tokens": end.stats.prompt_tokens - end.stats.cached_tokens,
            "cache_read_input_tokens": end.stats.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": end.n_tokens,
        }
        delta = {
            "stop_reason": "stop_sequence" if cut and reason == "end_turn" else reason,
            "stop_sequence": stops[0] if cut and len(stops) == 1 else None,
        }
        figures = {"timings": timings(end.stats), "seed": self._call.requests[0].seed}
        return {"type": "message_delta", "delta": delta, "usage": usage, **figures}
