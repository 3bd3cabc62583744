"""`edgespec history`: the saved conversations of `edgespec chat`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from edgespec.chat.attachments import delete_chats
from edgespec.chat.states import remove_states
from edgespec.chat.transcript import (
    ImportedChat,
    import_chat,
    is_stored,
    messages_of,
    read_jsonl,
    to_jsonl,
    to_markdown,
)
from edgespec.cli.options.common import JSON_LINES, YES, flag, option
from edgespec.cli.options.group import Group
from edgespec.cli.options.types import Integer, Text
from edgespec.cli.terminal.output import Output
from edgespec.cli.terminal.prompt import agreed
from edgespec.errors import EdgespecError, UsageError, told_as
from edgespec.files.paths import write_whole
from edgespec.files.unfinished import check_destination
from edgespec.history import ChatInfo, Store, default_file
from edgespec.history.data import first_line
from edgespec.history.search import BEGIN, END
from edgespec.text.encodings import decoded
from edgespec.text.figures import iso, when
from edgespec.text.printable import one_line

CHAT = click.argument("name", type=Text(), metavar="CHAT")
CHATS = click.argument("names", nargs=-1, type=Text(), metavar="[CHAT]...")


@click.group(cls=Group)
def history() -> None:
    """Conversations saved by 'edgespec chat'.

    CHAT is an id as shown by 'history list', a prefix of one, or 'last'. 'edgespec chat -r CHAT' resumes it.
    """


@history.command("list", short_help="List conversations, pinned and newest first.")
@option("Output", "-n", "--limit", type=Integer(1), show_default="all", help="List at most N.")
@JSON_LINES
def list_(limit: int | None, as_json: bool) -> None:
    """List conversations: pinned ones (*), then the newest first."""
    output = Output(quiet=False)
    with _store(output) as store:
        chats = store.chats(order="pinned")[:limit]
    if as_json:
        for chat in chats:
            output.json(_about(chat))
    elif chats:
        rows = [
            (chat.id, str(chat.n_turns), when(chat.updated_s), one_line(chat.folder),
             "* " * chat.is_pinned + one_line(first_line(chat.title)))
            for chat in chats
        ]  # fmt: skip
        output.table(("id", "messages", "last", "folder", "title"), rows, right=("messages",))
    else:
        output.note("there is no chat yet")


@history.command()
@click.argument("query", nargs=-1, required=True, metavar="QUERY")
@option("Output", "-n", "--limit", default=50, type=Integer(1), help="Show at most N messages.")
@JSON_LINES
def search(query: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Search messages for all words of QUERY, newest first. The last word may be incomplete."""
    output = Output(quiet=False)
    with _store(output) as store:
        hits = store.search(" ".join(query), limit)
    for hit in hits:
        if as_json:
            excerpt = hit.snippet.replace(BEGIN, "").replace(END, "")
            about = {"chat": hit.chat, "title": hit.title, "created": iso(hit.created_s), "message": hit.key}
            output.json(about | {"role": hit.role, "excerpt": excerpt})
        else:
            output.line(f"{hit.chat}  {when(hit.created_s)}  {one_line(hit.title)}")
            output.excerpt(f"    {hit.role}: ", " ".join(hit.snippet.split()), BEGIN, END)
    if not hits:
        output.note("nothing was found")


@history.command()
@CHAT
def show(name: str) -> None:
    """Print a conversation. 'history export --format jsonl' writes it for programs."""
    output = Output(quiet=False)
    with _store(output) as store:
        chat = store.find(name)
        turns = messages_of(store, chat)
    output.line(f"{chat.title or chat.id}\n{iso(chat.created_s)}")
    for turn in turns:
        end = turn.answer.end if turn.answer else ""
        output.line(f"\n{turn.role}:\n{turn.content}" + (f"\n({end})" if end else ""))


@history.command()
@CHATS
@flag("--all", "every", help="Export all conversations.")
@option(
    "Output", "--format", "form", type=click.Choice(["md", "jsonl"]), show_default="by FILE's name, or md",
    help="Markdown, or JSON lines with messages in OpenAI's format.",
)  # fmt: skip
@option(
    "Output", "-o", "--output", "out", type=click.Path(path_type=Path), metavar="FILE", show_default="stdout",
    help="File to write.",
)  # fmt: skip
@flag("-y", "--yes", help="Overwrite FILE if it exists.")
def export(names: tuple[str, ...], every: bool, form: str | None, out: Path | None, yes: bool) -> None:
    """Export conversations as Markdown or JSON lines.

    Only the current branch of each conversation is exported.
    """
    output = Output(quiet=False)
    is_jsonl = form == "jsonl" or (form is None and out is not None and out.suffix == ".jsonl")
    with _store(output) as store:
        if out is not None:
            own = [store.file] if store.file else []
            check_destination(out, own, b"")
            if out.is_file() and not yes:
                raise UsageError(f"{out} already exists", hint="name another file, or pass -y to overwrite it")
        texts = [
            (to_jsonl if is_jsonl else to_markdown)(chat, messages_of(store, chat))
            for chat in _chosen(store, names, every)
        ]
    text = ("" if is_jsonl else "\n").join(texts)
    if out is None:
        output.answer(text)
        output.end_answer()
        return
    _write(out, text)
    output.note(f"{len(texts)} written to {out}")


@history.command("import", short_help="Import conversations from JSON lines.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def import_(files: tuple[str, ...]) -> None:
    """Import conversations from JSON lines, with 'messages' in OpenAI's format, and print their ids.

    '-' is stdin. Exported conversations keep their ids and times. Conversations that exist already are skipped.
    """
    output = Output(quiet=False)
    chats = [chat for file in files for chat in _read(file)]
    with Store(note=output.note) as store:
        new = [chat for chat in chats if not is_stored(store, chat)]
        for chat in new:
            output.line(import_chat(store, chat))
    if len(new) < len(chats):
        output.note(f"{len(chats) - len(new)} of {len(chats)} exist already")


@history.command()
@CHATS
@flag("--all", "every", help="Delete all conversations.")
@YES
def rm(names: tuple[str, ...], every: bool, yes: bool) -> None:
    """Delete conversations."""
    output = Output(quiet=False)
    with _store(output) as store:
        chats = _chosen(store, names, every)
        what = f"'{one_line(chats[0].title) or chats[0].id}'" if len(chats) == 1 else f"{len(chats)} chats"
        if chats and not agreed(f"Delete {what}?", yes=yes):
            return
        output.note(f"{delete_chats(store, [chat.id for chat in chats])} deleted")
    remove_states(chat.id for chat in chats)


@history.command()
def path() -> None:
    """Print the path of the history file."""
    Output(quiet=False).line(str(default_file()))


def _store(output: Output) -> Store:
    """Open the user's chats without creating the file. Raises StoreError."""
    try:
        default_file().stat()
    except FileNotFoundError:
        return Store.in_memory()
    except OSError:  # opening the store reports it
        pass
    return Store(note=output.note)


def _chosen(store: Store, names: Sequence[str], every: bool) -> list[ChatInfo]:
    """Return the chats of a command. Raises UsageError."""
    if bool(names) == every:
        raise UsageError("name conversations, or use --all" if not every else "use names or --all, not both")
    return store.chats() if every else list({chat.id: chat for chat in map(store.find, names)}.values())


def _read(file: str) -> list[ImportedChat]:
    """Read the conversations of a file. Raises UsageError."""
    with told_as(UsageError, f"{file} cannot be read"):
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        chats = list(read_jsonl(decoded(data)))
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{file}: line {line} is not UTF-8") from error
    except UsageError as error:
        raise error.reworded(what=f"{file}: {error.what}") from error
    if not chats:
        raise UsageError(f"{file} has no messages")
    return chats


def _write(file: Path, text: str) -> None:
    with told_as(EdgespecError, f"{file} cannot be written"):
        if file.exists() and not file.is_file():  # a pipe or a device
            file.write_text(text, encoding="utf-8", newline="\n")
        else:
            write_whole(file, text)


def _about(chat: ChatInfo) -> dict[str, object]:
    times = {"created": iso(chat.created_s), "updated": iso(chat.updated_s)}
    place = {"pinned": bool(chat.is_pinned), "folder": chat.folder}
    return {"id": chat.id, "title": chat.title, "messages": chat.n_turns, "model": chat.model} | times | place
