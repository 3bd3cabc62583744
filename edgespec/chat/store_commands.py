"""The commands on what is saved: they open, find, rename, delete and export chats, and choose and save personas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from edgespec.chat.personas import Persona, differing, file_of, folder, persona, personas, save
from edgespec.chat.session import Session
from edgespec.chat.slash import Front
from edgespec.chat.transcript import to_jsonl, to_markdown, with_system
from edgespec.errors import UsageError, told_as
from edgespec.files.paths import free_name, write_whole
from edgespec.history import ChatInfo, StoreError
from edgespec.history.search import BEGIN, END
from edgespec.models.names.spec import own_settings
from edgespec.text.figures import counted
from edgespec.text.printable import one_line

LISTED = 20
LONGEST_STEM = 40  # characters of the file name of an export


class StoreCommands:
    """Commands on `session`. A command that fails raises EdgespecError."""

    def __init__(self, session: Session, front: Front) -> None:
        self.session, self.front = session, front
        self._listed: Sequence[tuple[str, str | None]] = ()  # the chats, and messages in them, of the last list

    def do_clear(self, _: str) -> None:
        self.session.new()
        self.front.redraw()

    def do_load(self, name: str) -> None:
        """`/load N`: a chat of the last list; `/load ID`, `/load last`."""
        if not name:
            raise UsageError("/load needs a chat", hint="/list shows them: /load N, /load ID or /load last")
        key = None
        if name.isdigit() and 1 <= int(name) <= len(self._listed):
            name, key = self._listed[int(name) - 1]
        elif name.isdigit() and len(name) < 3:
            raise UsageError(f"there is no chat number {name}", hint="/list numbers them")
        session = self.session
        session.open(name)
        if key is not None and all(turn.key != key for turn in session.turns):
            session.switch(key)
        self.front.redraw()

    def do_list(self, query: str) -> Iterator[str]:
        chats = self.session.store.chats(limit=LISTED, query=query, order="pinned")
        if not chats:
            raise UsageError("there is no such chat" if query else "there are no chats yet")
        self._listed = [(chat.id, None) for chat in chats]
        yield from _numbered(map(_line, chats))

    def do_search(self, query: str) -> Iterator[str]:
        if not query:
            raise UsageError("/search needs words", hint="/search WORDS")
        hits = self.session.store.search(query, limit=LISTED)
        if not hits:
            raise UsageError(f"nothing was found for {query!r}")
        self._listed = [(hit.chat, hit.key) for hit in hits]
        marks = str.maketrans({BEGIN: "[", END: "]"})
        yield from _numbered(f"{hit.title}\n     {hit.role}: {hit.snippet.translate(marks)}" for hit in hits)

    def do_rename(self, title: str) -> None:
        if not title:
            raise UsageError("/rename needs a title", hint="/rename TITLE")
        self.session.rename(title)
        self.front.redraw()

    def do_pin(self, _: str) -> Iterator[str]:
        info = self._open_chat()
        self.session.store.pin(info.id, not info.is_pinned)
        self.front.redraw()
        yield "this chat is " + ("no longer pinned" if info.is_pinned else "pinned")

    def do_folder(self, name: str) -> Iterator[str]:
        store = self.session.store
        if name:
            info = self._open_chat()
            store.move(info.id, "" if name == "none" else name)
            self.front.redraw()
            yield f"moved to {store.find(info.id).folder}" if name != "none" else "removed from its folder"
            return
        if not (folders := store.folders()):
            raise UsageError("there are no folders yet", hint="/folder NAME puts this chat into one")
        inside = [chat.folder for chat in store.chats()]
        yield from (f"{folder}  ({counted(inside.count(folder), 'chat')})" for folder in folders)
        yield "/folder NAME moves this chat into one, /folder none removes it"

    def _open_chat(self) -> ChatInfo:
        if self.session.chat is None:
            raise UsageError("this chat is empty")
        return self.session.store.find(self.session.chat)

    def do_delete(self, names: str) -> Iterator[str]:
        if not names:
            raise UsageError("/delete needs the id of a chat", hint="/delete ID...; 'edgespec history list' shows ids")
        session = self.session
        chats, before = [session.store.find(name) for name in names.split()], session.chat
        session.delete(*(chat.id for chat in chats))
        if session.chat != before:
            self.front.redraw()
        yield f"deleted {', '.join(chat.title or chat.id for chat in chats)}"

    def do_export(self, argument: str) -> None:
        """`/export`, `/export jsonl`: to a new file in the current folder; `/export FILE`: the suffix is the format."""
        session = self.session
        if session.chat is None:
            raise UsageError("there is nothing to export yet")
        info, turns = session.info(), with_system(session.system, session.turns)
        with suppress(StoreError):
            place = self._open_chat()
            info = replace(info, folder=place.folder, is_pinned=place.is_pinned)
        is_jsonl = argument.endswith(("jsonl", ".json"))
        name = "" if argument in ("md", "jsonl") else argument
        text = (to_jsonl if is_jsonl else to_markdown)(info, turns)
        self.write("export", name, file_stem(session.title) or session.chat, ".jsonl" if is_jsonl else ".md", text)

    def write(self, command: str, name: str, stem: str, suffix: str, text: str) -> None:
        """Write a new file, by default STEM and SUFFIX in the current folder, and show its path. Raises UsageError."""
        file = Path(name).expanduser() if name else free_name(stem, suffix)
        if file.is_dir():
            file = file / f"{stem}{suffix}"
        if file.exists():
            raise UsageError(f"{file} already exists", hint=f"/{command} FILE with another name")
        with told_as(UsageError, f"{file} cannot be written"):
            write_whole(file, text)
        self.front.say(f"written to {file.absolute()}")

    # --- personas -------------------------------------------------------------------------------------------------

    def do_persona(self, argument: str) -> None:
        """`/persona`: list personas; `/persona NAME`, `none`, `save NAME`."""
        word, _, name = argument.partition(" ")
        if not argument:
            self._list_personas()
        elif word != "save":
            self.take_persona(None if argument == "none" else persona(argument))
        elif name := name.strip() or self.session.persona:
            self._save_persona(name)
        else:
            raise UsageError("/persona save needs a name", hint="/persona save NAME")

    def take_persona(self, chosen: Persona | None) -> None:
        """Use this persona from the next message on, or no persona. Raises UsageError."""
        session = self.session
        if chosen is None and not session.persona:
            raise UsageError("this chat has no persona")
        session.take_persona(chosen)
        if chosen is None:
            self.front.say("no persona: your own system prompt and settings apply again")
            return
        sets = ", ".join(f"{name} {one_line(text)}" for name, text in chosen.settings.items())
        later = ", from the next answer on; the whole chat is processed again once" if session.turns else ""
        self.front.say(f"persona {chosen.name}{f' ({sets})' if sets else ''}{later}")
        if chosen.model and chosen.model != session.load_settings.model:
            if session.model.server:
                self.front.say(f"its model {chosen.model} is ignored: this chat uses a model of a server", "warning")
            else:
                self.front.load(replace(session.load_settings.for_model(chosen.model), draft_model=None))

    def _list_personas(self) -> None:
        found, problems = personas()
        width = max(len(each.name) for each in found) if found else 0
        now = self.session.persona
        lines = [
            f"{'*' if each.name == now else ' '} {each.name:{width}}  {one_line(each.description)}" for each in found
        ]
        hint = "/persona NAME chooses one, /persona none removes it, /persona save NAME makes one from this chat"
        self.front.say("\n".join([*lines, hint, f"files: {folder()}"]))
        if problems:
            self.front.say("\n".join(["cannot be used:", *problems]), "warning")

    def _save_persona(self, name: str) -> None:
        session = self.session
        file = file_of(name)
        before = session.taken_persona if name == session.persona else None
        if file.exists() and before is None:
            raise UsageError(f"there is a persona {name} already", hint=f"/persona {name} chooses it, or edit {file}")
        settings = differing(session.settings, own_settings(session.load_settings.model))
        if not session.system and not settings:
            what = "there is nothing to save: this chat has no system prompt, and its settings are the defaults"
            hint = f"/system TEXT sets a prompt, /set NAME VALUE a setting; then /persona save {name}"
            raise UsageError(what, hint=hint)
        saved = replace(before or Persona(name), system=session.system, settings=settings, file=file)
        save(saved)
        session.take_persona(saved)
        prompt = "the system prompt" if session.system else "no system prompt"
        self.front.say(f"saved persona {name} to {file}: {prompt} and {counted(len(settings), 'setting')} of this chat")


def _numbered(lines: Iterable[str]) -> Iterator[str]:
    """Yield a list of chats, or of messages in them."""
    yield from (f"{number:3}  {line}" for number, line in enumerate(lines, 1))
    yield "/load N opens one"


def _line(chat: ChatInfo) -> str:
    places = [f"{chat.n_turns} messages", *(["pinned"] if chat.is_pinned else [])]
    places += [f"in {chat.folder}"] if chat.folder else []
    return f"{chat.title or '(no title)'}  ({', '.join(places)})"


def file_stem(title: str) -> str:
    """Return a title as the beginning of a file name, cut after a whole word if it is long."""
    words = re.sub(r"\W+", "-", title).strip("-")
    return words if len(words) <= LONGEST_STEM else words[: LONGEST_STEM + 1].rpartition("-")[0] or words[:LONGEST_STEM]
