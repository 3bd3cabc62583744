"""Screens of a terminal as an SVG picture. Several screens with their times make a picture that moves in a loop.

A line that several screens share is one element of the picture. Viewers without animation, and people who ask for less
motion, see the last screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import MONOKAI

CELL, LINE, FONT, BASELINE = 8.4, 17, 14, 13  # pixels
MARGIN, BAR, ROUND = 10, 28, 8  # around the screen, the height of the line above it, and its corners
FONTS = "'Fira Code','DejaVu Sans Mono',Menlo,Consolas,monospace"
DOTS = ("#ff5f57", "#febc2e", "#28c840")
FRAME, TITLE = "#2b2b2b", "#c5c8c6"
DIM = 0.4  # how far a dim text is faded into its background


@dataclass(frozen=True, slots=True)
class Look:
    """The style of a text in CSS; colours are #rrggbb."""

    colour: str
    background: str
    face: str = ""  #: declarations of CSS

    @classmethod
    def of(cls, style: Style | None, background: str) -> Look:
        """Return the look of a style on the background of the screen."""
        style = style or Style.null()
        front = _colour(style.color, MONOKAI.foreground_color)
        back = _colour(style.bgcolor, Color.parse(background).get_truecolor())
        if style.reverse:
            front, back = back, front
        if style.dim:
            front = blend_rgb(front, back, DIM)
        faces = {"font-weight:bold": style.bold, "font-style:italic": style.italic}
        faces["text-decoration:underline"] = style.underline
        return cls(front.hex, back.hex, ";".join(face for face, has in faces.items() if has))


Row = tuple[tuple[str, Look], ...]
"""A line as texts with their looks."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What is shown from a time on, in seconds."""

    time_s: float
    rows: tuple[Row, ...]


def row_of(segments: Iterable[Segment], background: str) -> Row:
    """Return a line; texts with the same look are one."""
    looks = [(segment.text, Look.of(segment.style, background)) for segment in segments if not segment.control]
    grouped = groupby(looks, key=lambda part: part[1])
    return tuple(("".join(text for text, _ in parts), look) for look, parts in grouped)


def picture(screens: Sequence[Screen], end_s: float, columns: int, background: str, title: str) -> str:
    """Return the picture of these screens, the first of which is shown from 0 on, and the last until `end_s`."""
    n_rows = len(screens[0].rows)
    width, height = columns * CELL + 2 * MARGIN, n_rows * LINE + BAR + MARGIN
    drawn, looks, times = list[str](), dict[Look, str](), dict[tuple[float, float], str]()
    for y in range(n_rows):
        for begin_s, stop_s, row in _runs(screens, y, end_s):
            lines = [*_drawn(row, y, background, looks)]
            if lines:
                name = times.setdefault((begin_s, stop_s), f"t{len(times)}")
                last = " last" if stop_s == end_s else ""
                drawn.append(f'<g class="row {name}{last}">{"".join(lines)}</g>')
    css = [f"text{{font:{FONT}px {FONTS}}}"]
    css += [f".{name}{{fill:{look.colour}{';' if look.face else ''}{look.face}}}" for look, name in looks.items()]
    if len(screens) > 1:
        css.append(f".row{{visibility:hidden;animation:{end_s:.2f}s step-end infinite}}.last{{visibility:visible}}")
        css += [_keyframes(name, *time, end_s) for time, name in times.items()]
        css.append("@media(prefers-reduced-motion:reduce){.row{animation:none}}")
    dots = "".join(f'<circle cx="{18 + 18 * n}" cy="{BAR / 2}" r="5.5" fill="{dot}"/>' for n, dot in enumerate(DOTS))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{''.join(css)}</style>",
            f'<rect width="{width:g}" height="{height:g}" rx="{ROUND}" fill="{FRAME}"/>{dots}',
            f'<text x="{width / 2:g}" y="{BAR / 2 + 5:g}" text-anchor="middle" fill="{TITLE}">{escape(title)}</text>',
            f'<rect x="{MARGIN}" y="{BAR}" width="{columns * CELL:g}" height="{n_rows * LINE:g}" fill="{background}"/>',
            *drawn,
            "</svg>\n",
        ]
    )


def _runs(screens: Sequence[Screen], y: int, end_s: float) -> Iterator[tuple[float, float, Row]]:
    """Yield from when to when a line stays the same, and the line."""
    runs = [(screen.time_s, screen.rows[y]) for screen in screens]
    runs = [run for n, run in enumerate(runs) if not n or run[1] != runs[n - 1][1]]
    ends_s = [time_s for time_s, _ in runs[1:]] + [end_s]
    yield from ((begin_s, stop_s, row) for (begin_s, row), stop_s in zip(runs, ends_s, strict=True))


def _drawn(row: Row, y: int, background: str, looks: dict[Look, str]) -> Iterator[str]:
    """Yield the elements of a line; `looks` gets the names of its looks."""
    x, top = 0, BAR + y * LINE
    for text, look in row:
        n_cells = cell_len(text)
        left = MARGIN + x * CELL
        if look.background != background:
            size = f'width="{n_cells * CELL + 0.3:.1f}" height="{LINE + 0.3:.1f}"'  # no seams between neighbours
            yield f'<rect x="{left:.1f}" y="{top:.1f}" {size} fill="{look.background}"/>'
        if shown := text.strip():
            skipped = cell_len(text) - cell_len(text.lstrip())
            name = looks.setdefault(Look(look.colour, "", look.face), f"l{len(looks)}")
            place = (
                f'x="{left + skipped * CELL:.1f}" y="{top + BASELINE:.1f}" textLength="{cell_len(shown) * CELL:.1f}"'
            )
            yield f'<text class="{name}" {place}>{escape(shown).replace(" ", chr(0xA0))}</text>'
        x += n_cells


def _keyframes(name: str, begin_s: float, stop_s: float, end_s: float) -> str:
    """Return the rule that shows the rows of a time, and hides them at all other times."""
    steps = [(begin_s, "visible"), (stop_s, "hidden")]
    if begin_s > 0:
        steps.insert(0, (0.0, "hidden"))
    frames = "".join(f"{100 * time_s / end_s:.3f}%{{visibility:{state}}}" for time_s, state in steps if time_s < end_s)
    return f".{name}{{animation-name:{name}}}@keyframes {name}{{{frames}}}"


def _colour(colour: Color | None, default: ColorTriplet) -> ColorTriplet:
    return default if colour is None or colour.is_default else colour.get_truecolor(MONOKAI)
