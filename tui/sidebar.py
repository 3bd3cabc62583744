"""The list of chats: pinned chats, folders, then the newest chats first, with a search field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets.option_list import Option
from textual.worker import Worker, WorkerState

from edgespec.chat.session import Session
from edgespec.history import ChatInfo, Hit, Store, StoreError
from edgespec.history.search import BEGIN, END
from edgespec.text.figures import counted, when
from edgespec.text.printable import one_line, printable
from edgespec.tui.dialogs import ChoiceScreen, Dialog, ListEntry, TextScreen
from edgespec.tui.plain import Input, OptionList, Static, Vertical
from edgespec.tui.statistics import StatisticsBelow

BEFORE = 10  # characters of a snippet before the match
TYPING_S = 0.15  # pause of typing before the search starts
MINUTE_S = 60.0
AT_ONCE = 200  # chats in the list; more are added when the user scrolls to its end
HITS = 50
TITLES = 7  # titles in the question whether to delete chats
FOLDED = "folded folders"  # the name of a preference in the store
DAYS = ("today", "yesterday")  # with a heading of their own
Change = Callable[[Session], object]


@dataclass(frozen=True, slots=True)
class RowTarget:
    """The target of a row: a chat, one of its messages, or a folder."""

    chat: str
    key: str | None = None
    folder: str | None = None


class SidebarRow(Option):
    """A row of the list; without a `place` it is a heading, which cannot be selected."""

    def __init__(self, content: Content, place: RowTarget | None = None) -> None:
        super().__init__(content, disabled=place is None)
        self.place = place


@dataclass(frozen=True, slots=True)
class Marks:
    """The chat that is open, and those that the user has marked."""

    open_chat: str | None = None
    marked: Collection[str] = ()

    def sign(self, chat: str) -> str:
        return "✓ " if chat in self.marked else "▸ " if chat == self.open_chat else "  "


def rows_by_day(chats: Sequence[ChatInfo], marks: Marks, folded: Collection[str] = ()) -> list[SidebarRow]:
    """Return pinned chats, then folders, `folded` or with their chats, then the other chats by day."""
    pinned, rest = ([chat for chat in chats if chat.is_pinned == is_pinned] for is_pinned in (True, False))
    rows = [_heading("pinned"), *(_chat_row(chat, marks) for chat in pinned)] if pinned else []
    for folder in sorted({chat.folder for chat in rest} - {""}, key=str.casefold):
        inside = [chat for chat in rest if chat.folder == folder]
        rows.append(_folder_row(folder, len(inside), is_folded=folder in folded))
        rows += [_chat_row(chat, marks, folder) for chat in inside if folder not in folded]
    loose = [chat for chat in rest if not chat.folder]
    for day, group in groupby(loose, key=_day):
        rows += [_heading(day), *(_chat_row(chat, marks, day=day) for chat in group)]
    return rows or [_heading("no chat yet")]


def rows_found(chats: Sequence[ChatInfo], hits: Sequence[Hit], marks: Marks) -> list[SidebarRow]:
    """Return the chats that match a search, each with the matching messages."""
    by_chat: dict[str, list[Hit]] = {}
    for hit in hits:
        by_chat.setdefault(hit.chat, []).append(hit)
    rows: list[SidebarRow] = []
    for chat in chats:
        rows.append(_chat_row(chat, marks))
        rows += [SidebarRow(_excerpt(hit), RowTarget(hit.chat, hit.key)) for hit in by_chat.get(chat.id, ())]
    return rows or [_heading("nothing found")]


def _day(chat: ChatInfo) -> str:
    """Return today, yesterday or earlier."""
    day = when(chat.updated_s).split()[0]
    return day if day in DAYS else "earlier"


def _heading(text: str) -> SidebarRow:
    return SidebarRow(Content.styled(text, "bold $text-primary"))


def _folder_row(folder: str, n_chats: int, *, is_folded: bool) -> SidebarRow:
    sign = "▸" if is_folded else "▾"
    content = Content.assemble((f"{sign} {one_line(folder)}", "bold"), (f" ({n_chats})", "dim"))
    return SidebarRow(content, RowTarget("", folder=folder))


def _chat_row(chat: ChatInfo, marks: Marks, within: str = "", day: str = "") -> SidebarRow:
    """Return the row of a chat. The folder is shown unless the row is `within` it, and the day unless the row is below
    the heading `day`."""
    about = [one_line(chat.folder)] if chat.folder != within else []
    time = f"{datetime.fromtimestamp(chat.updated_s):%H:%M}" if day in DAYS else when(chat.updated_s)
    about += [time, counted(chat.n_turns, "message")]
    content = Content.assemble(
        (marks.sign(chat.id), "bold $text-accent" if chat.id in marks.marked else "bold"),
        (one_line(chat.title) or "untitled", "bold" if chat.id == marks.open_chat else ""),
        (f"\n  {' · '.join(about)}", "dim"),
    )
    return SidebarRow(content, RowTarget(chat.id))


def _excerpt(hit: Hit) -> Content:
    """Return one line that begins shortly before the match, which is highlighted."""
    before, _, rest = hit.snippet.partition(BEGIN)
    if len(before) > BEFORE:
        before = f"…{before[1 - BEFORE :]}"
    return Content.assemble("    ", *_marked(before + BEGIN + rest if rest else before))


def _marked(snippet: str) -> Iterator[tuple[str, str]]:
    for index, part in enumerate(re.split(f"{BEGIN}(.*?){END}", snippet, flags=re.DOTALL)):
        yield printable(part), "bold underline $text-accent" if index % 2 else "dim"


@dataclass
class ChatChosen(Message):
    """The user wants to open a chat, at the message `key` if it is given."""

    chat: str
    key: str | None = None


@dataclass
class Searched(Message):
    """The search text has changed; "" means no search."""

    query: str


@dataclass
class ChangeChat(Message):
    """The user wants to change a chat of the store, or to delete chats. `change` raises EdgespecError."""

    change: Change
    deletes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of a query to the store; `hits` only if there is a search text."""

    query: str
    chats: Sequence[ChatInfo]
    hits: Sequence[Hit]


class Sidebar(Vertical):
    """Shows the chats of `store`; `open_chat` is marked as open. All changes are posted as messages."""

    BINDINGS = [  # noqa: RUF012 - Textual declares it so
        Binding("slash", "search", "Search", id="sidebar.search"),
        Binding("n", "app.call('clear')", "New", id="sidebar.new"),
        Binding("r,f2", "rename", "Rename", id="sidebar.rename"),
        Binding("space", "mark", "Mark", key_display="␣", id="sidebar.mark"),
        Binding("d,delete", "delete", "Delete", id="sidebar.delete"),
        Binding("p", "pin", "Pin", id="sidebar.pin"),
        Binding("f", "move", "Folder", id="sidebar.move"),
        Binding("down", "to_list", "To the list", show=False, id="sidebar.to_list"),
        Binding("f3", "app.find(1)", "Next match", show=False, id="sidebar.next_match"),
        Binding("shift+f3", "app.find(-1)", "Previous match", show=False, id="sidebar.previous_match"),
        Binding("escape", "clear", "Clear", show=False, id="sidebar.clear"),
    ]

    def __init__(self, store: Store, open_chat: str | None = None, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._store, self.open_chat = store, open_chat
        self._search = Input(placeholder="search chats", compact=True, id="sidebar-search")
        self._search.cursor_blink = False
        self._found = _Found("", (), ())
        self._limit = AT_ONCE
        self._typing: Timer | None = None
        self._folded: set[str] = set()
        self._marked: dict[str, ChatInfo] = {}

    def compose(self) -> ComposeResult:
        yield self._search
        yield ChatList()
        yield Static(id="sidebar-said")
        yield StatisticsBelow(id="figures-below")

    def on_mount(self) -> None:
        with suppress(StoreError, ValueError, TypeError):
            self._folded = {*json.loads(self._store.preference(FOLDED) or "[]")}
        self.set_interval(MINUTE_S, self.refresh_chats)
        self.refresh_chats()

    def refresh_chats(self) -> None:
        """Read the store again; the highlight stays."""
        query = self._search.value.strip()
        self.run_worker(
            partial(_look, self._store, query, self._limit), thread=True, exclusive=True, exit_on_error=False
        )

    def action_search(self) -> None:
        self._search.focus()

    def action_clear(self) -> None:
        """Clear the search field, or from the list remove all marks."""
        if self._search.has_focus:
            self._search.value = ""
        else:
            self._mark({})

    # --- results of the store -------------------------------------------------------------------------------------

    @on(Input.Changed, "#sidebar-search")
    def _search_soon(self, event: Input.Changed) -> None:
        event.stop()
        if self._typing is not None:
            self._typing.stop()
        self._limit = AT_ONCE
        self._typing = self.set_timer(TYPING_S, self.refresh_chats)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        line = self.query_one("#sidebar-said", Static)
        if event.state is WorkerState.ERROR:
            line.update(one_line(str(event.worker.error)))
            line.add_class("-error")
        elif event.state is WorkerState.SUCCESS and isinstance(event.worker.result, _Found):
            line.remove_class("-error")
            before, self._found = self._found, event.worker.result
            self._show(from_top=self._found.query != before.query)
            if self._found.query != before.query:
                self.post_message(Searched(self._found.query))

    def _show(self, *, from_top: bool) -> None:
        result, marks = self._found, Marks(self.open_chat, self._marked)
        if result.query:
            rows = rows_found(result.chats, result.hits, marks)
        else:
            rows = rows_by_day(result.chats, marks, self._folded)
        chats = self.query_one(ChatList)
        chats.show(rows, from_top=from_top)
        if not chats.has_focus and not result.query:
            chats.highlight(self.open_chat)

    def on_chat_list_end_near(self) -> None:
        if len(self._found.chats) == self._limit:  # so there may be more
            self._limit += AT_ONCE
            self.refresh_chats()

    # --- actions of the user --------------------------------------------------------------------------------------

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        place = event.option.place if isinstance(event.option, SidebarRow) else None
        if place is not None and place.folder is not None:
            self._fold(place.folder)
        elif place is not None:
            self.post_message(ChatChosen(place.chat, place.key))

    def _fold(self, folder: str) -> None:
        """Fold or unfold a folder, and remember it."""
        self._folded ^= {folder}
        self._show(from_top=False)
        with suppress(StoreError):
            self._store.set_preference(FOLDED, json.dumps(sorted(self._folded)))

    @on(Input.Submitted, "#sidebar-search")
    def _go_to_list(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_to_list()

    def action_to_list(self) -> None:
        self.query_one(ChatList).focus()

    def action_rename(self) -> None:
        if chat := self._highlighted_chat():
            self._ask(
                TextScreen("title", chat.title),
                lambda title: ChangeChat(partial(_rename, chat.id, title)) if title else None,
            )

    def action_mark(self) -> None:
        """Mark the highlighted chat or remove its mark, and go to the next one."""
        if chat := self._highlighted_chat():
            others = {key: each for key, each in self._marked.items() if key != chat.id}
            self._mark(others if chat.id in self._marked else {**others, chat.id: chat})
            rows = self.query_one(ChatList)
            if rows.highlighted is not None and rows.highlighted < rows.option_count - 1:  # it would go to the first
                rows.action_cursor_down()

    def _mark(self, marked: dict[str, ChatInfo]) -> None:
        self._marked = marked
        said = self.query_one("#sidebar-said", Static)
        said.update(f"{len(marked)} marked · Esc unmarks")
        said.set_class(bool(marked), "-marked")
        said.remove_class("-error")
        self._show(from_top=False)
        self.refresh_bindings()

    def action_delete(self) -> None:
        """Delete the marked chats, or without marks the highlighted one, if the user confirms it."""
        chats = [*self._marked.values()] or [*filter(None, [self._highlighted_chat()])]

        def change_for(answer: str) -> ChangeChat | None:
            if not answer:
                return None
            self._mark({})
            ids = tuple(chat.id for chat in chats)
            return ChangeChat(lambda session: session.delete(*ids), ids)

        question = ChoiceScreen("delete", _in_question(chats), [ListEntry("", "No"), ListEntry("yes", "Yes, delete")])
        self._ask(question, change_for)

    def action_move(self) -> None:
        if chat := self._highlighted_chat():
            folders: list[str] = []
            with suppress(StoreError):
                folders = self._store.folders()
            question = TextScreen("folder (leave empty for none)", chat.folder, folders)
            self._ask(question, lambda folder: ChangeChat(lambda session: session.store.move(chat.id, folder)))

    def _ask(self, question: Dialog[str], change_for: Callable[[str], ChangeChat | None]) -> None:
        """Ask a question on a chat, and change the chat as the answer requires."""

        def take(answer: str | None) -> None:
            if answer is not None and (change := change_for(answer)) is not None:
                self.post_message(change)

        self.app.push_screen(question, take)

    def action_pin(self) -> None:
        if chat := self._highlighted_chat():
            self.post_message(ChangeChat(lambda session: session.store.pin(chat.id, not chat.is_pinned)))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions on a chat if no chat is highlighted, and those of the search field elsewhere."""
        if action == "clear":
            return self._search.value != "" if self._search.has_focus else bool(self._marked)
        if action in ("search", "to_list"):
            return self._search.has_focus == (action == "to_list")
        return self._highlighted_chat() is not None or (action == "delete" and bool(self._marked))

    def _highlighted_chat(self) -> ChatInfo | None:
        place = self.query_one(ChatList).place
        return next((chat for chat in self._found.chats if place is not None and chat.id == place.chat), None)


def _look(store: Store, query: str, limit: int) -> _Found:
    return _Found(query, store.chats(limit, query, "folders"), store.search(query, HITS) if query else ())


def _in_question(chats: Sequence[ChatInfo]) -> str:
    """Return the question whether to delete chats, with the titles of the first ones."""
    titles = [f"  {one_line(chat.title) or 'untitled'}" for chat in chats]
    messages = counted(sum(chat.n_turns for chat in chats), "message")
    if len(chats) == 1:
        return f"Delete {titles[0].strip()!r} with its {messages}?"
    more = [f"  … and {len(chats) - TITLES} more"] if len(chats) > TITLES else []
    return "\n".join([f"Delete these {len(chats)} chats with their {messages}?", *titles[:TITLES], *more])


def _rename(chat: str, title: str, session: Session) -> None:
    if chat == session.chat.saved_id:
        session.chat.rename(title)
    else:
        session.store.rename(chat, title)


class ChatList(OptionList):
    """The rows. The highlight and the scroll position stay when rows are added or removed.

    A click chooses a row without focusing the list: with the focus, letters would become commands.
    """

    FOCUS_ON_CLICK = False

    class EndNear(Message):
        """The last rows have become visible."""

    def __init__(self) -> None:
        super().__init__(compact=True)

    @property
    def place(self) -> RowTarget | None:
        """The target of the highlighted row."""
        option = self.highlighted_option
        return option.place if isinstance(option, SidebarRow) else None

    def highlight(self, chat: str | None) -> None:
        """Highlight a chat, if it is listed."""
        places = [option.place for option in self.options if isinstance(option, SidebarRow)]
        index = next((n for n, place in enumerate(places) if place is not None and place.chat == chat), None)
        if index is not None:
            self.highlighted = index

    def show(self, rows: Sequence[SidebarRow], *, from_top: bool) -> None:
        """Replace the rows."""
        place, index, scroll_y = self.place, self.highlighted, self.scroll_y
        self.set_options(rows)
        if from_top or index is None:
            self.action_first()
            return
        places = [row.place for row in rows]
        self.highlighted = places.index(place) if place in places else min(index, len(rows) - 1)
        if self.place is None:  # the highlighted row was replaced by a heading
            self.action_cursor_up()
        self.scroll_to(y=scroll_y, animate=False, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value >= self.max_scroll_y - self.size.height:
            self.post_message(self.EndNear())
