"""Keywords of JSON schemas: exactly what they mean, ignored with a note, or refused with their place."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_program import edgespec_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from llguidance import LLMatcher, LLTokenizer

import edgespec
from edgespec.llama.constraint import compiled, constraint_notes
from edgespec.llama.schema import ANNOTATIONS, IMPLEMENTED, REFUSED, patterns_in, translated
from edgespec.runtime.runtime import Runtime

BYTES = LLTokenizer("byte")
KEYS = ("a", "b", "c", "abc")
VALUES: list[Any] = [1, 0, -1.5, "x", "", None, True, False, [], [1], [1, 1], ["x", 1], [1, "x", 2], {"k": {"a": 1}}]
VALUES += [
    dict(zip(keys, values, strict=True))
    for n in range(4)
    for keys in itertools.combinations(KEYS, n)
    for values in itertools.product([1, "x"], repeat=n)
]
P = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": True}
Q = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": True}
OPEN = {"a": {}, "b": {"type": "integer"}, "c": {}}

EXACT: list[dict[str, Any]] = [
    {"type": "object", "propertyNames": {"pattern": "^[ab]"}},
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "c": {}},
        "propertyNames": {"pattern": "^[ab]"},
        "additionalProperties": {"type": "string"},
    },
    {"type": "object", "propertyNames": {"enum": ["a", "c", 1]}, "additionalProperties": {"type": "integer"}},
    {
        "type": "object",
        "propertyNames": {"$ref": "#/$defs/name"},
        "$defs": {"name": {"title": "Name", "type": "string", "enum": ["a", "c"]}},
    },
    {"type": "object", "propertyNames": {"const": "b"}},
    {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}},
    {"propertyNames": {"pattern": "^a"}},
    {"type": "object", "properties": {"a": {}, "b": {"not": {}}}, "additionalProperties": True},
    {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
    {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": {"type": "integer"}},
    {"type": "object", "additionalProperties": {"type": "integer"}, "unevaluatedProperties": False},
    {"type": "object", "properties": {"a": {}}, "minProperties": 2, "required": ["a"]},
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": False},
    {"oneOf": [{"$ref": "#/$defs/p"}, {"$ref": "#/$defs/q"}], "discriminator": {}, "$defs": {"p": P, "q": Q}},
    {"const": {"a": 1, "b": "x"}},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    {"$ref": "#/$defs/p", "properties": {"b": {"type": "integer"}}, "$defs": {"p": P}},
    {"type": "object", "minProperties": 1, "maxProperties": 2},
]


def matcher_of(schema: Any) -> LLMatcher:
    return LLMatcher(BYTES, compiled("json_schema", json.dumps(schema)), log_level=0)


def matches(matcher: LLMatcher, value: Any) -> bool:
    trial, raw = matcher.deep_copy(), list(json.dumps(value).encode())
    return trial.try_consume_tokens(raw) == len(raw) and trial.is_accepting()


def assert_exact(schema: dict[str, Any], validator: Any = jsonschema.Draft202012Validator) -> None:
    matcher, judge = matcher_of(schema), validator(schema)
    assert [value for value in VALUES if matches(matcher, value) != judge.is_valid(value)] == []


@pytest.mark.parametrize("schema", EXACT, ids=lambda schema: json.dumps(schema)[:60])
def test_a_supported_keyword_means_what_json_schema_says(schema: dict[str, Any]) -> None:
    assert_exact(schema)
    assert constraint_notes("json_schema", json.dumps(schema)) == ()


PARTS = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.just(OPEN)},
    optional={
        "required": st.lists(st.sampled_from(KEYS), unique=True, max_size=2),
        "additionalProperties": st.sampled_from([False, True, {"type": "string"}]),
        "propertyNames": st.sampled_from([{"pattern": "^a"}, {"enum": ["a", "b"]}, {"type": "string"}]),
        "unevaluatedProperties": st.sampled_from([False, {"type": "integer"}]),
    },
)


@settings(max_examples=40, deadline=None)
@given(PARTS)
@pytest.mark.slow
def test_keywords_together_mean_what_json_schema_says(schema: dict[str, Any]) -> None:
    names = schema.get("propertyNames", {"type": "string"})
    if not {"additionalProperties", "unevaluatedProperties"} & {*schema} and names == {"type": "string"}:
        schema["additionalProperties"] = False
    if not any(jsonschema.Draft202012Validator(schema).is_valid(value) for value in VALUES):
        return  # llguidance refuses what nothing can match
    assert_exact(schema)


# --- ignored ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "notes"),
    [
        ({"type": "array", "uniqueItems": True}, ["uniqueItems at # is ignored: items may repeat"]),
        ({"type": "string", "format": "path"}, ['format "path" at # is ignored: it is unknown']),
        ({"items": {"format": "binary"}}, ['format "binary" at #/items is ignored: it is unknown']),
        ({"type": "integer", "format": "int64"}, []),
        ({"type": "string", "format": "uuid4"}, []),
        (
            {"properties": {"a/b": {"maxLenght": 3}}},
            ['the unknown keyword "maxLenght" at #/properties/a~1b is ignored'],
        ),
        ({"type": "object", "deprecated": True, "examples": [], "x-order": 1, "discriminator": {}}, []),
        ({"$schema": "https://example.org/own"}, ['$schema "https://example.org/own" at # is ignored: it is unknown']),
        (
            {"oneOf": [{"type": "integer"}, {"type": "number"}]},
            ["oneOf at # is treated as anyOf: several of its alternatives may match"],
        ),
        (
            {"x-guidance": {"lenient": True}, "not": {"const": 1}, "type": "integer"},
            ['"not" at #/not is ignored'],
        ),
        (
            {"type": "object", "propertyNames": {"format": "email"}},
            ["format at #/propertyNames is ignored"],
        ),
        ({"$defs": {"unused": {"uniqueItems": True}}}, []),
        ({"$ref": "#/$defs/a%7E1b", "$defs": {"a/b": {"uniqueItems": True}}}, ["uniqueItems at #/$defs/a~1b is ign"]),
    ],
)
def test_what_is_ignored_has_a_note(schema: dict[str, Any], notes: list[str]) -> None:
    text = json.dumps(schema)
    compiled("json_schema", text)
    found = constraint_notes("json_schema", text)
    assert len(found) == len(notes)
    assert all(said.startswith(f"JSON schema: {note}") for said, note in zip(found, notes, strict=True))


def test_there_are_only_so_many_notes() -> None:
    schema = {f"keyword{n}": 1 for n in range(1000)}
    notes = constraint_notes("json_schema", json.dumps(schema))
    assert len(notes) == 9
    assert notes[-1] == "JSON schema: more keywords are ignored"


def test_no_keyword_of_json_schema_is_ignored_in_silence() -> None:
    known = IMPLEMENTED | ANNOTATIONS | {*REFUSED, "uniqueItems"}
    drafts = [uri for uri in REGISTRY if "draft-07/" in uri or "2020-12/" in uri]
    assert len(drafts) > 5
    assert {name for uri in drafts for name in REGISTRY.contents(uri)["properties"]} <= known


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"a/b": {"not": {"const": 1}}}}, '"not" at #/properties/a~1b/not is not supported'),
        ({"not": {}}, "nothing can match it"),
        ({"items": {"if": {"const": 1}, "then": {}}}, '"if" at #/items/if is not supported'),
        ({"allOf": [{"contains": {}}]}, '"contains" at #/allOf/0/contains is not supported'),
        ({"contains": {}, "maxContains": 2}, '"contains" at #/contains is not supported'),
        ({"unevaluatedProperties": False, "allOf": []}, '"unevaluatedProperties" at #/unevaluatedProperties is not'),
        ({"unevaluatedItems": False, "anyOf": []}, '"unevaluatedItems" at #/unevaluatedItems is not supported'),
        ({"$dynamicRef": "#a"}, '"$dynamicRef" at #/$dynamicRef is not supported'),
        ({"propertyNames": {"anyOf": []}}, '"propertyNames" at #/propertyNames is not supported'),
        ({"dependentRequired": {"a": ["b"]}}, '"dependentRequired" at #/dependentRequired is not supported'),
        ({"properties": {"a": {"pattern": r"a\b"}}}, r"look-around and word boundaries (\b) are not supported"),
        ({"patternProperties": {"(?=a)b": {}}}, "(?=a)b, column 1: look-around"),
        ({"properties": {"a": {"pattern": "(?=a)b"}}}, "#/properties/a/pattern: (?=a)b, column 1: look-around"),
        ({"$defs": {"x": {"items": {"pattern": "[a"}}}, "$ref": "#/$defs/x"}, "#/$defs/x/items/pattern: [a, column 1"),
        ({"patternProperties": {"(?=a)/b": {}}}, "#/patternProperties/(?=a)~1b: "),
        ({"propertyNames": {"pattern": r"(a)\1"}}, r"(a)\1, column 4: backreferences are not supported"),
        ({"$ref": "#there", "$defs": {"a": {"$anchor": "there", "not": {"const": 1}}}}, "at #/$defs/a/not"),
        ({"maximum": float("inf")}, "Out of range float values"),
    ],
)
def test_a_refusal_names_the_keyword_and_its_place(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        compiled("json_schema", json.dumps(schema))
    assert constraint_notes("json_schema", json.dumps(schema)) == () or said == "nothing can match it"


def test_deep_and_wide_schemas_are_read_without_recursion() -> None:
    for text in ('{"items":' * 129 + "{}" + "}" * 129, "[" * 100_000, '{"const":' + "[" * 500 + "]" * 500 + "}"):
        with pytest.raises(ValueError, match="it is nested too deeply"):
            compiled("json_schema", text)
    options = [{"$ref": "#/$defs/a"}] * 2000
    definitions = {"a": {"enum": [*range(3000)]}, "b": {"$ref": "#/$defs/b"}}
    _, notes = translated(json.dumps({"properties": {"x": {"oneOf": options}}, "$defs": definitions}))
    assert notes == ["JSON schema: oneOf at #/properties/x is treated as anyOf: several of its alternatives may match"]
    translated(json.dumps({"$ref": "#/$defs/b", "oneOf": [{"$ref": "#/$defs/b"}] * 2, "$defs": definitions}))


def test_a_place_is_shown_in_part_if_it_is_long() -> None:
    name = "n" * 50_000
    with pytest.raises(ValueError, match="not supported") as caught:
        translated(json.dumps({"properties": {name: {"properties": {name: {"not": {"const": 1}}}}}}))
    assert len(str(caught.value)) < 300


# --- answers ----------------------------------------------------------------------------------------------------------

WORD = {"type": "string", "maxLength": 6}
ANSWERED: list[dict[str, Any]] = [
    {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]{1,4}$"},
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 3,
    },
    {
        "type": "object",
        "properties": {"card": WORD, "address": WORD},
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 3}, "maxItems": 4, "uniqueItems": True},
    {
        "type": "object",
        "properties": {"file": {**WORD, "format": "path"}},
        "required": ["file"],
        "unevaluatedProperties": False,
    },
]


@pytest.fixture(scope="module")
def llm() -> Iterator[Runtime]:
    with edgespec.load("demo", threads=1, store=False) as runtime:
        yield runtime


@pytest.mark.parametrize("schema", ANSWERED, ids=lambda schema: [*schema][-1])
def test_answers_fit_what_is_supported(llm: Runtime, schema: dict[str, Any]) -> None:
    judged = {keyword: value for keyword, value in schema.items() if keyword != "uniqueItems"}
    for seed in range(3):
        events = llm.generate("As JSON: ", json_schema=schema, max_tokens=120, seed=seed)
        jsonschema.Draft202012Validator(judged).validate(json.loads("".join(event.text for event in events)))
    for note in constraint_notes("json_schema", json.dumps(schema)):
        assert llm.notes.count(note) == 1


def test_the_command_line_shows_the_notes(tmp_path: Path) -> None:
    schema = '{"type": "array", "uniqueItems": true, "items": {"enum": [1]}, "maxItems": 2}'
    done = edgespec_alone(
        "run", "-m", "demo", "-t", "1", "--spec-type", "none", "--seed", "1", "A: ", "-j", schema, home=tmp_path
    )
    assert b"note: JSON schema: uniqueItems at # is ignored: items may repeat" in done.stderr


DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"


@pytest.mark.parametrize(("pattern", "letters"), [(DECIMAL, "+-.01"), (EMAIL, "aZ'.@-+")])
def test_patterns_of_pydantic_and_zod_without_look_around_match_the_same_texts(pattern: str, letters: str) -> None:
    ((without, place),) = patterns_in(json.dumps({"properties": {"p": {"pattern": pattern}}}))
    assert place == "#/properties/p/pattern"
    assert "(?" not in without
    texts = {"".join(letter) for length in range(6) for letter in itertools.product(letters, repeat=length)}
    texts |= {f"{text}@a.aa" for text in texts} | {f"a@{text}.aa" for text in texts}
    assert all(bool(re.search(pattern, text)) == bool(re.search(without, text)) for text in texts)
