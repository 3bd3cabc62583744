"""`edgespec history`: conversations are listed, searched, shown, exported, imported and deleted."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_program import Finished, edgespec_here
from talks import ANSWER, talk
from terminal import at_terminal, read_rest

from edgespec.chat.transcript import MARKDOWN_MAGIC
from edgespec.history import Store
from edgespec.text.figures import iso

LINES = b'{"messages": [{"role": "user", "content": "imported"}]}\n{"messages": [{"role": "user", "content": "too"}]}\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    """Two chats in the program's history file; "bread" is the newer one."""
    with Store(home / "data" / "chats.db") as store:
        talk(store, "about cake", "with sugar")
        chat, turns = talk(store, "about bread")
        store.append(chat, turns[0].key, "assistant", "with flour\nand \x1b[31mwater", ANSWER)
        yield store


def history(home: Path, *args: str, stdin: bytes = b"", code: int = 0, **variables: str) -> Finished:
    done = edgespec_here("history", *args, home=home, stdin=stdin, **variables)
    assert done.returncode == code, done.stderr
    return done


def objects(done: Finished) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def ids(store: Store) -> list[str]:
    return [chat.id for chat in store.chats()]


def test_chats_are_listed_with_the_newest_first(home: Path, store: Store) -> None:
    lines = history(home, "list").stdout.decode().splitlines()
    assert lines[0].split() == ["id", "messages", "last", "title"]
    newest, oldest = store.chats()
    assert re.fullmatch(rf"{newest.id} +2 +today \d\d:\d\d +about bread", lines[2])
    assert re.fullmatch(rf"{oldest.id} +2 +today \d\d:\d\d +about cake", lines[3])
    assert len(history(home, "list", "-n", "1").stdout.splitlines()) == 3


def test_long_titles_are_shortened_in_the_list(home: Path, store: Store) -> None:
    store.rename(ids(store)[0], "a long title " * 20)
    lines = history(home, "list").stdout.decode().splitlines()
    assert len(lines) == 4
    assert re.fullmatch(rf"{ids(store)[0]} +2 +today \d\d:\d\d +(a long title ){{4}}a long…", lines[2])


def test_a_list_as_json_has_times_that_programs_read(home: Path, store: Store) -> None:
    newest, _ = objects(history(home, "list", "--json"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", newest.pop("created"))
    assert newest.pop("updated")
    place = {"pinned": False, "folder": ""}
    assert newest == {"id": ids(store)[0], "title": "about bread", "messages": 2, "model": "target.gguf"} | place


def test_pins_and_folders_are_listed_exported_and_imported(home: Path, store: Store, tmp_path: Path) -> None:
    newest, oldest = ids(store)
    store.pin(oldest, True)
    store.move(newest, "the kitchen")
    lines = history(home, "list").stdout.decode().splitlines()
    assert lines[0].split() == ["id", "messages", "last", "folder", "title"]
    assert lines[2].startswith(oldest) and " * " in lines[2]
    assert lines[3].startswith(newest) and " the kitchen " in lines[3]
    for chat in (newest, oldest):
        history(home, "export", chat, "-o", str(tmp_path / f"{chat}.jsonl"))
        kept = store.find(chat)
        store.remove([chat])
        history(home, "import", str(tmp_path / f"{chat}.jsonl"))
        imported = store.find(chat)
        assert (imported.folder, imported.is_pinned) == (kept.folder, kept.is_pinned)


def test_a_deleted_chat_leaves_no_saved_cache(home: Path, store: Store) -> None:
    newest, oldest = ids(store)
    folder = home / "cache" / "chats"
    folder.mkdir(parents=True)
    for chat in (newest, oldest):
        (folder / f"{chat}.kv").write_bytes(bytes(1000))
    history(home, "rm", "-y", newest)
    assert [file.name for file in folder.iterdir()] == [f"{oldest}.kv"]


def test_times_of_other_days_are_shown_as_ages(home: Path, store: Store) -> None:
    titles = {0: "today", 1: "yesterday", 3: "3 days ago", 400: "20"}
    for chat, (days, shown) in zip(
        [*ids(store), *(talk(store, "x")[0] for _ in range(2))], titles.items(), strict=True
    ):
        store._database._connection.execute(
            "UPDATE chat SET updated_s = updated_s - ? WHERE id = ?", (days * 86400, chat)
        )
        assert re.search(rf"{chat} +\d +{shown}", history(home, "list").stdout.decode())


def test_messages_are_found(home: Path, store: Store) -> None:
    [chat, _] = store.chats()
    first, second = history(home, "search", "with", "flour").stdout.decode().splitlines()
    assert re.fullmatch(rf"{chat.id}  today \d\d:\d\d  about bread", first)
    assert second == "    assistant: with flour and \ufffd[31mwater"
    [found] = objects(history(home, "search", "flour", "--json"))
    assert (found["chat"], found["message"], found["role"]) == (chat.id, chat.head, "assistant")
    assert found["excerpt"].startswith("with flour")
    assert len(objects(history(home, "search", "with", "-n", "1", "--json"))) == 1
    done = history(home, "search", "nowhere")
    assert (done.stdout, done.stderr) == (b"", b"note: nothing was found\n")
    history(home, "search", code=2)


def test_a_chat_is_shown_whole(home: Path, store: Store) -> None:
    chat = store.find("last")
    texts = [history(home, "show", name).stdout.decode() for name in (chat.id, chat.id[:6], "last")]
    assert texts[0] == texts[1] == texts[2]
    title, created, *rest = texts[0].split("\n")
    assert (title, created[:2]) == ("about bread", "20")
    assert rest == [
        "",
        "user:",
        "about bread",
        "",
        "assistant:",
        "with flour",
        "and \x1b[31mwater",
        "(cut off at the token limit)",
        "",
    ]


@pytest.mark.parametrize("command", [["show"], ["export"], ["rm", "-y"]])
def test_an_unknown_chat_is_a_usage_error(home: Path, store: Store, command: list[str]) -> None:
    done = history(home, *command, "nowhere", code=2)
    assert b"there is no chat 'nowhere'" in done.stderr and not done.stdout
    done = history(home, *command, "", code=2)
    assert len(ids(store)) == 2


def test_without_any_chat_nothing_is_made(home: Path) -> None:
    assert history(home, "list").stderr == b"note: there is no chat yet\n"
    assert not history(home, "list", "--json").stdout
    history(home, "search", "x")
    history(home, "show", "last", code=2)
    assert not (home / "data").exists()


def test_chats_are_exported_and_imported_again(home: Path, store: Store) -> None:
    markdown = history(home, "export", "last").stdout.decode()
    assert markdown.startswith(MARKDOWN_MAGIC.decode() + "# about bread\n") and markdown.endswith(
        "*(cut off at the token limit)*\n"
    )
    lines = history(home, "export", "--all", "--format", "jsonl").stdout
    assert lines.startswith(b'{"chat": "') and len(lines.splitlines()) == 2
    file = home / "chats.jsonl"
    assert b"2 written" in history(home, "export", "--all", "-o", str(file)).stderr
    assert file.read_bytes() == lines
    before = [(chat, store.path(chat.head)) for chat in store.chats()]
    again = history(home, "import", str(file))
    assert (again.stdout, again.stderr) == (b"", b"note: 2 of 2 exist already\n")
    assert [(chat, store.path(chat.head)) for chat in store.chats()] == before
    store.remove(ids(store))
    assert set(history(home, "import", "-", stdin=lines).stdout.decode().split()) == {chat.id for chat, _ in before}
    for chat, path in before:
        restored = store.find(chat.id)
        assert restored.title == chat.title
        assert int(restored.created_s) == int(chat.created_s)
        assert [(turn.content, int(turn.created_s)) for turn in store.path(restored.head)] == [
            (turn.content, int(turn.created_s)) for turn in path
        ]


def test_an_import_keeps_the_times_of_other_programs_and_is_found_again(home: Path, store: Store) -> None:
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    line = json.dumps({"messages": said, "created": "2020-01-02T03:04:05Z"}).encode()
    for _ in range(2):
        history(home, "import", "-", stdin=line)
    assert len(ids(store)) == 3
    [old] = [chat for chat in store.chats() if chat.title == "hi"]
    assert store.chats()[-1] == old
    assert (iso(old.created_s), iso(old.updated_s)) == ("2020-01-02T03:04:05+00:00",) * 2
    shown = history(home, "export", old.id, "--format", "jsonl").stdout
    store.remove([old.id])
    history(home, "import", "-", stdin=shown)
    assert store.find(old.id).created_s == old.created_s


def test_an_import_of_a_chat_that_went_on_elsewhere_adds_what_is_new(home: Path, store: Store) -> None:
    newest = store.find("last")
    row = json.loads(history(home, "export", "last", "--format", "jsonl").stdout)
    row["messages"].append({"role": "user", "content": "thanks"})
    assert history(home, "import", "-", stdin=json.dumps(row).encode()).stdout.decode() == f"{newest.id}\n"
    assert len(ids(store)) == 2
    turns = store.path(store.find(newest.id).head)
    assert [turn.content for turn in turns] == ["about bread", "with flour\nand \x1b[31mwater", "thanks"]
    assert turns[1].answer is not None


def test_no_file_is_replaced_unasked(home: Path, store: Store) -> None:
    file = home / "notes.md"
    file.write_text("# my own notes\n")
    refused = history(home, "export", "last", "-o", str(file), code=2).stderr.decode()
    assert refused == f"edgespec: {file} already exists\n  name another file, or pass -y to overwrite it\n"
    assert file.read_text() == "# my own notes\n"
    history(home, "export", "last", "-o", str(file), "-y")
    exported = history(home, "export", "last").stdout
    assert file.read_bytes() == exported
    history(home, "export", "--all", "-o", str(file), code=2)
    assert file.read_bytes() == exported
    assert store.file is not None
    before = store.file.read_bytes()
    for out in (home, home / "nowhere" / "x.md", store.file):
        history(home, "export", "last", "-y", "-o", str(out), code=2)
    assert store.file.read_bytes() == before


@pytest.mark.skipif(os.name != "posix", reason="there is no such device")
def test_a_device_can_be_written_to(home: Path, store: Store) -> None:
    history(home, "export", "last", "-o", "/dev/null")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("args", [["export"], ["export", "last", "--all"], ["rm", "-y"], ["rm", "last", "--all", "-y"]])
def test_chats_are_named_or_all_are_meant(home: Path, store: Store, args: list[str]) -> None:
    assert b"--all" in history(home, *args, code=2).stderr
    assert len(ids(store)) == 2


def test_an_import_is_whole_or_nothing(home: Path, store: Store) -> None:
    good, bad = home / "good.jsonl", home / "bad.jsonl"
    good.write_bytes(LINES)
    for content, reason in (
        (LINES + b"{}", b"line 3 is not a chat: messages must be a non-empty list"),
        (LINES + b"\xff", b"line 3 is not UTF-8"),
        (b"", b"has no messages"),
    ):
        bad.write_bytes(content)
        assert reason in history(home, "import", str(good), str(bad), code=2).stderr
    assert b"cannot be read" in history(home, "import", str(home / "nowhere"), code=2).stderr
    assert len(ids(store)) == 2
    history(home, "import", str(good))
    assert len(ids(store)) == 4


def test_deleting_asks_and_without_a_terminal_refuses(home: Path, store: Store) -> None:
    newest, oldest = ids(store)
    done = history(home, "rm", newest, code=2)
    assert b"no terminal to ask for confirmation" in done.stderr and b"-y" in done.stderr
    assert ids(store) == [newest, oldest]
    assert b"1 deleted" in history(home, "rm", newest, newest[:8], "-y").stderr
    assert ids(store) == [oldest]
    assert b"1 deleted" in history(home, "rm", "--all", "-y").stderr
    assert not ids(store)


@pytest.mark.parametrize(("typed", "left"), [(b"y\n", 1), (b"n\n", 2), (b"\n", 2)])
def test_on_a_terminal_deleting_asks(home: Path, store: Store, typed: bytes, left: int) -> None:
    store.rename(ids(store)[0], "a \x1b[31m title")
    with at_terminal(home, ["history", "rm", "last"], streams=["stdin", "stderr"]) as (program, master):
        os.write(master, typed)
        seen = read_rest(master)
        program.wait(60)
    assert "Delete 'a \ufffd[31m title'? [y/N]" in seen
    assert (program.returncode, len(ids(store))) == (0, left)


def test_the_file_is_named(home: Path) -> None:
    assert history(home, "path").stdout.decode() == f"{home / 'data' / 'chats.db'}\n"


def test_a_damaged_store_is_reported_and_gone_on_without(home: Path) -> None:
    (home / "data").mkdir()
    (home / "data" / "chats.db").write_bytes(b"no database")
    done = history(home, "list")
    assert b"were damaged" in done.stderr and b"there is no chat yet" in done.stderr
    assert history(home, "list").stderr == b"note: there is no chat yet\n"
