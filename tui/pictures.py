"""Attached images as small pictures between the lines of a message.

Kitty and Ghostty draw them with the graphics protocol of kitty: the picture is sent once, and characters say where its
parts are. Other terminals get two pixels in each cell.
"""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from edgespec.chat.attachments import kept_file
from edgespec.errors import ImageError
from edgespec.files.images import pixels_of, size_of_image
from edgespec.tui.lines import Block, Brush, Line

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_COLUMNS, MOST_ROWS = 40, 12
MOST_PIXELS = 24_000_000  # of a larger image only the name is shown: decoding it takes long
CELL = 16, 32  # pixels of a cell in pictures that are sent
CHUNK = 4096  # characters in one control sequence
PLACEHOLDER = "\U0010eeee"
_NUMBERS = [  # combining characters for the numbers of rows and columns
    *(0x305, 0x30D, 0x30E, 0x310, 0x312, 0x33D, 0x33E, 0x33F, 0x346, 0x34A, 0x34B, 0x34C, 0x350, 0x351, 0x352, 0x357),
    *(0x35B, *range(0x363, 0x370), *range(0x483, 0x488), *range(0x592, 0x596), *range(0x597, 0x59A)),
    *range(0x59C, 0x5A2),
]


class Pictures:
    """Sends pictures to a terminal that draws them: to `write`, each once."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._sent = set[tuple[str, int, int]]()

    def send(self, digest: str, columns: int, rows: int) -> int:
        """Return the number under which the terminal knows the picture of the image with this hash."""
        number = int(digest[:6], 16) | 1
        if (digest, columns, rows) not in self._sent:
            self._sent.add((digest, columns, rows))
            self._write(sent_picture(_png(digest, columns * CELL[0], rows * CELL[1]), number, columns, rows))
        return number


@dataclass(frozen=True, eq=False)
class Picture(Block):
    """The image with this hash; without colours, or if it cannot be read, nothing."""

    digest: str
    pictures: Pictures | None = None

    def lines(self, brush: Brush, width: int) -> list[Line]:
        if brush.is_ansi:
            return []
        with suppress(OSError, ImageError):
            columns, rows = _cells(self.digest, width)
            if self.pictures is not None:
                number = self.pictures.send(self.digest, columns, rows)
                return [Line(_place(number, row, columns), None) for row in range(rows)]
            return [Line(strip, None) for strip in _half_blocks(self.digest, columns, rows)]
        return []


def sent_picture(png: bytes, number: int, columns: int, rows: int) -> str:
    """Return the control sequences that send a picture, which placeholders then show."""
    data = b64encode(png).decode()
    chunks = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
    first = f"a=T,U=1,q=2,f=100,i={number},c={columns},r={rows},"
    parts = [
        f"\x1b_G{'' if index else first}m={int(index < len(chunks) - 1)};{chunk}\x1b\\"
        for index, chunk in enumerate(chunks)
    ]
    return "".join(parts)


def _place(number: int, row: int, columns: int) -> Strip:
    """Return the placeholders of a row of a picture. Their colour is its number."""
    style = Style(color=Color.from_rgb(number >> 16, number >> 8 & 255, number & 255))
    text = "".join(PLACEHOLDER + chr(_NUMBERS[row]) + chr(_NUMBERS[column]) for column in range(columns))
    return Strip([Segment(text, style)], columns)


@lru_cache(64)
def _cells(digest: str, width: int) -> tuple[int, int]:
    """Return how many columns and rows a picture has. Raises OSError and ImageError."""
    wide, high = size_of_image(kept_file(digest).read_bytes())
    if wide * high > MOST_PIXELS:
        raise ImageError("the image is too large for a picture")
    scale = min(min(MOST_COLUMNS, width) / wide, 2 * MOST_ROWS / high)
    return max(1, round(wide * scale)), max(1, round(high * scale / 2))


@lru_cache(64)
def _half_blocks(digest: str, columns: int, rows: int) -> tuple[Strip, ...]:
    pixels = _scaled(digest, columns, 2 * rows)
    lines = list[Strip]()
    for y in range(0, 2 * rows, 2):
        segments = list[Segment]()
        for x in range(columns):
            above, below = (Color.from_rgb(*pixels.getpixel((x, y + down))) for down in (0, 1))  # type: ignore[misc]
            segments.append(Segment("▀", Style(color=above, bgcolor=below)))
        lines.append(Strip(segments, columns).simplify())
    return tuple(lines)


def _png(digest: str, width: int, height: int) -> bytes:
    file = io.BytesIO()
    _scaled(digest, width, height).save(file, "PNG")
    return file.getvalue()


def _scaled(digest: str, width: int, height: int) -> Image:
    from PIL.Image import Resampling, fromarray

    return fromarray(pixels_of(kept_file(digest).read_bytes())).resize((width, height), Resampling.HAMMING)
