"""Derives from a chat template how its model writes reasoning and calls.

A template writes earlier answers as its model writes them. So conversations with known names and values are rendered,
and the marks are the texts between the names and values. The idea is that of llama.cpp's autoparser, which compares
pairs of such conversations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from edgespec.dialects.dialect import HERMES, NO_MARKS, THINK, Calls, Dialect, Marks

Render = Callable[[Mapping[str, object]], str]
"""Renders a template with these variables. Raises ValueError."""

CONTENT, THOUGHT = "xyzzy plover", "grue lantern"
NAMES = ("frobnicate", "defenestrate")
KEYS = ("grault", "waldo")
VALUES = ("garply", "thud")
IDS = ("callAa001", "callBb002")
FIELDS = ("reasoning_content", "thinking", "reasoning")
SWITCHES = ("enable_thinking", "thinking")
MARK = re.compile(r"<[^<>]+>|\[[A-Z_/]+\]")
CUT_MARK = re.compile(r"<[^<>\s]*$|\[[A-Z_/ ]*$")
_DECODER = json.JSONDecoder(strict=False)

ASKED = "frotz gnusto?"
USER = {"role": "user", "content": ASKED}


def derive(render: Render, source: str = "") -> Dialect:
    """Return the dialect of a template. Marks that it does not show stay unknown."""
    return _Derivation(render, source).dialect()


class _Derivation:
    def __init__(self, render: Render, source: str) -> None:
        self._render, self._source = render, source
        self._as_text = False  # arguments are given as the text of JSON
        self._plain = self._turn({"content": CONTENT})

    def dialect(self) -> Dialect:
        field, reasoning, content = self._reasoning()
        start, end = reasoning or NO_MARKS
        _, mark, opening = self.prompt().rpartition(start) if start else ("", "", "")
        opening = opening.strip() if mark and (not end or end not in opening) else ""
        return Dialect(reasoning, content, self._calls(reasoning), field, switch=self._switch(), opening=opening)

    # --- rendering ------------------------------------------------------------------------------------------------

    def _turn(self, answer: Mapping[str, object], **variables: object) -> str:
        """Return the prompt that ends with an answer; "" if the template rejects it."""
        tools = [_tool(name) for name in NAMES]
        given = {"messages": [USER, {"role": "assistant", **answer}], "tools": tools, "add_generation_prompt": False}
        with suppress(ValueError):
            return self._render(given | variables)
        return ""

    def _called(self, *calls: tuple[str, Sequence[str]], **more: object) -> str:
        """Return the prompt that ends with calls: of each the name, and the values of its arguments."""
        made = []
        for id, (name, values) in zip(IDS, calls, strict=False):
            arguments: object = dict(zip(KEYS, values, strict=False))
            arguments = json.dumps(arguments) if self._as_text else arguments
            made.append({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        return self._turn({"content": "", "tool_calls": made, **more})

    def prompt(self, **variables: object) -> str:
        with suppress(ValueError):
            return self._render({"messages": [USER], "tools": None, "add_generation_prompt": True, **variables})
        return ""

    # --- reasoning ------------------------------------------------------------------------------------------------

    def _reasoning(self) -> tuple[str, Marks | None, Marks]:
        """Return the field for reasoning, its marks, and those of the content."""
        on, off = self.prompt(enable_thinking=True, thinking=True), self.prompt(enable_thinking=False, thinking=False)
        for field in FIELDS:
            switch: dict[str, object] = {"enable_thinking": True, "thinking": True, "tools": None}
            shown = self._turn({"content": CONTENT, field: THOUGHT}, **switch)
            if THOUGHT not in shown or CONTENT not in shown[shown.rindex(THOUGHT) :]:
                continue
            before = shown[: shown.rindex(THOUGHT)]
            start = _added(before, self._turn({"content": CONTENT}, **switch)).strip() or _last_mark(before)
            end, begin = _halves(shown[shown.rindex(THOUGHT) + len(THOUGHT) : shown.rindex(CONTENT)])
            return field, (start, end.strip()), (begin.strip(), "")
        for field in FIELDS:  # some show it with calls only
            made = self._called((NAMES[0], VALUES[:1]), **{field: THOUGHT})
            if THOUGHT in made:
                before, _, after = made.rpartition(THOUGHT)
                start = _added(before, self._called((NAMES[0], VALUES[:1]))) or _last_mark(before)
                closed = MARK.match(after.lstrip())
                if start.strip() and closed:
                    return field, (start.strip(), closed[0]), NO_MARKS
        begun = [shown[shown.rfind(ASKED) + len(ASKED) :] for shown in (on, off) if ASKED in shown]
        for shown, other in (begun, begun[::-1]) if len(begun) == 2 else ():  # a switch that opens or closes reasoning
            marks = MARK.findall(_added(shown, other))
            if len(marks) == 2:
                return "", (marks[0], marks[1]), NO_MARKS
            if len(marks) == 1 and "/" not in marks[0]:
                return "", (marks[0], marks[0][0] + "/" + marks[0][1:]), NO_MARKS
        if THINK[1] in self._source:  # it removes the reasoning of earlier answers
            return "", THINK, NO_MARKS
        return "", None, NO_MARKS

    def _switch(self) -> str:
        """Return the variable that changes the prompt if it is false."""
        for name in SWITCHES:
            off = self.prompt(**{name: False})
            if off != self.prompt(**{name: True}) or off != self.prompt():
                return name
        return ""

    # --- calls ----------------------------------------------------------------------------------------------------

    def _calls(self, reasoning: Marks | None) -> Calls | None:
        one = self._one()
        if not one or KEYS[0] not in one[one.rfind(NAMES[0]) :]:
            return HERMES if "<tool_call>" in self._source else None
        end = len(one) - len(_whole_end(_common_end(one, self._plain), one))
        start = len(_whole(_common(one, self._plain)))
        body = one[start:end]
        if NAMES[0] not in body or KEYS[0] not in body:
            return None
        for mark in reasoning or ():
            body = body.partition(mark)[2] if mark and mark in body[: body.index(NAMES[0])] else body
        two = self._called((NAMES[0], VALUES[:1]), (NAMES[1], VALUES[1:]))
        between = ""
        if NAMES[0] in two and NAMES[1] in two[two.rindex(NAMES[0]) :]:
            between = two[two.rindex(NAMES[0]) : two.rindex(NAMES[1])]
        made = self._json(body, between, two) or self._named(body, between) or self._tagged(body, between)
        return replace(made, short_ids="[TOOL_CALLS]" in body) if made else None

    def _one(self) -> str:
        """Return the prompt with one call, with the arguments in the form that the template expects."""
        for self._as_text in (False, True):
            shown = self._called((NAMES[0], VALUES[:1]))
            written = shown[shown.rfind(NAMES[0]) :]
            is_repr = f"'{KEYS[0]}'" in written
            is_twice = f'\\"{KEYS[0]}' in written
            if shown and not is_repr and not is_twice and shown != self._plain:
                return shown
        return ""

    def _json(self, body: str, between: str, two: str) -> Calls | None:
        """Return the form of calls that are objects of JSON."""
        place, value, end = _value_with(body, NAMES[0])
        if value is None:
            return None
        inner = value[0] if isinstance(value, list) and len(value) == 1 else value
        wrapper = ""
        if isinstance(inner, dict):
            nested = [key for key, part in inner.items() if isinstance(part, dict) and NAMES[0] in part.values()]
            if nested:
                wrapper, inner = nested[0], inner[nested[0]]
        if not isinstance(inner, dict):
            return None
        keys = ("", "", "")
        if NAMES[0] not in inner:
            name = next((key for key, part in inner.items() if part == NAMES[0]), None)
            arguments = next((key for key, part in inner.items() if KEYS[0] in _object(part)), None)
            if name is None or arguments is None:
                return None
            keys = (name, arguments, next((key for key, part in inner.items() if part == IDS[0]), ""))
        opened, closed = body[:place], body[end:]
        first = two.rindex(between) if between else len(two)
        second, other, _ = _value_with(two[first:], NAMES[1])
        section, call = (opened, closed), NO_MARKS
        if not isinstance(value, list) and other is not None:
            first_end = _end_of_value(two, first, NAMES[0])
            section, call = _split(opened, closed, two[first_end : first + second])
        return Calls("json", _stripped(section), _stripped(call), keys=keys, wrapper=wrapper)

    def _named(self, body: str, between: str) -> Calls | None:
        """Return the form of calls that are a name and a JSON object of arguments."""
        after = body.index(NAMES[0]) + len(NAMES[0])
        place, value, end = _value_with(body[after:], KEYS[0])
        if value is None or not isinstance(value, dict) or KEYS[0] not in value:
            return None
        opened, name_end, closed = body[: after - len(NAMES[0])], body[after : after + place], body[after + end :]
        id = NO_MARKS
        if IDS[0] in name_end:
            before, _, rest = name_end.partition(IDS[0])
            id, name_end = (before, rest), ""
        section, call = (opened, closed), NO_MARKS
        if between:
            rest = between[len(NAMES[0]) :]
            _, value, stop = _value_with(rest, KEYS[0])
            section, call = _split(opened, closed, rest[stop:]) if value is not None else (section, call)
        call = (call[0].replace(IDS[0], ""), call[1])
        return Calls("named", _stripped(section), _stripped(call), ("", name_end.strip()), id=_stripped(id))

    def _tagged(self, body: str, between: str) -> Calls | None:
        """Return the form of calls whose arguments are between marks."""
        shown = self._called((NAMES[0], VALUES))
        if not all(text in shown for text in (*KEYS, *VALUES)):
            return None
        shown = shown[shown.rindex(NAMES[0]) :]
        if shown.find(KEYS[0]) > shown.find(VALUES[0]) or VALUES[0] not in body:
            return None
        first = shown[len(NAMES[0]) : shown.index(KEYS[0])]
        inner = shown[shown.index(KEYS[0]) + len(KEYS[0]) : shown.index(VALUES[0])]
        again = shown[shown.index(VALUES[0]) + len(VALUES[0]) : shown.index(KEYS[1])]
        key_start = _whole_end(_whole_end(_common_end(first, again), first), again)
        name_end, value_end = first[: len(first) - len(key_start)], again[: len(again) - len(key_start)]
        key_end, value_start = _halves(inner)
        opened, closed = body[: body.index(NAMES[0])], body[body.index(VALUES[0]) + len(VALUES[0]) :]
        closed = closed.removeprefix(value_end)
        value_end = value_end.replace(KEYS[0], "{name}")
        section, call = (opened, closed), NO_MARKS
        if between and VALUES[0] in between:
            rest = between[between.index(VALUES[0]) + len(VALUES[0]) :].removeprefix(
                value_end.replace("{name}", KEYS[0])
            )
            section, call = _split(opened, closed, rest)
        key, value = (key_start, key_end), (value_start, value_end)
        return Calls(
            "tagged",
            _stripped(section),
            _stripped(call),
            ("", name_end.strip()),
            key=_stripped(key),
            value=_stripped(value),
            has_lines=inner.endswith("\n") and again.startswith("\n"),
        )


# --- texts ------------------------------------------------------------------------------------------------------------


def _tool(name: str) -> dict[str, object]:
    properties = {key: {"type": "string", "description": "x"} for key in KEYS}
    parameters = {"type": "object", "properties": properties, "required": [*KEYS]}
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}


def _object(value: object) -> dict[str, object]:
    """Return an object that may be written as the text of JSON."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = json.loads(value)
    return value if isinstance(value, dict) else {}


def _common(one: str, other: str) -> str:
    """Return the text with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((n for n, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))]


def _common_end(one: str, other: str) -> str:
    return _common(one[::-1], other[::-1])[::-1]


def _whole(start: str) -> str:
    """Return the beginning of a text without a mark that it cuts."""
    cut = CUT_MARK.search(start)
    return start[: cut.start()] if cut else start


def _added(text: str, other: str) -> str:
    """Return what a text has after the part with which both begin."""
    return text[len(_whole(_common(text, other))) :]


def _whole_end(end: str, text: str) -> str:
    """Return the end of a text without a mark that it cuts."""
    while end and (cut := CUT_MARK.search(text[: len(text) - len(end)])):
        closing = end.find(">" if text[cut.start()] == "<" else "]")
        if closing < 0:
            break
        end = end[closing + 1 :]
    return end


def _halves(between: str) -> Marks:
    """Return the two marks in a text; the first one is all of it if there are not two."""
    marks = re.findall(r"<[^<>]+>|\[[^\[\]]+\]", between)
    if len(marks) == 2:
        place = between.rindex(marks[1])
        return between[:place], between[place:]
    return between, ""


def _last_mark(text: str) -> str:
    found = MARK.findall(text[-60:])
    return found[-1] if found and text.rstrip().endswith(found[-1]) else ""


def _split(opened: str, closed: str, between: str) -> tuple[Marks, Marks]:
    """Return the marks around all calls and those around each, given the texts before one call, after it, and between
    two calls."""
    before = _whole_end(_common_end(opened, between), opened)
    rest = between[: len(between) - len(before)]
    after = _whole(_common(closed, rest))
    return (opened[: len(opened) - len(before)], closed[len(after) :]), (before, after)


def _stripped(marks: Marks) -> Marks:
    return marks[0].strip(), marks[1].strip()


def _value_with(text: str, needle: str) -> tuple[int, object, int]:
    """Return the first value of JSON that contains a text, with its place and its end; None if there is none."""
    stop = text.find(needle)
    for found in re.finditer(r"[\[{]", text[: max(0, stop)]):
        with suppress(ValueError, RecursionError):
            value, end = _DECODER.raw_decode(text, found.start())
            if end > stop:
                return found.start(), value, end
    return 0, None, 0


def _end_of_value(text: str, inside: int, needle: str) -> int:
    """Return the end of the object that contains the place `inside`."""
    for place in range(inside, -1, -1):
        if text[place] == "{":
            with suppress(ValueError, RecursionError):
                value, end = _DECODER.raw_decode(text, place)
                if end > inside and needle in json.dumps(value):
                    wrapped = text.rfind("{", 0, place)
                    with suppress(ValueError, RecursionError):
                        _, outer = _DECODER.raw_decode(text, wrapped)
                        return max(end, outer) if outer > end else end
                    return end
    return inside
