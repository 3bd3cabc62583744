"""Where on the screen the characters of a text are, in cells as Rich counts them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import split_graphemes
from rich.segment import Segment
from textual.geometry import Offset

from edgespec.text.clusters import cluster_end, cluster_start


def around(text: str, index: int) -> tuple[int, int]:
    """Return the ends of the visible character that an index divides; the index twice if it divides none."""
    start = cluster_start(text, min(index + 1, len(text)))
    return (start, cluster_end(text, start)) if start < index < len(text) else (index, index)


def place_at(line: Iterable[Segment], cell: int) -> Offset | None:
    """Return the place in the text of a widget that is drawn at a cell of a line; None where no text is."""
    if cell < 0:
        return None
    for text, style, _ in line:
        place = style.meta.get("offset") if style is not None else None
        for start, _end, width in split_graphemes(text)[0]:
            if cell < width:
                return Offset(place[0] + start, place[1]) if place and place[1] is not None else None
            cell -= width
    return None
