"""Chats of the page that the store does not accept: they are kept, and saved when it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_client import PageClient, of, text_of

from edgespec.history import Store, UnwritableError
from edgespec.history.file import StoreFile
from edgespec.page.chats import Chats
from edgespec.tools.toolbox import Toolbox

pytestmark = [pytest.mark.native, pytest.mark.cli]


def fill(patch: pytest.MonkeyPatch) -> None:
    """Let all writes fail."""
    run = StoreFile.run

    def reading(file: StoreFile, work: Callable[..., Any], *, write: bool = False) -> Any:
        if write:
            raise UnwritableError("the disk is full")
        return run(file, work)

    patch.setattr(StoreFile, "run", reading)


def test_a_chat_on_a_full_disk_is_kept_and_saved_later(page: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fill(patch)
        events = page.answer(chat=None, text="Hello", settings={"temp": "0", "max-tokens": "6"})
        assert "the disk is full" in of(events, "notice")[-1]["text"]
        id, said = events[-1]["chat"]["id"], text_of(events)
        assert [turn["text"] for turn in page.get("chat", id=id)["turns"]] == ["Hello", said]
        assert page.answer(chat=id, text="More")[-1]["type"] == "end"
        assert len(page.get("chat", id=id)["turns"]) == 4
        error = page.post("chat", 503, id=id, action="rename", title="New")["error"]
        assert "the disk is full" in error["message"]
    assert page.post("chat", id=id, action="pin")["title"] == "New"
    with Store() as store:
        assert [turn.content for turn in store.path(store.find(id).head)][:2] == ["Hello", said]
    assert page.chats._unsaved == {}


def test_a_deleted_chat_is_not_saved_by_what_waited(page: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    id = page.ask("Hello")["id"]
    with monkeypatch.context() as patch:
        fill(patch)
        page.post("chat", 503, id=id, action="rename", title="New")
    page.post("chat", id=id, action="delete")
    assert page.chats._unsaved == {}
    assert page.get("chat", 400, id=id)["error"]["message"].startswith("there is no chat")


def test_a_chat_that_cannot_be_saved_at_the_end_is_in_a_file(
    page: PageClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes: list[Any] = []
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch, Chats(Toolbox([]), notes.append) as chats:
        session = chats.session(page.server.pool._places["demo"].offer, None, page.server.served)
        fill(patch)
        list(session.ask("Hello"))
        with pytest.raises(UnwritableError):
            chats.settle(session)
        chats.close()
    [file] = tmp_path.iterdir()
    assert "Hello" in file.read_text()
    assert str(file) in notes[0]
