"""Tools in `edgespec run` and in the plain chat. Grammars force the answers of a tiny model; all else is real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calling import calling_model, tool_server, written_call
from cli_program import Finished, edgespec_here
from tiny_gguf import CHATML, write_model

from edgespec.cancel import CancelFlag
from edgespec.runtime.runtime import Runtime
from edgespec.runtime.worker import Worker
from edgespec.settings import Request

pytestmark = [pytest.mark.native, pytest.mark.cli, pytest.mark.slow]
RUN = ["run", "-m", "calling.gguf", "--mcp-config", "mcp.json", "--seed", "1", "-c", "2048"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    calling_model(folder)
    write_model(folder / "plain.gguf", "llama", chat_template=CHATML)
    server = tool_server()
    named = {"calculator": {"command": server.command, "args": list(server.args)}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": named}))
    return folder


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Answers of the next requests; the real engine generates them."""
    texts: list[str] = []
    submit = Runtime.submit

    def with_grammar(llm: Runtime, request: Request, cancel: CancelFlag | None = None) -> Any:
        text = texts.pop(0) if texts else "done"
        return submit(llm, replace(request, grammar=f"root ::= {json.dumps(text)}"), cancel)

    monkeypatch.setattr(Runtime, "submit", with_grammar)
    yield texts


def refusal(done: Finished) -> str:
    assert (done.returncode, done.stdout) == (2, b"")
    return done.stderr.decode()


def test_run_calls_allowed_tools_and_prints_the_answers(home: Path, forced: list[str]) -> None:
    forced += [f"Let me see.\n{written_call('add', a=1, b=2)}", "It is three."]
    done = edgespec_here(*RUN, "--allow-tool", "add", "What is the sum?", home=home)
    assert (done.returncode, done.stdout) == (0, b"Let me see.\n\nIt is three.\n")
    assert b'note: calculator/add {"a": 1, "b": 2}: 1 line, 9 characters\n' in done.stderr


def test_run_prints_calls_as_json(home: Path, forced: list[str]) -> None:
    forced += [f"{written_call('add', a=1, b=2)}{written_call('fail', how='count')}", "three"]
    done = edgespec_here(*RUN, "--allow-tool", "calculator/*", "--json", "What is the sum?", home=home)
    printed = json.loads(done.stdout)
    assert printed["content"] == "three"
    assert [call["tool"] for call in printed["tool_calls"]] == ["calculator/add", "calculator/fail"]
    assert printed["tool_calls"][0]["result"] == "1 + 2 = 3"
    assert printed["tool_calls"][1]["outcome"] == "error"


@pytest.mark.long
def test_a_tool_that_is_not_allowed_is_unknown_to_the_model(home: Path, forced: list[str]) -> None:
    forced += [written_call("fail", how="x")]
    done = edgespec_here(*RUN, "--allow-tool", "add", "hello", home=home)
    assert done.stdout.decode().strip() == written_call("fail", how="x")


@pytest.mark.long(but=3)
@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "--mcp-config needs --allow-tool\n  name the tools that may run: --allow-tool SERVER/TOOL"),
        (["--allow-tool", "add", "--samples", "2"], "--allow-tool and --samples exclude each other"),
        (["--allow-tool", "other"], "there is no tool 'other'"),
        (["--allow-tool", "add", "--raw"], "tools need a chat"),
        (["--allow-tool", "add", "--regex", "x"], "tools and a regex exclude each other"),
        (
            ["--allow-tool", "add", "-m", "plain.gguf"],
            "the chat template of plain.gguf has no tools\n  use a model whose",
        ),
        (["--allow-tool", "add", "--mcp-config", "missing.json"], "missing.json cannot be read"),
    ],
)
def test_what_does_not_go_with_tools_is_refused(home: Path, args: list[str], said: str) -> None:
    assert said in refusal(edgespec_here(*RUN, *args, "hello", home=home))


def test_the_plain_chat_denies_calls_without_a_terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, texts = Worker.submit, [written_call("add", a=1, b=2), "Then not."]

    def with_grammar(worker: Worker, request: Request, cancel: CancelFlag | None = None) -> Any:
        return submit(worker, replace(request, grammar=f"root ::= {json.dumps(texts.pop(0))}"), cancel)

    monkeypatch.setattr(Worker, "submit", with_grammar)
    args = ["-m", "calling.gguf", "--mcp-config", "mcp.json", "-c", "2048", "--plain"]
    done = edgespec_here("chat", *args, home=home, stdin=b"What is the sum?\n/result\n")
    assert done.returncode == 0
    assert done.stdout.decode().split("\n")[:2] == ["Then not.", "calculator/add: not allowed by you"]
    assert b"the model calls calculator/add with\n  a: 1\n  b: 2\nnote: denied" in done.stderr
