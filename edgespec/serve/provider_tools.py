"""Tools of other formats as those of chats: functions, tools whose input is a text, and groups of both.

Tools that the service of a provider would run are passed on with their type alone; `request_tools.py` leaves them out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from edgespec.dialects.calls import AnyCall, CallPiece
from edgespec.requests.bad_input import JsonObject, wrong
from edgespec.requests.fields import Fields

Tool = dict[str, object]


def take_functions(fields: Fields, kinds: Collection[object], parameters: str) -> dict[str, object]:
    """Take `tools`, and return them as those of a chat. Raises BadInputError.

    `kinds` are the types of functions; None is for tools without a type. `parameters` is the name of the field with the
    schema. A function of a group has the name of the group before its own.
    """
    tools = fields.take("tools", [])
    if not isinstance(tools, list):
        raise wrong("tools", "be a list", tools)
    made, later = list[Tool](), list[Tool]()  # a tool keeps its place, which errors name
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise wrong(f"tools[{index}]", "be an object", tool)
        inner = tool.get("tools")
        if tool.get("type") != "namespace" or not isinstance(inner, list):
            made.append(_as_chats(tool, kinds, parameters))
            continue
        group = [_as_chats(each, kinds, parameters, tool.get("name")) for each in inner if isinstance(each, dict)]
        made += group[:1] or [{"type": "namespace"}]
        later += group[1:]
    return {"tools": made + later} if made else {}


def _as_chats(tool: JsonObject, kinds: Collection[object], parameters: str, group: object = None) -> Tool:
    kind = tool.get("type")
    if kind not in kinds and kind != "custom":
        return {"type": kind}
    name = f"{group}.{tool.get('name')}" if group else tool.get("name")
    function = {"name": name, "description": tool.get("description")}
    if kind not in kinds:
        return {"type": "custom", "custom": function | {"format": tool.get("format")}}
    return {
        "type": "function",
        "function": function | {"strict": tool.get("strict"), "parameters": tool.get(parameters)},
    }


# --- what clients call them -------------------------------------------------------------------------------------------


class ClientTools:
    """The tools of a request by the names that the model knows, for answers in the client's terms."""

    def __init__(self, body: JsonObject) -> None:
        self._customs: set[str] = set()
        self._groups: dict[str, tuple[str, str]] = {}
        for group, tool in _each(body.get("tools")):
            name = str(tool.get("name") or Fields(tool).mapping("custom").get("name"))
            if group:
                self._groups[f"{group}.{name}"] = (group, name)
                name = f"{group}.{name}"
            if tool.get("type") == "custom":
                self._customs.add(name)

    def named(self, call: CallPiece | AnyCall) -> dict[str, str]:
        """Return the name of a tool, with its group if it has one."""
        group, name = self._groups.get(call.name, ("", call.name))
        return {"name": name} | ({"namespace": group} if group else {})

    def is_custom(self, call: CallPiece | AnyCall) -> bool:
        """Return whether the input of a tool is a text."""
        return call.name in self._customs

    def input_of(self, call: AnyCall) -> str:
        """Return the text for a tool whose input is a text."""
        given = json.loads(call.arguments).get("input")
        return given if isinstance(given, str) else call.arguments


def _each(tools: object) -> Iterator[tuple[str, JsonObject]]:
    """Yield each tool with the name of its group."""
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and tool.get("type") == "namespace":
            yield from ((str(tool.get("name") or ""), each) for _, each in _each(tool.get("tools")))
        elif isinstance(tool, dict):
            yield "", tool
