"""LaTeX formulas as Unicode text, in one line or drawn on several lines.

A formula that is too long or cannot be read stays as it was written: nothing that the model wrote is lost. The names of
symbols are those of HTML, most of which are LaTeX's; `latex_symbols.py` has the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from edgespec.text.formula_parts import (
    Accent,
    Boxed,
    Drawing,
    Fraction,
    Grid,
    Node,
    Over,
    Root,
    Row,
    Script,
    Stretched,
    Symbol,
    in_alphabet,
    space,
    text_width,
)
from edgespec.text.latex_symbols import (
    ACCENTS,
    ALPHABETS,
    BIG,
    DELIMITERS,
    FUNCTIONS,
    IGNORED,
    IGNORED_WITH_ARGUMENT,
    SPACES,
    TEXTS,
    symbol,
)

LONGEST = 4_000  # characters of a formula
DEEPEST = 24  # levels of groups
TALLEST, WIDEST = 40, 400  # lines and columns of a drawing
_TOKEN = re.compile(r"\\(?:[A-Za-z]+\*?|[\s\S]?)|\s+|[\s\S]")
_ENVIRONMENTS = {  # the delimiters of each, and how its columns are aligned
    "matrix": ("", "", "c"),
    "smallmatrix": ("", "", "c"),
    "pmatrix": ("(", ")", "c"),
    "bmatrix": ("[", "]", "c"),
    "Bmatrix": ("{", "}", "c"),
    "vmatrix": ("|", "|", "c"),
    "Vmatrix": ("‖", "‖", "c"),
    "array": ("", "", "c"),
    "cases": ("{", "", "l"),
    "dcases": ("{", "", "l"),
    "rcases": ("", "}", "l"),
}
_ROWS = ("", "", "rl")  # any other environment, such as aligned


class _UnreadableError(ValueError):
    """The text is no formula that this module can read."""


@lru_cache(256)
def in_one_line(source: str) -> str:
    """Return a formula as one line of text; its source if it cannot be read."""
    node = _read(source)
    return (re.sub(r" {3,}", "  ", node.line().strip()).replace("′′", "″") if node else "") or source.strip()


@lru_cache(256)
def drawn(source: str) -> tuple[str, ...]:
    """Return the lines of a formula with fractions, limits and matrices drawn; one line if it has none of them."""
    node = _read(source)
    drawing = node.drawing() if node else None
    if drawing is None or len(drawing.lines) > TALLEST or drawing.width > WIDEST:
        return tuple(in_one_line(source).split("\n"))
    lines = [line.rstrip() for line in drawing.lines]
    indent = min((len(line) - len(line.lstrip()) for line in lines if line), default=0)
    return tuple(line[indent:] for line in lines) if any(lines) else (source.strip(),)


def drawn_within(source: str, width: int) -> tuple[str, ...]:
    """Return the lines of `drawn` if they fit, else the formula as one line."""
    lines = drawn(source)
    return lines if max(map(text_width, lines)) <= width else (in_one_line(source),)


def _read(source: str) -> Node | None:
    if len(source) > LONGEST:
        return None
    try:
        return _Reader(source).all()
    except (_UnreadableError, RecursionError):
        return None


class _Reader:
    """Reads the tokens of a formula, one after the other."""

    def __init__(self, source: str) -> None:
        self._tokens = _TOKEN.findall(re.sub(r"(?<!\\)%.*", "", source))
        self._at = 0
        self._depth = 0

    def all(self) -> Node:
        rows = self._rows(())
        if self._at < len(self._tokens):
            raise _UnreadableError("a group or an environment ends that did not begin")
        return rows[0][0] if len(rows) == len(rows[0]) == 1 else Grid(rows, *_ROWS)

    # --- tokens ---------------------------------------------------------------------------------------------------

    @property
    def _next(self) -> str:
        """The next token that is no white space; "" at the end."""
        while self._at < len(self._tokens) and self._tokens[self._at].isspace():
            self._at += 1
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next
        self._at += 1
        return token

    def _takes(self, token: str) -> bool:
        if self._next != token:
            return False
        self._at += 1
        return True

    def _up_to(self, opening: str, closing: str) -> str:
        """Take the text up to the end of a group that has begun, with its spaces."""
        start, depth = self._at, 1
        while depth:
            if self._at >= len(self._tokens):
                raise _UnreadableError("a group does not end")
            depth += {opening: 1, closing: -1}.get(self._tokens[self._at], 0)
            self._at += 1
        return "".join(self._tokens[start : self._at - 1])

    def _raw(self) -> str:
        """Take an argument as text."""
        return self._up_to("{", "}") if self._takes("{") else self._take().removeprefix("\\")

    def _optional(self) -> str:
        """Take an argument in brackets as text; "" if there is none."""
        return self._up_to("[", "]") if self._takes("[") else ""

    # --- formulas -------------------------------------------------------------------------------------------------

    def _rows(self, ends: Sequence[str]) -> list[list[Node]]:
        """Read the rows and columns up to one of `ends`, which is not taken."""
        rows: list[list[Node]] = [[]]
        while True:
            rows[-1].append(self._row((*ends, "&", "\\\\", "\\cr", "\\newline")))
            if self._next not in ("&", "\\\\", "\\cr", "\\newline"):
                break
            if self._take() != "&":
                if self._next == "[":
                    self._optional()
                rows.append([])
        if len(rows) > 1 and not any(cell.line().strip() for cell in rows[-1]):
            rows.pop()
        return rows

    def _row(self, ends: Sequence[str]) -> Node:
        """Read up to one of `ends`, the end of a group or the end of the formula; none is taken."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise _UnreadableError("too many levels of groups")
        nodes = list[Node]()
        while (token := self._next) and token not in ends and token not in ("}", "\\right", "\\end"):
            if token in ("\\over", "\\choose", "\\atop"):
                self._take()
                return self._ended(_stacked(Row(nodes), self._row(ends), token))
            nodes.append(self._scripted())
        return self._ended(Row(nodes))

    def _ended(self, node: Node) -> Node:
        self._depth -= 1
        return node

    def _scripted(self) -> Node:
        """Read an atom with the scripts after it."""
        base = Symbol("") if self._next in ("^", "_", "'") else self._atom()
        sub = sup = None
        while self._next in ("^", "_", "'", "\\limits", "\\nolimits"):
            token = self._take()
            if token == "_":
                sub = _joined(sub, self._argument())
            elif token == "^":
                sup = _joined(sup, self._argument())
            elif token == "'":
                sup = _joined(sup, Symbol("′"))
        return Script(base, sub, sup) if sub or sup else base

    def _argument(self) -> Node:
        """Read a group, or a single atom."""
        if not self._takes("{"):
            if not self._next or self._next in ("}", "&", "^", "_"):
                raise _UnreadableError("an argument is missing")
            return self._atom()
        rows = self._rows(("}",))
        if not self._takes("}"):
            raise _UnreadableError("a group does not end")
        return rows[0][0] if len(rows) == len(rows[0]) == 1 else Grid(rows, "", "", "c")

    def _atom(self) -> Node:
        token = self._next
        if token == "{":
            return self._argument()
        self._take()
        if not token.startswith("\\"):
            return space(1) if token == "~" else Symbol({"-": "−", "*": "∗"}.get(token, token))
        return self._command(token[1:].removesuffix("*") or "\\")

    def _command(self, name: str) -> Node:
        if read := _COMMANDS.get(name):
            return read(self)
        if name in SPACES:
            return space(SPACES[name])
        if name in IGNORED:
            return Row([])
        if name in IGNORED_WITH_ARGUMENT:
            self._raw()
            return Row([])
        if name in TEXTS:
            return Symbol(self._literal(), is_text=True)
        if name in ALPHABETS:
            return Symbol(in_alphabet(ALPHABETS[name], self._argument().line()))
        if name in ACCENTS:
            return Accent(self._argument(), ACCENTS[name])
        if name in FUNCTIONS:
            return Symbol(FUNCTIONS[name], is_function=True, has_limits=name in BIG)
        if known := symbol(name):
            return Symbol(known, has_limits=name in BIG)
        argument = f"{{{self._raw()}}}" if self._next == "{" else " " * self._next.isalnum()
        return Symbol(f"\\{name}{argument}", is_text=True)

    def _literal(self) -> str:
        """Take an argument as text, whose spaces count."""
        text = re.sub(r"\\(?:text\w*|math\w*)\s*\{([^{}]*)\}", r"\1", self._raw())
        return re.sub(r"\$|\\[,;!]", "", re.sub(r"\\([%#&_{}$ ])", r"\1", text))

    def _fraction(self) -> Node:
        return Fraction(self._argument(), self._argument())

    def _binomial(self) -> Node:
        return _stacked(self._argument(), self._argument(), "\\choose")

    def _root(self) -> Node:
        index = _Reader(self._optional()).all().line()
        return Root(self._argument(), index)

    def _stretched(self) -> Node:
        left = self._delimiter()
        rows = self._rows(("\\right",))
        if not self._takes("\\right"):
            raise _UnreadableError("\\left has no \\right")
        inner = rows[0][0] if len(rows) == len(rows[0]) == 1 else Grid(rows, "", "", "c")
        return Stretched(inner, left, self._delimiter())

    def _delimiter(self) -> str:
        token = self._take()
        if not token:
            raise _UnreadableError("a delimiter is missing")
        return DELIMITERS.get(token, symbol(token[1:]) if token.startswith("\\") else token)

    def _environment(self) -> Node:
        name = self._raw().removesuffix("*")
        left, right, aligned = _ENVIRONMENTS.get(name, _ROWS)
        if name == "array":
            aligned = "".join(letter for letter in self._raw() if letter in "lcr") or aligned
        elif self._next == "[":
            self._optional()
        rows = self._rows(("\\end",))
        if not self._takes("\\end") or self._raw().removesuffix("*") != name:
            raise _UnreadableError("an environment does not end")
        return Grid(rows, left, right, aligned)

    def _over(self) -> Node:
        above, base = self._argument(), self._argument()
        return Over(base, above=above)

    def _under(self) -> Node:
        below, base = self._argument(), self._argument()
        return Over(base, below=below)

    def _braced(self) -> Node:
        return Over(self._argument())

    def _arrow(self) -> Node:
        below = _Reader(self._optional()).all()
        return Over(Symbol("⟶"), above=self._argument(), below=below if below.line() else None)

    def _boxed(self) -> Node:
        return Boxed(self._argument())

    def _coloured(self) -> Node:
        self._optional()
        self._raw()
        return self._argument()

    def _linked(self) -> Node:
        address = self._raw()
        return Row([self._argument(), Symbol(f" ({address})", is_text=True)])

    def _negated(self) -> Node:
        return Symbol(in_alphabet("NOT", self._argument().line().strip()))

    def _modulus(self) -> Node:
        return Row([space(1), Symbol("(mod ", is_text=True), self._argument(), Symbol(")", is_text=True)])

    def _tag(self) -> Node:
        return Row([space(2), Symbol(f"({self._raw()})", is_text=True)])

    def _operator(self) -> Node:
        return Symbol(self._literal(), is_function=True, has_limits=self._next == "\\limits")

    def _chemistry(self) -> Node:
        text = re.sub(r"\s*(<=>|->)\s*", lambda arrow: {"->": " → "}.get(arrow[1], " ⇌ "), self._literal())
        return Symbol(re.sub(r"(?<=[A-Za-z)\]])\d+", lambda n: in_alphabet("SUBSCRIPT", n[0]), text), is_text=True)


_COMMANDS: dict[str, Callable[[_Reader], Node]] = {
    **dict.fromkeys(["frac", "dfrac", "tfrac", "cfrac"], _Reader._fraction),
    **dict.fromkeys(["binom", "dbinom", "tbinom"], _Reader._binomial),
    **dict.fromkeys(["overset", "stackrel"], _Reader._over),
    **dict.fromkeys(["underbrace", "overbrace"], _Reader._braced),
    **dict.fromkeys(["xrightarrow", "xleftarrow"], _Reader._arrow),
    **dict.fromkeys(["boxed", "fbox"], _Reader._boxed),
    **dict.fromkeys(["textcolor", "colorbox"], _Reader._coloured),
    "sqrt": _Reader._root,
    "left": _Reader._stretched,
    "begin": _Reader._environment,
    "underset": _Reader._under,
    "substack": _Reader._argument,
    "href": _Reader._linked,
    "not": _Reader._negated,
    "pmod": _Reader._modulus,
    "tag": _Reader._tag,
    "ce": _Reader._chemistry,
    "operatorname": _Reader._operator,
}


def _joined(first: Node | None, second: Node) -> Node:
    return second if first is None else Row([first, second])


def _stacked(above: Node, below: Node, command: str) -> Node:
    if command == "\\over":
        return Fraction(above, below)
    pair = Grid([[above], [below]], "", "", "c", between=", ")
    return Stretched(pair, "(", ")", name="C") if command == "\\choose" else pair


__all__ = ["Drawing", "drawn", "drawn_within", "in_one_line"]
