"""The commands on what is saved: they open, find, rename, delete and export chats, and choose and save personas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from edgespec.chat.controls import Controls
from edgespec.chat.personas import Persona, differing, file_of, personas, save
from edgespec.chat.personas import folder as personas_folder
from edgespec.chat.personas import persona as persona_called
from edgespec.chat.session import Session
from edgespec.chat.transcript import to_jsonl, to_markdown, with_system
from edgespec.errors import UsageError
from edgespec.history import ChatInfo, StoreError
from edgespec.history.search import BEGIN, END
from edgespec.models.names.spec import own_settings
from edgespec.text.figures import counted
from edgespec.text.printable import one_line

LISTED = 20
LONGEST_STEM = 40  # characters of the file name of an export


def clear(controls: Controls, _: str) -> None:
    controls.session.chat.new()
    controls.front.redraw()


def load(controls: Controls, name: str) -> None:
    """`/load N`: a chat of the last list; `/load ID`, `/load last`."""
    if not name:
        raise UsageError("/load needs a chat", hint="/list shows them: /load N, /load ID or /load last")
    key = None
    if name.isdigit() and 1 <= int(name) <= len(controls.listed):
        name, key = controls.listed[int(name) - 1]
    elif name.isdigit() and len(name) < 3:
        raise UsageError(f"there is no chat number {name}", hint="/list numbers them")
    controls.session.chat.open(name, key)
    controls.front.redraw()


def list_chats(controls: Controls, query: str) -> Iterator[str]:
    chats = controls.session.store.chats(limit=LISTED, query=query, order="pinned")
    if not chats:
        raise UsageError("there is no such chat" if query else "there are no chats yet")
    controls.listed = [(chat.id, None) for chat in chats]
    yield from _numbered(map(_line, chats))


def search(controls: Controls, query: str) -> Iterator[str]:
    if not query:
        raise UsageError("/search needs words", hint="/search WORDS")
    hits = controls.session.store.search(query, limit=LISTED)
    if not hits:
        raise UsageError(f"nothing was found for {query!r}")
    controls.listed = [(hit.chat, hit.key) for hit in hits]
    marks = str.maketrans({BEGIN: "[", END: "]"})
    yield from _numbered(f"{hit.title}\n     {hit.role}: {hit.snippet.translate(marks)}" for hit in hits)


def rename(controls: Controls, title: str) -> None:
    if not title:
        raise UsageError("/rename needs a title", hint="/rename TITLE")
    controls.session.chat.rename(title)
    controls.front.redraw()


def pin(controls: Controls, _: str) -> Iterator[str]:
    info = _open_chat(controls)
    controls.session.store.pin(info.id, not info.is_pinned)
    controls.front.redraw()
    yield "this chat is " + ("no longer pinned" if info.is_pinned else "pinned")


def folder(controls: Controls, name: str) -> Iterator[str]:
    store = controls.session.store
    if name:
        info = _open_chat(controls)
        store.move(info.id, "" if name == "none" else name)
        controls.front.redraw()
        yield f"moved to {store.find(info.id).folder}" if name != "none" else "removed from its folder"
        return
    if not (folders := store.folders()):
        raise UsageError("there are no folders yet", hint="/folder NAME puts this chat into one")
    inside = [chat.folder for chat in store.chats()]
    yield from (f"{folder}  ({counted(inside.count(folder), 'chat')})" for folder in folders)
    yield "/folder NAME moves this chat into one, /folder none removes it"


def _open_chat(controls: Controls) -> ChatInfo:
    if controls.session.chat.saved_id is None:
        raise UsageError("this chat is empty")
    return controls.session.store.find(controls.session.chat.saved_id)


def delete(controls: Controls, names: str) -> Iterator[str]:
    if not names:
        raise UsageError("/delete needs the id of a chat", hint="/delete ID...; 'edgespec history list' shows ids")
    session = controls.session
    chats, before = [session.store.find(name) for name in names.split()], session.chat.saved_id
    session.delete(*(chat.id for chat in chats))
    if session.chat.saved_id != before:
        controls.front.redraw()
    yield f"deleted {', '.join(chat.title or chat.id for chat in chats)}"


def export(controls: Controls, argument: str) -> None:
    """`/export`, `/export jsonl`: to a new file in the current folder; `/export FILE`: the suffix is the format."""
    session = controls.session
    if session.chat.saved_id is None:
        raise UsageError("there is nothing to export yet")
    info, turns = session.chat.info(), with_system(session.chat.system, session.chat.turns)
    with suppress(StoreError):
        place = _open_chat(controls)
        info = replace(info, folder=place.folder, is_pinned=place.is_pinned)
    is_jsonl = argument.endswith(("jsonl", ".json"))
    name = "" if argument in ("md", "jsonl") else argument
    text = (to_jsonl if is_jsonl else to_markdown)(info, turns)
    controls.write(
        "export", name, file_stem(session.chat.title) or session.chat.saved_id, ".jsonl" if is_jsonl else ".md", text
    )


def chat_ids(session: Session) -> Iterator[str]:
    """Yield the ids of all chats, for completion."""
    yield from (chat.id for chat in session.store.chats())


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


# --- personas -------------------------------------------------------------------------------------------------------


def persona(controls: Controls, argument: str) -> None:
    """`/persona`: list personas; `/persona NAME`, `none`, `save NAME`."""
    word, _, name = argument.partition(" ")
    if not argument:
        _list_personas(controls)
    elif word != "save":
        _take_persona(controls, None if argument == "none" else persona_called(argument))
    elif name := name.strip() or controls.session.chat.persona:
        _save_persona(controls, name)
    else:
        raise UsageError("/persona save needs a name", hint="/persona save NAME")


def _take_persona(controls: Controls, chosen: Persona | None) -> None:
    """Use this persona from the next message on, or no persona. Raises UsageError."""
    session = controls.session
    if chosen is None and not session.chat.persona:
        raise UsageError("this chat has no persona")
    session.chat.take_persona(chosen)
    if chosen is None:
        controls.front.say("no persona: your own system prompt and settings apply again")
        return
    sets = ", ".join(f"{name} {one_line(text)}" for name, text in chosen.settings.items())
    later = ", from the next answer on; the whole chat is processed again once" if session.chat.turns else ""
    controls.front.say(f"persona {chosen.name}{f' ({sets})' if sets else ''}{later}")
    if chosen.model and chosen.model != session.load_settings.model:
        if session.model.server:
            controls.front.say(f"its model {chosen.model} is ignored: this chat uses a model of a server", "warning")
        else:
            controls.front.load(replace(session.load_settings.for_model(chosen.model), draft_model=None))


def _list_personas(controls: Controls) -> None:
    choices, problems = personas()
    width = max(len(each.name) for each in choices) if choices else 0
    now = controls.session.chat.persona
    lines = [
        f"{'*' if each.name == now else ' '} {each.name:{width}}  {one_line(each.description)}" for each in choices
    ]
    hint = "/persona NAME chooses one, /persona none removes it, /persona save NAME makes one from this chat"
    controls.front.say("\n".join([*lines, hint, f"files: {personas_folder()}"]))
    if problems:
        controls.front.say("\n".join(["cannot be used:", *problems]), "warning")


def _save_persona(controls: Controls, name: str) -> None:
    session = controls.session
    file = file_of(name)
    before = session.chat.taken_persona if name == session.chat.persona else None
    if file.exists() and before is None:
        raise UsageError(f"there is a persona {name} already", hint=f"/persona {name} chooses it, or edit {file}")
    settings = differing(session.chat.settings, own_settings(session.load_settings.model))
    if not session.chat.system and not settings:
        what = "there is nothing to save: this chat has no system prompt, and its settings are the defaults"
        hint = f"/system TEXT sets a prompt, /set NAME VALUE a setting; then /persona save {name}"
        raise UsageError(what, hint=hint)
    saved = replace(before or Persona(name), system=session.chat.system, settings=settings, file=file)
    save(saved)
    session.chat.take_persona(saved)
    prompt = "the system prompt" if session.chat.system else "no system prompt"
    controls.front.say(f"saved persona {name} to {file}: {prompt} and {counted(len(settings), 'setting')} of this chat")
