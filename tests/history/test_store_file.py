"""Problems of the file of chats: locked, read-only, full, newer, older, damaged, deleted."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from filelock import FileLock
from talks import ANSWER, PIECES, contents, talk

from edgespec.history import Store, StoreError, UnknownChatError
from edgespec.history import file as store_file
from edgespec.history.data import UnreadableError
from edgespec.history.rescue import rescue
from edgespec.history.schema import MIGRATIONS, migrate, version_of

PAGE = 4096
TEXTS = [f"message {number} " + "word " * 100 for number in range(40)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store with a chat of some pages."""
    file = tmp_path / "chats.db"
    with Store(file) as store:
        chat, turns = talk(store, *TEXTS)
        store.append(chat, turns[-2].key, "assistant", "another", ANSWER, PIECES)
        store.set_preference("theme", "dark")
    return file


def connect(file: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(file, isolation_level=None))


def texts(store: Store) -> list[str]:
    return contents(store.path(store.find("last").head))


def test_a_chat_is_for_its_user_alone(file: Path) -> None:
    if os.name == "posix":
        assert file.stat().st_mode & 0o077 == 0


def test_a_locked_store_says_so_and_can_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file, "LOCK_S", 0.01)
    with Store(file) as store, connect(file) as other:
        chat = store.find("last")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="are locked") as error:
            store.append(chat.id, chat.head, "user", "more")
        assert error.value.hint and error.value.exit_code == 1
        assert store.search("message")
        with Store(file) as third:
            assert texts(third) == texts(store)
        other.execute("ROLLBACK")
        store.append(chat.id, chat.head, "user", "more")
        assert texts(store)[-1] == "more"


@contextmanager
def as_nobody() -> Iterator[None]:
    """Drop the rights of root, who may write everything."""
    if os.name != "posix":
        pytest.skip("folders are not made read-only this way here")
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def as_owner(folder: Path) -> Iterator[None]:
    """Within `as_nobody`, use the rights of a folder's owner."""
    nobody = os.geteuid()
    os.seteuid(folder.stat().st_uid)
    try:
        yield
    finally:
        os.seteuid(nobody)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may read."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def test_a_read_only_file_can_be_read(open_folder: Path) -> None:
    file = open_folder / "chats.db"
    with Store(file) as store:
        chat, _ = talk(store, "a", "b")
    file.chmod(0o444)
    with as_nobody(), Store(file) as store:
        assert texts(store) == ["a", "b"]
        with pytest.raises(StoreError, match=r"cannot be written.*read-?only"):
            store.rename(chat, "c")


def read_only(folder: Path) -> Path:
    """A folder with a chat and without the permission to write; the file of the chat."""
    folder.mkdir()
    with Store(folder / "chats.db") as store:
        talk(store, "a", "b")
    (folder / "chats.db").chmod(0o444)
    folder.chmod(0o555)
    return folder / "chats.db"


def test_chats_are_read_where_nothing_can_be_written(open_folder: Path) -> None:
    file = read_only(open_folder / "inner")
    with as_nobody(), Store(file) as store:
        assert store.unwritable is not None
        assert texts(store) == ["a", "b"]
        assert store.search("a")
        with pytest.raises(StoreError, match="EDGESPEC_HOME"):
            store.append(store.find("last").id, store.find("last").head, "user", "c")
        assert texts(store) == ["a", "b", "c"]  # in memory, so that the open chat can be used
    for name in ("new.db", "deeper/new.db"):
        with as_nobody(), Store(file.parent / name) as store:
            assert store.chats() == []
            with pytest.raises(StoreError, match="EDGESPEC_HOME"):
                store.create("abc")
            assert [chat.id for chat in store.chats()] == ["abc"]


def test_what_could_not_be_written_is_written_when_the_same_write_is_repeated(open_folder: Path) -> None:
    file = read_only(open_folder / "inner")
    with as_nobody(), Store(file) as store:
        chat = store.find("last")
        with pytest.raises(StoreError):
            store.append(chat.id, chat.head, "user", "c")
    file.chmod(0o666)
    with as_nobody(), Store(file) as store:
        with pytest.raises(StoreError):
            store.append(chat.id, chat.head, "user", "c")
        with as_owner(file.parent):
            file.parent.chmod(0o777)
        turn = store.append(chat.id, chat.head, "user", "c")
        assert store.unwritable is None
        assert texts(store) == ["a", "b", "c"]
    with Store(file) as store:
        assert store.path(turn.key)[-1] == turn


def test_what_a_killed_program_wrote_is_read_where_nothing_can_be_written(open_folder: Path) -> None:
    """A store whose last messages are in the log next to the file."""
    inner = open_folder / "inner"
    inner.mkdir()
    with Store(open_folder / "chats.db") as store:
        talk(store, "a", "b")
        for name in ("chats.db", "chats.db-wal"):
            (inner / name).write_bytes((open_folder / name).read_bytes())
            (inner / name).chmod(0o444)
    assert (inner / "chats.db-wal").stat().st_size
    inner.chmod(0o555)
    with as_nobody(), Store(inner / "chats.db") as store:
        assert texts(store) == ["a", "b"]


def test_chats_that_cannot_be_read_either_are_an_error(open_folder: Path) -> None:
    file = read_only(open_folder / "inner")
    file.chmod(0)
    with as_nobody(), pytest.raises(StoreError, match="EDGESPEC_HOME"):
        Store(file)
    with connect(open_folder / "chats.db") as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    (open_folder / "chats.db").chmod(0o444)
    with as_nobody(), pytest.raises(StoreError, match="update edgespec"):
        Store(open_folder / "chats.db")


def test_a_file_where_the_folder_should_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(tmp_path / "data" / "chats.db")
    with pytest.raises(StoreError):
        Store(tmp_path)


def test_a_full_disk_loses_nothing_that_was_stored(file: Path) -> None:
    with Store(file) as store:
        chat = store.find("last")
        before = store.path(chat.head)
        row = store.begin(chat.id, chat.head, ANSWER)
        db = store._database._connection
        n_pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {n_pages + 2}")  # SQLite refuses to grow, as if the disk were full
        for write in (
            lambda: store.grow(row, "x" * 100_000, []),
            lambda: store.finish(row, chat.id, chat.head, "x" * 100_000, ANSWER),
        ):
            with pytest.raises(StoreError, match="the disk is full"):
                write()
        assert store.path(store.find(chat.id).head) == before
        db.execute("PRAGMA max_page_count = 1000000")
        turn = store.finish(row, chat.id, chat.head, "x" * 100_000, ANSWER)
        assert store.path(turn.key) == [*before, turn]


UNTIL_IT_FAILS = """
import resource, sys
from pathlib import Path
from edgespec.history import Store, StoreError, new_id
with Store(Path(sys.argv[1])) as store:
    store.create("abc")
    parent = None
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
    try:
        while True:
            parent = store.append("abc", parent, "user", "some words " * 500).key
            print(parent, flush=True)
    except StoreError as error:
        print(error, file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="files have no limits of size there")
def test_a_file_that_the_system_lets_grow_no_more_keeps_what_was_stored(tmp_path: Path) -> None:
    file = tmp_path / "chats.db"
    done = subprocess.run([sys.executable, "-c", UNTIL_IT_FAILS, str(file)], capture_output=True, text=True, check=True)
    assert "cannot be" in done.stderr
    keys = done.stdout.split()
    assert len(keys) > 20
    with Store(file) as store:
        assert [turn.key for turn in store.path(store.find("abc").head)][: len(keys)] == keys


def test_a_newer_version_is_left_as_it_is(file: Path) -> None:
    with connect(file) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    before = file.read_bytes()
    with pytest.raises(StoreError, match="update edgespec"):
        Store(file)
    assert file.read_bytes() == before
    assert [found.name for found in file.parent.iterdir()] == ["chats.db"]


def test_a_python_without_full_text_search_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = ["CREATE VIRTUAL TABLE words USING fts5_of_another_build(content)"]  # an extension that this SQLite lacks
    monkeypatch.setattr(store_file, "migrate", lambda db: migrate(db, [script]))
    with pytest.raises(StoreError, match="no such module: fts5"):
        Store(tmp_path / "chats.db")


@pytest.mark.parametrize("version", range(len(MIGRATIONS) + 1))
def test_every_older_version_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    file = tmp_path / "chats.db"
    with connect(file) as db:
        migrate(db, MIGRATIONS[:version])
        assert version_of(db) == version
    with Store(file) as store:
        talk(store, "found again")
        assert [hit.role for hit in store.search("again")] == ["user"]
    with connect(file) as db:
        assert version_of(db) == len(MIGRATIONS)


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 1))
def test_what_is_rescued_keeps_its_place(tmp_path: Path, version: int) -> None:
    with connect(tmp_path / "old.db") as old, connect(tmp_path / "new.db") as new:
        migrate(old, MIGRATIONS[:version])
        migrate(new)
        old.execute(
            "INSERT INTO chat (id, title, settings, model, created_s, updated_s) VALUES ('a', 'b', '', '', 1., 2.)"
        )
        if version == len(MIGRATIONS):
            old.execute("UPDATE chat SET is_pinned = 1, folder = 'work'")
        assert rescue(old, new) == (0, 1)
        found = new.execute("SELECT title, is_pinned, folder FROM chat").fetchone()
    kept = (1, "work") if version == len(MIGRATIONS) else (0, "")
    assert tuple(value.decode() if isinstance(value, bytes) else value for value in found) == ("b", *kept)


def test_a_step_that_fails_changes_nothing_and_a_later_one_keeps_what_is_there(file: Path) -> None:
    with connect(file) as db:
        with pytest.raises(sqlite3.Error):
            migrate(db, [*MIGRATIONS, ["CREATE TABLE extra (a)", "no SQL"]])
        assert version_of(db) == len(MIGRATIONS)
        migrate(db, [*MIGRATIONS, ["ALTER TABLE chat ADD COLUMN extra TEXT"], ["UPDATE chat SET extra = title"]])
        assert version_of(db) == len(MIGRATIONS) + 2
        assert db.execute("SELECT extra = title FROM chat").fetchall() == [(1,)]


@pytest.mark.parametrize("garbage", [b"no database", b"\0" * 5000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_moved_aside(file: Path, garbage: bytes) -> None:
    file.write_bytes(garbage)
    said: list[str] = []
    with Store(file, said.append) as store:
        talk(store, "a new one")
        assert texts(store) == ["a new one"]
    [note] = said
    [aside] = file.parent.glob("chats-damaged-*.db")
    assert aside.read_bytes() == garbage
    assert aside.name in note and "nothing in it could be read" in note
    with Store(file, said.append) as store:
        assert texts(store) == ["a new one"]
    assert len(said) == 1


def test_what_was_not_hit_is_brought_over(file: Path) -> None:
    with connect(file) as db:
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'message_words_data'").fetchone()[0]
    data = bytearray(file.read_bytes())
    data[(root - 1) * PAGE : root * PAGE] = b"\xa5" * PAGE
    file.write_bytes(data)
    said: list[str] = []
    with Store(file, said.append) as store:
        assert [branch.n_turns for branch in store.branches(store.find("last").id)] == [40, 40]
        assert len(store.search("message", limit=100)) == 40  # this detects and repairs the damage
        assert said and "41 messages of 1 chats could be read" in said[0]
        head = store.find("last").head
        assert head is not None
        assert contents(store.path(head)) == [*TEXTS[:-1], "another"]
        assert store.path(head)[-1].answer == ANSWER
        assert store.pieces(head) == list(PIECES)
        assert store.preference("theme") == "dark"


def damage(data: bytearray, chance: random.Random) -> bytearray:
    """Damage a file in one of several ways."""
    kind, page = chance.randrange(4), chance.randrange(len(data) // PAGE) * PAGE
    if kind == 0:
        return data[: chance.randrange(PAGE, len(data))]
    if kind == 1:
        data[page : page + PAGE] = bytes(PAGE)
    elif kind == 2:
        data[page : page + PAGE] = chance.randbytes(PAGE)
    else:
        start = chance.randrange(len(data))
        data[start : start + 16] = chance.randbytes(16)
    return data


@pytest.mark.long(but=10)
@pytest.mark.parametrize("seed", range(25))
def test_whatever_is_damaged_there_is_a_store_to_go_on_with(file: Path, seed: int) -> None:
    file.write_bytes(damage(bytearray(file.read_bytes()), random.Random(seed)))
    said: list[str] = []
    with Store(file, said.append) as store:
        for chat in store.chats():
            for use in (store.branches, store.chat_settings):
                use(chat.id)
            with suppress(UnknownChatError):  # the key of a message may be damaged
                store.path(chat.head)
        store.search("message")
        store.search("nowhere")
        _, turns = talk(store, "it goes on")
        assert store.path(turns[0].key) == turns
    assert len(said) <= 1
    with Store(file, said.append) as store:
        assert store.path(turns[0].key) == turns
        for chat in store.chats():
            assert chat.id


def test_a_mistake_of_the_program_is_not_taken_for_damage(file: Path) -> None:
    with Store(file) as store:
        chat = store.find("last")
        with pytest.raises(AttributeError):
            store.append(chat.id, chat.head, "user", None)  # type: ignore[arg-type]
        assert store.find("last") == chat
    assert [found.name for found in file.parent.iterdir()] == ["chats.db"]


def test_another_program_goes_on_with_the_new_file(file: Path) -> None:
    with Store(file, lambda _: None) as other:
        assert len(texts(other)) == 40
        damaged = bytearray(file.read_bytes())
        damaged[:16] = b"no longer SQLite"
        file.write_bytes(damaged)
        said: list[str] = []
        with Store(file, said.append) as store:
            assert said
            [turn] = talk(store, "in the new file")[1]
            assert other.path(turn.key) == [turn]
            talk(other, "from the other")
            assert texts(store) == ["from the other"]


def test_what_is_brought_over_joins_what_was_written_meanwhile(file: Path, tmp_path: Path) -> None:
    with Store(tmp_path / "new.db") as store, connect(file) as source:
        other, _ = talk(store, "written meanwhile", "by another program")
        assert rescue(source, store._database._connection) == (41, 1)
        assert texts(store) == ["written meanwhile", "by another program"]
        [rescued] = (chat for chat in store.chats() if chat.id != other)
        assert contents(store.path(rescued.head)) == [*TEXTS[:-1], "another"]
        assert [branch.n_turns for branch in store.branches(rescued.id)] == [40, 40]
        assert store.remove([other]) == 1
        assert len(store.search("message", limit=100)) == 40


def test_a_damaged_file_that_cannot_be_moved_yet_is_fixed_later(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file, "LOCK_S", 0.01)
    damaged = b"no longer SQLite" + file.read_bytes()[16:]
    file.write_bytes(damaged)
    said: list[str] = []
    with FileLock(f"{file}.lock"), pytest.raises(StoreError, match="are damaged"):
        Store(file, said.append)
    with Store(file, said.append) as store:
        file.write_bytes(damaged)
        with FileLock(f"{file}.lock"), pytest.raises(StoreError, match="are damaged"):
            store.search("message")
        assert len(said) == 1
        talk(store, "in a new file")
        assert texts(store) == ["in a new file"]
    assert len(said) == 2


def test_a_store_that_was_deleted_is_begun_again(file: Path) -> None:
    with Store(file) as store:
        for found in list(file.parent.iterdir()):
            found.unlink()
        talk(store, "once more")
        assert texts(store) == ["once more"]
    with Store(file) as store:
        assert texts(store) == ["once more"]


@pytest.mark.parametrize(
    ("cause", "why"), [(OSError(13, "Permission denied"), "Permission denied"), (OSError("no server"), "no server")]
)
def test_a_file_that_cannot_be_opened_says_why(cause: OSError, why: str) -> None:
    error = UnreadableError("the chats cannot be read", cause, "look at the file")
    assert str(error) == f"the chats cannot be read: {why}\n  look at the file"
