"""Calls and values that are neither JSON nor between marks: those of Python, and those of Gemma 4."""

from __future__ import annotations

import ast
import re
import warnings

from edgespec.dialects.calls import Schemas
from edgespec.dialects.objects import CLOSING, as_json, known_name, loads, quoted
from edgespec.dialects.source import ENDED, Begun, Source, Steps, UnfinishedError, begun
from edgespec.text.strict_json import MAX_DEPTH

# --- Python -----------------------------------------------------------------------------------------------------------

_CALLED = re.compile(r"\s*([\w.\-]{1,128})\(")
_NAME = re.compile(r"\s*[\w.\-]{0,128}")
_KEYWORD = re.compile(r"(\w+)\s*=")
_PLAIN = {quote: re.compile(rf"[^\\{quote}]+") for quote in "\"'"}
_LENGTHS = {"x": 4, "u": 6, "U": 10, **dict.fromkeys("01234567", 4)}
_ESCAPE = re.compile(r"\\(?:[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}


def python_call(source: Source, schemas: Schemas) -> Steps[None]:
    """Read a call with keywords."""

    def head(arrived: str, is_over: bool) -> re.Match[str]:
        if (found := _CALLED.match(arrived, source.at)) is not None:
            return found
        raise UnfinishedError if _NAME.fullmatch(arrived, source.at) and not is_over else ValueError("no call")

    found = yield from source.when(head)
    name, source.at = known_name(found[1], schemas), found.end()
    is_first, seen = True, set[str]()
    while (yield from source.visible()) != ")":
        keyword = yield from source.when(lambda arrived, _: _keyword(arrived, source.at))
        if keyword[1] in seen:
            raise ValueError("a keyword twice")
        seen.add(keyword[1])
        source.at = keyword.end()
        if is_first:
            yield Begun(name)
        yield f"{'{' if is_first else ', '}{as_json(keyword[1])}: "
        is_first = False
        yield from _python_value(source)
        if (yield from source.visible()) == ",":
            source.at += 1
        elif source.text[source.at] != ")":
            raise ValueError("no comma")
    source.at += 1
    if is_first:
        yield Begun(name)
        yield "{"
    yield "}"
    yield ENDED


def _keyword(text: str, at: int) -> re.Match[str]:
    if (found := _KEYWORD.match(text, at)) is not None:
        return found
    raise UnfinishedError if re.compile(r"\w+\s*").fullmatch(text, at) else ValueError("no keyword")


def _python_value(source: Source) -> Steps[None]:
    """Yield the value of a keyword as JSON. Texts are yielded as they arrive; texts next to each other are one."""
    if (yield from source.visible()) not in _PLAIN:
        yield as_json((yield from _python_literal(source)))
        return
    yield '"'
    while (quote := (yield from source.visible())) in _PLAIN:
        yield from _python_text(source, quote)
    if quote not in ",)":
        raise ValueError("no literal")
    yield '"'


def _python_text(source: Source, quote: str) -> Steps[None]:
    end = quote * 3 if (yield from source.peek(3)) == quote * 3 else quote
    source.at += len(end)
    while True:
        if (plain := _PLAIN[quote].match(source.text, source.at)) is not None:
            source.at = plain.end()
            yield quoted(plain[0])
        next_ = yield from source.peek(len(end))
        if next_ == end:
            source.at += len(end)
            return
        if next_[:1] == "\\":
            escape = yield from _python_escape(source)
            source.at += len(escape)
            yield quoted(str(_evaluated(f'"{escape}"')))
        elif next_:
            source.at += 1
            yield quoted(next_[0])
        else:
            yield from source.wait()


def _python_escape(source: Source) -> Steps[str]:
    kind = (yield from source.peek(2))[1:]
    length = _LENGTHS.get(kind, 2)
    if len((yield from source.peek(length))) < length:  # the answer ends in it
        yield from source.wait()
    found = _ESCAPE.match(source.text, source.at)
    assert found is not None
    return found[0]


def _python_literal(source: Source) -> Steps[object]:
    """Return the value of a literal up to the next comma or bracket that is not in it."""
    depth, quote, at = 0, "", source.at
    while True:
        if at >= len(source.text):
            yield from source.wait()
            continue
        character = source.text[at]
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
    found = _evaluated(source.text[source.at : at].strip())
    source.at = at
    return found


def _evaluated(literal: str) -> object:
    """Return the value of a literal. Raises ValueError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes that Python does not know
            return _value_of(ast.parse(literal, mode="eval").body)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:  # of hostile texts
        raise ValueError("no literal") from error


def _value_of(tree: ast.expr) -> object:
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


def gemma_members(source: Source) -> Steps[None]:
    """Yield the object that begins here as JSON, up to the brace that closes it, which is passed but not yielded."""
    yield from _gemma_items(source, "{", 1)


def _gemma_items(source: Source, opening: str, depth: int) -> Steps[None]:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    is_first = True
    source.at += 1
    yield opening
    while (yield from source.visible(_SEPARATORS)) != CLOSING[opening]:
        if not is_first:
            yield ", "
        is_first = False
        if opening == "{":
            yield from _gemma_key(source)
            yield ": "
        yield from _gemma_value(source, depth + 1)
    source.at += 1


def _gemma_key(source: Source) -> Steps[None]:
    if (yield from source.passed(QUOTE)):
        yield from _gemma_text(source)
        if (yield from source.visible()) != ":":
            raise ValueError("no key")
        source.at += 1
        return

    def key(arrived: str, is_over: bool) -> re.Match[str]:
        if (found := _GEMMA_KEY.match(arrived, source.at)) is not None:
            return found
        raise ValueError("no key") if ":" in arrived[source.at :] else UnfinishedError

    found = yield from source.when(key)
    source.at = found.end()
    yield as_json(found[1])


def _gemma_value(source: Source, depth: int) -> Steps[None]:
    character = yield from source.visible()
    if (yield from source.passed(QUOTE)):
        yield from _gemma_text(source)
    elif character in CLOSING:
        yield from _gemma_items(source, character, depth)
        yield CLOSING[character]
    else:
        yield from _gemma_word(source)


def _gemma_text(source: Source) -> Steps[None]:
    """Yield the text between two quotes, the first of which is passed."""
    yield '"'
    while (end := source.text.find(QUOTE, source.at)) < 0:
        arrived = source.text[source.at : len(source.text) - begun(source.text, QUOTE)]
        source.at += len(arrived)
        yield quoted(arrived)
        yield from source.wait()
    yield quoted(source.text[source.at : end]) + '"'
    source.at = end + len(QUOTE)


def _gemma_word(source: Source) -> Steps[None]:
    while (found := _GEMMA_WORD.match(source.text, source.at)) is None or found.end() == len(source.text):
        if found is None:
            raise ValueError("no value")
        yield from source.wait()
    word = found[0].strip()
    try:
        yield as_json(loads(word))
    except ValueError:
        yield as_json(word)
    source.at = found.end()
