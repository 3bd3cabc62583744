"""The base of formats whose answers are lists of blocks: reasoning, text and tool calls, with events for each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from typing import Any

from edgespec.batch.bad_input import UnsupportedError, wrong
from edgespec.batch.fields import Fields
from edgespec.serve.chat import Call, End, Piece, Writer, timings
from edgespec.serve.tools.formats import ToolCall
from edgespec.settings import shown

Event = dict[str, Any]
Events = Iterator[Event]


def take_functions(fields: Fields, kinds: Collection[Any], parameters: str) -> dict[str, Any]:
    """Take `tools`, and return them as those of a chat. Raises BadInputError.

    `kinds` are the types of tools that can be called; None stands for a missing type. `parameters` is the name of the
    field with the schema.
    """
    tools = fields.take("tools", [])
    if not isinstance(tools, list):
        raise wrong("tools", "be a list", tools)
    made = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise wrong(where, "be an object", tool)
        if tool.get("type") not in kinds:
            raise UnsupportedError(where, f"tools of type {shown(tool.get('type'))} do not exist here")
        function = {name: tool.get(name) for name in ("name", "description", "strict")}
        made.append({"type": "function", "function": function | {"parameters": tool.get(parameters)}})
    return {"tools": made} if made else {}


class BlockObject(Writer):
    """Writes the answer to a call as the object of a format, whole or as events. `object` is the object so far."""

    def __init__(self, call: Call, object: dict[str, Any]) -> None:
        super().__init__(call)
        self.object = object
        self._blocks: list[dict[str, Any]] = []
        self._has_begun = False
        self._is_open = False  # True while the last block may grow

    def take(self, piece: Piece) -> None:
        for _ in self.chunks(piece):
            pass

    def whole(self) -> dict[str, Any]:
        return self.object

    def chunks(self, piece: Piece) -> Events:
        if not self._has_begun:
            self._has_begun = True
            yield from self._first()
        if piece.reasoning:
            yield from self._reasoning(piece.reasoning)
        if piece.text:
            yield from self._text(piece.text)
        if piece.tool is not None:
            yield from self._tool(piece.tool)
            yield from self._close()
        if piece.end is not None:
            yield from self._close(piece.end)
            self.object = self.object | self._ended(piece.end)
            self.object |= {"timings": timings(piece.end.stats), "seed": self.call.requests[0].seed}
            yield from self._last(piece.end)

    @property
    def _number(self) -> int:
        """The number of the last block."""
        return len(self._blocks) - 1

    @abstractmethod
    def _first(self) -> Events: ...

    @abstractmethod
    def _reasoning(self, text: str) -> Events: ...

    @abstractmethod
    def _text(self, text: str) -> Events: ...

    @abstractmethod
    def _tool(self, tool: ToolCall) -> Events:
        """Write a whole call, and leave its block open."""

    @abstractmethod
    def _close(self, end: End | None = None) -> Events:
        """End the last block if it is open; `end` is that of the answer, if it ends with the block."""

    @abstractmethod
    def _ended(self, end: End) -> dict[str, Any]:
        """Return the fields that are known at the end of the answer."""

    @abstractmethod
    def _last(self, end: End) -> Events: ...
