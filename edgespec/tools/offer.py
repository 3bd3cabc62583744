"""The tools for a model: arguments of its chat template, how its calls are found, and how results are sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from edgespec.dialects.calls import CutCall, Format, Read, Schemas, ToolCall, ToolParser
from edgespec.dialects.dialect import HERMES
from edgespec.dialects.forms import format_of
from edgespec.dialects.templates import dialect_of
from edgespec.errors import UsageError
from edgespec.events import TokenEvent
from edgespec.gguf_file.chat_templates import chat_templates
from edgespec.gguf_file.header import read_header
from edgespec.llm.model import Model
from edgespec.settings import Message, Request
from edgespec.text.thinking import CLOSE, OPEN, ThinkingStream, without_thinking
from edgespec.tools.results import ToolResult
from edgespec.tools.toolbox import Toolbox

MOST_CALLS = 16  # of one answer
MOST_ROUNDS = 16  # answers with calls, for one message of the user
LEAST_TOKENS = 64  # of a result, however full the context is
NO_TOOLS = "the chat template of this model has no tools: it answers without them"
_PROBE = {
    "type": "function",
    "function": {"name": "probe", "description": "", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, slots=True)
class Style:
    """How a model calls tools.

    Attributes:
        format: The format of its calls.
        keeps_text: An answer may be sent again as it was generated, so that the KV cache holds it. Otherwise the
            template writes something else around its calls, or rejects it.
        takes_calls: The template writes calls itself.
    """

    format: Format
    keeps_text: bool = True
    takes_calls: bool = True


def style_of(model: Model) -> Style | None:
    """Return how a model of this machine calls tools; None if its chat template does not know tools."""
    header, settings = read_header(model.info.model), model.settings
    template = chat_templates(header, settings.chat_template, settings.chat_template_file).of(has_tools=True)
    if "tools" not in template:
        return None
    dialect = dialect_of(template)
    # Answers of several messages have their calls in Hermes' form (`PlainText`).
    format = format_of(dialect.calls if dialect.calls and dialect.messages is None else HERMES)
    result, text = ToolResult("server/probe", "{}", "ok", "y"), "xyzzy"

    def shown(*messages: Message) -> str:
        asked = (Message("user", "a"), *messages)
        with suppress(UsageError):
            return "".join(model.render(Request(messages=asked, template=arguments([_PROBE]))).split())
        return ""

    answer = Message("assistant", "", extra=_with_calls([result], 0))
    as_calls, as_text = shown(answer, replied(result, 0)), shown(Message("assistant", text), replied(result, 0))
    if not as_calls and not as_text:
        return None
    before, _, after = as_text.partition(text)
    keeps_text = bool(as_text) and before == shown() and as_calls.endswith(after)
    return Style(format, keeps_text=keeps_text, takes_calls=bool(as_calls))


def arguments(functions: Sequence[Mapping[str, object]]) -> str:
    """Return functions as the arguments of a chat template."""
    return json.dumps({"tools": list(functions)}, ensure_ascii=False) if functions else ""


def called(answer: Message, text: str, results: Sequence[ToolResult], style: Style, number: int = 0) -> Message:
    """Return an answer with calls as it is sent again; `text` is the part of it without the calls, and `number` counts
    the calls before them."""
    if not results or not style.takes_calls or (style.keeps_text and answer.tokens):
        return answer
    return Message("assistant", text, extra=_with_calls(results, number))


def _with_calls(results: Sequence[ToolResult], number: int) -> str:
    """Return the calls of these results as fields of a message."""
    calls = [
        {"id": _call_id(number), "type": "function", "function": result.function}
        for number, result in enumerate(results, number)
    ]
    return json.dumps({"tool_calls": calls}, ensure_ascii=False)


def replied(result: ToolResult, number: int) -> Message:
    """Return the result of call `number` of a chat as a message for the model."""
    extra = {"tool_call_id": _call_id(number), "name": result.function["name"]}
    return Message("tool", result.told, extra=json.dumps(extra, ensure_ascii=False))


def _call_id(number: int) -> str:
    return f"call{number:05}"  # some templates want nine letters and digits


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that a model gets for an answer."""

    style: Style
    schemas: Schemas
    template: str

    @classmethod
    def of(cls, style: Style, toolbox: Toolbox) -> ToolOffer:
        return cls(style, toolbox.schemas, arguments(toolbox.functions))

    def calls(self, content: str) -> list[ToolCall]:
        """Return the calls of a whole answer; their spans are those in `content`."""
        answer = without_thinking(content)
        start = len(content) - len(answer)
        parser = ToolParser(self.style.format, self.schemas)
        calls = [part for part in [*parser.feed(answer), *parser.end()] if isinstance(part, ToolCall)]
        return [_moved(call, start) for call in calls]


def _moved(call: ToolCall, by: int) -> ToolCall:
    start, end = call.span
    return ToolCall(call.name, call.arguments, call.number, call.id, (start + by, end + by))


def budget(context_size: int, used: int) -> int:
    """Return the most tokens of a result: a quarter of the context, or what an answer leaves of it."""
    quarter = context_size // 4
    return max(LEAST_TOKENS, min(quarter, context_size - quarter - used))


class Shown:
    """The events of an answer as a user sees them, without its calls; `begun` is the part that is there already.
    Without an offer the events stay as they are."""

    def __init__(self, offer: ToolOffer | None, begun: str = "") -> None:
        self._filter = TextFilter(offer) if offer else None
        if self._filter:
            self._filter.push(begun)

    def push(self, event: TokenEvent) -> TokenEvent:
        """Return the event with the text that can be shown by now."""
        return replace(event, text=self._filter.push(event.text)) if self._filter else event

    def end(self) -> list[TokenEvent]:
        """Return the rest of the text at the end of the answer."""
        rest = self._filter.end() if self._filter else ""
        return [TokenEvent(-1, rest)] if rest else []


class TextFilter:
    """Leaves the calls out of an answer that arrives in pieces; its reasoning stays as it is."""

    def __init__(self, offer: ToolOffer) -> None:
        self._thinking = ThinkingStream()
        self._parser = ToolParser(offer.style.format, offer.schemas)
        self._is_thinking = False

    def push(self, text: str) -> str:
        """Take more text; return what can be shown by now."""
        shown = ""
        for kind, part in self._thinking.push(text):
            if kind == "thinking":
                shown += part if self._is_thinking else OPEN + part
                self._is_thinking = True
            else:
                shown += (CLOSE if self._is_thinking else "") + self._said(self._parser.feed(part))
                self._is_thinking = False
        return shown

    def end(self) -> str:
        """Return the rest at the end of the answer."""
        rest = "".join(part for _, part in self._thinking.end())
        return rest if self._is_thinking else self._said([*self._parser.feed(rest), *self._parser.end()])

    def _said(self, parts: Sequence[Read]) -> str:
        """Return the text of an answer. A call that is cut off cannot be run: it is text."""
        return "".join(
            part.text if isinstance(part, CutCall) else part for part in parts if isinstance(part, str | CutCall)
        )
