"""A conversation: the messages that are sent and saved, also if an answer fails."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine

from edgespec.cancel import CancelFlag
from edgespec.chat.attachments import Attachment, attachment
from edgespec.chat.events import ChatEvent, Notice
from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings, setting
from edgespec.chat.transcript import ImportedChat, import_chat
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import TokenEvent
from edgespec.history import Store, new_id
from edgespec.history.data import FULL
from edgespec.llm.info import ModelInfo
from edgespec.models.names.spec import resolve
from edgespec.runtime.runtime import Runtime
from edgespec.runtime.worker import WorkerDiedError
from edgespec.settings import LoadSettings, Message

DEMO = LoadSettings("demo", threads=1, spec_type="none", store=False)


def last_stats(session: Session) -> Stats:
    return Stats.from_json(session.chat.last_answer.stats)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "chats.db") as store:
        yield store


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(replace(DEMO, ctx_size=256)) as runtime:
        yield runtime


def talking_to(engine: Any, store: Store, **settings: Any) -> Session:
    """A session with an engine that is there already."""
    chat_settings = ChatSettings(**({"seed": 3} | settings))
    session = Session(store, lambda wanted, progress, cancel: engine, DEMO, chat_settings)
    session.load()
    return session


def said(events: Iterable[ChatEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TokenEvent))


def notices(events: Iterable[ChatEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def contents(session: Session) -> list[str]:
    return [turn.content for turn in session.chat.turns]


def stored(session: Session) -> list[str]:
    """The open path as another program would read it."""
    assert session.store.file is not None
    assert session.chat.saved_id is not None
    with Store(session.store.file) as other:
        return [turn.content for turn in other.path(other.find(session.chat.saved_id).head)]


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_what_is_said_is_kept_with_how_it_came_about(store: Store) -> None:
    session = talking_to(FakeEngine("It is blue."), store)
    session.chat.change({"temp": "0.5"})
    assert said(session.ask("Why is the sky blue?\nSay it.")) == "It is blue."
    (info,) = store.chats()
    question, answer = store.path(info.head)
    assert (info.title, question.role, question.content) == (
        "Why is the sky blue?",
        "user",
        "Why is the sky blue?\nSay it.",
    )
    assert answer.answer is not None
    assert (answer.answer.finish_reason, answer.answer.seed, answer.answer.model) == ("stop", 3, "fake")
    assert answer.answer.settings["sampling"]["temperature"] == 0.5
    assert answer.answer.stats["timings"]["predicted_n"] == len(answer.answer.ids) == 3
    assert [piece.text for piece in store.pieces(answer.key)] == ["It", " is", " blue."]
    assert [turn.key for turn in session.chat.turns] == [question.key, answer.key]


def test_a_conversation_of_nothing_is_not_kept(store: Store) -> None:
    session = talking_to(FakeEngine(), store)
    session.chat.change({"temp": "0.5"})
    session.chat.set_system("be brief")
    assert store.chats() == []


def test_a_chat_that_is_opened_again_goes_on_as_it_was_set(store: Store) -> None:
    first = talking_to(FakeEngine(), store)
    first.chat.set_system("be brief")
    said(first.ask("hello"))
    first.chat.change({"min-p": "0.25"})
    engine = FakeEngine()
    session = talking_to(engine, store)
    session.chat.open("last")
    assert contents(session) == contents(first)
    assert (session.chat.system, session.chat.settings) == ("be brief", first.chat.settings)
    said(session.ask("more"))
    assert [message.role for message in engine.requests[-1].messages] == ["system", "user", "assistant", "user"]
    assert engine.requests[-1].sampling == SamplingSettings(min_p=0.25)


def _opened(engine: FakeEngine, *_: object) -> FakeEngine:
    return engine


def test_a_new_chat_begins_with_the_users_own_system_prompt(store: Store) -> None:
    import_chat(store, ImportedChat("", "be a pirate", (("user", "hello", None),), new_id()))
    for own in ("", "be brief"):
        engine = FakeEngine()
        session = Session(store, partial(_opened, engine), DEMO, system=own)
        session.load()
        session.chat.open("last")
        assert session.chat.system == "be a pirate"
        session.chat.new()
        assert session.chat.system == own
        session.chat.set_system("be loud")
        said(session.ask("hello"))
        assert engine.requests[-1].messages[0] == Message("system", "be loud")
        session.chat.new()
        assert session.chat.system == own
        store.remove([store.find("last").id])


def test_another_model_answers_as_catalogued_but_for_what_the_user_set(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief: dict[str, str | float] = {"system": "Be brief.", "temperature": 0.2}
    catalogued: dict[str, dict[str, str | float]] = {"brief": brief, "long": {"top_p": 0.5}}
    monkeypatch.setattr("edgespec.chat.model.own_settings", lambda spec: catalogued.get(spec, {}))
    monkeypatch.setattr("edgespec.chat.model.resolve", lambda spec: resolve("demo"))
    session = Session(store, lambda *_: FakeEngine("ok"), LoadSettings("demo"), ChatSettings())

    def answers_with(model: str) -> tuple[str, float, float]:
        session.load(LoadSettings(model))
        return session.chat.system, session.chat.settings.sampling.temperature, session.chat.settings.sampling.top_p

    assert answers_with("demo") == ("", 0.8, 0.95)
    assert answers_with("brief") == ("Be brief.", 0.2, 0.95)
    session.chat.new()
    assert session.chat.system == "Be brief."
    assert answers_with("long") == ("", 0.8, 0.5)
    session.chat.change({"temp": "1.1"})
    session.chat.set_system("Shout.")
    assert answers_with("brief") == ("Shout.", 1.1, 0.95)


def test_the_figures_of_the_last_answer_come_with_the_chat(store: Store) -> None:
    session = talking_to(FakeEngine("It is blue."), store)
    said(session.ask("Why?"))
    before = last_stats(session)
    assert before.generated_tokens == 3
    session.chat.new()
    assert not session.chat.last_answer.stats
    session.chat.open("last")
    assert last_stats(session).as_json() == before.as_json()


def test_the_context_in_use_is_counted_while_an_answer_comes(store: Store) -> None:
    session = talking_to(FakeEngine("one two three"), store)
    counts = [session.chat.used for event in session.ask("four more words here") if isinstance(event, TokenEvent)]
    assert counts == [9, 10, 11, 11]


def test_an_answer_that_loops_is_reported_once_and_one_that_does_not_is_not(store: Store) -> None:
    session = talking_to(FakeEngine([TokenEvent(n % 3, "la ") for n in range(400)], "fine"), store)
    (notice,) = [event for event in session.ask("sing") if isinstance(event, Notice)]
    assert (notice.about, notice.level) == ("loop", "warning")
    assert "the same 3 tokens" in notice.text
    assert notices(session.ask("sing")) == []


def test_an_answer_that_nobody_waits_for_is_kept_as_far_as_it_came(store: Store) -> None:
    session = talking_to(FakeEngine("one two three four five six"), store)
    events = session.ask("count")
    with closing(events):  # type: ignore[type-var]
        for _ in range(3):
            next(events)
    assert stored(session) == ["count", "one two three"]
    assert session.chat.turns[-1].answer is not None
    assert session.chat.turns[-1].answer.finish_reason == "cancelled"


def test_a_stopped_answer_is_kept_and_gone_on_with_to_the_very_same_text(runtime: Runtime, store: Store) -> None:
    session = talking_to(runtime, store, max_tokens=30)
    whole = said(session.ask("What does os.walk do?"))
    session.chat.undo()
    session.chat.change({"max-tokens": "11"})
    begun = said(session.ask("What does os.walk do?"))
    session.chat.change({"max-tokens": "19"})
    assert begun + said(session.go_on()) == whole
    assert contents(session) == stored(session) == ["What does os.walk do?", whole]


def test_an_answer_is_continued_inside_a_character(runtime: Runtime, store: Store) -> None:
    session = talking_to(runtime, store, max_tokens=2, grammar='root ::= "a😀b"')
    assert said(session.ask("hello")) == "a"
    session.chat.change({"max-tokens": "1"})
    assert [said(session.go_on()) for _ in range(4)] == ["", "", "😀", "b"]
    assert contents(session) == stored(session) == ["hello", "a😀b"]


def test_a_cancelled_answer_says_so(runtime: Runtime, store: Store) -> None:
    session, cancel = talking_to(runtime, store), CancelFlag()
    events = session.ask("hello", cancel)
    first = next(event for event in events if isinstance(event, TokenEvent) and event.text)
    cancel.set()
    *_, last = events
    assert isinstance(last, TokenEvent)
    assert last.finish_reason == "cancelled"
    assert session.chat.turns[-1].content.startswith(first.text)


def test_nothing_is_kept_of_an_answer_of_nothing(store: Store) -> None:
    session, cancel = talking_to(FakeEngine(), store), CancelFlag()
    cancel.set()
    list(session.ask("hello", cancel))
    assert contents(session) == stored(session) == ["hello"]
    assert said(session.regenerate()) == session.chat.turns[-1].content


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_the_next_turn_processes_only_new_tokens(runtime: Runtime, store: Store) -> None:
    session = talking_to(runtime, store, max_tokens=40, sampling=SamplingSettings(temperature=1.5))
    said(session.ask("What does os.walk do?"))
    used = session.chat.used
    said(session.ask("And os.scandir?"))
    # An end token was never in the cache, and the last token of the answer is read with the next message.
    assert last_stats(session).cached_tokens >= used - 2


def test_the_oldest_messages_leave_a_full_context_and_the_system_message_stays(runtime: Runtime, store: Store) -> None:
    session = talking_to(runtime, store, max_tokens=40)
    session.chat.set_system("You know Python.")
    told: list[str] = []
    for number in range(6):
        told += notices(session.ask(f"{number} What does os.walk do, and why is it there at all?"))
    assert len(session.chat.turns) == 12
    assert told[-1] == f"the context of 256 tokens is full: {session.chat.first_sent} older messages were dropped"
    assert session.chat.turns[session.chat.first_sent].role == "user"
    assert session.chat._messages(session.chat.turns, session.chat.first_sent)[0].content == "You know Python."
    again = talking_to(runtime, store)
    again.chat.open("last")
    assert again.chat.first_sent == session.chat.first_sent


def test_an_answer_goes_on_while_old_messages_leave(runtime: Runtime, store: Store) -> None:
    """It ends where it was to end, not where the context is full."""
    session = talking_to(runtime, store, max_tokens=60, sampling=SamplingSettings(temperature=1.0))
    for number in range(2):
        said(session.ask(f"{number} What does os.walk do?"))
    before = session.chat.first_sent
    endless = SamplingSettings(logit_bias=tuple((token, -math.inf) for token in runtime.model.end_tokens))
    session.chat.settings = replace(session.chat.settings, max_tokens=230, sampling=endless)
    events = list(session.ask("Go on."))
    last = events[-1]
    assert isinstance(last, TokenEvent)
    assert last.finish_reason == "length"
    assert last.stats is not None
    assert last.stats.generated_tokens == 230
    assert session.chat.first_sent > before
    assert session.chat.turns[-1].content == said(events)


def test_each_answer_that_fills_the_context_is_known_to(runtime: Runtime, store: Store) -> None:
    endless = SamplingSettings(logit_bias=tuple((token, -math.inf) for token in runtime.model.end_tokens))
    session = talking_to(runtime, store, max_tokens=-1, sampling=endless)
    for message in ("What does os.walk do?", "And os.scandir?"):
        said(session.ask(message))
        assert (answer := session.chat.turns[-1].answer) is not None and answer.end == FULL
    session.chat.change({"max-tokens": "5"})
    said(session.ask("Thanks."))
    assert (answer := session.chat.turns[-1].answer) is not None and answer.end == "cut off at the token limit"


def test_a_message_too_long_for_the_context_is_refused_and_nothing_kept(runtime: Runtime, store: Store) -> None:
    session = talking_to(runtime, store)
    with pytest.raises(UsageError, match="the context holds 256"):
        session.ask("word " * 400)
    assert session.chat.turns == []
    assert store.chats() == []


def test_whatever_ends_the_lines_of_a_text_the_model_gets_newlines(store: Store) -> None:
    session = talking_to(FakeEngine(), store)
    session.chat.set_system("be\r\nbrief")
    session.chat.attached = [attachment("a.txt", b"one\r\ntwo\rthree\r\n")]
    list(session.ask("four\r\nfive\rsix"))
    assert session.chat.messages[0].content == "be\nbrief"
    assert session.chat.turns[0].content == "a.txt:\n```\none\ntwo\nthree\n```\n\nfour\nfive\nsix"
    list(session.edit(0, "seven\r\neight"))
    assert session.chat.turns[0].content.endswith("\n\nseven\neight")


def test_files_go_with_the_next_message_behind_fences_they_do_not_hold(store: Store) -> None:
    session = talking_to(FakeEngine(), store)
    session.chat.attached = [Attachment("a.md", "```\ncode\n```\n"), Attachment("b.txt", "plain")]
    said(session.ask("What is this?"))
    assert session.chat.turns[0].content == (
        "a.md:\n````\n```\ncode\n```\n````\n\nb.txt:\n```\nplain\n```\n\nWhat is this?"
    )
    assert session.chat.attached == []


def test_ids_are_not_sent_for_an_answer_cut_at_a_stop_text(runtime: Runtime, store: Store) -> None:
    session = talking_to(runtime, store, max_tokens=40)
    whole = said(session.ask("What does os.walk do?"))
    session.regenerate()
    session.chat.settings = replace(session.chat.settings, stop=(whole[8:11],))
    session.chat.undo()
    cut = said(session.ask("What does os.walk do?"))
    assert len(cut) < len(whole)
    assert session.chat.turns[-1].answer is not None
    assert session.chat.turns[-1].answer.ids == ()


@pytest.mark.parametrize(
    ("facts", "answer", "is_sent_as_ids"),
    [
        ({}, "yes", True),
        ({"drops_thinking": False}, "<think>\nhm</think> yes", True),
        ({"drops_thinking": True}, "<think>\nhm</think> yes", False),
        ({"opens_thinking": True}, "yes", True),
        ({"opens_thinking": True}, "<think>\nhm</think> yes", False),  # the prompt of the answer had the first mark
        ({"keeps_answers": False}, "yes", False),
        ({"drops_thinking": True, "regex": "yes"}, "yes", False),  # its reasoning is not in the text
    ],
)
def test_ids_are_sent_only_where_the_template_writes_the_same(
    facts: dict[str, Any], answer: str, is_sent_as_ids: bool, store: Store
) -> None:
    described = {"drops_thinking": False} | {name: value for name, value in facts.items() if name != "regex"}

    class Model(FakeEngine):
        @property
        def info(self) -> ModelInfo:
            return replace(super().info, **described)

    engine = Model(answer)
    session = talking_to(engine, store)
    session.chat.settings = replace(session.chat.settings, regex=str(facts.get("regex", "")))
    said(session.ask("really?"))
    said(session.ask("sure?"))
    assert bool(engine.requests[-1].messages[1].tokens) == is_sent_as_ids


# --- branches ---------------------------------------------------------------------------------------------------------


def test_answering_again_keeps_both_answers(store: Store) -> None:
    engine = FakeEngine("one", "two")
    session = talking_to(engine, store)
    said(session.ask("count"))
    said(session.regenerate())
    assert contents(session) == stored(session) == ["count", "two"]
    assert [request.sample for request in engine.requests] == [0, 1]
    assert {branch.preview for branch in session.chat.branches()} == {"one", "two"}
    session.chat.step(session.chat.turns[-1].key, 1)
    assert contents(session) == stored(session) == ["count", "one"]
    session.chat.step(session.chat.turns[-1].key, 1)
    assert contents(session) == ["count", "two"]


def test_where_nothing_comes_of_answering_again_the_answer_of_before_stays(store: Store) -> None:
    session, cancel = talking_to(FakeEngine("one"), store), CancelFlag()
    said(session.ask("count"))
    cancel.set()
    list(session.regenerate(cancel))
    assert contents(session) == stored(session) == ["count", "one"]


def test_editing_answers_anew_and_keeps_what_was_said(store: Store) -> None:
    session = talking_to(FakeEngine("one", "two", "three"), store)
    said(session.ask("first"))
    said(session.ask("second"))
    said(session.edit(0, "other"))
    assert contents(session) == stored(session) == ["other", "three"]
    old = next(branch for branch in session.chat.branches() if not branch.is_current)
    session.chat.switch(old.leaf)
    assert contents(session) == ["first", "one", "second", "two"]


def test_what_the_model_said_can_be_put_right(store: Store) -> None:
    engine = FakeEngine("wrong")
    session = talking_to(engine, store)
    said(session.ask("hello"))
    assert list(session.edit(1, "right")) == []
    assert contents(session) == stored(session) == ["hello", "right"]
    said(session.ask("more"))
    assert engine.requests[-1].messages[1].content == "right"


def test_undo_gives_the_message_back_and_keeps_it_as_a_branch(store: Store) -> None:
    session = talking_to(FakeEngine("one", "two"), store)
    said(session.ask("first"))
    said(session.ask("second"))
    assert session.chat.undo() == "second"
    assert contents(session) == stored(session) == ["first", "one"]
    assert session.chat.undo() == "first"
    assert contents(session) == []
    with pytest.raises(UsageError, match="nothing to undo"):
        session.chat.undo()
    assert len(session.chat.branches()) == 1


def test_a_fork_goes_its_own_way(store: Store) -> None:
    session = talking_to(FakeEngine("one", "two"), store)
    said(session.ask("first"))
    original = session.chat.saved_id
    for title in ("first (fork)", "first (fork) (fork)"):
        session.chat.fork()
        assert session.chat.title == title
    said(session.ask("second"))
    assert len({chat.id for chat in store.chats()}) == 3
    assert contents(session) == stored(session) == ["first", "one", "second", "two"]
    assert original is not None
    assert [turn.content for turn in store.path(store.find(original).head)] == ["first", "one"]


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_count_from_the_next_message_on(runtime: Runtime, store: Store) -> None:
    session = talking_to(runtime, store)
    with pytest.raises(UsageError, match="temp must be"):
        session.chat.change({"temp": "-1"})
    with pytest.raises(UsageError, match="drafter suffix is not loaded"):
        session.chat.change({"spec-type": "suffix"})
    with pytest.raises(UsageError, match="unknown setting"):
        session.chat.change({"warmth": "1"})
    assert session.chat.settings == ChatSettings(seed=3)
    session.chat.change({"max-tok": "2"})
    said(session.ask("hello"))
    assert last_stats(session).generated_tokens == 2


def test_without_a_seed_every_answer_draws_one_and_keeps_it(store: Store) -> None:
    engine = FakeEngine()
    session = talking_to(engine, store, seed=-1)
    said(session.ask("a"))
    said(session.regenerate())
    assert engine.requests[0].seed != engine.requests[1].seed
    assert session.chat.turns[-1].answer is not None
    assert session.chat.turns[-1].answer.seed == engine.requests[1].seed


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_when_the_model_dies_the_answer_so_far_is_kept_and_it_can_be_started_again(store: Store) -> None:
    died = WorkerDiedError("the model process was killed")
    engines = [FakeEngine("one two three", error=died, error_after=2), FakeEngine("all of it")]
    session = Session(store, lambda wanted, progress, cancel: engines.pop(0), DEMO, ChatSettings(seed=3))
    session.load()
    events = session.ask("count")
    seen: list[ChatEvent] = []
    with pytest.raises(WorkerDiedError):
        seen.extend(events)
    assert stored(session) == ["count", "one two"]
    assert session.chat.turns[-1].answer is not None
    assert session.chat.turns[-1].answer.finish_reason == "error"
    assert session.model.engine is None
    with pytest.raises(UsageError, match="no model is loaded"):
        session.ask("more")
    assert stored(session) == ["count", "one two"]
    session.load(session.model.remedies()[0].settings)
    assert said(session.regenerate()) == "all of it"


def test_a_failure_that_the_model_survives_leaves_it_loaded(store: Store) -> None:
    session = talking_to(FakeEngine("one two", error=GenerationError("decoding failed"), error_after=1), store)
    with pytest.raises(GenerationError):
        list(session.ask("count"))
    assert session.model.engine is not None
    assert stored(session) == ["count", "one"]


def test_what_cannot_be_loaded_leaves_the_model_where_it_is(store: Store, tmp_path: Path) -> None:
    session = talking_to(FakeEngine(), store)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    for spec in (str(broken), str(tmp_path / "nowhere.gguf")):
        with pytest.raises(EdgespecError):
            session.load(replace(DEMO, model=spec))
    assert session.model.engine is not None
    assert session.load_settings == DEMO


def test_a_conversation_goes_on_without_its_store_and_is_kept_later(store: Store) -> None:
    session = talking_to(FakeEngine("one", "two"), store)
    said(session.ask("first"))
    assert store.file is not None
    locker = sqlite3.connect(store.file, isolation_level=None)
    store._database._connection.execute("PRAGMA busy_timeout = 1")
    locker.execute("BEGIN IMMEDIATE")
    try:
        assert said(session.ask("second")) == "two"
        assert session.chat.store_error is not None
        assert session.chat.store_error
    finally:
        locker.execute("ROLLBACK")
        locker.close()
    session.chat.rename("kept")
    assert session.chat.store_error is None
    assert stored(session) == ["first", "one", "second", "two"]


@pytest.mark.skipif(os.name != "posix", reason="needs a symbolic link")
def test_a_conversation_begun_where_nothing_can_be_written_is_whole_and_kept_later(tmp_path: Path) -> None:
    file = tmp_path / "chats.db"
    Store(file).close()
    index = file.with_name("chats.db-shm")
    index.symlink_to("nowhere/at/all")  # SQLite cannot create this file, as on a full or read-only disk
    with Store(file) as store:
        session = talking_to(FakeEngine("one", "two", "another"), store)
        said(session.ask("first"))
        said(session.ask("second"))
        said(session.regenerate())
        assert session.chat.store_error is not None
        assert len(session.chat.branches()) == 2
        index.unlink()
        session.chat.rename("kept")
        assert session.chat.store_error is None
        assert store.unwritable is None
        assert stored(session) == ["first", "one", "second", "another"]
    with Store(file) as store:
        assert store.find("last").title == "kept"
        assert len(store.branches(store.find("last").id)) == 2


def test_a_conversation_whose_file_is_lost_is_written_anew(store: Store) -> None:
    session = talking_to(FakeEngine("one", "two"), store)
    said(session.ask("first"))
    assert session.chat.saved_id is not None
    store.remove([session.chat.saved_id])
    said(session.ask("second"))
    assert session.chat.store_error is None
    assert stored(session) == ["first", "one", "second", "two"]


def test_a_fork_that_is_lost_is_written_anew_with_its_chat_or_without(store: Store) -> None:
    session = talking_to(FakeEngine("one", "two", "three"), store)
    said(session.ask("first"))
    old = session.chat.saved_id
    for lost in ([session.chat.fork()], [session.chat.fork(), old]):
        pieces = store.pieces(session.chat.turns[-1].key)
        store.remove(filter(None, lost))
        said(session.ask("next"))
        assert session.chat.store_error is None
        assert stored(session) == contents(session)
        assert old in lost or store.pieces(session.chat.turns[1].key) == pieces, (
            "the messages of the old chat are as before"
        )
        session.chat.undo()
    assert [branch.n_turns for branch in session.chat.branches()] == [4]


def test_a_model_that_died_while_nobody_asked_is_reported_with_the_next_message_which_is_kept(store: Store) -> None:
    class Dead(FakeEngine):
        def count(self, messages: Any, template: str = "") -> int:
            raise WorkerDiedError("the model process was killed")

    session = talking_to(Dead(), store)
    with pytest.raises(WorkerDiedError):
        session.ask("hello")
    assert session.model.engine is None
    assert session.model.remedies()
    assert stored(session) == ["hello"]


def test_while_an_answer_is_made_nothing_else_touches_the_conversation(store: Store) -> None:
    session = talking_to(FakeEngine("one two", "three"), store)
    said(session.ask("first"))
    said(session.regenerate())
    other = next(branch.leaf for branch in session.chat.branches() if not branch.is_current)
    events = session.ask("second")
    next(events)
    for act in (
        session.chat.new,
        session.chat.undo,
        session.chat.fork,
        lambda: session.chat.switch(other),
        lambda: session.chat.open("last"),
    ):
        with pytest.raises(UsageError, match="an answer is being generated"):
            act()
    session.chat.change({"pace": "off"})  # counts from the next one on
    said(events)
    assert contents(session) == stored(session) == ["first", "three", "second", "three"]


def test_what_was_not_generated_here_is_gone_on_with_as_text(store: Store) -> None:
    engine = FakeEngine("wrong", " and more", "three")
    session = talking_to(engine, store)
    said(session.ask("hello"))
    session.edit(1, "right")
    said(session.go_on())
    assert session.chat.turns[-1].content == "right and more"
    said(session.ask("next"))
    assert engine.requests[-1].messages[1] == Message("assistant", "right and more")


def test_going_on_with_an_answer_that_has_nothing_more_to_say_leaves_it_as_it_was(store: Store) -> None:
    session = talking_to(FakeEngine("one two", []), store)
    said(session.ask("count"))
    before = session.chat.turns[-1]
    said(session.go_on())
    assert session.chat.turns[-1] == before
    assert [piece.text for piece in store.pieces(before.key)] == ["one", " two"]


def test_a_fixed_seed_says_something_else_each_time_it_is_asked_again(store: Store) -> None:
    engine = FakeEngine("the same")
    session = talking_to(engine, store)
    said(session.ask("count"))
    for _ in range(3):
        said(session.regenerate())
    assert [request.sample for request in engine.requests] == [0, 1, 2, 3]


def test_a_chat_that_begins_with_the_assistant_cannot_be_answered_there(store: Store) -> None:
    chat = import_chat(store, ImportedChat("", "", (("assistant", "How can I help?", None),), new_id()))
    session = talking_to(FakeEngine(), store)
    session.chat.open(chat)
    for act in (session.regenerate, session.go_on):
        with pytest.raises(UsageError):
            act()
    assert contents(session) == ["How can I help?"]
    said(session.ask("hello"))
    assert len(session.chat.turns) == 3


def test_an_earlier_answer_is_made_anew_where_it_stands(store: Store) -> None:
    session = talking_to(FakeEngine("one", "two", "three"), store)
    said(session.ask("first"))
    said(session.ask("second"))
    said(session.regenerate(index=1))
    assert contents(session) == stored(session) == ["first", "three"]
    assert len(session.chat.branches()) == 2


def test_what_undo_brings_back_has_the_context_it_had(runtime: Runtime, store: Store) -> None:
    session = talking_to(runtime, store, max_tokens=10)
    question = "{} What does os.walk do, and why is it there at all? Does it follow the links that it finds?"
    texts = [said(session.ask(question.format(number))) for number in range(7)]
    assert session.chat.first_sent
    for _ in range(5):
        session.chat.undo()
    assert not session.chat.first_sent
    assert [said(session.ask(question.format(number))) for number in range(2, 7)] == texts[2:]


def test_a_title_given_before_the_first_message_counts(store: Store) -> None:
    session = talking_to(FakeEngine(), store)
    session.chat.rename("My title")
    said(session.ask("hello"))
    assert store.find("last").title == session.chat.title == "My title"


def test_settings_are_found_by_their_names_in_other_places() -> None:
    assert setting("temperature") is setting("temp") is setting("--temp")
    assert setting("json_schema") is setting("json")
    for name, hint in (("json_shema", "did you mean json-schema?"), ("warmth-of-heart", "temp, top-k")):
        with pytest.raises(UsageError) as caught:
            setting(name)
        assert hint in caught.value.hint


def test_what_answers_are_made_of_changes_and_is_taken_away(runtime: Runtime, store: Store) -> None:
    session = Session(store, lambda wanted, progress, cancel: runtime, DEMO)
    session.chat.change({"json-schema": '{"type": "integer"}'})
    session.chat.change({"regex": "[0-9]+"})
    assert (session.chat.settings.json_schema, session.chat.settings.regex) == ("", "[0-9]+")
    session.chat.change({"grammar": "none"})
    assert session.chat.settings.regex == "[0-9]+"
    for broken in ('{"type":', '{"not": {}}'):
        with pytest.raises(UsageError, match="cannot use this JSON schema"):
            session.chat.change({"json-schema": broken})
    assert session.chat.settings.regex == "[0-9]+"
    session.chat.change({"regex": "none"})
    session.chat.change({"stop": "END"})
    session.chat.change({"stop": "none"})
    assert session.chat.settings == ChatSettings()


def test_a_schema_whose_file_is_gone_is_an_error_and_the_chat_can_be_used(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}')
    session = talking_to(FakeEngine("fine"), store, json_schema=str(file))
    said(session.ask("hello"))
    file.unlink()
    acts: tuple[Any, ...] = (session.regenerate, session.go_on, partial(session.ask, "again"))
    for act in acts:
        with pytest.raises(UsageError, match=r"schema\.json"):
            said(act())
    assert contents(session) == ["hello", "fine", "again"]
    session.chat.change({"json-schema": "none"})
    assert said(session.regenerate()) == "fine"


def test_what_drafts_now_is_what_was_set(runtime: Runtime, store: Store) -> None:
    session = talking_to(runtime, store)
    session.chat.change({"pace": "off"})
    assert session.model.info.pace == "off"
    session.chat.change({"pace": "default"})
    assert session.model.info.pace == "auto"
