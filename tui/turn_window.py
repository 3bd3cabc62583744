"""A long column of messages of which only some are mounted; more are mounted when the user scrolls to an end.

Visible text stays in place while entries are added or removed above it. At the end the view follows the stream.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.events import Click
from textual.geometry import Offset, Size
from textual.layout import DockArrangeResult
from textual.widget import Widget

from edgespec.chat.events import Level
from edgespec.history import Turn
from edgespec.tui.plain import Static, VerticalScroll

FIRST = 6  # entries that are mounted when a chat opens
MOUNTED = 40  # entries that are mounted a moment later
STEP = 20  # entries that are added when the user scrolls to an end
MOST = 60  # entries that stay mounted at the end of the chat; elsewhere twice as many


@dataclass(frozen=True, slots=True)
class Note:
    """A message of the program between those of the chat."""

    text: str
    level: Level


Entry = Turn | Note


class TurnWindow(VerticalScroll, can_focus=False):
    """Shows entries, each in a widget made by `view_of`, and after the last one possibly a live view."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        self.views: list[Widget] = []  # the views of the mounted entries
        self.live: Widget | None = None  # the view after the last entry
        self._first = 0
        self._moving = asyncio.Lock()
        # The first visible view and how far it is scrolled; None: the view follows the end.
        self._reading: tuple[Widget, float] | None = None

    def compose(self) -> ComposeResult:
        yield Edge(-1)
        yield Edge(1)
        yield News("▼ new text below · End shows it")

    @abstractmethod
    def view_of(self, entry: Entry) -> Widget: ...

    @property
    def is_at_end(self) -> bool:
        """True if the last entry is mounted."""
        return self._last == len(self.entries)

    @property
    def shows_end(self) -> bool:
        """True if a new entry would be visible: the view is at the end, and there is no live view."""
        return self._reading is None and self.live is None and self.is_at_end

    @property
    def has_earlier(self) -> bool:
        return self._first > 0

    # --- entries --------------------------------------------------------------------------------------------------

    async def set_entries(self, n_kept: int, others: Sequence[Entry]) -> None:
        """Replace the entries after the first `n_kept`, and show the end."""
        async with self._moving:
            with self.app.batch_update():
                await self._move(self._first, min(n_kept, self._last))
                self.entries[n_kept:] = others
                n = len(self.entries)
                await self._move(max(self._first, n - MOST) if self.views else n - FIRST, n)
                self._follow()
        self._fill()

    async def append(self, entry: Entry, view: Widget | None = None) -> None:
        """Append an entry. `view` is its view if it is mounted already, as the live view is."""
        async with self._moving:
            was_at_end = self.is_at_end
            self.entries.append(entry)
            if was_at_end and view is not None:
                self.views.append(view)
            n = len(self.entries)
            most = MOST if self._reading is None else 2 * MOST
            await self._move(max(self._first, n - most) if was_at_end else self._first, n if was_at_end else self._last)
        self.mark_news()

    def mark_news(self) -> None:
        """Show that there is new text at the end, if the user reads above it."""
        for line in self.query_children(News):  # there is none before the first layout
            line.display = self._reading is not None

    async def show_end(self) -> None:
        """Scroll to the end, and follow it."""
        async with self._moving:
            n = len(self.entries)
            await self._move(self._first if self.is_at_end else n - FIRST, n)
            self._follow()
        self.scroll_end(animate=False)

    async def begin_live(self, view: Widget) -> None:
        """Scroll to the end and put a live view there."""
        async with self._moving:
            n = len(self.entries)
            await self._move(self._first if self.is_at_end else n - FIRST, n)
            self.live = view
            self._follow()
            await self.mount(view, before=self._edge(1))

    async def show_around(self, index: int) -> Widget:
        """Mount the entry `index`, and return its view."""
        async with self._moving:
            if not self._first <= index < self._last:
                await self._move(index - STEP // 2, index + STEP // 2)
            return self.views[index - self._first]

    async def slide(self, step: int) -> None:
        """Mount more entries before (-1) or after (1) the mounted ones."""
        async with self._moving:
            if step < 0:
                first = self._first - STEP
                await self._move(first, min(self._last, first + 2 * MOST))
            else:
                last = self._last + STEP
                await self._move(max(self._first, last - 2 * MOST), last)

    @property
    def _last(self) -> int:
        """The index of the first entry after the mounted ones."""
        return self._first + len(self.views)

    @work(exclusive=True, group="fill")
    async def _fill(self) -> None:
        """Mount the entries that are likely to be needed next, a few at a time."""
        while self.has_earlier and self.is_at_end and len(self.views) < MOUNTED:
            await self._at_rest()
            async with self._moving:
                await self._move(self._first - 2, self._last)
            await asyncio.sleep(0.02)

    async def _move(self, first: int, last: int) -> None:
        """Mount exactly the entries from `first` to `last`, exclusively."""
        first, last = max(0, first), min(len(self.entries), last)
        old_first, old_last = self._first, self._last
        kept: list[Widget] = []
        if max(first, old_first) < min(last, old_last):
            kept = self.views[max(first - old_first, 0) : last - old_first]
        else:
            old_first = old_last = first
        gone = [view for view in self.views if view not in kept]
        above = [self.view_of(entry) for entry in self.entries[first : max(first, old_first)]]
        below = [self.view_of(entry) for entry in self.entries[max(old_last, first) : last]]
        end = self.live or self._edge(1)
        self._first, self.views = first, [*above, *kept, *below]
        with self.app.batch_update():
            if gone:
                await self.remove_children(gone)
            if above:
                await self.mount_all(above, before=kept[0])
            if below:
                await self.mount_all(below, before=end)
            self._update_edges()

    def _edge(self, step: int) -> Edge:
        return next(edge for edge in self.query_children(Edge) if edge.step == step)

    def _update_edges(self) -> None:
        self._edge(-1).tell(self._first)
        self._edge(1).tell(len(self.entries) - self._last)
        if self.live is not None:
            self.live.display = self.is_at_end

    def on_click(self, event: Click) -> None:
        if isinstance(event.widget, Edge):
            self.call_later(self.slide, event.widget.step)
        elif isinstance(event.widget, News):
            self.call_later(self.show_end)

    def action_scroll_end(self) -> None:
        self.call_later(self.show_end)

    # --- scrolling ------------------------------------------------------------------------------------------------

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        is_last_line = new_value >= self.max_scroll_y
        if is_last_line and self.is_at_end:
            self._follow()
        else:
            views = [*self.views, *([self.live] if self.live else [])]
            regions = ((view, view.virtual_region) for view in views)
            read = ((view, new_value - region.y) for view, region in regions if region.bottom > new_value)
            self._reading = next(read, None)
        if new_value <= 0 < old_value and self.has_earlier:
            self.call_later(self._slide_from_edge, -1)
        elif is_last_line and not self.is_at_end:
            self.call_later(self._slide_from_edge, 1)

    def _follow(self) -> None:
        """Keep the end in view from now on."""
        self._reading = None
        self.mark_news()

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Lay out the views; the visible text stays in place, or the end stays in view."""
        result = super().arrange(size, optimal)
        if not optimal:
            end = max(0, result.spatial_map.total_region.bottom - size.height)
            top: float = end
            if self._reading is not None:
                view, offset = self._reading
                places = (place.region.y + offset for place in result.placements if place.widget is view)
                top = max(0, min(end, next(places, self.scroll_y)))
            if top != self.scroll_y:
                self.set_reactive(Widget.scroll_y, top)
                self.set_reactive(Widget.scroll_target_y, top)
                self.vertical_scrollbar.position = top
        return result

    async def _slide_from_edge(self, step: int) -> None:
        await self._at_rest()
        is_there = self.scroll_y <= 0 if step < 0 else self.is_vertical_scroll_end
        if is_there and (self.has_earlier if step < 0 else not self.is_at_end):
            await self.slide(step)

    async def _at_rest(self) -> None:
        """Wait until scrolling has ended: after a move the target of the animation would be another line."""
        while self.app.animator.is_being_animated(self, "scroll_y"):
            await asyncio.sleep(0.01)

    def scroll_to_region(self, *args: object, **options: object) -> Offset:
        """Do nothing: moving the focus must not scroll."""
        return Offset(0, 0)


class News(Static):
    """A line above the end of the view: there is new text below."""


class Edge(Static):
    """A line at an end of the mounted part: the chat continues in the direction of `step`."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def tell(self, count: int) -> None:
        """Show how many entries there are; hide the line if there are none."""
        self.display = count > 0
        self.update(Content(f"▲ {count:,} earlier" if self.step < 0 else f"▼ {count:,} later"))
