"""What a chat request says of tools: into arguments of the chat template, a constraint, and parsers of the answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgespec.batch.known import MOST_NOTES
from edgespec.serve.chat import Call
from edgespec.serve.errors import BadFieldError, unsupported
from edgespec.serve.fields import Fields
from edgespec.serve.tools.described import described
from edgespec.serve.tools.formats import FORCED, format_of
from edgespec.serve.tools.parser import ToolParser
from edgespec.settings import Request, shown

MOST_TOOLS = 512
_NAME = re.compile(r"[\w.:/-]{1,128}\Z")
_TEMPLATE_OWN = {  # what the template gets from elsewhere
    *("messages", "tools", "tool_choice", "functions", "function_call", "add_generation_prompt"),
    *("bos_token", "eos_token", "raise_exception", "strftime_now"),
}


@dataclass(frozen=True, slots=True)
class Tools:
    """The `functions` that may be called as OpenAI's objects, and the parameters of each by name. `must`: one of those
    has to be called; no others can. `parallel`: an answer may have several calls."""

    functions: tuple[Mapping[str, Any], ...] = ()
    schemas: Mapping[str, Any] | None = None
    must: tuple[str, ...] = ()
    parallel: bool = True


def take_tools(fields: Fields) -> Tools:
    """Raises BadFieldError."""
    for name in ("functions", "function_call"):
        if fields.take(name, "none") not in ("none", "auto", []):
            raise unsupported(name, "use tools and tool_choice")
    given, choice = fields.take("tools", []), fields.take("tool_choice", "auto")
    parallel = fields.flag("parallel_tool_calls", True)
    if not isinstance(given, list) or len(given) > MOST_TOOLS:
        raise BadFieldError("tools", f"tools must be a list of at most {MOST_TOOLS}, not {shown(given)}")
    functions = [_function(f"tools[{index}]", tool) for index, tool in enumerate(given)]
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in functions}
    if len(schemas) < len(functions):
        raise BadFieldError("tools", "two tools have the same name")
    must = _must(choice, schemas)
    if choice == "none" or not functions:
        return Tools()
    return Tools(tuple(functions), schemas, must, parallel)


def _function(where: str, given: Any) -> dict[str, Any]:
    kind = given.get("type", "function") if isinstance(given, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise unsupported(where, f"tools of type {shown(kind)} cannot be called, only functions")
    function = given.get("function") if isinstance(given, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not _NAME.match(name):
        raise BadFieldError(where, f"{where} must be a function with a name of letters, digits, - and _")
    assert isinstance(function, dict)
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise BadFieldError(f"{where}.function.parameters", f"parameters of {name} must be a schema")
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise BadFieldError(f"{where}.function.description", f"description of {name} must be a string")
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _must(choice: Any, schemas: Mapping[str, Any]) -> tuple[str, ...]:
    if choice in ("none", "auto"):
        return ()
    named = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = named.get("name") if isinstance(named, dict) else None
    if choice != "required" and not isinstance(name, str):
        raise BadFieldError(
            "tool_choice", f"tool_choice must be none, auto, required or a function, not {shown(choice)}"
        )
    names = tuple(schemas) if choice == "required" else (str(name),)
    if not names or not set(names) <= set(schemas):
        raise BadFieldError("tool_choice", f"there is no tool {shown(name)}" if name else "there are no tools to call")
    return names


def take_arguments(fields: Fields, template: str) -> dict[str, Any]:
    """Arguments for the chat template; those that it does not read are noted. Raises BadFieldError."""
    given: dict[str, Any] = {}
    effort = fields.text("reasoning_effort")
    if effort == "none":
        given["enable_thinking"] = False
    elif effort:
        given["reasoning_effort"] = effort
    if "enable_thinking" in fields:
        given["enable_thinking"] = fields.take("enable_thinking")
    arguments = fields.mapping("chat_template_kwargs")
    for name in arguments:
        if name in _TEMPLATE_OWN or not name.isidentifier():
            raise unsupported("chat_template_kwargs", f"{shown(name)} is not for requests to set")
    given |= arguments
    unread = [name for name in given if name not in template]
    fields.notes += [f"{shown(name)} has no effect: the chat template does not read it" for name in unread[:MOST_NOTES]]
    return {name: value for name, value in given.items() if name not in unread}


def with_tools(request: Request, tools: Tools, arguments: Mapping[str, Any], template: str) -> Request:
    """A request whose model knows of the tools, and is held to calling one if it must. Raises BadFieldError."""
    if tools.must and request.constraint is not None:
        raise BadFieldError("tool_choice", f"a tool that must be called and {request.constraint[0]} exclude each other")
    given = dict(arguments)
    if "tools" not in template:
        request = replace(request, messages=described(request.messages, tools.functions))
    elif tools.functions:
        given["tools"] = list(tools.functions)
    schema = json.dumps(_call_schema(tools)) if tools.must else request.json_schema
    return replace(request, template=json.dumps(given, ensure_ascii=False) if given else "", json_schema=schema)


def use_tools(call: Call, tools: Tools, template: str, control_ids: Mapping[str, int]) -> None:
    """Let the calls in the answers be found."""
    if tools.schemas is None or (call.requests[0].constraint is not None and not tools.must):
        return
    format = FORCED if tools.must else format_of(template)
    if tools.must and format_of(template).short_ids:
        format = replace(format, short_ids=True)
    most = None if tools.parallel else 1
    call.tools = [ToolParser(format, tools.schemas, most) for _ in call.requests]
    call.words = {control_ids[word]: word for word in format.words if word in control_ids}


def _call_schema(tools: Tools) -> dict[str, Any]:
    assert tools.schemas is not None
    calls = []
    for index, name in enumerate(tools.must):
        path = f"#/anyOf/{index}/properties/arguments"
        arguments = {"type": "object", **_moved(tools.schemas[name], path)}
        properties = {"name": {"const": name}, "arguments": arguments}
        calls.append(
            {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
        )
    return {"anyOf": calls}


def _moved(schema: Any, path: str) -> Any:
    """A schema that is now at `path` of another one, and its references with it."""
    if isinstance(schema, list):
        return [_moved(part, path) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(part, path) for key, part in schema.items() if key not in ("$schema", "$id")}
    reference = moved.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = path + reference[1:]
    return moved
