"""The messages of a chat, and after them the streaming answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import DescendantFocus
from textual.reactive import reactive
from textual.widget import Widget

from edgespec.chat.events import Level
from edgespec.events import TokenEvent
from edgespec.history import TokenRecord, Turn
from edgespec.history.search import found_in, spans
from edgespec.tui.about_chat import SystemPrompt
from edgespec.tui.lines import Lines, Prose
from edgespec.tui.pictures import Pictures
from edgespec.tui.plain import Static
from edgespec.tui.token_view import legend, palette_of
from edgespec.tui.tool_calls import CallLine
from edgespec.tui.turn_view import Shared, TurnView
from edgespec.tui.turn_window import Entry, Note, TurnWindow


class Transcript(TurnWindow):
    """Shows turns. `pieces` and `siblings` return the tokens and the other versions of a turn by its key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Previous message", show=False, id="transcript.previous"),
        Binding("down", "move(1)", "Next message", show=False, id="transcript.next"),
        Binding("n,f3", "app.find(1)", "Next match", id="transcript.next_match"),
        Binding("N,shift+f3", "app.find(-1)", "Previous match", show=False, id="transcript.previous_match"),
        Binding("tab", "leave(1)", "Write", id="transcript.leave"),
        Binding("shift+tab", "leave(-1)", "Leave", show=False, id="transcript.leave_back"),
    ]

    show_tokens: reactive[bool] = reactive(False, init=False)

    def __init__(
        self,
        *,
        pieces: Callable[[str], Sequence[TokenRecord]] = lambda key: (),
        siblings: Callable[[str], Sequence[str]] = lambda key: (),
        pictures: Pictures | None = None,
    ) -> None:
        super().__init__()
        self._shared = Shared(pieces, siblings, pictures=pictures)
        self._target: Widget | None = None  # the widget that is about to get the focus
        self._sources: set[str] = set()  # the drafters in the legend
        self._found: tuple[Lines | None, int | None] = None, None  # the match that was gone to: its view and line

    def compose(self) -> ComposeResult:
        yield Static(id="legend")
        yield SystemPrompt()
        yield from super().compose()

    # --- content --------------------------------------------------------------------------------------------------

    async def show(self, turns: Sequence[Turn]) -> None:
        """Show exactly these turns, scrolled to the end. Turns that are already shown stay as they are."""
        n_kept, n_turns = self._common(turns)
        if n_kept < len(self.entries):
            await self._drop_answer()
        if n_kept < len(self.entries) or n_turns < len(turns):
            await self.set_entries(n_kept, turns[n_turns:])

    async def note(self, text: str, level: Level = "info") -> None:
        """Append a note, unless the last note is the same."""
        if self.entries[-1:] != [Note(text, level)]:
            await self.append(Note(text, level))

    async def begin_answer(self, name: str = "assistant") -> None:
        """Scroll to the end and show an empty streaming answer of the model with this name."""
        await self._drop_answer()
        await self.begin_live(TurnView(None, self._shared, name))

    async def begin_call(self, line: CallLine) -> None:
        """Scroll to the end and show a call of a tool that runs."""
        await self._drop_answer()
        await self.begin_live(line)

    def tell(self, frame: str, doing: str, figures: Sequence[str]) -> None:
        """Show the state of the streaming answer below it, or of the running tool."""
        if isinstance(self.live, CallLine):
            self.live.tell(frame, doing)
        if self._answer is not None:
            self._answer.tell(frame, doing, figures)

    async def feed(self, events: Sequence[TokenEvent]) -> None:
        """Append tokens to the streaming answer."""
        if self._answer is not None:
            self._answer.feed(events)
            self.mark_news()
            self._update_legend(self._answer)

    async def end_answer(self, turn: Turn | None) -> None:
        """Replace the streaming answer by `turn`; None if nothing was saved."""
        if turn is None or self._answer is None or not self.is_at_end:
            await self._drop_answer()
            if turn is not None:
                await self.append(turn)
            return
        view, self.live = self._answer, None
        view.finish(turn)
        await self.append(turn, view)

    def mark_context(self, index: int) -> None:
        """Show above turn `index` how many earlier turns were dropped from the context."""
        turns = [entry for entry in self.entries if isinstance(entry, Turn)]
        n_left = sum(turn.role != "system" for turn in turns[:index])
        before = self._shared.first_sent
        self._shared.first_sent = (turns[index].key, n_left) if n_left and index < len(turns) else ("", 0)
        for view in self._turn_views() if self._shared.first_sent != before else ():
            if view.turn and view.turn.key in (before[0], self._shared.first_sent[0]):
                view.build()

    async def reveal_match(self, key: str, *, focuses: bool = False) -> None:
        """Scroll to the first match in a turn, or to the turn; focus it if `focuses`."""
        for index, entry in enumerate(self.entries):
            if isinstance(entry, Turn) and entry.key == key:
                view = await self.show_around(index)
                matches = view.matches() if isinstance(view, Lines) else []
                if focuses and matches and isinstance(view, Lines):
                    self._go_to_match(view, matches[0])
                self.call_after_refresh(self._go_to if focuses else self._bring_into_view, view)
                if matches:
                    self.call_after_refresh(self._show_line, view, matches[0])

    async def reveal(self, key: str, *, focuses: bool = False) -> None:
        """Scroll to a turn, and focus it if `focuses`."""
        for index, entry in enumerate(self.entries):
            if isinstance(entry, Turn) and entry.key == key:
                view = await self.show_around(index)
                self.call_after_refresh(self._go_to if focuses else self._bring_into_view, view)

    @property
    def is_searched(self) -> bool:
        """True while matches of a search are marked."""
        return self._shared.searched != ""

    async def find(self, step: int) -> tuple[int, int] | None:
        """Focus the next or the previous match of the search, and bring it into view. Return which of the messages with
        matches has it, from 1, and how many these are; None without matches."""
        pattern = found_in(self._shared.searched)
        with_match = [
            index
            for index, entry in enumerate(self.entries)
            if pattern is not None and isinstance(entry, Turn) and spans(pattern, entry.content)
        ]
        start, line = self._place()
        last = len(self.entries)
        around = sorted(with_match, key=lambda index: (step * (index - start)) % last) if last else []
        for index in [*around, *around[:1]]:  # at last what precedes this place in its own message
            view = await self.show_around(index)
            assert isinstance(view, Lines)
            lines = view.matches()
            if index == start and line is not None:
                lines = [y for y in lines if step * (y - line) > 0]
            if lines:
                y = lines[0 if step > 0 else -1]
                self._go_to_match(view, y)
                self._target = view
                self.screen.set_focus(view, scroll_visible=False)
                self.call_after_refresh(self._show_line, view, y)
                return with_match.index(index) + 1, len(with_match)
            line = None
        return None

    def _go_to_match(self, view: Lines | None, y: int | None) -> None:
        """Make the matches of a line the current ones."""
        if self._found[0] is not None:
            self._found[0].mark_line(None)
        if view is not None:
            view.mark_line(y)
        self._found = view, y

    def _place(self) -> tuple[int, int | None]:
        """Return the entry from which to search, and the line in it from which: the current match, or the message that
        has the focus, or the first visible one."""
        focused, (found, line) = self.screen.focused, self._found
        if found is not None and found is focused and found in self.views:
            return self._first + self.views.index(found), line
        visible = (view for view in self.views if view.region.overlaps(self.region))
        view = focused if focused in self.views else next(visible, None)
        return self._first + self.views.index(view) if view is not None else 0, None

    def _show_line(self, view: Widget, y: int) -> None:
        height = self.scrollable_content_region.height
        place = view.virtual_region.y + y
        if not self.scroll_y <= place < self.scroll_y + height:
            self.scroll_to(y=place - height // 3, animate=False)

    def mark_found(self, query: str) -> None:
        """Mark the matches of a search in the messages; "" removes the marks."""
        self._go_to_match(None, None)
        self._shared.searched = query
        for view in self._turn_views():
            view.mark_found()

    def view_of(self, entry: Entry) -> Widget:
        if isinstance(entry, Turn):
            return TurnView(entry, self._shared)
        sign = "" if entry.level == "info" else "! "
        return Prose(sign + entry.text, classes=f"note -{entry.level}")

    def _turn_views(self) -> list[TurnView]:
        views = [*self.views, self._answer]
        return [view for view in views if isinstance(view, TurnView)]

    def _common(self, turns: Sequence[Turn]) -> tuple[int, int]:
        """Return how many entries can stay, and how many of them are turns. Notes belong to the turn before them."""
        n_turns = 0
        for index, entry in enumerate(self.entries):
            if isinstance(entry, Turn):
                if n_turns == len(turns) or entry.key != turns[n_turns].key:
                    return (index if n_turns else 0), n_turns
                n_turns += 1
        return len(self.entries), n_turns

    @property
    def _answer(self) -> TurnView | None:
        """The streaming answer."""
        return self.live if isinstance(self.live, TurnView) else None

    async def _drop_answer(self) -> None:
        view, self.live = self.live, None
        if view is not None:
            await view.remove()

    # --- tokens ---------------------------------------------------------------------------------------------------

    def watch_show_tokens(self, shows: bool) -> None:
        self._shared.shows_tokens = shows
        self.query_one("#legend", Static).display = shows
        self.colour_tokens()

    def colour_tokens(self) -> None:
        """Show the tokens in the colours of this theme, or the messages without these colours."""
        self._sources.clear()
        self._shared.palette = palette_of(self.app)
        self.query_one("#legend", Static).update(legend([], self._shared.palette))
        self._show_tokens()

    @work(exclusive=True, group="tokens")
    async def _show_tokens(self) -> None:
        """Change the views, the visible ones first, and yield to the event loop in between."""
        views = reversed(self._turn_views())
        for view in sorted(views, key=lambda view: not view.region.overlaps(self.region)):
            view.build()
            self._update_legend(view)
            await asyncio.sleep(0)

    def _update_legend(self, view: TurnView) -> None:
        if self.show_tokens and not view.sources <= self._sources:
            self._sources |= view.sources
            shown = legend(sorted(self._sources), self._shared.palette)
            self.query_one("#legend", Static).update(shown)

    # --- keys -----------------------------------------------------------------------------------------------------

    async def action_move(self, step: int) -> None:
        """Focus the previous or next message; if the current one continues in that direction, scroll instead."""
        views, focused = self._turn_views(), self.screen.focused
        system = self.query_one(SystemPrompt)
        if focused is None or focused not in (system, *views):
            return
        hidden = self.region.y - focused.region.y if step < 0 else focused.region.bottom - self.region.bottom
        if hidden > 0 and focused.region.overlaps(self.region):
            self.scroll_relative(y=step * min(hidden, max(1, self.size.height // 2)), animate=False)
            return
        if not isinstance(focused, TurnView):
            if step > 0 and views:
                self._go_to(views[0], step)
            return
        if step < 0 and focused is views[0] and self.has_earlier:
            await self.slide(-1)
            views = self._turn_views()
        index = views.index(focused) + step
        if 0 <= index < len(views):
            self._go_to(views[index], step)
        elif step < 0 and system.display:
            self._target = system
            self.screen.set_focus(system, scroll_visible=False)
            self.scroll_home(animate=False)
        elif step > 0:
            self.action_leave(1)

    def action_leave(self, step: int) -> None:
        """Focus the next widget after the transcript, or the last one before it."""
        chain = self.screen.focus_chain
        inside = [index for index, widget in enumerate(chain) if self in widget.ancestors]
        if len(inside) < len(chain):
            index = inside[-1] + 1 if step > 0 else inside[0] - 1
            self.screen.set_focus(chain[index % len(chain)])

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """If the focus arrives from outside, move it to a visible message."""
        view, target = event.widget, self._target
        self._target = None
        if view is not target and not view.region.overlaps(self.region):
            visible = [view for view in self._turn_views() if view.region.overlaps(self.region)]
            if visible:
                visible[-1].focus()

    def _go_to(self, view: Widget, step: int = 1) -> None:
        """Focus a message and scroll to it; to the end of a long one if the focus moves up."""
        if not isinstance(view, TurnView):
            return
        self._target = view
        self.screen.set_focus(view, scroll_visible=False)
        self._bring_into_view(view, step)

    def _bring_into_view(self, view: Widget, step: int = 1) -> None:
        place, height = view.virtual_region, self.scrollable_content_region.height
        is_below = place.bottom > self.scroll_y + height
        if (place.height > height and step > 0) or (place.y < self.scroll_y and place.height <= height):
            self.scroll_to(y=place.y, animate=False)
        elif place.height > height or is_below:
            self.scroll_to(y=place.bottom - height, animate=False)
