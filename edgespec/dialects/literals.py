"""Calls and values that are neither JSON nor between marks: those of Python, and those of Gemma 4."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from edgespec.dialects.calls import Schemas, ToolCall
from edgespec.dialects.objects import after_blanks, arguments_text, known_name
from edgespec.dialects.parameters import UnfinishedError

_CALLED = re.compile(r"\s*([\w.\-]+)\(")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}


def python_call(text: str, start: int, schemas: Schemas) -> tuple[ToolCall, int]:
    found = _CALLED.match(text, start)
    if found is None:
        raise UnfinishedError if re.fullmatch(r"\s*[\w.\-]*", text[start:]) else ValueError("no call")
    name, end = known_name(found[1], schemas), _end_of_brackets(text, found.end() - 1)
    try:
        tree = ast.parse("f" + text[found.end() - 1 : end].strip(), mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args:
            raise ValueError("no call")
        arguments = {str(each.arg): _python_value(each.value) for each in tree.keywords}
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:  # of hostile texts
        raise ValueError("no call") from error
    return ToolCall(name, arguments_text(arguments)), end


def _python_value(tree: ast.expr) -> Any:
    """Return the value of a literal, in which words of JSON are allowed. Raises ValueError."""
    if isinstance(tree, ast.Name) and tree.id in _WORDS:
        return _WORDS[tree.id]
    if isinstance(tree, ast.Dict):
        return {
            _python_value(key): _python_value(value) for key, value in zip(tree.keys, tree.values, strict=True) if key
        }
    if isinstance(tree, ast.List | ast.Tuple):
        return [_python_value(value) for value in tree.elts]
    return ast.literal_eval(tree)


def _end_of_brackets(text: str, start: int) -> int:
    """Return the end of the brackets that open at `start`, in which texts may have others. Raises UnfinishedError."""
    depth, quote, at = 0, "", start
    while at < len(text):
        character = text[at]
        if quote:
            if character == "\\":
                at += 1
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    raise UnfinishedError


QUOTE = '<|"|>'

_GEMMA_KEY = re.compile(r"[\s,]*([^\s:{}\[\],]+)\s*:")
_GEMMA_WORD = re.compile(r"[^,{}\[\]<]+")


def gemma_value(text: str, at: int) -> tuple[Any, int]:
    at = after_blanks(text, at)
    if text.startswith(QUOTE, at):
        end = text.find(QUOTE, at + len(QUOTE))
        if end < 0:
            raise UnfinishedError
        return text[at + len(QUOTE) : end], end + len(QUOTE)
    if QUOTE.startswith(text[at:]):
        raise UnfinishedError
    if text[at] in "{[":
        closing, items = "}" if text[at] == "{" else "]", list[Any]()
        is_object, at = text[at] == "{", at + 1
        while True:
            at = len(text) - len(text[at:].lstrip(" \n\t,"))
            if at >= len(text):
                raise UnfinishedError
            if text[at] == closing:
                return (dict(items) if is_object else items), at + 1
            key = ""
            if is_object:
                quoted = text.startswith(QUOTE, at)
                if quoted:
                    key, at = gemma_value(text, at)
                    at = after_blanks(text, at) + 1
                elif (found := _GEMMA_KEY.match(text, at)) is not None:
                    key, at = found[1], found.end()
                else:
                    if ":" not in text[at:]:
                        raise UnfinishedError
                    raise ValueError("no key")
            value, at = gemma_value(text, at)
            items.append((key, value) if is_object else value)
    found = _GEMMA_WORD.match(text, at)
    if found is None:
        raise ValueError("no value")
    if found.end() == len(text):
        raise UnfinishedError
    word = found[0].strip()
    try:
        return json.loads(word), found.end()
    except ValueError:
        return word, found.end()
