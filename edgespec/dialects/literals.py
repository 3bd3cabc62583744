"""Calls and values that are neither JSON nor between marks: those of Python, and those of Gemma 4."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from edgespec.dialects.arriving import ENDED, Arriving, Begun, Steps, UnfinishedError, begun
from edgespec.dialects.calls import Schemas
from edgespec.dialects.objects import as_json, known_name, loads, quoted
from edgespec.text.strict_json import MAX_DEPTH

# --- Python -----------------------------------------------------------------------------------------------------------

_CALLED = re.compile(r"\s*([\w.\-]+)\(")
_NAME = re.compile(r"\s*[\w.\-]*")
_KEYWORD = re.compile(r"(\w+)\s*=")
_PLAIN = {quote: re.compile(rf"[^\\{quote}]+") for quote in "\"'"}
_LENGTHS = {"x": 4, "u": 6, "U": 10, **dict.fromkeys("01234567", 4)}
_ESCAPE = re.compile(r"\\(?:[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}


def python_call(text: Arriving, schemas: Schemas) -> Steps[None]:
    """Read a call with keywords."""

    def head(arrived: str, is_over: bool) -> re.Match[str]:
        if (found := _CALLED.match(arrived, text.at)) is not None:
            return found
        raise UnfinishedError if _NAME.fullmatch(arrived, text.at) and not is_over else ValueError("no call")

    found = yield from text.when(head)
    name, text.at = known_name(found[1], schemas), found.end()
    is_first, seen = True, set[str]()
    while (yield from text.visible()) != ")":
        keyword = yield from text.when(lambda arrived, _: _keyword(arrived, text.at))
        if keyword[1] in seen:
            raise ValueError("a keyword twice")
        seen.add(keyword[1])
        text.at = keyword.end()
        if is_first:
            yield Begun(name)
        yield f"{'{' if is_first else ', '}{as_json(keyword[1])}: "
        is_first = False
        yield from _python_value(text)
        if (yield from text.visible()) == ",":
            text.at += 1
        elif text.text[text.at] != ")":
            raise ValueError("no comma")
    text.at += 1
    if is_first:
        yield Begun(name)
        yield "{"
    yield "}"
    yield ENDED


def _keyword(text: str, at: int) -> re.Match[str]:
    if (found := _KEYWORD.match(text, at)) is not None:
        return found
    raise UnfinishedError if re.compile(r"\w+\s*").fullmatch(text, at) else ValueError("no keyword")


def _python_value(text: Arriving) -> Steps[None]:
    """Yield the value of a keyword as JSON. Texts are yielded as they arrive; texts next to each other are one."""
    if (yield from text.visible()) not in _PLAIN:
        yield as_json((yield from _python_literal(text)))
        return
    yield '"'
    while (quote := (yield from text.visible())) in _PLAIN:
        yield from _python_text(text, quote)
    if quote not in ",)":
        raise ValueError("no literal")
    yield '"'


def _python_text(text: Arriving, quote: str) -> Steps[None]:
    end = quote * 3 if (yield from text.peek(3)) == quote * 3 else quote
    text.at += len(end)
    while True:
        if (plain := _PLAIN[quote].match(text.text, text.at)) is not None:
            text.at = plain.end()
            yield quoted(plain[0])
        next_ = yield from text.peek(len(end))
        if next_ == end:
            text.at += len(end)
            return
        if next_[:1] == "\\":
            escape = yield from _python_escape(text)
            text.at += len(escape)
            yield quoted(str(_evaluated(f'"{escape}"')))
        elif next_:
            text.at += 1
            yield quoted(next_[0])
        else:
            yield from text.wait()


def _python_escape(text: Arriving) -> Steps[str]:
    kind = (yield from text.peek(2))[1:]
    length = _LENGTHS.get(kind, 2)
    if len((yield from text.peek(length))) < length:  # the answer ends in it
        yield from text.wait()
    found = _ESCAPE.match(text.text, text.at)
    assert found is not None
    return found[0]


def _python_literal(text: Arriving) -> Steps[Any]:
    """Return the value of a literal up to the next comma or bracket that is not in it."""
    depth, quote, at = 0, "", text.at
    while True:
        if at >= len(text.text):
            yield from text.wait()
            continue
        character = text.text[at]
        if quote:
            if character == "\\":
                at += 1
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif depth == 0 and character in ",)":
            break
        elif character in ")]}":
            depth -= 1
        at += 1
    found = _evaluated(text.text[text.at : at].strip())
    text.at = at
    return found


def _evaluated(literal: str) -> Any:
    """Return the value of a literal. Raises ValueError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes that Python does not know
            return _value_of(ast.parse(literal, mode="eval").body)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:  # of hostile texts
        raise ValueError("no literal") from error


def _value_of(tree: ast.expr) -> Any:
    """Return the value of a literal, in which words of JSON are allowed. Raises ValueError."""
    if isinstance(tree, ast.Name) and tree.id in _WORDS:
        return _WORDS[tree.id]
    if isinstance(tree, ast.Dict):
        return {_value_of(key): _value_of(value) for key, value in zip(tree.keys, tree.values, strict=True) if key}
    if isinstance(tree, ast.List | ast.Tuple):
        return [_value_of(value) for value in tree.elts]
    return ast.literal_eval(tree)


# --- Gemma 4 ----------------------------------------------------------------------------------------------------------

QUOTE = '<|"|>'

_SEPARATORS = re.compile(r"[\s,]*")
_GEMMA_KEY = re.compile(r"([^\s:{}\[\],]+)\s*:")
_GEMMA_WORD = re.compile(r"[^,{}\[\]<]+")


def gemma_members(text: Arriving, depth: int = 1) -> Steps[None]:
    """Yield the object that begins here as JSON, up to the brace that closes it, which is passed but not yielded."""
    yield from _gemma_items(text, "{", depth)


def _gemma_items(text: Arriving, opening: str, depth: int) -> Steps[None]:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    closing, is_first = {"{": "}", "[": "]"}[opening], True
    text.at += 1
    yield opening
    while (yield from text.visible(_SEPARATORS)) != closing:
        if not is_first:
            yield ", "
        is_first = False
        if opening == "{":
            yield from _gemma_key(text)
            yield ": "
        yield from _gemma_value(text, depth + 1)
    text.at += 1


def _gemma_key(text: Arriving) -> Steps[None]:
    if (yield from text.passed(QUOTE)):
        yield from _gemma_text(text)
        if (yield from text.visible()) != ":":
            raise ValueError("no key")
        text.at += 1
        return

    def key(arrived: str, is_over: bool) -> re.Match[str]:
        if (found := _GEMMA_KEY.match(arrived, text.at)) is not None:
            return found
        raise ValueError("no key") if ":" in arrived[text.at :] else UnfinishedError

    found = yield from text.when(key)
    text.at = found.end()
    yield as_json(found[1])


def _gemma_value(text: Arriving, depth: int) -> Steps[None]:
    character = yield from text.visible()
    if (yield from text.passed(QUOTE)):
        yield from _gemma_text(text)
    elif character in "{[":
        yield from _gemma_items(text, character, depth)
        yield {"{": "}", "[": "]"}[character]
    else:
        yield from _gemma_word(text)


def _gemma_text(text: Arriving) -> Steps[None]:
    """Yield the text between two quotes, the first of which is passed."""
    yield '"'
    while (end := text.text.find(QUOTE, text.at)) < 0:
        arrived = text.text[text.at : len(text.text) - begun(text.text, QUOTE)]
        text.at += len(arrived)
        yield quoted(arrived)
        yield from text.wait()
    yield quoted(text.text[text.at : end]) + '"'
    text.at = end + len(QUOTE)


def _gemma_word(text: Arriving) -> Steps[None]:
    while (found := _GEMMA_WORD.match(text.text, text.at)) is None or found.end() == len(text.text):
        if found is None:
            raise ValueError("no value")
        yield from text.wait()
    word = found[0].strip()
    try:
        yield as_json(loads(word))
    except ValueError:
        yield as_json(word)
    text.at = found.end()
