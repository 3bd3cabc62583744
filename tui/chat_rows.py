"""The rows of the list of chats: chats by folder and day, or search results."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from textual.content import Content
from textual.widgets.option_list import Option

from edgespec.history import ChatInfo, Hit
from edgespec.text.figures import counted, when
from edgespec.text.printable import one_line, printable

BEGIN, END = "\x02", "\x03"  # the marks around matches in a snippet
BEFORE = 10  # characters of a snippet before the match


@dataclass(frozen=True, slots=True)
class Place:
    """The target of a row: a chat, one of its messages, or a folder."""

    chat: str
    key: str | None = None
    folder: str | None = None


class Row(Option):
    """A row of the list; without a `place` it is a heading, which cannot be selected."""

    def __init__(self, content: Content, place: Place | None = None) -> None:
        super().__init__(content, disabled=place is None)
        self.place = place


@dataclass(frozen=True, slots=True)
class Marks:
    """The chat that is open, and those that the user has marked."""

    open_chat: str | None = None
    marked: Collection[str] = ()

    def sign(self, chat: str) -> str:
        return "✓ " if chat in self.marked else "▸ " if chat == self.open_chat else "  "


def rows_by_day(chats: Sequence[ChatInfo], marks: Marks, folded: Collection[str] = ()) -> list[Row]:
    """Return pinned chats, then folders, `folded` or with their chats, then the other chats by day."""
    pinned, rest = ([chat for chat in chats if chat.is_pinned == is_pinned] for is_pinned in (True, False))
    rows = [_heading("pinned"), *(_chat_row(chat, marks) for chat in pinned)] if pinned else []
    for folder in sorted({chat.folder for chat in rest} - {""}, key=str.casefold):
        inside = [chat for chat in rest if chat.folder == folder]
        rows.append(_folder_row(folder, len(inside), is_folded=folder in folded))
        rows += [_chat_row(chat, marks, folder) for chat in inside if folder not in folded]
    loose = [chat for chat in rest if not chat.folder]
    for day, group in groupby(loose, key=_day):
        rows += [_heading(day), *(_chat_row(chat, marks) for chat in group)]
    return rows or [_heading("no chat yet")]


def rows_found(chats: Sequence[ChatInfo], hits: Sequence[Hit], marks: Marks) -> list[Row]:
    """Return the chats that match a search, each with the matching messages."""
    by_chat: dict[str, list[Hit]] = {}
    for hit in hits:
        by_chat.setdefault(hit.chat, []).append(hit)
    rows: list[Row] = []
    for chat in chats:
        rows.append(_chat_row(chat, marks))
        rows += [Row(_excerpt(hit), Place(hit.chat, hit.key)) for hit in by_chat.get(chat.id, ())]
    return rows or [_heading("nothing found")]


def _day(chat: ChatInfo) -> str:
    """Return today, yesterday or earlier."""
    day = when(chat.updated_s).split()[0]
    return day if day in ("today", "yesterday") else "earlier"


def _heading(text: str) -> Row:
    return Row(Content.styled(text, "bold $text-primary"))


def _folder_row(folder: str, n_chats: int, *, is_folded: bool) -> Row:
    sign = "▸" if is_folded else "▾"
    content = Content.assemble((f"{sign} {one_line(folder)}", "bold"), (f" ({n_chats})", "dim"))
    return Row(content, Place("", folder=folder))


def _chat_row(chat: ChatInfo, marks: Marks, within: str = "") -> Row:
    """Return the row of a chat. The folder is shown unless the row is `within` it."""
    about = [one_line(chat.folder)] if chat.folder != within else []
    about += [when(chat.updated_s), counted(chat.n_turns, "message")]
    content = Content.assemble(
        (marks.sign(chat.id), "bold $text-accent" if chat.id in marks.marked else "bold"),
        (one_line(chat.title) or "untitled", "bold" if chat.id == marks.open_chat else ""),
        (f"\n  {' · '.join(about)}", "dim"),
    )
    return Row(content, Place(chat.id))


def _excerpt(hit: Hit) -> Content:
    """Return one line that begins shortly before the match, which is highlighted."""
    before, _, rest = hit.snippet.partition(BEGIN)
    if len(before) > BEFORE:
        before = f"…{before[1 - BEFORE :]}"
    return Content.assemble("    ", *_marked(before + BEGIN + rest if rest else before))


def _marked(snippet: str) -> Iterator[tuple[str, str]]:
    for index, part in enumerate(re.split(f"{BEGIN}(.*?){END}", snippet, flags=re.DOTALL)):
        yield printable(part), "bold underline $text-accent" if index % 2 else "dim"
