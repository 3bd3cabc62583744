"""Grammars of calls in the form of a dialect, for answers that have to call a tool or have begun to."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping

from edgespec.dialects.calls import Schemas
from edgespec.dialects.dialect import Calls, Dialect
from edgespec.dialects.literals import QUOTE
from edgespec.dialects.parameters import is_text, kinds_of, listed_values, properties_in
from edgespec.llama.constraint import JSON_LAYOUT

LONGEST = 4096  # characters of a text whose length is limited: a longer limit would take too many states
DEEPEST = 8  # objects in each other that are written by their schemas
_NAMES = {  # of parameters that are found there
    "tagged": re.compile(r'[^<>\s"/][^<>\s"]*'),
    "python": re.compile(r"[^\W\d]\w*"),
    "gemma": re.compile(r"[\w.\-]+"),
}
_TOOL_NAMES = {"python": re.compile(r"[\w.\-]+")}
_TYPES = ("array", "boolean", "null", "number", "object")
_WORDS = {"boolean", "integer", "null", "number"}  # types whose values are the same in all notations
_VARIED = re.compile(r'(?<=index=")1(?=")|(?<=type=")string(?=")|(?<=string=")true(?=")')
_LAYOUT = {**JSON_LAYOUT, "item_separator": ", ?", "key_separator": ": ?"}  # many models write no blanks
_HEAD = "%llguidance {}"
_BLANKS = 'ws: | "\\n" | " "'
_GEMMA = [
    r"gemma_number: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/",
    'gemma_list: "[" (gemma_value ("," gemma_value)*)? "]"',
    'gemma_object: "{" (gemma_member ("," gemma_member)*)? "}"',
    'gemma_member: /[A-Za-z_][A-Za-z0-9_.\\-]*/ ":" gemma_value',
    'gemma_value: gemma_text | gemma_number | "true" | "false" | "null" | gemma_list | gemma_object',
]


def call_grammar(dialect: Dialect, schemas: Schemas, tokens: Mapping[int, str], *, several: bool = False) -> str:
    """Return the grammar of a call of one of these tools, in llguidance's dialect of Lark; "" for a form that no
    grammar describes. `tokens` are the texts of special tokens, by their ids. With `several`, there may be more than
    one call between the marks around all calls."""
    calls = dialect.calls
    if calls is None or not (_is_marked(dialect, calls) or calls.form == "json"):
        return ""
    if not all(isinstance(schema, dict) and _is_written(calls, name, schema) for name, schema in schemas.items()):
        return ""
    return _Writer(tokens).grammar(dialect, calls, schemas, several=several)


def _is_marked(dialect: Dialect, calls: Calls) -> bool:
    return dialect.messages is not None or bool(calls.section[0] or calls.call[0])


def _is_written(calls: Calls, name: str, schema: Mapping[str, object]) -> bool:
    """Return whether the names of a tool and of its parameters can be written in a form, and found there."""
    if calls.form not in _NAMES:
        return True
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False  # no JSON Schema; errors say so
    more = schema.get("additionalProperties", "properties" not in schema and bool(schema))
    is_open = more is not False or any(keyword in schema for keyword in ("$ref", "anyOf", "oneOf", "allOf"))
    if is_open or not {*required} <= {*properties}:
        return False  # it takes arguments without a known name
    is_named = calls.form not in _TOOL_NAMES or _TOOL_NAMES[calls.form].fullmatch(name)
    return bool(is_named) and all(_NAMES[calls.form].fullmatch(each) for each in properties)


class _Writer:
    """Writes the rules of a grammar."""

    def __init__(self, tokens: Mapping[int, str]) -> None:
        self._ids = {text: id for id, text in tokens.items()}
        texts = sorted(self._ids, key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._rules: list[str] = []

    def grammar(self, dialect: Dialect, calls: Calls, schemas: Schemas, *, several: bool) -> str:
        bodies = [self._rule(self._tool(dialect, calls, name, schema)) for name, schema in schemas.items()]
        start = " | ".join(bodies)
        if dialect.messages is None:
            start = self._section(calls, self._rule(start), several=several)
        if calls.form == "gemma":
            self._rules += [*_GEMMA, f"gemma_text: {self._gemma_text({})}"]
        return "\n".join([_HEAD, f"start: {start}", *self._rules, _BLANKS, ""])

    def _section(self, calls: Calls, call: str, *, several: bool) -> str:
        """Return calls with the marks around all of them."""
        begin, end = map(self._marks, calls.section)
        if calls.form == "json" and begin and not calls.call[0]:
            more = f'("," {call})*' if several else ""
            call = f'({call} | ws "[" {call} {more} "]" ws)'
        elif several and begin:
            between = self._text("," if calls.form == "python" else calls.between.strip())
            call = f"{call} ({f'ws {between} ws' if between else 'ws'} {call})*"
        return " ".join(filter(None, [begin, call, end]))

    def _tool(self, dialect: Dialect, calls: Calls, name: str, schema: Mapping[str, object]) -> str:
        """Return a call of one tool."""
        if (form := dialect.messages) is not None:
            header = self._text(form.call.format(name) + form.header_end)
            if calls.form == "json":
                return f"{header} {_json({'type': 'object', **schema})}"
            return f"{header} {self._section(calls, self._call(calls, name, schema), several=False)}"
        return self._call(calls, name, schema)

    def _call(self, calls: Calls, name: str, schema: Mapping[str, object]) -> str:
        """Return a call with the marks around it."""
        body = _FORMS[calls.form](self, calls, name, schema)
        begin, end = map(self._marks, calls.call)
        return " ".join(filter(None, [begin, body, end]))

    def _object(self, calls: Calls, name: str, schema: Mapping[str, object]) -> str:
        """Return a call as an object of JSON."""
        name_key, key, id_key = calls.keys
        path = f"#/properties/{_step(calls.wrapper)}" if calls.wrapper else "#"
        arguments = {"type": "object", **_moved(schema, f"{path}/properties/{_step(key if name_key else name)}")}
        fields: dict[str, object] = {name_key: {"const": name}, key: arguments} if name_key else {name: arguments}
        value = _of(fields)
        if id_key and not calls.wrapper:
            value["properties"] = fields | {id_key: {"type": "string", "pattern": f"^{_id(calls)}$"}}
        return f"ws {_json(_of({calls.wrapper: value}) if calls.wrapper else value)} ws"

    def _named(self, calls: Calls, name: str, schema: Mapping[str, object]) -> str:
        """Return a call as a name and the arguments in JSON."""
        before, after = map(self._text, calls.name)
        said = _quoted(name)
        if calls.ids:
            begin, end = calls.ids.replace("{name}", name).split("{number}")
            said = " ".join(filter(None, [_quoted(begin), "/[0-9]{1,3}/", _quoted(end)]))
        id = f"{self._text(calls.id[0])} /{_id(calls)}/ {self._text(calls.id[1])}" if calls.id[0] else ""
        arguments = _json({"type": "object", **schema})
        return " ".join(filter(None, [before, said, id, after, "ws", arguments, "ws"]))

    def _tagged(self, calls: Calls, name: str, schema: Mapping[str, object]) -> str:
        """Return a call as a name and arguments between marks, in the order of the schema. If line breaks may separate
        marks and values, they do so for all values of a call, or for none."""
        required = _required(schema)
        layouts = list[str]()
        for line in ("", "\n") if calls.has_lines else ("",):
            parts = [self._text(calls.name[0] + name), self._varied(calls.name[1]), "ws"]
            for key, part in properties_in(schema).items():
                described = part if isinstance(part, dict) else {}
                argument = self._rule(f"{self._argument(calls, key, described, schema, line)} ws")
                parts.append(argument if key in required else f"({argument})?")
            layouts.append(" ".join(filter(None, parts)))
        return self._rule(" | ".join(layouts))

    def _argument(
        self, calls: Calls, key: str, schema: Mapping[str, object], whole: Mapping[str, object], line: str
    ) -> str:
        """Return an argument with `line` before and after its value."""
        kinds = kinds_of(schema, whole)
        begin = [self._text(calls.key[0] + key), self._varied(f"{calls.key[1]}{calls.value[0]}{line}", kinds)]
        end = line + calls.value[1].replace("{name}", key)
        listed = listed_values(schema, whole)
        if kinds == {"boolean"} and not listed:
            value = ['("true" | "false" | "True" | "False")', self._text(end)]
        elif not is_text(schema, whole) and (listed or (kinds and "string" not in kinds)):
            value = [_json(_within(schema, whole)), self._text(end)]
        elif texts := [value for value in listed if isinstance(value, str)]:
            value = [f"({' | '.join(map(self._text, texts))})", self._text(end)]
        else:
            value = [self._free(end, schema.get("maxLength"), excludes_line=calls.has_lines and not line)]
        return " ".join(filter(None, [*begin, *value]))

    def _varied(self, mark: str, kinds: Container[str] = ("string",)) -> str:
        """Return a mark whose attributes say the number of the call, or the type of a value."""
        types = [type for type in _TYPES if type in kinds or (type == "number" and "integer" in kinds)] or _TYPES
        is_only_text = "string" in kinds and types is _TYPES
        choices = {
            "1": "/[1-9][0-9]{0,2}/",
            "true": _quoted("true" if is_only_text else "false"),
            "string": _quoted("string") if is_only_text else f"({' | '.join(map(_quoted, types))})",
        }
        parts, start = list[str](), 0
        for found in _VARIED.finditer(mark):
            parts += [self._text(mark[start : found.start()]), choices[found[0]]]
            start = found.end()
        return " ".join(filter(None, [*parts, self._text(mark[start:])]))

    def _python(self, calls: Calls, name: str, schema: Mapping[str, object]) -> str:
        """Return a call in Python, with keywords in the order of the schema."""
        members = {
            key: f"{_quoted(f'{key}=')} {self._python_value(part if isinstance(part, dict) else {}, schema)}"
            for key, part in properties_in(schema).items()
        }
        return " ".join(filter(None, [_quoted(f"{name}("), self._members(members, schema, ", "), _quoted(")")]))

    def _python_value(self, schema: Mapping[str, object], whole: Mapping[str, object]) -> str:
        kinds, plain = kinds_of(schema, whole), _json(_within(schema, whole))
        if listed_values(schema, whole) or (kinds and not kinds & {"boolean", "null"}):
            return plain
        words = ['"True" | "False"'] if not kinds or "boolean" in kinds else []
        words += ['"None"'] if not kinds or "null" in kinds else []
        words += [plain] if kinds - {"boolean"} or not kinds else []
        return f"({' | '.join(words)})"

    def _gemma(self, calls: Calls, name: str, schema: Mapping[str, object]) -> str:
        """Return a call in the notation of Gemma 4, which has the names in the order of the alphabet."""
        return f"{_quoted(name)} {self._gemma_object(schema, schema, 0)}"

    def _gemma_object(self, schema: Mapping[str, object], whole: Mapping[str, object], depth: int) -> str:
        members = {
            key: f"{_quoted(f'{key}:')} {self._gemma_value(part if isinstance(part, dict) else {}, whole, depth + 1)}"
            for key, part in sorted(properties_in(schema).items(), key=lambda item: item[0].lower())
        }
        return " ".join(filter(None, ['"{"', self._members(members, schema, ","), '"}"']))

    def _gemma_value(self, schema: Mapping[str, object], whole: Mapping[str, object], depth: int) -> str:
        """Return a value in this notation. Constraints of its schema beyond types and names are left out."""
        kinds = kinds_of(schema, whole)
        if kinds == {"string"}:
            texts = [value for value in listed_values(schema, whole) if isinstance(value, str)]
            return f"({' | '.join(map(self._gemma_text_of, texts))})" if texts else self._gemma_text(schema)
        if kinds and kinds <= _WORDS:
            return _json(_within(schema, whole))
        properties, items = schema.get("properties"), schema.get("items")
        if kinds == {"object"} and depth < DEEPEST and _are_written(properties):
            return self._gemma_object(schema, whole, depth)
        if kinds == {"array"} and depth < DEEPEST and isinstance(items, dict):
            item = self._rule(self._gemma_value(items, whole, depth + 1))
            return f'"[" ({item} ("," {item})*)? "]"'
        return {"object": "gemma_object", "array": "gemma_list"}.get("".join(kinds), "gemma_value")

    def _gemma_text(self, schema: Mapping[str, object]) -> str:
        return f"{self._text(QUOTE)} {self._free(QUOTE, schema.get('maxLength'), excludes_line=False)}"

    def _gemma_text_of(self, text: str) -> str:
        return " ".join(filter(None, [self._text(QUOTE), _quoted(text), self._text(QUOTE)]))

    def _members(self, members: Mapping[str, str], schema: Mapping[str, object], comma: str) -> str:
        """Return the members of an object with commas between them. Those that the schema does not require may be
        missing."""
        required = _required(schema)
        rest, firsts, is_needed = "", list[str](), False
        for key, member in reversed([*members.items()]):
            one = self._rule(member)
            more = f"{_quoted(comma)} {one}"
            firsts = [] if key in required else firsts
            firsts.insert(0, f"{one} {rest}".strip())
            is_needed |= key in required
            rest = self._rule(" ".join(filter(None, [more if key in required else f"({more})?", rest])))
        return f"({' | '.join(firsts)}){'' if is_needed else '?'}" if firsts else ""

    def _free(self, end: str, most: object, *, excludes_line: bool) -> str:
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
        """Return a text, in which special tokens are written by their ids."""
        parts, start = list[str](), 0
        for found in self._tokens.finditer(text):
            parts += [_quoted(text[start : found.start()]), f"<[{self._ids[found[0]]}]>"]
            start = found.end()
        return " ".join(filter(None, [*parts, _quoted(text[start:])]))


_FORMS = {
    "json": _Writer._object,
    "named": _Writer._named,
    "tagged": _Writer._tagged,
    "python": _Writer._python,
    "gemma": _Writer._gemma,
}


def _id(calls: Calls) -> str:
    """Return a pattern for the id of a call."""
    return "[a-zA-Z0-9]{9}" if calls.short_ids else "[a-zA-Z0-9_-]{1,40}"


def _required(schema: Mapping[str, object]) -> list[object]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


def _are_written(properties: object) -> bool:
    """Return whether the properties of an object in an argument have names that can be written in Gemma's notation."""
    return isinstance(properties, dict) and bool(properties) and all(map(_NAMES["gemma"].fullmatch, properties))


def _within(schema: Mapping[str, object], whole: Mapping[str, object]) -> dict[str, object]:
    """Return a part of a schema with the definitions that it refers to."""
    if '"$ref"' not in json.dumps(schema):
        return dict(schema)
    path = "#/$defs/whole"
    return {**_moved(schema, path), "$defs": {"whole": _moved(whole, path)}}


def _escaped(text: str) -> str:
    """Return a text as a part of a regular expression."""
    return re.escape(text).replace("/", "\\/").replace("\\\n", "\\n")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") if text else ""


def _json(schema: Mapping[str, object]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _LAYOUT}, ensure_ascii=False)}"


def _step(name: str) -> str:
    """Return a name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _of(fields: Mapping[str, object]) -> dict[str, object]:
    return {"type": "object", "properties": dict(fields), "required": [*fields], "additionalProperties": False}


def bare_schema(schemas: Schemas) -> str:
    """Return the JSON schema of a call of one of these tools without marks."""
    calls, references = {}, {}
    for name, schema in schemas.items():
        step = _step(name)
        properties: dict[str, object] = {"name": {"const": name}}
        properties["arguments"] = {"type": "object", **_moved(schema, f"#/$defs/{step}/properties/arguments")}
        calls[name], references[name] = _of(properties), {"$ref": f"#/$defs/{step}"}
    return json.dumps({"anyOf": [*references.values()], "$defs": calls}, ensure_ascii=False)


def _moved(schema: Mapping[str, object], path: str) -> dict[str, object]:
    """Return a schema with its references adjusted for its new place `path` in another schema."""
    named = ("$schema", "$id")  # or properties with these names
    moved = {k: _moved_part(part, path) for k, part in schema.items() if k not in named or not isinstance(part, str)}
    reference = moved.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = path + reference[1:]
    return moved


def _moved_part(part: object, path: str) -> object:
    if isinstance(part, list):
        return [_moved_part(each, path) for each in part]
    return _moved(part, path) if isinstance(part, dict) else part
