"""Drafts of processes that were killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from talks import talk

from edgespec.chat.drafts import KeptDraft, drafts_dir, recover
from edgespec.chat.session import Session
from edgespec.history import Store
from edgespec.settings import LoadSettings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))


def killed(chat: str | None, text: str) -> None:
    """Leave the draft of a process that was killed: its lock is free, and its file is there."""
    draft = KeptDraft()
    draft.write(chat, text)
    draft._lock.release()


def session_in(store: Store) -> Session:
    return Session(store, lambda *_: FakeEngine(), LoadSettings("demo"))


def test_a_draft_comes_back_in_its_chat_once() -> None:
    store = Store.in_memory()
    first, _ = talk(store, "one")
    other, _ = talk(store, "two")
    for chat, text in ((first, "of the first"), (first, "more"), (None, "of a new chat"), ("gone", "lost chat")):
        killed(chat, text)
    session = session_in(store)
    session.chat.open(other)
    recover(session.chat)
    assert session.chat.take_unsent() == ""
    session.chat.open(first)
    assert sorted(session.chat.take_unsent().split("\n\n")) == ["more", "of the first"]
    session.chat.new()
    assert session.chat.take_unsent() == "of a new chat"
    recover(session.chat)
    assert session.chat.take_unsent() == ""
    assert not [*drafts_dir().iterdir()]


def test_the_draft_of_a_running_process_is_left_to_it() -> None:
    running = KeptDraft()
    running.write(None, "being typed")
    session = session_in(Store.in_memory())
    recover(session.chat)
    assert session.chat.take_unsent() == ""
    assert len([*drafts_dir().glob("*.json")]) == 1
    running.close()
    assert not [*drafts_dir().iterdir()]


@pytest.mark.skipif(os.name != "posix", reason="needs a symbolic link")
@pytest.mark.parametrize("where", ["new chat", "open chat", "other chat"])
def test_a_draft_stays_until_the_store_accepts_it(tmp_path: Path, where: str) -> None:
    file = tmp_path / "chats.db"
    with Store(file) as store:
        chat, _ = talk(store, "one")
    index = file.with_name("chats.db-shm")
    index.symlink_to("nowhere/at/all")  # SQLite cannot create this file, as on a full or read-only disk
    killed(None if where == "new chat" else chat, "typed")
    for is_writable in (False, False, True):
        if is_writable:
            index.unlink()
        with Store(file) as store:
            session = session_in(store)
            if where == "open chat":
                session.chat.open(chat)
            recover(session.chat)
            assert bool([*drafts_dir().iterdir()]) is not is_writable
            if where == "other chat":
                session.chat.open(chat)
            assert session.chat.take_unsent() == "typed"
            session.chat.keep_unsent("typed")


def test_a_text_that_was_saved_after_all_comes_once() -> None:
    store = Store.in_memory()
    session_in(store).chat.keep_unsent("a line\n\nof two")
    for text in ("of two", "line"):
        killed(None, text)
    session = session_in(store)
    recover(session.chat)
    assert session.chat.take_unsent() == "a line\n\nof two\n\nline"


@pytest.mark.parametrize("content", ["{", "5", "[1, 2]", "[null]", "[null, 3]", "{}", "null", "[" * 100_000, "\xff"])
def test_a_file_with_something_else_is_left_and_the_others_are_read(content: str) -> None:
    drafts_dir().mkdir(parents=True)
    (drafts_dir() / "0.json").write_text(content, encoding="latin-1")
    (drafts_dir() / "stale.lock").touch()
    killed(None, "typed \ud800")
    session = session_in(Store.in_memory())
    recover(session.chat)
    assert session.chat.take_unsent() == "typed \N{REPLACEMENT CHARACTER}"
    assert [file.name for file in drafts_dir().iterdir()] == ["0.json"]


def test_a_draft_that_cannot_be_read_or_written_disturbs_nothing() -> None:
    drafts_dir().mkdir(parents=True)
    (drafts_dir() / "bad.json").write_text("{")
    recover(session_in(Store.in_memory()).chat)
    (drafts_dir() / "bad.json").unlink()
    drafts_dir().rmdir()
    drafts_dir().write_text("a file in the way")
    draft = KeptDraft()
    draft.write(None, "text")
    draft.close()
