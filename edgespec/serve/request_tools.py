"""Reads the tools of a chat request, and prepares the chat template, the constraint and the parsers for them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

from edgespec.dialects.calls import NAME, Schemas
from edgespec.dialects.dialect import Dialect
from edgespec.requests.bad_input import BadInputError, JsonObject, UnsupportedError, object_in, wrong
from edgespec.requests.fields import Fields
from edgespec.requests.known_fields import MOST_NOTES
from edgespec.runtime.prompts import SWITCH
from edgespec.serve.chat import Call
from edgespec.serve.served import Served
from edgespec.settings import Request, shown

MOST_TOOLS = 512
_TEMPLATE_OWN = {  # variables of the template that requests cannot set directly
    *("messages", "tools", "tool_choice", "functions", "function_call", "add_generation_prompt"),
    *("bos_token", "eos_token", "raise_exception", "strftime_now"),
}
_INPUT: dict[str, object] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    Attributes:
        functions: The functions that may be called, as OpenAI's objects.
        schemas: The parameters of each function, by name.
        must: If not empty, the answer has to call one of these functions.
        parallel: An answer may have several calls.
    """

    functions: tuple[JsonObject, ...] = ()
    schemas: Schemas | None = None
    must: tuple[str, ...] = ()
    parallel: bool = True


class _Function(TypedDict):
    name: str
    description: str
    parameters: dict[str, object]


class _Tool(TypedDict):
    type: Literal["function"]
    function: _Function


def take_tools(fields: Fields) -> Tools:
    """Read the tools of a request. Raises BadInputError."""
    given, choice = fields.take("tools", []), fields.take("tool_choice", "auto")
    parallel = fields.flag("parallel_tool_calls", True)
    if not isinstance(given, list) or len(given) > MOST_TOOLS:
        raise wrong("tools", f"be a list of at most {MOST_TOOLS}", given)
    functions = [
        tool
        for index, each in enumerate(given)
        if (tool := _function(f"tools[{index}]", each, fields.notes)) is not None
    ]
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in functions}
    if len(schemas) < len(functions):
        raise BadInputError("two tools have the same name", "tools")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice, functions = _allowed(Fields(choice, where="tool_choice").within("allowed_tools"), functions)
        schemas = {name: schemas[name] for name in (tool["function"]["name"] for tool in functions)}
    must = _must(choice, schemas)
    if choice == "none" or not functions:
        return Tools()
    return Tools(tuple(functions), schemas, must, parallel)


def _function(where: str, given: object, notes: list[str]) -> _Tool | None:
    """Return a tool as a function; None for a tool that a provider's own service would run."""
    fields = Fields(object_in(given), where=where)
    kind = fields.take("type", "function")
    if kind not in ("function", "custom"):
        if not isinstance(kind, str):
            raise wrong(f"{where}.type", "be a string", kind)
        notes.append(f"{where} is left out: tools of type {shown(kind)} do not exist here")
        return None
    function = fields.within(kind)
    name = function.take("name")
    if not isinstance(name, str) or not NAME.match(name):
        raise BadInputError(f"{where} must be a function with a name of letters, digits, - and _", where)
    description = function.text("description")
    parameters: dict[str, object] = {"type": "object", "properties": {}}
    if kind == "custom":
        description, parameters = _with_format(description, function.within("format")), _INPUT
    elif "parameters" in function:
        parameters = function.mapping("parameters")
    function.flag("strict")
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _with_format(description: str, format: Fields) -> str:
    """Return the description of a tool with a text as its input, with the grammar of the text if there is one."""
    grammar = format.within("grammar") if "grammar" in format else format
    definition = grammar.text("definition")
    if not definition:
        return description
    return f"{description}\n\nThe input is a text of this {grammar.text('syntax')} grammar:\n{definition}".lstrip()


def _allowed(given: Fields, functions: list[_Tool]) -> tuple[str, list[_Tool]]:
    """Return the choice among some of the tools, and these tools. Raises BadInputError."""
    mode = given.choice("mode", ("auto", "required"), "auto")
    tools = given.take("tools", [])
    objects = [*map(object_in, tools)] if isinstance(tools, list) else []
    names = [_name(Fields(each, where=f"tool_choice.allowed_tools.tools[{i}]")) for i, each in enumerate(objects)]
    chosen = [function for function in functions if function["function"]["name"] in names]
    if not chosen:
        raise BadInputError("tool_choice names none of the tools", "tool_choice")
    return mode, chosen


def _name(tool: Fields) -> object:
    """Return the name of an allowed tool as the model knows it. Raises BadInputError."""
    kind, group = tool.take("type"), tool.text("namespace")
    named = tool.within(kind) if kind in ("function", "custom") and kind in tool else tool
    name = named.take("name")
    return f"{group}.{name}" if group else name


def _must(choice: object, schemas: JsonObject) -> tuple[str, ...]:
    """Return the names of the functions of which one has to be called."""
    if choice in ("none", "auto"):
        return ()
    if choice == "required":
        if not schemas:
            raise BadInputError("there are no tools to call", "tool_choice")
        return tuple(schemas)
    fields = object_in(choice)
    kind = fields.get("type")
    name = object_in(fields.get(str(kind))).get("name") if kind in ("function", "custom") else None
    if not isinstance(name, str):
        raise wrong("tool_choice", "be none, auto, required or a function", choice)
    if name not in schemas:
        raise BadInputError(f"there is no tool {shown(name)}", "tool_choice")
    return (name,)


def refuses_reasoning(fields: Fields, dialect: Dialect) -> bool:
    """Return whether a request asks for an answer without reasoning."""
    given = fields.rest()
    values = {**given, **object_in(given.get("chat_template_kwargs"))}
    switch = values.get(SWITCH, values.get(dialect.switch))
    return switch is False or (switch is None and given.get("reasoning_effort") == "none")


def take_arguments(fields: Fields, template: str, dialect: Dialect) -> dict[str, object]:
    """Return the arguments for the chat template. Notes name those that have no effect. Raises BadInputError."""
    given = dict[str, object]()
    if effort := fields.text("reasoning_effort"):
        given[SWITCH] = effort != "none"
        given |= {"reasoning_effort": effort} if effort != "none" and "reasoning_effort" in template else {}
        if len(given) == 1 and not _has_effect(SWITCH, given[SWITCH], template, dialect):
            fields.notes.append("'reasoning_effort' has no effect: the chat template does not read it")
            given = {}
    if SWITCH in fields:
        given[SWITCH] = fields.take(SWITCH)
    arguments = fields.mapping("chat_template_kwargs")
    for name in arguments:
        if name in _TEMPLATE_OWN or not name.isidentifier():
            raise UnsupportedError("chat_template_kwargs", f"{shown(name)} is not for requests to set")
    given |= arguments
    unread = [name for name, value in given.items() if not _has_effect(name, value, template, dialect)]
    unread = [name for name in unread if name != SWITCH or not effort or SWITCH in arguments]
    fields.notes += [f"{shown(name)} has no effect: the chat template does not read it" for name in unread[:MOST_NOTES]]
    return {name: value for name, value in given.items() if name in template or (name == SWITCH and dialect.switch)}


def _has_effect(name: str, value: object, template: str, dialect: Dialect) -> bool:
    """Return whether an argument changes the prompt, or ends the reasoning at once."""
    return name in template or (
        name == SWITCH and (bool(dialect.switch) or (value is False and not dialect.is_assumed))
    )


def with_tools(request: Request, tools: Tools, arguments: JsonObject) -> Request:
    """Return a request that shows the tools to the model. Raises BadInputError."""
    if tools.must and request.constraint is not None:
        raise BadInputError(f"a tool that must be called and {request.constraint[0]} exclude each other", "tool_choice")
    given = dict(arguments)
    if tools.functions:
        given["tools"] = list(tools.functions)
    template = json.dumps(given, ensure_ascii=False) if given else ""
    return replace(request, template=template, must_call=tools.must, parallel_calls=tools.parallel)


def use_tools(call: Call, tools: Tools, model: Served, *, is_constrained: bool) -> None:
    """Prepare reading reasoning and calls. Calls are not looked for in answers with a constraint of the client."""
    if not call.requests[0].raw_marks:
        return
    if tools.schemas is not None and not is_constrained:
        call.schemas, call.most_calls = tools.schemas, None if tools.parallel else 1
    call.dialect = model.dialect(has_tools=bool(tools.functions))
    call.words, call.is_forced = model.mark_texts, bool(tools.must)
