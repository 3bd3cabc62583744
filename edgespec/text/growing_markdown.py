"""Markdown that streams: how much of it is known by now, and cannot be changed by what follows.

The text after a mark that may begin something, such as the stars of a bold word, is held back until the mark is closed.
A mark that is still open after many characters, or at the end of its line, is text.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from edgespec.text.markdown import (
    BEGINS_FORMULA,
    INLINE_FORMULA,
    MOST_FORMULA_LINES,
    SIGNS,
    Fence,
    Formula,
    Paragraph,
    Part,
    Piece,
    Rows,
    Signs,
    closing_of,
    is_formula,
    is_price,
    new_parser,
    parts_of,
)

MOST_HELD = 160  # characters after a mark that is still open
LONGEST_LINE = 4_000  # characters; of a longer line all is taken as known
LONGEST_BLOCK = 3_000  # characters; of a longer block whole lines are read
_CONTAINERS = r"(?:[ \t>]|[-*+][ \t]+|\d{1,9}[.)][ \t]+)*"
_BEGINNING = re.compile(_CONTAINERS)
#: A beginning of a line of which it is not known what it is
_UNDECIDED = re.compile(
    _CONTAINERS + r"(?:#{0,6}[ \t]*|[-*_][-*_ \t]*|\+|\d{1,9}[.)]?|(?:[-*+][ \t]+)?\[[ xX]?\]?[ \t]*|`{3,}[^`]*|~+.*)"
)
_FENCE = re.compile(_CONTAINERS + r"(?P<marks>`{3,}(?=[^`]*$)|~{3,})")
_CLOSING = re.compile(r"[ \t>]*(?P<marks>`{3,}|~{3,})[ \t]*")
_TO_THE_END = {  # what may become a link or a character at the end of a line
    "<": re.compile(r"<(?:[A-Za-z][^\s<>]*)?$"),
    "&": re.compile(r"&#?\w{0,31}$"),
    "!": re.compile(r"!$"),
    "\\": re.compile(r"\\$"),
}
#: Marks that are text, in characters that Unicode excludes from texts
_AS_TEXT = {ord(mark): chr(0xFDD0 + number) for number, mark in enumerate("*_~`$[\\<&!(")}
_AS_MARK = {ord(other): chr(mark) for mark, other in _AS_TEXT.items()}
_reader = new_parser(grows=True)


class GrowingText:
    """A text that grows, as parts. Parts that further text cannot change are returned as complete, once."""

    def __init__(self, signs: Signs = SIGNS) -> None:
        self._signs = signs
        self._tail = ""  # the text from the last outermost block on
        self._n_done = 0  # complete parts of the tail
        self._has_gap = False  # whether an empty line precedes the tail
        self._in_code = False
        self.ends_word = False  # whether what is known ends with white space

    def add(self, text: str) -> tuple[list[Part], Part | None]:
        """Add text; return the parts that are complete now, and the part that grows, as far as it is known."""
        complete, growing = list[Part](), None
        while text:
            is_long = len(self._tail) > LONGEST_BLOCK
            end = len(text) if is_long else text.find("\n") + 1 or len(text)
            more, newest = (self._add_to_long if is_long else self._add)(text[:end])
            complete += more
            growing = newest if more or newest is not None else growing
            text = text[end:]
        return complete, growing

    def end(self) -> list[Part]:
        """Return the remaining parts."""
        self._known(is_whole=True)
        parts = self._parts(self._tail)[self._n_done :]
        self._tail, self._n_done = "", 0
        return parts

    def _add(self, text: str) -> tuple[list[Part], Part | None]:
        """Add the rest of a line, or a part of it."""
        self._tail += text.removesuffix("\n")
        is_whole = text.endswith("\n")
        if self._in_code and not is_whole:
            return [], None
        known = self._known(is_whole=is_whole)
        if is_whole:
            self._tail += "\n"
            known += known == len(self._tail) - 1
        return self._taken(known)

    def _add_to_long(self, text: str) -> tuple[list[Part], Part | None]:
        """Add text to a block that is so long that only its whole lines are read, and all of a very long line."""
        self._tail += text
        known = self._tail.rfind("\n") + 1
        if len(self._tail) - known > LONGEST_LINE:
            known = len(self._tail)
        elif "\n" not in text:
            return [], None
        return self._taken(known)

    def _taken(self, known: int) -> tuple[list[Part], Part | None]:
        """Return the parts of the text that is known, and drop those blocks of it that are complete."""
        self.ends_word = self._tail[known - 1 : known].isspace()
        parts = self._parts(self._tail[:known])
        complete = parts[self._n_done : -1]
        growing = parts[-1] if len(parts) > self._n_done else None
        self._n_done += len(complete)
        first = max((index for index, part in enumerate(parts) if part.begins), default=0)
        if first:
            self._has_gap, self._n_done = parts[first].has_gap, self._n_done - first
            self._tail = self._tail.split("\n", parts[first].line)[-1]
        return complete, growing

    def _parts(self, text: str) -> list[Part]:
        parts = [_with_marks(part) for part in parts_of(text, self._signs, _reader)]
        return [replace(parts[0], has_gap=self._has_gap), *parts[1:]] if parts else []

    def _ends_in_code(self) -> bool:
        parts = self._parts(self._tail)
        return bool(parts) and isinstance(parts[-1], Fence)

    def _known(self, *, is_whole: bool) -> int:
        """Return the length of the text that is known. Of a line that `is_whole` all marks are known: those that are
        still open become text."""
        place = _place_of(self._tail)
        line = self._tail[place.line :]
        self._in_code = place.kind == "code" and not place.ends
        if place.kind == "code":
            return len(self._tail) if is_whole else place.line
        if place.kind == "formula" and place.ends and is_whole:
            return len(self._tail)
        if place.kind != "text":
            return place.start
        if line.startswith(("    ", "\t")) and self._ends_in_code():
            return len(self._tail) if is_whole else place.line
        if not is_whole and _UNDECIDED.fullmatch(line):
            return place.line
        if len(line) > LONGEST_LINE:
            return len(self._tail)
        while (mark := _open_mark(line, is_whole=is_whole)) is not None:
            if not is_whole and len(line) - mark.start <= MOST_HELD:
                return place.line if _UNDECIDED.fullmatch(line, 0, mark.start) else place.line + mark.start
            end = mark.start + mark.length
            line = line[: mark.start] + line[mark.start : end].translate(_AS_TEXT) + line[end:]
            self._tail = self._tail[: place.line] + line
        return len(self._tail) - line.endswith("\\")  # which may break the line


def _with_marks(part: Part) -> Part:
    """Return a part with the marks that are text."""
    match part:
        case Paragraph():
            return replace(part, pieces=_pieces_with_marks(part.pieces))
        case Rows():
            return replace(part, rows=tuple(tuple(map(_pieces_with_marks, row)) for row in part.rows))
        case Fence():
            return replace(part, code=part.code.translate(_AS_MARK))
        case Formula():
            return replace(part, source=part.source.translate(_AS_MARK))
    return part


def _pieces_with_marks(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    return tuple(piece._replace(text=piece.text.translate(_AS_MARK)) for piece in pieces)


class _Place(NamedTuple):
    """Where a text ends: in `code` or the line that ends it, in a `formula` or in the `rows` of a table, which begin at
    `start`, or in other `text`. `line` is the start of its last line."""

    kind: str
    start: int
    line: int
    ends: bool


def _place_of(text: str) -> _Place:
    kind, start, at, closing, n_lines = "text", 0, 0, "", 0
    last = 0
    for line in text.split("\n"):
        n_lines += 1
        content = line[_length_of_beginning(line) :]
        begun = BEGINS_FORMULA.match(content)
        ends = closing != "" and closing in line and (kind == "formula" or _CLOSING.fullmatch(line) is not None)
        if kind == "formula" and (not content or n_lines > MOST_FORMULA_LINES):
            kind, closing = "text", ""
        elif ends:
            closing = ""
        elif closing:
            pass
        elif opening := _FENCE.match(line):
            kind, closing = "code", opening["marks"]
        elif begun and closing_of(begun) not in content[begun.end() :]:
            kind, start, closing, n_lines = "formula", at, closing_of(begun), 0
        elif content.startswith("|"):
            kind, start = "rows", start if kind == "rows" else at
        else:
            kind = "text"
        last, at = at, at + len(line) + 1
    return _Place(kind, start, last, ends=not closing)


def _length_of_beginning(line: str) -> int:
    match = _BEGINNING.match(line)
    return match.end() if match else 0


# --- marks in a line ----------------------------------------------------------------------------------------------


class _Mark(NamedTuple):
    start: int
    length: int
    character: str = ""


def _open_mark(line: str, *, is_whole: bool) -> _Mark | None:
    """Return the first mark of a line whose meaning depends on what follows."""
    opened: list[_Mark] = []  # stars and the like
    at = _length_of_beginning(line)
    while at < len(line):
        character = line[at]
        if character in "*_~":
            run = re.compile(re.escape(character) + "+").match(line, at)
            assert run is not None
            if run.end() == len(line) and not is_whole:
                return opened[0] if opened else _Mark(at, len(run[0]))
            _take_run(opened, line, _Mark(at, len(run[0]), character))
            at = run.end()
            continue
        ends = _TO_THE_END.get(character)
        if ends is not None and not is_whole and ends.match(line, at):
            return opened[0] if opened else _Mark(at, 1)
        end, length = _closed(line, at, is_whole=is_whole)
        if length:
            return opened[0] if opened else _Mark(at, length)
        at = end
    return opened[0] if opened else None


def _take_run(opened: list[_Mark], line: str, run: _Mark) -> None:
    """Let a run of stars close marks that are open, or open one."""
    before, after = line[run.start - 1 : run.start] or " ", line[run.start + run.length :][:1] or " "
    is_left = not after.isspace() and (after.isalnum() or not before.isalnum())
    is_right = not before.isspace() and (before.isalnum() or not after.isalnum())
    in_word = run.character == "_"
    length = run.length
    if is_right and not (in_word and is_left and after.isalnum()):
        for index in range(len(opened) - 1, -1, -1):
            if opened[index].character == run.character and length:
                closed = min(length, opened[index].length)
                length -= closed
                rest = opened[index].length - closed
                opened[index:] = [opened[index]._replace(length=rest)] if rest else []
    if length and is_left and not (in_word and is_right and before.isalnum()) and (run.character != "~" or length > 1):
        opened.append(run._replace(start=run.start + run.length - length, length=length))


def _closed(line: str, at: int, *, is_whole: bool) -> tuple[int, int]:
    """Return the end of what begins at a place of a line; if it is still open, the length of its mark too, else 0."""
    character, after = line[at], line[at + 1 : at + 2]
    match character:
        case "`":
            marks = len(line[at:]) - len(line[at:].lstrip("`"))
            closing = re.compile(f"(?<!`)`{{{marks}}}(?!`)").search(line, at + marks)
            if closing is None or (closing.end() == len(line) and not is_whole):
                return len(line), marks
            return closing.end(), 0
        case "$":
            return _closed_dollars(line, at, is_whole=is_whole)
        case "\\" if after in ("(", "["):
            formula = INLINE_FORMULA.match(line, at)
            if formula is None and {"(": "\\)", "[": "\\]"}[after] not in line[at + 2 :]:
                return len(line), 2
            return formula.end() if formula else at + 2, 0
        case "\\":
            return at + 2, 0
        case "[":
            return _closed_link(line, at, at, is_whole=is_whole)
        case "!" if after == "[":
            return _closed_link(line, at, at + 1, is_whole=is_whole)
    return at + 1, 0


def _closed_dollars(line: str, at: int, *, is_whole: bool) -> tuple[int, int]:
    before, rest = line[at - 1 : at] if at else "", line[at + 1 :]
    formula = INLINE_FORMULA.match(line, at)
    if not rest and not is_whole:
        return len(line), 1
    if rest.startswith("$"):
        return (formula.end(), 0) if formula else (len(line), 2)
    if formula is not None and (is_whole or formula.end() < len(line)):
        return (formula.end(), 0) if is_formula(formula, before) else (at + 1, 0)
    is_text = before.isalnum() or rest[:1].isspace() or "`" in rest or is_price(rest)
    closing = re.search(r"(?<!\\)\$", rest)
    if is_text or (closing and (is_whole or closing.end() < len(rest))):
        return at + 1, 0
    return len(line), 1


def _closed_link(line: str, at: int, bracket: int, *, is_whole: bool) -> tuple[int, int]:
    length = bracket - at + 1
    end = _end_of(line, bracket, "[", "]")
    if end < 0 or (end == len(line) and not is_whole):
        return len(line), length
    if line[end : end + 1] != "(":
        return bracket + 1, 0
    end = _end_of(line, end, "(", ")")
    return (end, 0) if end >= 0 else (len(line), length)


def _end_of(line: str, start: int, opening: str, closing: str) -> int:
    """Return the end of a text in brackets; -1 if they are open."""
    depth = 0
    for match in re.finditer(r"\\.|[\[\]()]", line[start:]):
        depth += {opening: 1, closing: -1}.get(match[0], 0)
        if not depth:
            return start + match.end()
    return -1
