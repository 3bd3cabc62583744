"""The file of MCP servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgespec.errors import UsageError
from edgespec.tools import config
from edgespec.tools.config import ServerConfig, default_file, read_servers


def written(folder: Path, servers: Any) -> Path:
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return file


def only(folder: Path, server: Any) -> ServerConfig:
    [found] = read_servers(written(folder, {"time": server}))
    return found


def test_servers_are_programs_or_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    file = written(
        tmp_path,
        {
            "time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"KEY": "${TOKEN}"}, "cwd": "/tmp"},
            "web": {"type": "http", "url": "https://a.b/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
            "off": {"command": "x", "disabled": True},
            "other": {"command": "x", "autoApprove": ["y"], "timeout": 5},
        },
    )
    assert read_servers(file) == [
        ServerConfig("time", "uvx", ("mcp-server-time",), {"KEY": "secret"}, "/tmp"),
        ServerConfig("web", url="https://a.b/mcp", headers={"Authorization": "Bearer secret"}),
        ServerConfig("other", "x", ignored=("'autoApprove'", "'timeout'")),
    ]


def test_the_digest_is_of_what_runs_and_not_of_its_secrets() -> None:
    one = ServerConfig("a", "run", ("x",), {"KEY": "1"})
    assert one.digest == ServerConfig("a", "run", ("x",), {"KEY": "2"}).digest
    assert one.digest != ServerConfig("a", "run", ("y",), {"KEY": "1"}).digest


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ([], "it must be a JSON object"),
        ({}, "it needs either 'command' or 'url'"),
        ({"command": "x", "url": "http://y"}, "it needs either 'command' or 'url'"),
        ({"command": ["x"]}, "its command must be a text"),
        ({"command": "x", "args": "y"}, "its args must be a list of texts"),
        ({"command": "x", "args": [5]}, "its args must be a list of texts"),
        ({"command": "x", "env": {"A": 1}}, "its env must be an object of texts"),
        ({"command": "x", "env": {"A": "${NOT_SET_HERE}"}}, "the environment variable NOT_SET_HERE is not set"),
        ({"url": "file:///x"}, "its url 'file:///x' does not begin with http:// or https://"),
        ({"type": "sse", "url": "http://x"}, "its type 'sse' is not supported, only stdio and http"),
    ],
)
def test_a_wrong_server_has_a_problem_and_the_others_do_not(tmp_path: Path, server: Any, problem: str) -> None:
    wrong, right = read_servers(written(tmp_path, {"time": server, "ok": {"command": "y"}}))
    assert (wrong.name, wrong.problem) == ("time", problem)
    assert right == ServerConfig("ok", "y")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"[" * 10**5, "is not valid JSON"),
        (b"{}", "has no object 'mcpServers'"),
        (b'{"mcpServers": []}', "has no object 'mcpServers'"),
        (b" " * (config.MOST_BYTES + 1), "is too large"),
        (json.dumps({"mcpServers": dict.fromkeys(map(str, range(33)))}).encode(), "has 33 servers"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        read_servers(file)


def test_the_users_file_may_be_missing_and_another_one_may_not(tmp_path: Path) -> None:
    assert not default_file().exists()
    assert read_servers() == []
    with pytest.raises(UsageError, match="cannot be read"):
        read_servers(tmp_path / "missing.json")
