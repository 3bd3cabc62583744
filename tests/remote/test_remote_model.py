"""A server's model in the place of a worker: the same answers, and what becomes of them when the server fails."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from endless import CTX_SIZE, ENDLESS
from serving import Serving, serving
from stand_in import StandIn, stand_in

from edgespec.cancel import CancelFlag
from edgespec.chat.events import Notice
from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError, GenerationError, LostError, PromptTooLongError, UsageError
from edgespec.events import TokenEvent
from edgespec.history import Store
from edgespec.remote.connection import Connection, base_url, checked_key
from edgespec.remote.model import RemoteModel
from edgespec.runtime.worker import LoadingStoppedError, Worker
from edgespec.serve.guard import Rules
from edgespec.settings import LoadSettings, Message, Request

DEMO = LoadSettings("demo", threads=1, sequences=2, store=False)
HELLO = (Message("system", "Be brief."), Message("user", "Hello \u2028 \x85 é"))
WARM = SamplingSettings(temperature=0.9, logit_bias=((17, float("-inf")), (18, 2.5)))
KEY = "sesame"
pytestmark = pytest.mark.cli


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with Worker(DEMO) as worker, serving(worker, rules=Rules(api_key=KEY)) as found:
        yield found


@pytest.fixture(scope="module")
def endless() -> Iterator[Serving]:
    with Worker(replace(DEMO, ctx_size=CTX_SIZE)) as worker, serving(worker, rules=Rules(api_key=KEY)) as found:
        yield found


@pytest.fixture
def worker(server: Serving) -> Worker:
    """The worker of the server, which is asked here without the server."""
    return server.served.worker


@pytest.fixture
def engine(server: Serving) -> Iterator[RemoteModel]:
    with RemoteModel(server.url, KEY) as engine:
        yield engine


@pytest.fixture
def other() -> Iterator[StandIn]:
    with stand_in() as found:
        yield found


def told(events: list[TokenEvent]) -> list[tuple[Any, ...]]:
    """Return what does not depend on the draft-length policy."""
    return [(e.id, e.text, e.logprob, e.top_logprobs) for e in events if e.text or e.id >= 0]


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


# --- the same answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        Request(messages=HELLO, max_tokens=40, seed=7, sampling=WARM),
        Request(messages=HELLO, max_tokens=30, seed=7, sample=2, left=12, json_schema='{"enum": ["aa", "bb"]}'),
        Request("def f(", max_tokens=40, seed=2**64 - 1, logprobs=2, stop=(" the",)),
        Request("def f(<|im_end|>", max_tokens=12, special=True, ignore_eos=True),
        Request(messages=(*HELLO, Message("assistant", "It is", (71, 72))), max_tokens=12),
    ],
)  # fmt: skip
def test_answers_are_those_of_a_worker(worker: Worker, engine: RemoteModel, request_: Request) -> None:
    here, there = [*worker.submit(request_)], [*engine.submit(request_)]
    assert told(here) == told(there)
    ends = [(end.finish_reason, end.cut) for end in (here[-1], there[-1])]
    assert ends[0] == ends[1]
    assert here[-1].stats is not None
    assert there[-1].stats is not None
    assert here[-1].stats.generated_tokens == there[-1].stats.generated_tokens
    assert here[-1].stats.prompt_tokens == there[-1].stats.prompt_tokens
    drafted = [event for event in there if event.from_draft]
    if not there[-1].cut:
        assert there[-1].stats.accepted == len(drafted)
    assert all(event.source for event in drafted)


def test_a_server_tells_what_a_worker_does(worker: Worker, engine: RemoteModel) -> None:
    draft = Path(worker.info.draft_model or "").name
    there = replace(worker.info, model="demo", draft_model=draft, server=engine.url, models=("demo",))
    assert there == engine.info
    assert engine.settings.model == "demo"
    assert engine.count(HELLO) == worker.count(HELLO)
    answered = (*HELLO, Message("assistant", "It is", (71, 72, 73)), Message("user", "so?"))
    assert engine.count(answered) == worker.count(answered)
    assert engine.own_settings["temperature"] == SamplingSettings().temperature


def test_the_address_of_the_api_is_that_of_the_server(server: Serving) -> None:
    with RemoteModel(server.url.removeprefix("http://") + "/v1", KEY) as engine:
        assert engine.url == server.url
    with pytest.raises(UsageError, match="'a b' is not the URL of a server"):
        RemoteModel("a b")


def test_bytes_of_tokens_come_with_log_probabilities(worker: Worker, engine: RemoteModel) -> None:
    events = [*engine.submit(Request("def f(", max_tokens=6, logprobs=3))]
    ids = {id for event in events for id, _ in event.top_logprobs} | {event.id for event in events} - {-1}
    assert engine.token_bytes([*ids]) == worker.token_bytes([*ids])


def test_settings_are_checked_before_rows_are_sent(engine: RemoteModel) -> None:
    engine.check_settings(Request(max_tokens=5))
    with pytest.raises(UsageError, match="grammar"):
        engine.check_settings(Request(grammar="nonsense ::="))
    with pytest.raises(PromptTooLongError, match="1024"):
        next(engine.submit(Request("word " * 3000)))
    with pytest.raises(UsageError, match="follow"):
        next(engine.submit(Request("x", reference=(1, 2))))


def test_a_chat_is_that_of_a_worker(worker: Worker, server: Serving, tmp_path: Path) -> None:
    """Also its second turn, whose prompt has the ids of the first answer."""
    texts = []
    for name, opened, url in (
        ("here", lambda *_: worker, ""),
        ("there", lambda settings, *_: RemoteModel(server.url, KEY, settings), server.url),
    ):
        with Store(tmp_path / name) as store:
            session = Session(store, opened, LoadSettings("demo"), ChatSettings(seed=3, max_tokens=24), server=url)
            session.load()
            for text in ("def f(x):", "and then?"):
                assert all(not isinstance(event, Notice) for event in session.ask(text))
            [*session.regenerate()]
            [*session.go_on()]
            texts.append([turn.content for turn in session.chat.turns])
            assert [branch.n_turns for branch in session.chat.branches()] == [4, 4, 4]
            assert session.chat.turns[-1].answer is not None
            assert session.chat.turns[-1].answer.ids
            if url:
                assert session.chat.turns[-1].answer.settings["server"] == url
                session.close()
    assert texts[0] == texts[1]


def test_how_to_draft_goes_with_requests(other: StandIn) -> None:
    with RemoteModel(other.url, settings=LoadSettings("", pace="fixed:2")) as engine:
        [*engine.submit(Request("x"))]
        engine.draft_with(spec_type="suffix", pace="auto", spec_tree=1)
        [*engine.submit(Request("x"))]
        engine.draft_with(spec_draft_n_max=4)
        [*engine.submit(Request("x"))]
        with pytest.raises(UsageError, match="spec-tree is up to the server"):
            engine.draft_with(spec_tree=2)
        engine.is_own = True  # a server that knows all fields
        [*engine.submit(Request("x", spec_type="none", draft_n_max=3))]
    asked = [{name: body.get(name) for name in ("spec_type", "pace", "draft_n_max")} for body in other.bodies]
    assert asked == [
        {"spec_type": None, "pace": "fixed:2", "draft_n_max": None},
        {"spec_type": "suffix", "pace": None, "draft_n_max": None},
        {"spec_type": "suffix", "pace": None, "draft_n_max": 4},
        {"spec_type": "none", "pace": None, "draft_n_max": 3},
    ]


@pytest.mark.parametrize("asked", [{"min_tokens": 2}, {"stop_token_ids": (5,)}, {"bad_words": ("a",)}])
def test_ends_are_not_asked_of_a_server_that_would_ignore_them(other: StandIn, asked: dict[str, Any]) -> None:
    with RemoteModel(other.url, settings=LoadSettings("")) as engine:
        with pytest.raises(UsageError, match=f"this server does not support {min(asked)}"):
            [*engine.submit(Request("x", **asked))]
        engine.is_own = True
        [*engine.submit(Request("x", cache_prompt=False, **asked))]
    (body,) = other.bodies
    assert {name: body[name] for name in asked} == {
        name: [*v] if isinstance(v, tuple) else v for name, v in asked.items()
    }
    assert body["cache_prompt"] is False


# --- an answer that is stopped ----------------------------------------------------------------------------------------


def test_a_cancelled_answer_ends_on_the_server_too(endless: Serving) -> None:
    cancel, events = CancelFlag(), list[TokenEvent]()
    with RemoteModel(endless.url, KEY) as engine:
        for event in engine.submit(ENDLESS, cancel):
            events.append(event)
            if len(events) == 3:
                cancel.set()
        assert events[-1].finish_reason == "cancelled"
        assert events[-1].stats is not None
        assert events[-1].stats.generated_tokens == len(events) - 1
        until(lambda: endless.served.n_open == 0)
        left = engine.submit(ENDLESS)
        next(left)
        left.close()
        until(lambda: endless.served.n_open == 0)


def test_closing_ends_answers_in_other_threads(endless: Serving) -> None:
    engine = RemoteModel(endless.url, KEY)
    answer = engine.submit(ENDLESS)
    next(answer)
    engine.close()
    engine.close()
    until(lambda: endless.served.n_open == 0)
    assert not any(thread.name.endswith(endless.url) for thread in threading.enumerate())


def test_connecting_can_be_stopped() -> None:
    cancel = CancelFlag()
    cancel.set()
    with stand_in() as found, pytest.raises(LoadingStoppedError):
        RemoteModel(found.url, cancel=cancel)


# --- servers that fail ------------------------------------------------------------------------------------------------


def test_a_server_that_goes_in_the_middle_leaves_what_came(other: StandIn) -> None:
    other.fails.append("lost")
    with RemoteModel(other.url) as engine:
        events = list[TokenEvent]()
        with pytest.raises(LostError, match="in the middle of the answer"):
            for event in engine.submit(Request("a b c d")):
                events.append(event)
        assert "".join(event.text for event in events) == "a b"
        assert events[-1].finish_reason == "error"
        assert events[-1].stats is not None
        assert "".join(event.text for event in engine.submit(Request("a b c d"))) == "a b c d and so on"


def test_a_chat_keeps_the_message_and_what_came(other: StandIn, tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        session = Session(
            store, lambda settings, *_: RemoteModel(other.url, "", settings), LoadSettings(""), server=other.url
        )
        session.load()
        other.fails.append("lost")
        with pytest.raises(LostError):
            [*session.ask("one two three")]
        assert [turn.content for turn in session.chat.turns] == ["one two three", "one two"]
        other.is_gone = True
        with pytest.raises(EdgespecError):
            [*session.ask("lost to a 404")]
        other.is_gone = False
        assert [turn.role for turn in session.chat.turns] == ["user", "assistant"]
        [*session.ask("again now")]
        assert session.chat.turns[-1].content == "again now and so on"
        session.close()


def test_a_message_to_a_server_that_is_gone_is_kept(tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store, stand_in() as found:
        session = Session(store, lambda *_: RemoteModel(found.url), LoadSettings(""), server=found.url)
        session.load()
        assert session.model.engine is not None
        session.model.engine.connection.url = "http://127.0.0.1:1"  # type: ignore[attr-defined]
        session.model.engine.connection._client.base_url = "http://127.0.0.1:1"  # type: ignore[attr-defined]
        with pytest.raises(LostError, match="cannot reach"):
            [*session.ask("are you there?")]
        assert [turn.content for turn in session.chat.turns] == ["are you there?"]
        session.close()


@pytest.mark.parametrize(("how", "error"), [("engine", "killed"), ("late", "killed"), ("odd", "not a server")])
def test_errors_of_a_server_are_told(other: StandIn, how: str, error: str) -> None:
    other.fails.append(how)
    with RemoteModel(other.url) as engine, pytest.raises(EdgespecError, match=error) as raised:
        [*engine.submit(Request("a b c d"))]
    assert isinstance(raised.value, UsageError if how == "odd" else GenerationError)


def test_a_busy_server_is_waited_for(other: StandIn) -> None:
    other.fails += ["busy", "busy"]
    with RemoteModel(other.url) as engine:
        said = "".join(event.text for event in engine.submit(Request("x")))
        assert said == "x and so on"
        assert [*engine.notes] == [f"{other.url} is busy: waiting for it"]
    assert len(other.bodies) == 3


def test_a_busy_server_is_not_waited_for_once_the_answer_is_cancelled(other: StandIn) -> None:
    other.fails += ["busy"] * 10_000
    cancel = CancelFlag()
    with RemoteModel(other.url) as engine:
        events = engine.submit(Request("x"), cancel)
        next(events)
        cancel.set()
        assert [event.finish_reason for event in events] == ["cancelled"]


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_short_request_is_not_waited_for_longer_than_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Connection(url) as connection, pytest.raises(LostError, match="does not reply: nothing arrived"):
            connection.reply("/pace", {}, 0.05)


def test_a_worker_that_dies_on_the_server_ends_one_answer(endless: Serving) -> None:
    with RemoteModel(endless.url, KEY) as engine:
        answer = engine.submit(ENDLESS)
        next(answer)
        assert endless.served.worker.loop.process.pid is not None
        os.kill(endless.served.worker.loop.process.pid, signal.SIGKILL)
        with pytest.raises(GenerationError, match="killed"):
            list(answer)
        assert [*engine.submit(Request("def f(", max_tokens=3))][-1].finish_reason == "length"


def test_another_program_answers_too(other: StandIn) -> None:
    other.text = " \u2028\x85 end"
    with RemoteModel(other.url) as engine:
        assert engine.info.ctx_size == 512
        assert engine.count([Message("user", "abc")]) == 3
        [*events, end] = engine.submit(Request(messages=(Message("user", "abc"),), seed=5))
    assert "".join(event.text for event in events) == "abc \u2028\x85 end"
    assert end.stats is not None
    assert (end.stats.prompt_tokens, end.stats.proposed, end.stats.accepted) == (4, 4, 3)
    assert other.bodies[0]["seed"] == 5
    assert not {"return_tokens", "sample", "lenient", "json_schema"} & other.bodies[0].keys()


# --- whom to ask ------------------------------------------------------------------------------------------------------


def test_a_key_is_sent_and_never_shown(server: Serving) -> None:
    with RemoteModel(server.url, KEY) as engine:
        assert engine.info.models == ("demo",)
    for key, said in (("", "needs a key"), ("sesam", "does not accept this key")):
        with pytest.raises(UsageError, match=said) as raised:
            RemoteModel(server.url, key)
        assert "sesam" not in str(raised.value)


def test_what_is_no_server_is_named(other: StandIn) -> None:
    with pytest.raises(LostError, match=r"cannot reach http://127.0.0.1:1"):
        RemoteModel("http://127.0.0.1:1")
    with pytest.raises(UsageError, match="has no model 'nope'") as raised:
        RemoteModel(other.url, settings=LoadSettings("nope"))
    assert "it has other" in str(raised.value)
    with pytest.raises(UsageError, match="is not a server of edgespec"):
        RemoteModel(f"{other.url}/elsewhere")
    other.props.clear()
    with pytest.raises(UsageError, match="is not a server of edgespec"):
        RemoteModel(other.url)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        (" http://gpu.lan/ ", "http://gpu.lan"),
        ("https://gpu.lan:9/v1/", "https://gpu.lan:9"),
        ("http://gpu.lan/llm/v1", "http://gpu.lan/llm"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_urls_may_be_short_or_those_of_an_api(text: str, url: str) -> None:
    assert base_url(text) == url


@pytest.mark.parametrize("text", ["", "ftp://x", "http://", "http://x:port", "http://u:pass@x", "http://x/?q=1", "a b"])
def test_other_urls_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        base_url(text)
    assert "pass@" not in str(raised.value)


def test_a_key_is_one_line_of_ascii() -> None:
    assert checked_key("abc-123", "EDGESPEC_API_KEY") == "abc-123"
    for bad in ("", "a\nb", "\xff\xfe", "x" * 5000):
        with pytest.raises(UsageError, match="holds no key"):
            checked_key(bad, "EDGESPEC_API_KEY")
    with pytest.raises(UsageError):
        checked_key("é", "EDGESPEC_API_KEY")


def test_a_server_that_returns_with_another_model_is_not_used(other: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.remote.model.PROBE_S", 0.01)
    with RemoteModel(other.url) as engine:
        engine.recover(LostError("it went away")).result(timeout=60)
        engine.texts_depend_on = {"model": "the one before"}
        with pytest.raises(UsageError, match="another model"):
            engine.recover(LostError("it went away")).result(timeout=60)
