"""Tables for terminals of any width: columns that do not fit go to another table, which repeats the first column."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgespec.text.printable import printable, wrapped

NOTHING = "-"
T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class Figures:
    """A table of figures whose first column has names. Headings may have several lines; `bold` are numbers of rows."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: Collection[int] = ()

    @classmethod
    def of(
        cls, title: str, columns: Mapping[str, Callable[[T], str]], items: Sequence[T], bold: Collection[int] = ()
    ) -> Figures:
        """Return a table with a row for each item; columns with nothing in them are left out, except the first."""
        cells = {name: [text(item) for item in items] for name, text in columns.items()}
        first = next(iter(columns))
        shown = {name: column for name, column in cells.items() if name == first or {*column} != {NOTHING}}
        return cls(title, list(shown), list(zip(*shown.values(), strict=True)), bold)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield _text(self.title, "bold")
        widths = [
            max(cell_len(line) for cell in column for line in cell.split("\n"))
            for column in zip(self.header, *self.rows, strict=True)
        ]
        gap = 2 if sum(widths) + 2 * len(widths) <= options.max_width else 1
        at = 1
        while at < len(widths):
            room, end = options.max_width - widths[0] - gap - widths[at], at + 1
            while end < len(widths) and widths[end] + gap <= room:
                room -= widths[end] + gap
                end += 1
            yield self._part([0, *range(at, end)], gap)
            at = end

    def _part(self, columns: Sequence[int], gap: int) -> Table:
        # the box puts one space between columns
        table = Table(box=SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), show_edge=False, pad_edge=False, header_style="")
        for column in columns:
            name = _text(self.header[column])
            table.add_column(name, justify="right" if column else "left", vertical="bottom", no_wrap=column > 0)
        for number, row in enumerate(self.rows):
            style = "bold" if number in self.bold else ""
            table.add_row(*(_text(row[column]) for column in columns), style=style)
        return table


@dataclass(slots=True, frozen=True)
class Lines:
    """Sentences, each on a new line, with labels if any has one; a non-breaking space is U+00A0."""

    rows: Sequence[tuple[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        longest = max((len(label) for label, _ in self.rows), default=0)
        indent = longest + 1 if longest else 0
        for label, line in self.rows:
            text = wrapped(
                label.ljust(indent) + printable(line), max(options.max_width, indent + 10), indent, breaks_words=True
            )
            yield Text(text.replace("\xa0", " "))


def notes(lines: Iterable[str]) -> Lines:
    """Return sentences as a list, with non-breaking spaces before per cent signs."""
    return Lines([("-", line.replace(" %", "%").replace("%", "\xa0%")) for line in lines])


def stacked(parts: Iterable[RenderableType]) -> RenderableType:
    """Return the parts one below the other, separated by empty lines."""
    lines: list[RenderableType] = []
    for part in parts:
        lines += [Text(""), part] if lines else [part]
    return Group(*lines)


def _text(text: str, style: str = "") -> Text:
    """Return text that is not parsed as markup."""
    return Text(printable(text), style)


# --- numbers ----------------------------------------------------------------------------------------------------------


def times(factor: float | None) -> str:
    return NOTHING if factor is None else f"{factor:.2f}x" if factor < 9.995 else f"{factor:.1f}x"


def interval(low: float | None, high: float | None) -> str:
    return NOTHING if low is None or high is None else f"{times(low)[:-1]}-{times(high)[:-1]}"


def rate(per_s: float | None) -> str:
    return NOTHING if per_s is None else f"{per_s:.0f}" if per_s >= 99.95 else f"{per_s:.1f}"


def figure(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share in per cent, rounded down so that 100 means all."""
    return NOTHING if share is None else f"{int(share * 10 ** (2 + digits) + 1e-9) / 10**digits:g}"


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"
