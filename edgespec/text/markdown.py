"""Markdown as answers of models use it, read once for all that show it: with formulas, task lists and footnotes.

Line breaks are kept, and HTML is shown as text: nothing that the model wrote is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block.table import table as read_table
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from edgespec.text.printable import printable

Mark = Literal["strong", "emphasis", "strike", "code", "formula", "link", "address", "note"]
Aligned = Literal["left", "center", "right"]

NARROWEST = 8  # cells of a column whose text is wrapped
BETWEEN = 3  # cells between two columns
LONGEST_FORMULA = 4_000  # characters of a formula in a line
MOST_FORMULA_LINES = 60  # of a formula on separate lines
ENVIRONMENTS = "equation|align|aligned|alignat|gather|gathered|multline|eqnarray|split|cases|[pbBvV]?matrix"
BEGINS_FORMULA = re.compile(rf"\$\$|\\\[|\\begin\{{(?P<name>(?:{ENVIRONMENTS})\*?)\}}")
_CLOSING = {"$$": "$$", "\\[": "\\]", "\\(": "\\)"}
INLINE_FORMULA = re.compile(
    r"\\\((?P<round>(?:[^\\]|\\(?!\)).)+?)\\\)|\\\[(?P<square>.+?)\\\](?!\()|\$\$(?P<double>[^$]+)\$\$"
    r"|\$(?P<single>(?![\s$])(?:[^$\\\n`]|\\.)*(?<!\s))\$(?![\w$])",
    re.DOTALL,
)
_SIGNS_OF_FORMULA = re.compile(r"[\\^_{}=<>|+]")
_TEXT_IN_FORMULA = re.compile(r"\\[A-Za-z]+(?:\{[\w\s.,;:()-]*\})?")
_FOOTNOTE = re.compile(r"\[\^(?P<label>[^\]\s]{1,40})\](?![(:])")
_FOOTNOTE_TEXT = re.compile(r"\[\^(?P<label>[^\]\s]{1,40})\]:[ \t]*")
_TASK = re.compile(r"\[(?P<done>[ xX])\](?:\s+|$)")
WEB_ADDRESS = re.compile(r"(?:https?://|mailto:)[!-~]+")  # what terminals may open
_MARKS: dict[str, Mark] = {"em_open": "emphasis", "strong_open": "strong", "s_open": "strike", "link_open": "link"}
_SHOWN_WITHOUT = re.compile(r"^(?:https?://|mailto:)|/$")


class Signs(NamedTuple):
    """The signs before the lines of lists and quotations."""

    bullets: str = "•◦▪"
    quotation: str = "▌ "
    tasks: tuple[str, str] = ("☐ ", "☑ ")


class Piece(NamedTuple):
    """A text in one style. `href` is the address of a link, and of the address that is shown after it."""

    text: str
    marks: tuple[Mark, ...] = ()
    href: str = ""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a text: a paragraph, a list item, a code block or the like.

    `first` precedes its first line and `rest` the others. If it `has_gap`, an empty line precedes it. `line` is its
    line in the text. If it `begins` a block or an item of the outermost list, the text before that line is complete.
    """

    first: str = ""
    rest: str = ""
    has_gap: bool = False
    line: int = 0
    begins: bool = False


@dataclass(frozen=True, kw_only=True)
class Paragraph(Part):
    """Text; a `heading` has a level from 1."""

    pieces: tuple[Piece, ...]
    heading: int = 0


@dataclass(frozen=True, kw_only=True)
class Fence(Part):
    """A code block. `fence` begins its opening line; an indented block has none."""

    code: str
    language: str
    fence: str = ""


@dataclass(frozen=True, kw_only=True)
class Formula(Part):
    """A formula on separate lines, in LaTeX."""

    source: str


@dataclass(frozen=True, kw_only=True)
class Rows(Part):
    """A table. The first row has the titles."""

    rows: tuple[tuple[tuple[Piece, ...], ...], ...]
    aligned: tuple[Aligned, ...]


@dataclass(frozen=True, kw_only=True)
class Rule(Part):
    """A horizontal line."""


def column_widths(natural: Sequence[int], room: int) -> list[int]:
    """Return the widths of the columns of a table, the widest ones reduced until all fit, with three cells between two
    columns; [] if they would be too narrow. `natural` are the widths of their widest cells."""
    room -= BETWEEN * (len(natural) - 1)
    widths = [max(1, width) for width in natural]
    while sum(widths) > room:
        widest = widths.index(max(widths))
        if widths[widest] <= NARROWEST:
            return []
        widths[widest] -= 1
    return widths


def new_parser(*, grows: bool = False) -> MarkdownIt:
    """Return a parser. With `grows`, lines that follow never change what is known of a line: there are no titles that
    are underlined, no tables without a bar at the left, and no definitions of links."""
    made = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    made.inline.ruler.before("escape", "formula", _inline_formula)
    made.inline.ruler.before("link", "footnote", _footnote)
    alternatives: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    made.block.ruler.before("fence", "formula", _formula, alternatives)
    made.block.ruler.before("reference", "footnote", _footnote_text, alternatives)
    if grows:
        made.disable(["lheading", "reference"])
        made.block.ruler.at("table", _table_with_bars, {"alt": ["paragraph", "reference"]})
    return made


# --- rules of the parser ------------------------------------------------------------------------------------------


def _inline_formula(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] not in "\\$":
        return False
    end = state.pos + LONGEST_FORMULA
    closing = _CLOSING.get(state.src[state.pos : state.pos + 2], "$")
    if state.src.find(closing, state.pos + len(closing), end) < 0:
        return False
    match = INLINE_FORMULA.match(state.src, state.pos, end)
    if match is None or not is_formula(match, before=state.src[state.pos - 1 : state.pos]):
        return False
    if not silent:
        token = state.push("formula", "", 0)
        token.content = match[match.lastgroup or 0]
    state.pos = match.end()
    return True


def is_formula(match: re.Match[str], before: str) -> bool:
    """Return whether a text between marks of formulas is one, rather than an escaped bracket, or two prices."""
    kind, content = match.lastgroup, match[match.lastgroup or 0]
    if kind == "double":
        return bool(content.strip())
    if kind == "square":
        return not (before.isalnum() or before in ("]", ")"))
    words = re.findall(r"[A-Za-z]{3,}", _TEXT_IN_FORMULA.sub("", content))
    has_signs = _SIGNS_OF_FORMULA.search(content)
    if kind == "single":
        if is_price(content) or before.isalnum() or before in ("$", "\\"):
            return False
        if not has_signs and any(not word.isupper() for word in words if len(words) > 1 or len(word) > 3):
            return False
    return bool(has_signs or not words or " " not in content.strip())


def is_price(text: str) -> bool:
    """Return whether a dollar before this text, which may continue, is money: a number and words follow it."""
    return text[:1].isdigit() and bool(re.search(r"[A-Za-z]{2}", _TEXT_IN_FORMULA.sub("", text)))


def closing_of(begun: re.Match[str]) -> str:
    """Return what ends a formula on separate lines."""
    return _CLOSING.get(begun[0], f"\\end{{{begun['name']}}}")


def _formula(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if state.is_code_block(start):
        return False
    first = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]]
    match = BEGINS_FORMULA.match(first)
    if match is None:
        return False
    name = match["name"]
    closing = closing_of(match)
    content = list[str]()
    for number in range(start, min(end, start + MOST_FORMULA_LINES)):
        if state.isEmpty(number) or state.sCount[number] < state.blkIndent:
            return False  # the paragraph, the list item or the quotation has ended
        line = first[match.end() :] if number == start else state.getLines(number, number + 1, state.blkIndent, False)
        text, closed, rest = line.partition(closing)
        content.append(text)
        if not closed:
            continue
        source = "\n".join(content).strip()
        if rest.strip(" \t.,;:") or not source:
            return False
        if not silent:
            token = state.push("formula_block", "", 0)
            token.content = f"\\begin{{{name}}}{source}\\end{{{name}}}" if name else source
            token.map = [start, number + 1]
            state.line = number + 1
        return True
    return False


def _footnote(state: StateInline, silent: bool) -> bool:
    match = _FOOTNOTE.match(state.src, state.pos) if state.src[state.pos] == "[" else None
    if match is None:
        return False
    if not silent:
        state.push("footnote", "", 0).content = match["label"]
    state.pos = match.end()
    return True


def _footnote_text(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if state.is_code_block(start):
        return False
    match = _FOOTNOTE_TEXT.match(state.src, state.bMarks[start] + state.tShift[start], state.eMarks[start])
    if match is None:
        return False
    if silent:
        return True
    last = start + 1
    while last < end and not state.isEmpty(last) and not _FOOTNOTE_TEXT.match(state.getLines(last, last + 1, 0, False)):
        last += 1
    rest = [state.getLines(number, number + 1, state.blkIndent, False).strip() for number in range(start + 1, last)]
    state.line = last
    opening = state.push("footnote_open", "", 1)
    opening.content, opening.map = match["label"], [start, last]
    state.push("paragraph_open", "p", 1).hidden = True
    inline = state.push("inline", "", 0)
    inline.content = "\n".join([state.src[match.end() : state.eMarks[start]].strip(), *rest])
    inline.children, inline.map = [], [start, last]
    state.push("paragraph_close", "p", -1).hidden = True
    state.push("footnote_close", "", -1)
    return True


def _table_with_bars(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    begins = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]].startswith("|")
    return begins and read_table(state, start, end, silent)


parser = new_parser()
SIGNS = Signs()


# --- from tokens to parts -----------------------------------------------------------------------------------------


def parts_of(text: str, signs: Signs = SIGNS, reader: MarkdownIt = parser) -> list[Part]:
    """Return the parts of a text."""
    return _Walk(reader.parse(text), signs).parts


@dataclass(slots=True)
class _Frame:
    """The beginnings of the lines of a list item or a quotation."""

    first: str
    rest: str
    is_open: bool = False  # whether its first line was added


@dataclass(slots=True)
class _Table:
    rows: list[list[tuple[Piece, ...]]] = field(default_factory=list)
    aligned: list[Aligned] = field(default_factory=list)


class _Walk:
    """Collects the parts of a text from its tokens."""

    def __init__(self, tokens: Sequence[Token], signs: Signs) -> None:
        self.parts: list[Part] = []
        self._signs = signs
        self._frames: list[_Frame] = []
        self._depth = 0  # of nested lists
        self._list_begins = False
        self._is_tight = False
        self._was_note = False  # the last part is a footnote
        self._heading = 0
        self._begins = False
        self._line = 0  # the first line of the last top-level block or item
        self._table: _Table | None = None
        for token, second in zip_longest(tokens, tokens[2:]):
            self._take(token, second)

    def _take(self, token: Token, second: Token | None) -> None:
        """Take a token; `second` is the second one after it."""
        kind = token.type
        if token.map is not None and (token.level == 0 or (kind == "list_item_open" and token.level == 1)):
            self._line, self._begins = token.map[0], True
        if self._table is not None:
            self._take_of_table(self._table, token)
        elif kind in ("bullet_list_open", "ordered_list_open"):
            self._list_begins = not self._depth
            self._depth += 1
        elif kind in ("bullet_list_close", "ordered_list_close"):
            self._depth -= 1
        elif kind == "list_item_open":
            number, task = f"{token.info}. " if token.info else "", self._task(second)
            mark = number + task if number or task else self._bullet()
            self._frames.append(_Frame(mark, " " * len(mark)))
        elif kind == "footnote_open":
            mark = f"[{printable(token.content)}] "
            self._list_begins = not self._was_note
            self._frames.append(_Frame(mark, " " * len(mark)))
        elif kind == "blockquote_open":
            self._frames.append(_Frame(self._signs.quotation, self._signs.quotation))
        elif kind in ("list_item_close", "blockquote_close", "footnote_close"):
            if not self._frames[-1].is_open:
                self._add(Paragraph(pieces=()), is_tight=self._is_tight)
            self._frames.pop()
            self._was_note = kind == "footnote_close"
        elif kind == "paragraph_open":
            self._is_tight, self._heading = token.hidden, 0
        elif kind == "heading_open":
            self._is_tight, self._heading = False, int(token.tag[1:])
        elif kind == "inline":
            pieces = tuple(pieces_of(token))
            self._add(Paragraph(pieces=pieces, heading=self._heading), is_tight=self._is_tight)
        elif kind in ("fence", "code_block"):
            language = next(iter(printable(token.info).split()), "")
            code = printable(token.content.removesuffix("\n"))
            self._add(Fence(code=code, language=language, fence=token.markup))
        elif kind == "formula_block":
            self._add(Formula(source=printable(token.content)))
        elif kind == "hr":
            self._add(Rule())
        elif kind == "table_open":
            self._table = _Table()

    def _bullet(self) -> str:
        bullets = self._signs.bullets
        return f"{bullets[(self._depth - 1) % len(bullets)]} "

    def _task(self, text: Token | None) -> str:
        """Return the box with which a list item begins, and remove it from the text; empty if there is none."""
        if text is not None and text.type == "inline" and (task := _TASK.match(text.content)) and text.children:
            first = text.children[0]
            if first.type == "text" and first.content.startswith(task[0].rstrip()):
                first.content = first.content[len(task[0].rstrip()) :].lstrip()
                return self._signs.tasks[task["done"] != " "]
        return ""

    def _take_of_table(self, table: _Table, token: Token) -> None:
        if token.type == "tr_open":
            table.rows.append([])
        elif token.type == "inline":
            table.rows[-1].append(tuple(pieces_of(token)))
        elif token.type == "th_open":
            style = str(token.attrs.get("style", ""))  # text-align:right
            table.aligned.append("right" if "right" in style else "center" if "center" in style else "left")
        elif token.type == "table_close":
            self._add(Rows(rows=tuple(map(tuple, table.rows)), aligned=tuple(table.aligned)))
            self._table = None

    def _add(self, part: Part, *, is_tight: bool = False) -> None:
        first = "".join(frame.rest if frame.is_open else frame.first for frame in self._frames)
        rest = "".join(frame.rest for frame in self._frames)
        for frame in self._frames:
            frame.is_open = True
        has_gap = bool(self.parts) and (not is_tight or self._list_begins)
        placed = replace(part, first=first, rest=rest, has_gap=has_gap, line=self._line, begins=self._begins)
        self.parts.append(placed)
        self._begins = self._list_begins = self._was_note = False


def pieces_of(inline: Token) -> Iterator[Piece]:
    """Yield the pieces of a paragraph or a cell. An address follows the text of its link if it is another text."""
    marks = list[Mark]()
    href, linked = "", ""
    for child in inline.children or []:
        kind = child.type
        if kind in _MARKS:
            marks.append(_MARKS[kind])
            if kind == "link_open":
                href, linked = printable(str(child.attrs.get("href", ""))), ""
        elif kind.endswith("_close") and marks:
            if marks.pop() == "link":
                if _SHOWN_WITHOUT.sub("", href) != _SHOWN_WITHOUT.sub("", linked):
                    yield Piece(f" ({href})", (*marks, "address"), href)
                href = ""
        elif text := _text_of(child):
            linked += text
            own: dict[str, Mark] = {"code_inline": "code", "formula": "formula", "footnote": "note"}
            yield Piece(text, (*marks, own[kind]) if kind in own else tuple(marks), href)
            if kind == "image" and not href and (source := printable(str(child.attrs.get("src", "")))):
                yield Piece(f" ({source})", (*marks, "address"), source)


def _text_of(token: Token) -> str:
    match token.type:
        case "softbreak" | "hardbreak":
            return "\n"
        case "image":
            return f"[image: {_shown(token.content)}]"
        case "formula":
            from edgespec.text.formulas import in_one_line  # most answers have none

            return _shown(in_one_line(token.content))
        case "footnote":
            return f"[{_shown(token.content)}]"
        case "text" | "code_inline":
            return _shown(token.content)
    return ""


def _shown(text: str) -> str:
    """Return text of a line without control characters, which HTML entities may bring in."""
    return printable(text.replace("\n", " "))
