"""Titles by the model: which ones are used, and that asking for them changes nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from tiny_gguf import CHATML, write_model

import edgespec
from edgespec.chat import idle
from edgespec.chat.idle import Idle, cleaned, title_request
from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings
from edgespec.history import Store
from edgespec.settings import LoadSettings, Message

DEMO = LoadSettings("demo", threads=1, spec_type="none", store=False)
SAID = "Why is the sky blue? Molecules scatter blue light. Warum ist der Himmel blau?"


class Titled(FakeEngine):
    """An engine whose KV cache can be cut, so that a title costs nothing."""

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"can_cut": True}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "TITLE_AFTER_S", 0.0)
    monkeypatch.setattr(idle, "KEPT_AFTER_S", 0.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "chats.db") as store:
        yield store


def asked(engine: FakeEngine, store: Store) -> Session:
    session = Session(store, lambda *_: engine, DEMO, ChatSettings(seed=3))
    session.load()
    list(session.ask("Why is the sky blue?"))
    return session


def while_idle(session: Session, idle: Idle | None = None, **options: Any) -> Idle:
    idle = idle or Idle(session, **options)
    idle.begin()
    if idle.thread is not None:
        idle.thread.join()
    return idle


@pytest.mark.parametrize(
    ("written", "title"),
    [
        (' "The Blue Sky."', "The Blue Sky"),
        ("**Title: Why the Sky is Blue**\nIt is", "Why the Sky is Blue"),
        ("The Sky's Blue: A Tale of Atmospheric Scattering", "The Sky's Blue"),
        ("„Warum der Himmel blau ist“", "Warum der Himmel blau ist"),
        ("", ""),
        ("This is a title that has far too many words", ""),
        ("Szczecin: K", ""),  # not about the chat
        ("Specter of a Future", ""),
        ("I'm sorry, I cannot", ""),
    ],
)
def test_only_a_title_about_the_chat_is_used(written: str, title: str) -> None:
    assert cleaned(written, SAID) == title


def test_a_chat_gets_a_title_by_the_model(store: Store) -> None:
    engine = Titled("Light is scattered.", " Blue Sky and Light")
    session = asked(engine, store)
    assert while_idle(session).has_title
    assert session.title == store.chats()[0].title == "Blue Sky and Light"
    request = engine.requests[-1]
    assert [message.role for message in request.messages] == ["user", "assistant", "user", "assistant"]
    assert (request.remembered, request.sampling.temperature) == (False, 0.0)
    assert not while_idle(session).has_title and len(engine.requests) == 2


def test_the_users_title_and_the_users_setting_win(store: Store) -> None:
    engine = Titled("Light is scattered.", " Blue Sky and Light")
    session = asked(engine, store)
    session.rename("Mine")
    while_idle(session)
    assert (session.title, store.chats()[0].title, len(engine.requests)) == ("Mine", "Mine", 1)
    session.new()
    list(session.ask("And the sea?"))
    while_idle(session, makes_titles=False)
    assert (session.title, len(engine.requests)) == ("And the sea?", 2)


def test_a_poor_title_leaves_the_first_line(store: Store) -> None:
    engine = Titled("Light is scattered.", " SUPERSUBSTITUTE")
    session = asked(engine, store)
    while_idle(session, while_idle(session))
    assert (session.title, len(engine.requests)) == ("Why is the sky blue?", 2)  # and it is not asked again


def test_a_request_of_the_user_stops_it(store: Store) -> None:
    engine = Titled("Light is scattered.", "Blue Sky and Light " * 50, round_s=0.01)
    session = asked(engine, store)
    idle = Idle(session)
    idle.begin()
    while len(engine.requests) < 2:
        threading.Event().wait(0.001)
    idle.stop()
    assert idle.thread is not None
    idle.thread.join()
    assert not idle.has_title and session.title == "Why is the sky blue?"
    engine._answers = [engine._answers[0][:4]]
    assert while_idle(session).has_title  # later


@pytest.mark.usefixtures("home")
@pytest.mark.long(but=1)
@pytest.mark.parametrize("kind", ["gemma3", "llama"])
def test_a_chat_goes_on_as_if_nobody_had_asked_for_a_title(tmp_path: Path, kind: str) -> None:
    file = write_model(tmp_path / "model.gguf", kind, width=128, chat_template=CHATML)
    found = []
    n_turns = 2
    for is_titled in (False, True):
        with edgespec.load(str(file), threads=1, ctx_size=1024, cache_ram=0) as llm:
            chat = [Message("user", "print the number " * 30)]
            for turn in range(n_turns):
                events = list(llm.chat(chat, max_tokens=20, temperature=0.9, seed=turn, ignore_eos=True, logprobs=1))
                found.append([(event.id, event.logprob) for event in events])
                ids = tuple(event.id for event in events if event.id >= 0)
                chat.append(Message("assistant", "".join(event.text for event in events), tokens=ids))
                n_held = llm.stats.prompt_tokens + len(ids) - 1
                if is_titled:
                    events = list(llm.submit(title_request(chat)))
                    assert llm.stats.cached_tokens == n_held
                chat.append(Message("user", "return x " * (2 + 20 * turn)))
    assert found[:n_turns] == found[n_turns:]
