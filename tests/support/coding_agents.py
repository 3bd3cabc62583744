"""Coding agents as clients: they send requests as recorded from real ones, and send answers back as those do."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

SYSTEM, MORE = "You are a coding agent.", "The folder is /home/me/project."
Events = Sequence[dict[str, Any]]


def function(name: str, **properties: str) -> dict[str, Any]:
    """Return a tool whose parameters have these types."""
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"name": name, "description": f"{name} a file", "parameters": schema | {"additionalProperties": False}}


TOOLS = (function("write", path="string", content="string", lines="integer"), function("read", path="string"))


@dataclass
class Read:
    """An answer as an agent reads it; calls are ids, names and arguments."""

    thought: str
    text: str
    calls: list[tuple[str, str, Any]]
    ended: str


class Agent(ABC):
    """An agent in a conversation with a server.

    Attributes:
        path: The path of requests.
        shows_reasoning: False if the user does not see it.
        ends: The reasons for which answers with calls, and others, end.
    """

    path: ClassVar[str]
    shows_reasoning: ClassVar[bool] = True
    headers: ClassVar[Mapping[str, str]] = {}
    ends: ClassVar[tuple[str, str]]

    def __init__(self) -> None:
        self.talk: list[dict[str, Any]] = []

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """Return the next request, without `stream`."""

    @abstractmethod
    def whole(self, events: Events) -> dict[str, Any]:
        """Return the answer that a stream has, as it is sent in one piece."""

    @abstractmethod
    def read(self, answer: dict[str, Any]) -> Read:
        """Read an answer, and remember it for the next request."""

    @abstractmethod
    def ask(self, text: str) -> None:
        """Add a message of the user."""

    @abstractmethod
    def reply(self, results: Sequence[tuple[str, str]]) -> None:
        """Add the results of calls, by their ids."""


class ChatAgent(Agent):
    """opencode 1.18.33, which sends reasoning back as `reasoning_content`."""

    path = "/v1/chat/completions"
    ends = ("tool_calls", "stop")

    def body(self) -> dict[str, Any]:
        system = {"role": "system", "content": f"{SYSTEM}\n\n{MORE}"}
        tools = [{"type": "function", "function": tool} for tool in TOOLS]
        body = {"model": "demo", "max_tokens": 8000, "messages": [system, *self.talk], "tools": tools}
        return body | {"tool_choice": "auto", "stream_options": {"include_usage": True}}

    def whole(self, events: Events) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
        finish = None
        for choice in (choice for event in events for choice in event["choices"]):
            delta, finish = choice["delta"], choice["finish_reason"] or finish
            for field in ("content", "reasoning_content"):
                message[field] += delta.get(field) or ""
            for piece in delta.get("tool_calls") or ():
                if piece["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({**piece, "function": {"name": "", "arguments": ""}})
                call = message["tool_calls"][piece["index"]]["function"]
                for field, text in piece["function"].items():
                    call[field] += text or ""
        return {"choices": [{"message": message, "finish_reason": finish}]}

    def read(self, answer: dict[str, Any]) -> Read:
        (choice,) = answer["choices"]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        sent = [{name: call[name] for name in ("id", "type", "function")} for call in calls]
        thought, text = message["reasoning_content"], message["content"] or ""
        said = {"role": "assistant", "content": text, "reasoning_content": thought}
        self.talk.append(said | ({"tool_calls": sent} if sent else {}))
        found = [(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in sent]
        return Read(thought, text, found, choice["finish_reason"])

    def ask(self, text: str) -> None:
        self.talk.append({"role": "user", "content": text})

    def reply(self, results: Sequence[tuple[str, str]]) -> None:
        self.talk += [{"role": "tool", "tool_call_id": id, "content": text} for id, text in results]


class QwenCode(ChatAgent):
    """Qwen Code 0.15.10, whose contents are lists."""

    def ask(self, text: str) -> None:
        self.talk.append({"role": "user", "content": [{"type": "text", "text": text}]})

    def reply(self, results: Sequence[tuple[str, str]]) -> None:
        parts = ((id, [{"type": "text", "text": text}]) for id, text in results)
        self.talk += [{"role": "tool", "tool_call_id": id, "content": part} for id, part in parts]


class ClaudeCode(Agent):
    """Claude Code 2.1.332, which sends reasoning back as blocks of thinking. It asks for the reasoning with
    `--output-format stream-json`, and otherwise leaves it to the signatures of the blocks."""

    display: ClassVar[str] = "updates"

    path = "/v1/messages?beta=true"
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"}
    ends = ("tool_use", "end_turn")
    cached: ClassVar[dict[str, Any]] = {"cache_control": {"type": "ephemeral"}}

    def body(self) -> dict[str, Any]:
        blocks = ("x-anthropic-billing-header: cc_version=2.1.332;", f"{SYSTEM}\n\n{MORE}")
        tools = [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in TOOLS
        ]
        return {
            "model": "demo",
            "messages": self.talk,
            "system": [{"type": "text", "text": text, **self.cached} for text in blocks],
            "tools": tools,
            "metadata": {"user_id": "..."},
            "max_tokens": 32000,
            "thinking": {"type": "adaptive", "display": self.display},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
        }

    def whole(self, events: Events) -> dict[str, Any]:
        blocks, made = list[dict[str, Any]](), dict[str, Any]()
        for event in events:
            match event["type"]:
                case "message_start":
                    made = dict(event["message"])
                case "content_block_start":
                    assert event["index"] == len(blocks)
                    blocks.append(dict(event["content_block"]))
                    if blocks[-1]["type"] == "tool_use":
                        blocks[-1]["input"] = ""
                case "content_block_delta":
                    ((kind, text),) = ((name, value) for name, value in event["delta"].items() if name != "type")
                    blocks[-1]["input" if kind == "partial_json" else kind] += text
                case "content_block_stop" if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = json.loads(blocks[-1]["input"])
                case "message_delta":
                    made |= event["delta"]
        return made | {"content": blocks}

    def read(self, answer: dict[str, Any]) -> Read:
        blocks = answer["content"]
        said = {
            kind: "".join(block[kind] for block in blocks if block["type"] == kind) for kind in ("thinking", "text")
        }
        calls = [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
        assert all("signature" in block for block in blocks if block["type"] == "thinking")
        self.talk.append({"role": "assistant", "content": blocks})
        return Read(said["thinking"], said["text"], calls, answer["stop_reason"])

    def ask(self, text: str) -> None:
        self.talk.append({"role": "user", "content": [{"type": "text", "text": text}]})

    def reply(self, results: Sequence[tuple[str, str]]) -> None:
        blocks = [{"tool_use_id": id, "type": "tool_result", "content": text, **self.cached} for id, text in results]
        self.talk.append({"role": "user", "content": blocks})


class SilentClaudeCode(ClaudeCode):
    """Claude Code as it runs usually."""

    display = "omitted"
    shows_reasoning = False

    def read(self, answer: dict[str, Any]) -> Read:
        read = super().read(answer)
        (block,) = (block for block in answer["content"] if block["type"] == "thinking")
        assert block["thinking"] == ""
        assert block["signature"] != ""
        return read


class Codex(Agent):
    """Codex 0.171.0, which sends reasoning back as items. It reads items when they are done."""

    path = "/v1/responses"
    ends = ("completed", "completed")

    def body(self) -> dict[str, Any]:
        system = [self._message("developer", text) for text in (SYSTEM, MORE)]
        tools = [{"type": "function", "strict": False, **tool} for tool in TOOLS]
        return {
            "model": "demo",
            "input": [*system, *self.talk],
            "tools": [*tools, {"type": "web_search", "external_web_access": True}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "...",
            "client_metadata": {"session_id": "..."},
        }

    @staticmethod
    def _message(role: str, text: str) -> dict[str, Any]:
        return {"type": "message", "id": "msg_1", "role": role, "content": [{"type": "input_text", "text": text}]}

    def whole(self, events: Events) -> dict[str, Any]:
        items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        last: dict[str, Any] = events[-1]["response"]
        assert last["output"] == items
        return last

    def read(self, answer: dict[str, Any]) -> Read:
        thought, text, calls = "", "", list[tuple[str, str, Any]]()
        for item in answer["output"]:
            if item["type"] == "function_call":
                calls.append((item["call_id"], item["name"], json.loads(item["arguments"])))
                self.talk.append(item)
                continue
            said = "".join(part["text"] for part in item["content"])
            if item["type"] == "reasoning":
                thought += said
                kept = {name: item[name] for name in ("type", "id", "summary", "content")}
                self.talk.append({**kept, "encrypted_content": None})
            else:
                text += said
                self.talk.append(item)
        return Read(thought, text, calls, answer["status"])

    def ask(self, text: str) -> None:
        self.talk.append(self._message("user", text))

    def reply(self, results: Sequence[tuple[str, str]]) -> None:
        self.talk += [
            {"type": "function_call_output", "id": "fco_1", "call_id": id, "output": text} for id, text in results
        ]


AGENTS: Mapping[str, Callable[[], Agent]] = {
    "opencode": ChatAgent,
    "Qwen Code": QwenCode,
    "Claude Code": ClaudeCode,
    "silent Claude Code": SilentClaudeCode,
    "Codex": Codex,
}
