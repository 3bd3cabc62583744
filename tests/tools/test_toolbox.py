"""The tools of all servers: their names, permissions, and calls that are allowed, denied or stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calling import tool_server

from edgespec.cancel import CancelFlag
from edgespec.dialects.calls import ToolCall
from edgespec.errors import UsageError
from edgespec.tools.config import ServerConfig
from edgespec.tools.permissions import Permissions
from edgespec.tools.results import DENIED, STOPPED
from edgespec.tools.server import ToolDescription
from edgespec.tools.toolbox import Calling, Decision, Toolbox

CALL = ToolCall("add", '{"a": 1, "b": 2}')
ABOUT: ToolDescription = {"name": "", "description": "", "parameters": {"type": "object"}, "problem": ""}


def box_of(tools: dict[str, list[str]], permissions: Permissions | None = None) -> Toolbox:
    """Tools of servers that do not run."""
    box = Toolbox([ServerConfig(name, "x") for name in tools], permissions)
    for server in box.servers:
        server.state, server.tools = "ready", [{**ABOUT, "name": tool} for tool in tools[server.config.name]]
    box.wait(CancelFlag())
    return box


@pytest.fixture(scope="module")
def started() -> Iterator[Toolbox]:
    with Toolbox([tool_server()]) as box:
        box.start()
        box.wait(CancelFlag())
        yield box


def states(box: Toolbox, call: ToolCall, decision: Decision | None, chat: str = "chat") -> list[Any]:
    """The states of a call, at last its result. Without a decision the answer is stopped."""
    cancel, seen = CancelFlag(), list[Any]()
    for calling in box.run(call, chat, cancel, lambda text, left_out: text):
        seen.append(calling.state)
        if calling.state == "asking":
            calling.decide(decision) if decision else cancel.set()
    assert isinstance(calling, Calling) and calling.result is not None
    return [*seen[:-1], (calling.result.outcome, calling.result.text)]


def test_tools_keep_their_names_unless_two_servers_have_one() -> None:
    box = box_of({"a": ["look", "find"], "b": ["look", "a_look", "a b", "look"]})
    assert {name: tool.label for name, tool in box.tools.items()} == {
        "a_look": "a/look",
        "find": "a/find",
        "b_look": "b/look",
        "b_a_look": "b/a_look",
    }
    assert box.new_notes() == ["the tool b/a b is left out: its name is not one that a model can call"]
    assert box.find("b/look").name == "b_look"
    with pytest.raises(UsageError, match="no tool 'look'"):
        box.find("look")


@pytest.mark.parametrize(
    ("names", "kept"), [(["find"], ["find"]), (["a/*"], ["a_look", "find"]), (["b/look", "find"], ["find", "b_look"])]
)
def test_only_allowed_tools_are_kept(names: list[str], kept: list[str]) -> None:
    box = box_of({"a": ["look", "find"], "b": ["look"]})
    box.allow_only(names)
    assert [*box.tools] == kept
    assert all(box.permission(tool, "") == "chat" for tool in box.tools.values())
    with pytest.raises(UsageError, match="there is no tool 'other'"):
        box.allow_only(["other"])


@pytest.mark.slow
@pytest.mark.cli
def test_a_call_runs_if_the_user_allows_it_and_for_as_long(started: Toolbox) -> None:
    sum, tool = ("ok", "1 + 2 = 3"), started.tools["add"]
    assert states(started, CALL, "deny") == ["asking", ("denied", DENIED)]
    assert states(started, CALL, None) == ["asking", ("stopped", STOPPED)]
    assert states(started, CALL, "once") == ["asking", "running", sum]
    assert states(started, CALL, "chat") == ["asking", "running", sum]
    assert states(started, CALL, None) == ["running", sum]
    assert states(started, CALL, "always", chat="another") == ["asking", "running", sum]
    assert states(started, CALL, None, chat="third") == ["running", sum]
    assert started.ask_again(tool, "chat") and not started.ask_again(tool, "chat")
    assert states(started, CALL, "deny") == ["asking", ("denied", DENIED)]
    assert states(started, ToolCall("fail", '{"how": "count"}'), "once")[-1][0] == "error"


@pytest.mark.slow
@pytest.mark.cli
def test_a_server_that_dies_is_reported_once_and_keeps_its_tools() -> None:
    with Toolbox([tool_server(), ServerConfig("wrong", problem="it has no command")]) as box:
        box.start()
        box.wait(CancelFlag())
        assert box.new_notes() == ["the MCP server wrong has failed: it has no command"]
        dying = ToolCall("fail", '{"how": "die"}')
        for _ in range(2):
            assert states(box, dying, "once")[-1][1].startswith("the server calculator has failed")
        assert box.new_notes() == ["the MCP server calculator has failed: it closed the connection; out of order"]
        assert "add" in box.tools


def test_a_permission_that_cannot_be_saved_holds_for_the_chat(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    box = box_of({"a": ["add"]}, Permissions(tmp_path / "file" / "tools.json"))
    box.servers[0].state = "failed"
    assert states(box, CALL, "always")[:2] == ["asking", "running"]
    assert box.permission(box.tools["add"], "chat") == "chat"
    assert "it holds for this chat" in "".join(box.new_notes())


def test_permissions_end_when_another_program_has_the_name_of_the_server(tmp_path: Path) -> None:
    permissions, server = Permissions(tmp_path / "folder" / "tools.json"), ServerConfig("a", "x")
    permissions.allow(server, "look")
    permissions.allow(server, "find")
    assert Permissions(permissions.file).allows(server, "look")
    assert not permissions.allows(server, "other")
    assert not permissions.allows(ServerConfig("a", "y"), "look")
    assert not permissions.allows(ServerConfig("b", "x"), "look")
    assert permissions.ask_again(server, "look")
    assert not permissions.allows(server, "look") and permissions.allows(server, "find")


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 5}', '{"a": {"server": "x", "tools": 5}}', "\udcff"])
def test_a_damaged_file_of_permissions_allows_nothing(tmp_path: Path, content: str) -> None:
    permissions, server = Permissions(tmp_path / "tools.json"), ServerConfig("a", "x")
    permissions.file.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert not permissions.allows(server, "look")
    permissions.allow(server, "look")
    assert permissions.allows(server, "look")
