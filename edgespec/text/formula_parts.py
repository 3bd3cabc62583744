"""The parts of a formula: each is written in one line (`line`), or drawn on several lines (`drawing`)."""

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Literal

Kind = Literal["ordinary", "binary", "relation", "opening", "closing", "comma", "function", "big", "space", "text"]

_SUPERSCRIPTS = dict(
    zip(
        "0123456789+−=()abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUVWαβγδθφχ′∘∗†⊤",
        "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂᵅᵝᵞᵟᶿᵠᵡ′°*†ᵀ",
        strict=True,
    )
)
_SUBSCRIPTS = dict(zip("0123456789+−=()aehijklmnoprstuvxβγρφχ", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵧᵨᵩᵪ", strict=True))
_VULGAR = {"1/2": "½", "1/3": "⅓", "2/3": "⅔", "1/4": "¼", "3/4": "¾", "1/5": "⅕", "1/6": "⅙", "1/8": "⅛"}
_RADICALS = {"": "√", "2": "√", "3": "∛", "4": "∜"}
_BINARY = "+−±∓×·÷∗⋆∘∪∩∧∨⊕⊖⊗⊘⊙∖⊎⊔⊓∔⊞⊠⋉⋊⊻"
_BIG = "∑∏∐∫∬∭∮⋃⋂⨁⨂⋁⋀⨆"
_ORDINARY = "∀∃∄∂∇∞∅¬√∠∆□△|‖/⟂°∴∵⋮⋱⋯…"
_RELATIONS = ":≔∈∉∋∼∣∥"
_STRETCHED = {  # the top, the middle, the bottom and the part between of a delimiter of several lines
    "(": "⎛⎜⎝⎜",
    ")": "⎞⎟⎠⎟",
    "[": "⎡⎢⎣⎢",
    "]": "⎤⎥⎦⎥",
    "{": "⎧⎨⎩⎪",
    "}": "⎫⎬⎭⎪",
    "⌊": "⎢⎢⎣⎢",
    "⌋": "⎥⎥⎦⎥",
    "⌈": "⎡⎢⎢⎢",
    "⌉": "⎤⎥⎥⎥",
    "‖": "‖‖‖‖",
    "⟨": "╱⟨╲│",
    "⟩": "╲⟩╱│",
}


def text_width(text: str) -> int:
    """Return the number of cells of a text."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def in_alphabet(name: str, text: str) -> str:
    """Return a text in another alphabet of Unicode, as far as it has the letters. `NOT` strikes the text out, and no
    name leaves it as it is."""
    if name == "NOT":
        return unicodedata.normalize("NFC", text[:1] + "\u0338") + text[1:]
    if name == "SUBSCRIPT":
        return "".join(_SUBSCRIPTS.get(letter, letter) for letter in text)
    return "".join(_letter_in(name, letter) for letter in text) if name else text


def _letter_in(alphabet: str, letter: str) -> str:
    if not (letter.isascii() and letter.isalnum()):
        return letter
    size = "DIGIT" if letter.isdigit() else "CAPITAL" if letter.isupper() else "SMALL"
    what = unicodedata.name(letter).split()[-1]
    old = "BLACK-LETTER" if alphabet == "FRAKTUR" else alphabet
    for name in (f"{old} {size} {what}", f"MATHEMATICAL {alphabet} {size} {what}"):
        try:
            return unicodedata.lookup(name)
        except KeyError:
            continue
    return letter


@dataclass(frozen=True, slots=True)
class Drawing:
    """Lines of the same width. Drawings next to each other have their lines `base` in one line."""

    lines: tuple[str, ...]
    base: int = 0

    @property
    def width(self) -> int:
        return text_width(self.lines[0])

    @classmethod
    def of(cls, lines: Sequence[str], base: int, aligned: str = "c") -> Drawing:
        """Return lines that are padded to the width of the widest one."""
        width = max(map(text_width, lines))
        return cls(tuple(_padded(line, width, aligned) for line in lines), base)

    @classmethod
    def next_to(cls, drawings: Iterable[Drawing]) -> Drawing:
        parts = [drawing for drawing in drawings if drawing.width] or [cls(("",))]
        above = max(part.base for part in parts)
        below = max(len(part.lines) - part.base for part in parts)
        lines = [""] * (above + below)
        for part in parts:
            first = above - part.base
            for number in range(len(lines)):
                inside = first <= number < first + len(part.lines)
                lines[number] += part.lines[number - first] if inside else " " * part.width
        return cls(tuple(lines), above)

    @classmethod
    def stacked(cls, drawings: Sequence[Drawing | None], base: int) -> Drawing:
        """Return drawings one below the other; the base line is that of the drawing with the index `base`."""
        lines, at = list[str](), 0
        for index, part in enumerate(drawings):
            if part is not None:
                at = len(lines) + part.base if index == base else at
                lines += part.lines
        return cls.of(lines, at)


def _padded(line: str, width: int, aligned: str) -> str:
    free = width - text_width(line)
    before = {"l": 0, "r": free}.get(aligned, free // 2)
    return " " * before + line + " " * (free - before)


@dataclass(frozen=True)
class Node:
    """A part of a formula."""

    kind: Kind = field(default="ordinary", init=False)

    def line(self) -> str:
        """Return the part in one line."""
        return self._line

    @cached_property
    def _line(self) -> str:
        return self.written()  # once: parts within parts would be written again and again

    @abstractmethod
    def written(self) -> str:
        """Write the part in one line."""

    def drawing(self, *, is_inner: bool = False) -> Drawing:
        """Return the part on as many lines as it needs. `is_inner`: limits are next to their sign, as in a fraction."""
        return Drawing((self.line(),))

    @property
    def has_limits(self) -> bool:
        """True if the scripts of the part belong above and below it."""
        return False


def _inner(node: Node | None) -> Drawing | None:
    return node.drawing(is_inner=True) if node else None


@dataclass(frozen=True)
class Symbol(Node):
    """A character, a text, or the name of a function."""

    text: str
    is_text: bool = False
    is_function: bool = False
    limits: bool = False

    def __init__(
        self, text: str, *, is_text: bool = False, is_function: bool = False, has_limits: bool = False
    ) -> None:
        kind: Kind = "text" if is_text else "function" if is_function else _kind_of(text)
        for name, value in (("text", text), ("is_text", is_text), ("is_function", is_function), ("kind", kind)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "limits", has_limits)

    def written(self) -> str:
        return self.text

    @property
    def has_limits(self) -> bool:
        return self.limits


def _kind_of(text: str) -> Kind:
    if not text or text.isspace():
        return "space" if text else "ordinary"
    if text in _BINARY:
        return "binary"
    if text in _BIG:
        return "big"
    if text in ",;":
        return "comma"
    if text in "([{⟨⌊⌈":
        return "opening"
    if text in ")]}⟩⌋⌉":
        return "closing"
    is_relation = text in _RELATIONS or unicodedata.category(text[0]) == "Sm" or "\u2190" <= text[0] <= "\u21ff"
    return "relation" if is_relation and text not in _ORDINARY else "ordinary"


def space(n: int) -> Symbol:
    """Return so many spaces."""
    return Symbol(" " * n)


@dataclass(frozen=True)
class Row(Node):
    """Parts next to each other, with the spaces that LaTeX sets between them."""

    parts: Sequence[Node]

    def written(self) -> str:
        text = ""
        for index, (part, gap) in enumerate(zip(self.parts, self._gaps(), strict=True)):
            written = part.line()
            if isinstance(part, Fraction) and "/" in written and self._multiplies(index):
                written = f"({written})"
            text = f"{text.rstrip()} {written.lstrip()}" if gap and text.strip() else f"{' ' * gap}{text}{written}"
        return text

    def drawing(self, *, is_inner: bool = False) -> Drawing:
        if len(self.parts) == 1:
            return self.parts[0].drawing(is_inner=is_inner)
        drawings = list[Drawing]()
        for part, gap in zip(self.parts, self._gaps(), strict=True):
            drawn = part.drawing(is_inner=is_inner)
            before = drawings[-1].lines[drawings[-1].base] if drawings else ""
            if (gap and not before.endswith(" ")) or (drawings and _is_wide(drawn) and not before.endswith(" ")):
                drawings.append(Drawing((" ",)))
            drawings.append(drawn)
            if _is_wide(drawn):
                drawings.append(Drawing((" ",)))
        return Drawing.next_to(drawings)

    def _multiplies(self, index: int) -> bool:
        """Return whether the part is a factor next to another one."""
        factors = ("ordinary", "function", "big", "opening", "text")
        after = self.parts[index + 1].kind if index + 1 < len(self.parts) else "closing"
        before = self.parts[index - 1].kind if index else "opening"
        return after in factors or before in ("ordinary", "closing")

    def _gaps(self) -> list[bool]:
        """Return for each part whether a space precedes it."""
        gaps, before = list[bool](), ""
        last: Node = space(0)
        for part in self.parts:
            kind: str = part.kind
            if kind == "binary" and before in ("", "opening", "relation", "binary", "comma", "big", "function"):
                kind = "ordinary"  # a sign
            spaced = kind in ("binary", "relation") or before in ("binary", "relation", "comma")
            named = before in ("function", "big") and kind in ("ordinary", "function", "big", "text")
            named = named or (isinstance(last, Root | Script) and last.is_loose and kind in ("ordinary", "text"))
            named = named or (kind in ("function", "big") and before in ("ordinary", "closing", "function"))
            gaps.append((spaced or named) and kind != "space" and before != "space" and bool(before or spaced))
            before, last = kind, part
        return gaps


def _is_wide(drawing: Drawing) -> bool:
    """Return whether a drawing needs a space on both sides: a fraction or a sign with limits."""
    return len(drawing.lines) > 1 and any(part in drawing.lines[drawing.base] for part in ("─", *_BIG))


@dataclass(frozen=True)
class Fraction(Node):
    """A numerator over a denominator."""

    above: Node
    below: Node

    def written(self) -> str:
        above, below = self.above.line().strip(), self.below.line().strip()
        if vulgar := _VULGAR.get(f"{above}/{below}"):
            return vulgar
        above = above if _is_product(above) else f"({above})"
        return f"{above}/{below if _is_single(below) else f'({below})'}"

    def drawing(self, *, is_inner: bool = False) -> Drawing:
        above, below = self.above.drawing(is_inner=True), self.below.drawing(is_inner=True)
        longer = 2 * any("─" in line for part in (above, below) for line in part.lines)
        bar = Drawing(("─" * (max(1, above.width, below.width) + longer),))
        return Drawing.stacked([above, bar, below], 1)


def _is_product(text: str) -> bool:
    """Return whether a numerator needs no parentheses."""
    outside = re.sub(r"\([^()]*\)", "", text)
    return not any(sign in outside for sign in " /()")


def _is_single(text: str) -> bool:
    """Return whether a denominator needs no parentheses: a number, a letter with scripts, a differential, a word, or a
    function of something."""
    outside = re.sub(r"\([^()]*\)$", "", text)
    if outside.replace(".", "").isdecimal() or (not outside and text):
        return True
    scripts = {*_SUPERSCRIPTS.values(), *_SUBSCRIPTS.values(), "^"}
    letters = [letter for letter in outside if letter not in scripts and not unicodedata.combining(letter)]
    is_word = outside.isalpha() and (outside.isascii() and len(outside) > 3)
    return len(letters) <= 1 or (len(letters) == 2 and letters[0] in "d∂") or is_word


def _is_enclosed(text: str) -> bool:
    return text.startswith("(") and text.find(")") == len(text) - 1


@dataclass(frozen=True)
class Root(Node):
    """A root; `index` is 3 for a cube root."""

    body: Node
    index: str = ""

    @property
    def is_loose(self) -> bool:
        """True if a letter after the part in one line would seem to belong to it."""
        return not self.line().endswith(")")

    def written(self) -> str:
        body = self.body.line().strip()
        return self._sign() + (body if len(body) == 1 or body.isdecimal() else f"({body})")

    def drawing(self, *, is_inner: bool = False) -> Drawing:
        body = self.body.drawing(is_inner=is_inner)
        if len(body.lines) == 1:
            return Drawing((self.line(),))
        sign = self._sign()
        side = [" " * (text_width(sign) - 1) + "│"] * (len(body.lines) - 1)
        lines = [" " * text_width(sign) + "┌" + "─" * body.width]
        lines += [f"{left} {line}" for left, line in zip([*side, sign], body.lines, strict=True)]
        return Drawing.of(lines, body.base + 1, "l")

    def _sign(self) -> str:
        return _RADICALS.get(self.index) or f"{_small(self.index, _SUPERSCRIPTS) or self.index}√"


def _small(text: str, alphabet: dict[str, str]) -> str:
    """Return a text in small letters; empty if they do not have all of it."""
    letters = [alphabet.get(letter, "") for letter in text.replace(" ", "")]
    return "".join(letters) if all(letters) else ""


@dataclass(frozen=True)
class Script(Node):
    """A part with a subscript, a superscript, or both."""

    base: Node
    sub: Node | None
    sup: Node | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", self.base.kind)

    def written(self) -> str:
        base = self.base.line()
        if isinstance(self.base, Fraction | Root) or (isinstance(self.base, Row) and len(self.base.parts) > 1):
            base = f"({base})"
        sub, is_small = self._script_in_line(self.sub, "_", _SUBSCRIPTS)
        sup, _ = self._script_in_line(self.sup, "^", _SUPERSCRIPTS)
        return f"{base}{sub}{sup}" if is_small else f"{base}{sup}{sub}"

    def drawing(self, *, is_inner: bool = False) -> Drawing:
        base = self.base.drawing(is_inner=is_inner)
        is_small = all(_small(node.line(), alphabet) for node, alphabet in self._scripts() if node)
        if self.base.has_limits and not (is_inner and is_small):
            return Drawing.stacked([_inner(self.sup), base, _inner(self.sub)], 1)
        if is_small and len(base.lines) == 1:
            return Drawing((self.line(),))
        above, below = (self._script(node, alphabet, len(base.lines)) for node, alphabet in reversed(self._scripts()))
        between = max(0, len(base.lines) - 2) if len(base.lines) > 1 else 1
        none = ("",) if len(base.lines) > 1 else ()  # scripts are next to the first and the last line of a high part
        lines = [*(above.lines if above else none), *[""] * between, *(below.lines if below else none)]
        first = len(above.lines) - len(none) if above else 0
        return Drawing.next_to([base, Drawing.of(lines, first + base.base, "l")])

    @property
    def is_loose(self) -> bool:
        """True if a letter after the part in one line would seem to belong to it."""
        return not self.line().endswith(")") and any(
            not _small(node.line(), alphabet) for node, alphabet in self._scripts() if node
        )

    def _scripts(self) -> tuple[tuple[Node | None, dict[str, str]], ...]:
        return (self.sub, _SUBSCRIPTS), (self.sup, _SUPERSCRIPTS)

    def _script_in_line(self, node: Node | None, mark: str, alphabet: dict[str, str]) -> tuple[str, bool]:
        """Return a script in one line, and whether it is in small letters."""
        text = node.line().strip() if node else ""
        if small := _small(text, alphabet):
            return small, True
        if not text:
            return "", True
        is_word = len(text) == 1 or (mark == "_" and text.isalnum()) or _is_enclosed(text)
        return f"{mark}{text}" if is_word else f"{mark}({text})", False

    def _script(self, node: Node | None, alphabet: dict[str, str], height: int) -> Drawing | None:
        if node is None:
            return None
        small = _small(node.line(), alphabet) if height > 1 else ""
        return Drawing((small,)) if small else node.drawing(is_inner=True)


@dataclass(frozen=True)
class Over(Node):
    """A part with others above and below it."""

    base: Node
    above: Node | None = None
    below: Node | None = None

    def __post_init__(self) -> None:
        inner = self.base.parts[0] if isinstance(self.base, Row) and len(self.base.parts) == 1 else self.base
        object.__setattr__(self, "kind", inner.kind)

    def written(self) -> str:
        return Script(self.base, self.below, self.above).line() if self.above or self.below else self.base.line()

    def drawing(self, *, is_inner: bool = False) -> Drawing:
        return Drawing.stacked([_inner(self.above), self.base.drawing(), _inner(self.below)], 1)

    @property
    def has_limits(self) -> bool:
        return True


@dataclass(frozen=True)
class Accent(Node):
    """A part with a mark above or below it."""

    base: Node
    mark: str

    def written(self) -> str:
        text = self.base.line().strip()
        if self.mark in "\u0305\u0332":
            return "".join(letter + self.mark for letter in text)
        return unicodedata.normalize("NFC", text + self.mark)


@dataclass(frozen=True)
class Boxed(Node):
    """A part in a box."""

    body: Node

    def written(self) -> str:
        return f"[{self.body.line().strip()}]"

    def drawing(self, *, is_inner: bool = False) -> Drawing:
        body = self.body.drawing()
        bar = "─" * (body.width + 2)
        return Drawing((f"┌{bar}┐", *(f"│ {line} │" for line in body.lines), f"└{bar}┘"), body.base + 1)


@dataclass(frozen=True)
class Stretched(Node):
    """A part between delimiters that are as high as it is."""

    body: Node
    left: str
    right: str
    name: str = ""

    def written(self) -> str:
        return f"{self.name}{self.left}{self.body.line().strip()}{self.right}"

    def drawing(self, *, is_inner: bool = False) -> Drawing:
        return _enclosed(self.body.drawing(), self.left, self.right)


def _enclosed(body: Drawing, left: str, right: str) -> Drawing:
    height = len(body.lines)
    if height == 1:
        return Drawing((f"{left}{body.lines[0].strip()}{right}",))
    sides = [Drawing(_delimiter(sign, height), body.base) for sign in (left, right) if sign]
    parts = [*sides[: bool(left)], Drawing(tuple(f" {line} " for line in body.lines), body.base), *sides[bool(left) :]]
    return Drawing.next_to(parts)


def _delimiter(sign: str, height: int) -> tuple[str, ...]:
    top, middle, bottom, between = [*_STRETCHED.get(sign, "││││" if sign == "|" else sign * 4)][:4]
    lines = [top, *[between] * (height - 2), bottom]
    if middle != between and height > 2:
        lines[height // 2] = middle
    return tuple(lines)


@dataclass(frozen=True)
class Grid(Node):
    """A matrix, or lines that are aligned. `aligned` has a letter for each column, and repeats."""

    rows: Sequence[Sequence[Node]]
    left: str
    right: str
    aligned: str
    between: str = "; "

    @property
    def _is_aligned(self) -> bool:
        """True for lines of a derivation, whose columns are parts of one formula."""
        return self.aligned == "rl"

    def written(self) -> str:
        gap = "" if self._is_aligned else ", "
        rows = [gap.join(text for cell in row if (text := _cell(cell.line(), self._is_aligned))) for row in self.rows]
        return f"{self.left}{self.between.join(row.strip() for row in rows)}{self.right}"

    def drawing(self, *, is_inner: bool = False) -> Drawing:
        drawn = [[cell.drawing() for cell in row] for row in self.rows]
        columns = list(zip_longest(*drawn, fillvalue=Drawing(("",))))
        widths = [max(cell.width for cell in column) for column in columns]
        lines = list[str]()
        for number, row in enumerate(drawn):
            cells = list[Drawing]()
            for index, cell in enumerate(row):
                aligned = self.aligned[index % len(self.aligned)]
                if index and not (self._is_aligned and index % 2):
                    cells.append(Drawing(("  ",)))
                cells.append(Drawing(tuple(_padded(line, widths[index], aligned) for line in cell.lines), cell.base))
            whole = Drawing.next_to(cells)
            if number and (len(whole.lines) > 1 or len(drawn[number - 1][0].lines) > 1):
                lines.append("")
            lines += whole.lines
        body = Drawing.of(lines, (len(lines) - 1) // 2, "l")
        return _enclosed(body, self.left, self.right) if self.left or self.right else body


def _cell(text: str, is_aligned: bool) -> str:
    return text if is_aligned else text.strip()
