"""Grammars of calls in the form of a dialect, for answers that have to call a tool."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgespec.dialects.calls import Schemas
from edgespec.dialects.dialect import Calls, Dialect
from edgespec.dialects.parameters import is_text, listed_values
from edgespec.llama.constraint import JSON_LAYOUT

PARAMETER = re.compile(r'[^<>\s"/][^<>\s"]*')  # names of parameters that are found between marks
LONGEST = 4096  # characters of a text whose length is limited: a longer limit would take too many states
_HEAD = "%llguidance {}"
_BLANKS = 'ws: | "\\n" | " "'


def call_grammar(dialect: Dialect, schemas: Schemas, tokens: Mapping[int, str]) -> str:
    """Return the grammar of a call of one of these tools, in llguidance's dialect of Lark; "" for a form that no
    grammar describes. `tokens` are the texts of control tokens, by their ids."""
    calls = dialect.calls
    if calls is None or calls.form not in _FORMS or not _is_marked(dialect, calls):
        return ""
    if calls.form == "tagged" and not all(map(_has_plain_names, schemas.values())):
        return ""
    return _Writer(tokens).grammar(dialect, calls, schemas)


def _is_marked(dialect: Dialect, calls: Calls) -> bool:
    return dialect.messages is not None or bool(calls.section[0] or calls.call[0])


def _has_plain_names(schema: Any) -> bool:
    """Return whether the parameters of a tool can be written between marks, and found there."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False  # no JSON Schema; errors say so
    return all(PARAMETER.fullmatch(name) for name in properties)


class _Writer:
    """Writes the rules of a grammar."""

    def __init__(self, tokens: Mapping[int, str]) -> None:
        self._ids = {text: id for id, text in tokens.items()}
        texts = sorted(self._ids, key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._rules: list[str] = []

    def grammar(self, dialect: Dialect, calls: Calls, schemas: Schemas) -> str:
        bodies = [self._rule(self._tool(dialect, calls, name, schema)) for name, schema in schemas.items()]
        return "\n".join([_HEAD, f"start: {' | '.join(bodies)}", *self._rules, _BLANKS, ""])

    def _tool(self, dialect: Dialect, calls: Calls, name: str, schema: Mapping[str, Any]) -> str:
        """Return a call of one tool."""
        if (form := dialect.messages) is not None:
            header = self._text(form.call.format(name) + form.header_end)
            is_json = calls.form == "json"
            body = _json({"type": "object", **schema}) if is_json else self._call(calls, name, schema)
            return f"{header} {body}"
        return self._call(calls, name, schema)

    def _call(self, calls: Calls, name: str, schema: Mapping[str, Any]) -> str:
        """Return a call with the marks around it."""
        body = _FORMS[calls.form](self, calls, name, schema)
        marks = [self._marks(mark) for mark in (calls.section[0], calls.call[0], calls.call[1], calls.section[1])]
        return " ".join(filter(None, [*marks[:2], body, *marks[2:]]))

    def _object(self, calls: Calls, name: str, schema: Mapping[str, Any]) -> str:
        """Return a call as an object of JSON."""
        name_key, key, _ = calls.keys
        path = f"#/properties/{_step(calls.wrapper)}" if calls.wrapper else "#"
        arguments = {"type": "object", **_moved(schema, f"{path}/properties/{_step(key if name_key else name)}")}
        value = _of({name_key: {"const": name}, key: arguments} if name_key else {name: arguments})
        return f"ws {_json(_of({calls.wrapper: value}) if calls.wrapper else value)} ws"

    def _named(self, calls: Calls, name: str, schema: Mapping[str, Any]) -> str:
        """Return a call as a name and the arguments in JSON."""
        before, after = map(self._text, calls.name)
        arguments = _json({"type": "object", **schema})
        return " ".join(filter(None, [before, _quoted(name), after, "ws", arguments, "ws"]))

    def _tagged(self, calls: Calls, name: str, schema: Mapping[str, Any]) -> str:
        """Return a call as a name and arguments between marks, in the order of the schema. If line breaks may separate
        marks and values, they do so for all values of a call, or for none."""
        required, properties = schema.get("required") or (), schema.get("properties") or {}
        layouts = list[str]()
        for line in ("", "\n") if calls.has_lines else ("",):
            parts = [self._text(calls.name[0] + name + calls.name[1]), "ws"]
            for key, part in properties.items():
                described = part if isinstance(part, dict) else {}
                argument = self._rule(f"{self._argument(calls, key, described, schema, line)} ws")
                parts.append(argument if key in required else f"({argument})?")
            layouts.append(" ".join(parts))
        return self._rule(" | ".join(layouts))

    def _argument(self, calls: Calls, key: str, schema: Mapping[str, Any], whole: Mapping[str, Any], line: str) -> str:
        """Return an argument with `line` before and after its value."""
        begin = [self._text(calls.key[0] + key + calls.key[1]), self._text(calls.value[0] + line)]
        end = line + calls.value[1].replace("{name}", key)
        if not is_text(schema, whole):
            path = "#/$defs/whole"
            definitions = {"$defs": {"whole": _moved(whole, path)}} if '"$ref"' in json.dumps(schema) else {}
            value = [_json({**(_moved(schema, path) if definitions else schema), **definitions}), self._text(end)]
        elif texts := [value for value in listed_values(schema, whole) if isinstance(value, str)]:
            value = [f"({' | '.join(map(self._text, texts))})", self._text(end)]
        else:
            value = [self._free(end, schema.get("maxLength"), excludes_line=calls.has_lines and not line)]
        return " ".join(filter(None, [*begin, *value]))

    def _free(self, end: str, most: Any, *, excludes_line: bool) -> str:
        """Return any text up to a mark, with the mark; `most` is the most characters, if there is a limit. With
        `excludes_line`, the text does not begin with a line break, after which it would have a line of its own."""
        length = f"{{0,{most - 1}}}" if isinstance(most, int) and 0 < most < LONGEST else "*"
        text = f"(.|\\n){length}"
        if excludes_line:
            text = f"([^\\n]{text})?"
        if found := self._tokens.search(end):
            line, rest = end[: found.start()], end[found.start() :]
            return f"{self._rule(f'/{text}{_escaped(line)}/')} {self._text(rest)}"
        return self._rule(f"/{text}{_escaped(end)}/", "[lazy]")

    def _rule(self, body: str, how: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{how}: {body}")
        return name

    def _marks(self, marks: str) -> str:
        """Return marks, between which there may be blanks."""
        return " ws ".join(self._text(part) for part in marks.split("\n") if part)

    def _text(self, text: str) -> str:
        """Return a text, in which control tokens are written by their ids."""
        parts, start = list[str](), 0
        for found in self._tokens.finditer(text):
            parts += [_quoted(text[start : found.start()]), f"<[{self._ids[found[0]]}]>"]
            start = found.end()
        return " ".join(filter(None, [*parts, _quoted(text[start:])]))


_FORMS = {"json": _Writer._object, "named": _Writer._named, "tagged": _Writer._tagged}


def _escaped(text: str) -> str:
    """Return a text as a part of a regular expression."""
    return re.escape(text).replace("/", "\\/").replace("\\\n", "\\n")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_LAYOUT}, ensure_ascii=False)}"


def _step(name: str) -> str:
    """Return a name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _of(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(fields), "required": [*fields], "additionalProperties": False}


def bare_schema(schemas: Schemas) -> str:
    """Return the JSON schema of a call of one of these tools without marks."""
    calls, references = {}, {}
    for name, schema in schemas.items():
        step = _step(name)
        properties: dict[str, Any] = {"name": {"const": name}}
        properties["arguments"] = {"type": "object", **_moved(schema, f"#/$defs/{step}/properties/arguments")}
        calls[name], references[name] = _of(properties), {"$ref": f"#/$defs/{step}"}
    return json.dumps({"anyOf": [*references.values()], "$defs": calls}, ensure_ascii=False)


def _moved(schema: Any, path: str) -> Any:
    """Return a schema with its references adjusted for its new place `path` in another schema."""
    if isinstance(schema, list):
        return [_moved(part, path) for part in schema]
    if not isinstance(schema, dict):
        return schema
    named = ("$schema", "$id")  # or properties with these names
    moved = {k: _moved(part, path) for k, part in schema.items() if k not in named or not isinstance(part, str)}
    reference = moved.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = path + reference[1:]
    return moved
