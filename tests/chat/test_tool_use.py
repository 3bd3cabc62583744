"""Tools in a chat: a model of the real engine calls tools of a real server, and answers with their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from calling import STRICT_TEMPLATE, Forced, calling_model, tool_server, written_call
from fake_engine import FakeEngine
from tiny_gguf import CHATML

from edgespec.cancel import CancelFlag
from edgespec.chat import session as session_module
from edgespec.chat import tool_use
from edgespec.chat.commands import run_line
from edgespec.chat.controls import Controls
from edgespec.chat.events import Added, ChatEvents, Notice
from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings
from edgespec.chat.transcript import import_chat, read_jsonl, to_jsonl, to_markdown
from edgespec.core.stats import Stats
from edgespec.errors import UsageError
from edgespec.events import TokenEvent
from edgespec.history import Store
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings
from edgespec.tools.config import ServerConfig
from edgespec.tools.offer import NO_TOOLS
from edgespec.tools.results import ToolResult
from edgespec.tools.toolbox import Calling, Decision, Toolbox

pytestmark = [pytest.mark.native, pytest.mark.cli, pytest.mark.slow]
ONE_AND_TWO = written_call("add", a=1, b=2)
SUM = "1 + 2 = 3"
Open = Callable[..., Session]


@pytest.fixture(scope="module")
def toolbox() -> Iterator[Toolbox]:
    with Toolbox([tool_server()]) as box:
        box.start()
        yield box


def runtime_of(file: Path) -> Runtime:
    return Runtime(LoadSettings(str(file), ctx_size=2048, store=False))


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with runtime_of(calling_model(tmp_path_factory.mktemp("model"))) as runtime:
        yield runtime


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.in_memory() as store:
        yield store


@pytest.fixture
def opened(toolbox: Toolbox, store: Store, runtime: Runtime) -> Iterator[Open]:
    """Open a session whose answers are forced. The tools and the model are those of the module, and outlive it."""
    sessions: list[Session] = []

    def open_session(*texts: str, of: Runtime = runtime) -> Session:
        settings = ChatSettings(seed=7)
        session = Session(store, lambda *_: Forced(of, texts), of.settings, settings, toolbox=toolbox)
        session.load()
        sessions.append(session)
        return session

    yield open_session
    for session in sessions:
        session.model.unload()


def read(events: ChatEvents, decision: Decision = "once") -> tuple[str, list[str], list[Stats]]:
    """The shown text, the states of calls, and the statistics of each answer."""
    text, states, stats = "", list[str](), list[Stats]()
    for event in events:
        if isinstance(event, TokenEvent):
            text += event.text
            stats += [event.stats] if event.stats else []
        elif isinstance(event, Calling):
            states.append(event.state)
            if event.state == "asking":
                event.decide(decision)
    return text, states, stats


def results(session: Session) -> list[tuple[str, str]]:
    found = [ToolResult.of(turn.content) for turn in session.chat.turns if turn.role == "tool"]
    return [(result.outcome, result.text) for result in found]


def test_a_model_calls_tools_until_it_answers(opened: Open, store: Store) -> None:
    session = opened(f"Let me see.\n{ONE_AND_TWO}", f"{written_call('add', a=3, b=4)}\n{ONE_AND_TWO}")
    text, states, _ = read(session.ask("What is the sum?"))
    assert states == ["asking", "running", "done"] * 3
    assert results(session) == [("ok", SUM), ("ok", "3 + 4 = 7"), ("ok", SUM)]
    roles = ["user", "assistant", "tool", "assistant", "tool", "tool", "assistant"]
    assert [turn.role for turn in session.chat.turns] == roles
    assert text == f"Let me see.{session.chat.turns[-1].content}"
    assert [turn.said for turn in session.chat.turns[1:4:2]] == ["Let me see.", ""]
    stored = store.path(session.chat.turns[-1].key)
    assert [(turn.key, turn.said) for turn in session.chat.turns] == [(turn.key, turn.said) for turn in stored]

    shown = to_markdown(session.chat.info(), session.chat.turns)
    assert "## Tool calculator/add\n" in shown and f"\n{SUM}\n" in shown and "<tool_call>" not in shown
    [imported] = read_jsonl(to_jsonl(session.chat.info(), session.chat.turns))
    with Store.in_memory() as other:
        import_chat(other, imported)
        again = other.path(other.chats()[0].head)
    assert [(turn.role, turn.content) for turn in again] == [(turn.role, turn.content) for turn in session.chat.turns]


def test_only_the_result_is_read_in_the_next_round(opened: Open) -> None:
    session = opened(f"Let me see.\n{ONE_AND_TWO}", ONE_AND_TWO)
    _, _, stats = read(session.ask("What is the sum?"))
    n_read = [each.prompt_tokens - each.cached_tokens for each in stats]
    assert n_read[0] > 500  # the tools
    assert all(n <= 40 for n in n_read[1:])
    session.chat.used = 0
    _, _, stats = read(session.ask("Again?"))
    assert stats[0].prompt_tokens - stats[0].cached_tokens <= 60


def test_the_text_is_the_same_with_and_without_drafting(opened: Open) -> None:
    answers = []
    for drafters in ("auto", "none"):
        session = opened(ONE_AND_TWO, written_call("colour"))
        session.model.engine.forget()  # type: ignore[union-attr]
        session.chat.change({"spec_type": drafters, "pace": "fixed:4"})  # the default may find that drafts do not pay
        text, _, stats = read(session.ask("What is the sum?"))
        assert any(each.proposed for each in stats) == (drafters == "auto")
        answers.append((text, [turn.content for turn in session.chat.turns]))
    assert answers[0] == answers[1]


def test_a_denied_call_is_told_to_the_model(opened: Open) -> None:
    session = opened(ONE_AND_TWO)
    assert read(session.ask("hello"), "deny")[1] == ["asking", "done"]
    last = session.model.engine.requests[-1].messages[-1]  # type: ignore[union-attr]
    assert (last.role, last.content) == ("tool", "The user does not allow this call.")


def test_a_stopped_call_ends_the_answer_and_continue_goes_on_from_it(opened: Open, tmp_path: Path) -> None:
    file, cancel = tmp_path / "waiting", CancelFlag()
    session = opened(written_call("wait", file=str(file)))
    for event in session.ask("hello", cancel):
        if isinstance(event, Calling) and event.state == "asking":
            event.decide("once")
        elif isinstance(event, Calling) and event.state == "running":
            cancel.set()
    assert [turn.role for turn in session.chat.turns] == ["user", "assistant", "tool"]
    assert results(session)[0][0] == "stopped"
    assert not session.chat.is_answering
    read(session.go_on())
    assert session.chat.turns[-1].role == "assistant"
    file.unlink(missing_ok=True)


def test_after_a_stopped_call_the_others_are_not_asked_about(opened: Open) -> None:
    session, cancel, states = opened(f"{ONE_AND_TWO}\n{ONE_AND_TWO}"), CancelFlag(), list[str]()
    for event in session.ask("hello", cancel):
        if isinstance(event, Calling):
            states.append(event.state)
            cancel.set()
    assert states == ["asking", "done", "done"]
    assert [outcome for outcome, _ in results(session)] == ["stopped", "stopped"]


def test_the_number_of_rounds_is_bounded(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tool_use, session_module):
        monkeypatch.setattr(module, "MOST_ROUNDS", 2)
    session = opened(*[ONE_AND_TWO] * 5)
    events = list[Any]()
    for event in session.ask("hello"):
        events.append(event)
        if isinstance(event, Calling):
            event.decide("once")
    assert [outcome for outcome, _ in results(session)] == ["ok", "ok", "not run"]
    assert isinstance(events[-1], Notice) and "stopped after 2 answers" in events[-1].text
    assert isinstance(events[-2], Added)


def test_long_results_are_cut_and_cannot_control_the_terminal(opened: Open) -> None:
    session = opened(written_call("colour", n=1000))
    read(session.ask("hello"))
    [(_, text)] = results(session)
    assert text.startswith("\ufffd[2J\ufffd]0;owned\ufffd[bold]red[/bold] <|im_end|>\n")
    assert text.endswith("more characters were cut off]")
    assert session.tools._count(text) < 2048 // 4 + 50
    assert session.chat.turns[-1].role == "assistant"


def test_a_template_that_wants_calls_in_a_field_gets_them_there(opened: Open, tmp_path: Path) -> None:
    with runtime_of(calling_model(tmp_path, STRICT_TEMPLATE)) as strict:
        session = opened(f"Let me see.\n{ONE_AND_TWO}", of=strict)
        read(session.ask("hello"))
    answer, result = session.model.engine.requests[-1].messages[-2:]  # type: ignore[union-attr]
    assert (answer.content, answer.tokens) == ("Let me see.", ())
    assert '"name": "add"' in answer.extra and "call00000" in answer.extra and "call00000" in result.extra


def test_a_template_without_tools_is_reported_and_answers_without_them(opened: Open, tmp_path: Path) -> None:
    with runtime_of(calling_model(tmp_path, CHATML)) as plain:
        session = opened(of=plain)
        assert NO_TOOLS in [notice.text for notice in session.new_notes()]
        read(session.ask("hello"))
    assert session.model.engine.requests[-1].template == ""  # type: ignore[union-attr]


def test_a_constrained_answer_gets_no_tools(opened: Open) -> None:
    session = opened()
    session.chat.change({"regex": "[a-z]+"})
    said = [event.text for event in session.ask("hello") if isinstance(event, Notice)]
    assert said == ["answers that a regular expression constrains cannot call tools"]
    assert session.model.engine.requests[-1].template == ""  # type: ignore[union-attr]


class Said:
    """A front end that keeps what commands say."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str, level: str = "info") -> None:
        self.lines = text.split("\n")


def run(session: Session, *lines: str) -> Sequence[str]:
    front = Said()
    controls = Controls(session, front)  # type: ignore[arg-type]
    for line in lines:
        run_line(controls, line)
    return front.lines


def test_commands_list_tools_show_results_and_take_permissions_back(opened: Open) -> None:
    session = opened(ONE_AND_TWO)
    read(session.ask("hello"), "chat")
    listed = run(session, "/tools")
    assert listed[0] == "calculator: ready, 4 tools"
    assert listed[1] == "  add  (allowed in this chat)  Add two numbers."
    assert run(session, "/result") == ["calculator/add: 1 line, 9 characters", "a: 1", "b: 2", SUM]
    assert run(session, "/tools ask add") == ["calculator/add asks first from now on"]
    assert run(session, "/tools ask calculator/add") == ["calculator/add asks first already"]
    assert run(session, "/tools")[1] == "  add  (asks first)  Add two numbers."
    run(session, "/tools off")
    read(session.ask("again"))
    assert session.model.engine.requests[-1].template == ""  # type: ignore[union-attr]
    run(session, "/tools on")
    for wrong in ("/tools ask other", "/tools maybe", "/result 2"):
        with pytest.raises(UsageError):
            run(session, wrong)


def test_a_chat_without_servers_says_where_to_name_them(store: Store) -> None:
    session = Session(store, lambda *_: FakeEngine(), LoadSettings("fake.gguf"))
    with pytest.raises(UsageError, match=r"mcp\.json"):
        run(session, "/tools")
    with pytest.raises(UsageError, match="no tool was called"):
        run(session, "/result")


def test_a_server_that_fails_is_reported_and_the_chat_continues(store: Store, runtime: Runtime) -> None:
    box = Toolbox([ServerConfig("missing", "/nowhere/such-program")])
    with Session(store, lambda *_: Forced(runtime, []), runtime.settings, toolbox=box) as session:
        session.load()
        said = [event.text for event in session.ask("hello") if isinstance(event, Notice)]
        assert said == ["the MCP server missing has failed: there is no program such-program"]
        assert session.chat.turns[-1].role == "assistant"
        assert run(session, "/tools")[0] == "missing: failed: there is no program such-program"
