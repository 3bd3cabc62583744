"""What formats have in common whose answers are blocks: of reasoning, text and tool calls, with events for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from edgespec.serve.chat import Call, End, Piece, ToolDelta, timings
from edgespec.serve.errors import BadFieldError, unsupported
from edgespec.serve.fields import Fields
from edgespec.settings import shown

Event = dict[str, Any]
Events = Iterator[Event]


def take_functions(
    fields: Fields, kinds: Collection[Any], function: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """`tools` as those of a chat, if there are any; `kinds` are the types that may be called, None where none is given.
    Raises BadFieldError."""
    tools = fields.take("tools", [])
    if not isinstance(tools, list):
        raise BadFieldError("tools", f"tools must be a list, not {shown(tools)}")
    made = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise BadFieldError(where, f"{where} must be an object, not {shown(tool)}")
        if tool.get("type") not in kinds:
            raise unsupported(where, f"tools of type {shown(tool.get('type'))} are not here")
        made.append({"type": "function", "function": function(tool)})
    return {"tools": made} if made else {}


class BlockObject(ABC):
    """The answer to a call as the object of a format, whole or in events. `object` is what is known of it."""

    def __init__(self, call: Call, object: dict[str, Any]) -> None:
        self._call, self.object = call, object
        self._blocks: list[dict[str, Any]] = []
        self._is_open = False  # whether the last block is not at its end

    async def whole(self, pieces: AsyncIterator[Piece]) -> dict[str, Any]:
        """The object at its end."""
        async for piece in pieces:
            for _ in self._events(piece):
                pass
        return self.object

    async def events(self, pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Event, None]:
        """The events of a stream; closing this closes `pieces`."""
        async with aclosing(pieces):
            is_new = True
            async for piece in pieces:
                if is_new:
                    is_new = False
                    for event in self._first():
                        yield event
                for event in self._events(piece):
                    yield event

    def _events(self, piece: Piece) -> Events:
        if piece.reasoning:
            yield from self._reasoning(piece.reasoning)
        if piece.text:
            yield from self._text(piece.text)
        if piece.tool is not None:
            yield from self._tool(piece.tool)
            yield from self._close()
        if piece.end is not None:
            yield from self._close()
            self.object = self.object | self._ended(piece.end)
            self.object |= {"timings": timings(piece.end.stats), "seed": self._call.requests[0].seed}
            yield from self._last(piece.end)

    @property
    def _number(self) -> int:
        """Of the last block."""
        return len(self._blocks) - 1

    @abstractmethod
    def _first(self) -> Events: ...

    @abstractmethod
    def _reasoning(self, text: str) -> Events: ...

    @abstractmethod
    def _text(self, text: str) -> Events: ...

    @abstractmethod
    def _tool(self, tool: ToolDelta) -> Events:
        """A whole call, whose block is left open."""

    @abstractmethod
    def _close(self) -> Events:
        """The end of the last block, if that is open."""

    @abstractmethod
    def _ended(self, end: End) -> dict[str, Any]:
        """The fields of the object that its end settles."""

    @abstractmethod
    def _last(self, end: End) -> Events: ...
