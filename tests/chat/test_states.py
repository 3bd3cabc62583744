"""When a chat keeps what the KV cache had of it, and when it asks for that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fake_engine import FakeEngine

from edgespec.cancel import CancelFlag
from edgespec.chat import states
from edgespec.chat.comparing import AnswerComparison, sides_and_text
from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings
from edgespec.chat.states import ChatStates, states_folder
from edgespec.history import Store
from edgespec.settings import LoadSettings, Message

DEMO = LoadSettings("demo", threads=1, spec_type="none", store=False)
pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "chats.db") as store:
        yield store


def talking_to(engine: FakeEngine, store: Store, most_bytes: int | None = None) -> Session:
    session = Session(
        store,
        lambda *_: engine,
        DEMO,
        ChatSettings(seed=3),
        states=ChatStates(most_bytes),
    )
    session.load()
    return session


def states_of(engine: FakeEngine) -> list[str]:
    return [call for call in engine.calls if call.startswith(("keep", "recall"))]


def test_chats_are_kept_at_the_end_and_looked_for_once(store: Store) -> None:
    engine = FakeEngine()
    session = talking_to(engine, store)
    list(session.ask("hello"))
    first = session.chat.saved_id
    session.chat.new()
    list(session.ask("hello again"))
    list(session.ask("and more"))
    assert states_of(engine) == []  # no state was saved before, and saving waits for the end
    second = session.chat.saved_id
    session.close()
    assert states_of(engine) == [f"keep {second}.kv", f"keep {first}.kv"]

    engine = FakeEngine()
    session = talking_to(engine, store)
    session.chat.open(str(first))
    list(session.ask("go on"))
    list(session.ask("go on"))
    session.chat.open(str(second))
    session.chat.open(str(first))
    list(session.ask("go on"))
    assert states_of(engine) == [f"recall {first}.kv"]
    session.load()  # another model has another cache
    list(session.ask("go on"))
    assert states_of(engine)[1:] == [f"keep {first}.kv", f"recall {first}.kv"]


@pytest.mark.parametrize(("argument", "calls"), [("temp=0 -- why?", ["recall"]), ("why?", [])])
def test_a_race_does_not_restore_the_cache_of_a_chat(store: Store, argument: str, calls: list[str]) -> None:
    session = talking_to(FakeEngine(), store)
    list(session.ask("hello"))
    session.close()
    engine = FakeEngine()
    session, chat = talking_to(engine, store), str(session.chat.saved_id)
    session.chat.open(chat)
    AnswerComparison(session, *sides_and_text(session, argument)).run(CancelFlag())
    assert states_of(engine) == [f"{call} {chat}.kv" for call in calls]


def test_nothing_is_kept_where_nothing_may_be(store: Store) -> None:
    engine = FakeEngine()
    session = talking_to(engine, store, 0)
    list(session.ask("hello"))
    list(session.ask("hello"))
    session.close()
    assert states_of(engine) == []


def test_a_deleted_chat_leaves_nothing_behind(store: Store) -> None:
    engine = FakeEngine()
    session = talking_to(engine, store)
    list(session.ask("hello"))
    file = states_folder() / f"{session.chat.saved_id}.kv"
    file.parent.mkdir(parents=True)
    file.touch()
    session.delete(str(session.chat.saved_id))
    session.close()
    assert not file.exists() and states_of(engine) == [] and store.chats() == []


def test_a_chat_that_is_deleted_while_its_state_is_written_leaves_nothing_behind(store: Store) -> None:
    class Writing(FakeEngine):
        def keep_state(self, messages: Sequence[Message], file: Path, *_: object, **__: object) -> int:
            session.delete(file.stem)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            return 1

    session = talking_to(Writing(), store)
    list(session.ask("hello"))
    session.states.keep(session.model.needed(), 9.0)
    assert list(states_folder().iterdir()) == []


def test_chats_are_kept_while_the_user_does_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    session = talking_to(engine, store)
    list(session.ask("hello"))
    session.states.begin_idle(session.model)
    session.states.end_idle()
    assert states_of(engine) == []
    monkeypatch.setattr(states, "IDLE_S", 0.0)
    session.states.begin_idle(session.model)
    assert session.states._idle is not None
    session.states._idle.join()
    assert states_of(engine) == [f"keep {session.chat.saved_id}.kv"]
