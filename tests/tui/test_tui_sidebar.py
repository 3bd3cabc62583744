"""The list of chats: what it shows, how it is searched, and what it asks the app to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from fake_engine import FakeEngine
from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Input, Static
from tui_harness import Styled, text_of, wait_until

from edgespec.chat.session import Session
from edgespec.history import ChatInfo, Hit, Store
from edgespec.settings import LoadSettings
from edgespec.text.figures import when
from edgespec.tui.dialogs import Dialog
from edgespec.tui.lines import Prose
from edgespec.tui.sidebar import (
    AT_ONCE,
    ChangeChat,
    ChatChosen,
    ChatList,
    Marks,
    Sidebar,
    SidebarRow,
    rows_by_day,
    rows_found,
)

DAY = 86400.0
Step = Callable[[Pilot[Any]], Awaitable[None]]


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.in_memory() as store:
        for chat, title, question in (
            ("a", "Sorting lists", "How do I sort pairs by the second item?"),
            ("b", "The sky", "Why is the [b]sky[/b] blue?"),
            ("c", "日本語 \x1b[31m", "What is a pair of kanji?"),
        ):
            store.create(chat, title=title)
            turn = store.append(chat, None, "user", question)
            store.append(chat, turn.key, "assistant", "I do not know.")
        yield store


class Harness(Styled):
    def __init__(self, store: Store, open_chat: str | None = None) -> None:
        super().__init__()
        self.sidebar = Sidebar(store, open_chat)
        self.messages: list[Message] = []
        self.called: list[str] = []

    def compose(self) -> ComposeResult:
        yield self.sidebar

    def on_chat_chosen(self, message: ChatChosen) -> None:
        self.messages.append(message)

    def action_call(self, name: str) -> None:
        self.called.append(name)

    def on_change_chat(self, message: ChangeChat) -> None:
        self.messages.append(message)


def change(store: Store, message: Message) -> None:
    """Apply a change that the sidebar has asked for."""
    assert isinstance(message, ChangeChat)
    message.change(Session(store, lambda *_: FakeEngine(), LoadSettings("demo")))


def drive(store: Store, step: Step, open_chat: str | None = None, size: tuple[int, int] = (40, 20)) -> Harness:
    """Let `step` use a sidebar that has read the store."""
    app = Harness(store, open_chat)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await wait_until(pilot, lambda: len(lines(pilot)) > 0)
            await step(pilot)
            await pilot.pause()

    asyncio.run(run())
    return app


def chat_list(pilot: Pilot[Any]) -> ChatList:
    return pilot.app.query_one(ChatList)


def lines(pilot: Pilot[Any]) -> list[str]:
    """The rows, line by line."""
    return [line for row in chat_list(pilot).options for line in str(row.prompt).split("\n")]


def titles(pilot: Pilot[Any]) -> list[str]:
    """The first lines of the rows of chats."""
    rows = [
        row for row in chat_list(pilot).options if isinstance(row, SidebarRow) and row.place and row.place.key is None
    ]
    return [str(row.prompt).split("\n")[0].strip() for row in rows]


async def search(pilot: Pilot[Any], text: str) -> None:
    pilot.app.query_one("#sidebar-search", Input).focus()
    await pilot.press(*text)


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_chats_are_listed_newest_first_with_age_and_length(store: Store) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        about = f"  {when(time.time()).removeprefix('today ')} · 2 messages"
        assert lines(pilot) == ["today", "  日本語 \ufffd[31m", about, "▸ The sky", about, "  Sorting lists", about]

    drive(store, step, open_chat="b")


def test_an_empty_store_says_so() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        assert lines(pilot) == ["no chat yet"]
        chat_list(pilot).focus()
        await pilot.press("enter", "r", "d", "down")
        assert not isinstance(pilot.app.screen, Dialog)

    with Store.in_memory() as store:
        assert drive(store, step).messages == []


def test_what_was_said_is_text_and_not_markup(store: Store) -> None:
    store.rename("a", "[red]not red[/red]")

    async def step(pilot: Pilot[Any]) -> None:
        assert "[red]not red[/red]" in titles(pilot)
        await search(pilot, "blue")
        await wait_until(pilot, lambda: any("sky[/b] blue" in line for line in lines(pilot)))

    drive(store, step)


def test_a_store_that_cannot_be_read_is_said_to_be(store: Store) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        store.close()
        pilot.app.query_one(Sidebar).refresh_chats()
        said = pilot.app.query_one("#sidebar-said", Static)
        await wait_until(pilot, lambda: said.display and "chats" in str(said.content))
        assert titles(pilot)  # what was read before stays

    drive(store, step)


def chat(id: str, updated_s: float, title: str = "") -> ChatInfo:
    return ChatInfo(id, title, updated_s, updated_s, "key", 1, "")


def test_chats_are_grouped_by_day() -> None:
    now_s = time.time()
    rows = rows_by_day([chat(str(days), now_s - days * DAY) for days in (0, 1, 3, 400)], Marks())
    shown = [str(row.prompt).split("\n")[-1].strip() for row in rows]
    clock = f"{datetime.fromtimestamp(now_s):%H:%M}"
    days = [clock, clock, *(when(now_s - days * DAY) for days in (3, 400))]  # the headings name the others
    times = [f"{day} · 1 message" for day in days]
    assert shown == ["today", times[0], "yesterday", times[1], "earlier", *times[2:]]


def test_where_no_heading_names_the_day_the_row_does() -> None:
    now = chat("a", time.time())
    rows = [*rows_by_day([replace(now, is_pinned=True)], Marks()), *rows_by_day([replace(now, folder="f")], Marks())]
    rows += rows_found([now], [], Marks())
    abouts = [str(row.prompt).split("\n")[-1].strip() for row in rows if row.place and row.place.folder is None]
    assert abouts == [f"{when(now.updated_s)} · 1 message"] * 3


def test_a_snippet_begins_shortly_before_what_was_found_and_marks_it() -> None:
    hit = Hit("a", "", "key", "user", "many words come before the \x02found\x03 \x1bword and \x02more\x03", 0.0)
    rows = rows_found([chat("a", 0.0)], [hit], Marks())
    content = rows[1].prompt
    assert isinstance(content, Content)
    assert str(content) == "    …fore the found \ufffdword and more"
    marked = [str(content)[span.start : span.end] for span in content.spans if "underline" in str(span.style)]
    assert marked == ["found", "more"]


# --- searching --------------------------------------------------------------------------------------------------------


def test_typing_finds_titles_and_texts_under_their_chats(store: Store) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await search(pilot, "pair")
        await wait_until(pilot, lambda: len(titles(pilot)) == 2)
        assert titles(pilot) == ["日本語 \ufffd[31m", "Sorting lists"]
        assert lines(pilot)[2] == "    What is a pair of kanji?"
        assert lines(pilot)[5].startswith("    …")
        assert "pairs by the second" in lines(pilot)[5]
        await pilot.press("escape")
        await wait_until(pilot, lambda: len(titles(pilot)) == 3)
        assert pilot.app.query_one("#sidebar-search", Input).value == ""

    drive(store, step)


def test_a_title_alone_is_found_too_and_nothing_is_said_where_nothing_is(store: Store) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await search(pilot, "lists")
        await wait_until(pilot, lambda: titles(pilot) == ["Sorting lists"])
        await pilot.press(*"xyz")
        await wait_until(pilot, lambda: lines(pilot) == ["nothing found"])

    drive(store, step)


def test_a_place_that_was_found_is_opened_from_the_keyboard(store: Store) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await search(pilot, "blue")
        await wait_until(pilot, lambda: len(titles(pilot)) == 1)
        await pilot.press("enter")
        await wait_until(pilot, lambda: chat_list(pilot).has_focus)
        await pilot.press("down", "enter")

    (chosen,) = drive(store, step).messages
    assert isinstance(chosen, ChatChosen)
    assert chosen.chat == "b"
    assert chosen.key == store.path(store.find("b").head)[0].key


# --- what the app is asked to do --------------------------------------------------------------------------------------


def test_enter_and_a_click_open_a_chat(store: Store) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        chat_list(pilot).focus()
        await pilot.press("down", "enter")
        await pilot.click(ChatList, offset=(5, 1))

    messages = drive(store, step).messages
    assert [(m.chat, m.key) for m in messages if isinstance(m, ChatChosen)] == [("b", None), ("c", None)]


def test_n_begins_a_chat(store: Store) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        chat_list(pilot).focus()
        await pilot.press("n")

    assert drive(store, step).called == ["clear"]


def test_a_chat_is_renamed(store: Store) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        chat_list(pilot).focus()
        await pilot.press("down", "r")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, Dialog))
        assert pilot.app.screen.query_one(Input).value == "The sky"
        await pilot.press("end", *" at n", "enter")  # the letters that are keys too
        await wait_until(pilot, lambda: not isinstance(pilot.app.screen, Dialog))
        assert chat_list(pilot).has_focus

    (message,) = drive(store, step).messages
    change(store, message)
    assert store.find("b").title == "The sky at n"


@pytest.mark.parametrize("keys", [("escape",), ("enter",), ("ctrl+u", "enter")])
def test_a_title_that_stays_is_no_renaming(store: Store, keys: tuple[str, ...]) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        chat_list(pilot).focus()
        await pilot.press("f2")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, Dialog))
        await pilot.press(*keys)
        await wait_until(pilot, lambda: not isinstance(pilot.app.screen, Dialog))

    assert drive(store, step).messages == []


@pytest.mark.parametrize(
    ("keys", "is_deleted"),
    [(("down", "enter"), True), (("enter",), False), (("escape",), False)],
)
def test_a_chat_is_deleted_only_when_that_is_confirmed(store: Store, keys: tuple[str, ...], is_deleted: bool) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        chat_list(pilot).focus()
        await pilot.press("delete")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, Dialog))
        assert "2 messages" in text_of(pilot.app.screen.query_one(Prose))
        await pilot.press(*keys)
        await wait_until(pilot, lambda: not isinstance(pilot.app.screen, Dialog))

    messages = drive(store, step).messages
    assert len(store.chats()) == 3, "the app deletes it"
    for message in messages:
        change(store, message)
    assert {chat.id for chat in store.chats()} == {"a", "b"} | (set() if is_deleted else {"c"})


def test_several_chats_are_marked_and_deleted_after_one_question(store: Store) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        chat_list(pilot).focus()
        await pilot.press("space", "space")  # each goes to the next chat
        assert [title for title in titles(pilot) if title.startswith("✓ ")] == ["✓ 日本語 \ufffd[31m", "✓ The sky"]
        await pilot.press("d")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, Dialog))
        question = text_of(pilot.app.screen.query_one(Prose))
        assert question == "Delete these 2 chats with their 4 messages?\n  日本語 \ufffd[31m\n  The sky"
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: not isinstance(pilot.app.screen, Dialog))
        assert not any("✓" in title for title in titles(pilot))

    (message,) = drive(store, step).messages
    change(store, message)
    assert [chat.id for chat in store.chats()] == ["a"]


# --- when chats change ------------------------------------------------------------------------------------------------


def test_the_highlight_stays_on_its_chat_when_the_list_changes(store: Store) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        sidebar, rows = pilot.app.query_one(Sidebar), chat_list(pilot)
        rows.focus()
        await pilot.press("down")
        assert rows.place is not None
        assert rows.place.chat == "b"
        store.create("d", title="A new one")
        store.append("d", None, "user", "x")
        sidebar.refresh_chats()
        await wait_until(pilot, lambda: len(titles(pilot)) == 4)
        assert rows.place.chat == "b"
        store.remove(["b"])
        sidebar.refresh_chats()
        await wait_until(pilot, lambda: len(titles(pilot)) == 3)
        assert rows.place is not None  # a neighbour
        store.remove(["a", "c", "d"])
        sidebar.refresh_chats()
        await wait_until(pilot, lambda: lines(pilot) == ["no chat yet"])

    drive(store, step)


def test_the_open_chat_is_marked_anew(store: Store) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        pilot.app.query_one(Sidebar).open_chat = "a"
        pilot.app.query_one(Sidebar).refresh_chats()
        await wait_until(pilot, lambda: "▸ Sorting lists" in lines(pilot))
        assert "  The sky" in lines(pilot)

    drive(store, step, open_chat="b")


def test_only_so_many_chats_are_listed_until_one_scrolls_to_the_end() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        rows = chat_list(pilot)
        assert len(titles(pilot)) == AT_ONCE
        rows.focus()
        await pilot.press("end")
        await wait_until(pilot, lambda: len(titles(pilot)) == AT_ONCE + 30)
        assert rows.place is not None
        assert rows.place.chat == "chat30"  # it was the last one
        await wait_until(pilot, lambda: rows.scroll_y > AT_ONCE)

    with Store.in_memory() as store:
        for number in range(AT_ONCE + 30):
            store.create(f"chat{number}", title=f"number {number}")
        drive(store, step)


# --- pins and folders -------------------------------------------------------------------------------------------------


def test_pinned_chats_stand_above_folders_and_folders_above_the_rest(store: Store) -> None:
    store.pin("a", True)
    store.move("a", "work")
    store.move("b", "work")

    async def look(pilot: Pilot[Any]) -> None:
        shown = [line.strip() for line in lines(pilot)]
        assert shown[:2] == ["pinned", "Sorting lists"] and shown[2].startswith("work · ")
        assert shown[3:5] == ["▾ work (1)", "The sky"] and shown[5].endswith("2 messages")
        assert shown[6] == "today"
        chat_list(pilot).focus()
        for row, option in enumerate(chat_list(pilot).options):
            if str(option.prompt).startswith("▾"):
                chat_list(pilot).highlighted = row
        await pilot.press("enter")
        assert [line for line in lines(pilot) if "work (1)" in line] == ["▸ work (1)"]
        assert "The sky" not in titles(pilot) and chat_list(pilot).place is not None
        await pilot.press("p", "d", "r", "f")  # which are for chats
        assert not isinstance(pilot.app.screen, Dialog)

    assert drive(store, look).messages == []

    async def look_again(pilot: Pilot[Any]) -> None:
        assert "The sky" not in titles(pilot)

    drive(store, look_again)


def test_keys_pin_a_chat_and_put_it_into_a_folder(store: Store) -> None:
    store.move("a", "work")

    async def keys(pilot: Pilot[Any]) -> None:
        chat_list(pilot).focus()
        await pilot.press("end", "p", "f", "w", "right", "enter")

    for message in drive(store, keys, size=(60, 30)).messages:
        change(store, message)
    (pinned,) = [chat for chat in store.chats() if chat.is_pinned]
    assert pinned.id != "a" and pinned.folder == "work"
