"""MCP servers as processes: what they answer, and what happens if they hang, flood, lie or die."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgespec.cancel import CancelFlag
from edgespec.processes.child import Limits
from edgespec.tools import server as server_module
from edgespec.tools.config import ServerConfig
from edgespec.tools.server import Reply, ToolServer

SUPPORT = Path(__file__).parent.parent / "support"
pytestmark = [pytest.mark.cli, pytest.mark.slow]
PATIENCE_S = 30.0


def config(script: str, *args: str) -> ServerConfig:
    return ServerConfig("test", command=sys.executable, args=(str(SUPPORT / script), *args))


@contextmanager
def running(script: str, *args: str, **how: Any) -> Iterator[ToolServer]:
    with ToolServer(config(script, *args), **how) as server:
        server.start()
        server.wait(CancelFlag())
        yield server


def call(server: ToolServer, tool: str, **arguments: Any) -> Reply:
    return server.call(tool, arguments, CancelFlag())


def until(condition: Any) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_server_lists_its_tools_and_runs_calls_until_it_dies(tmp_path: Path) -> None:
    with running("tool_server.py") as server:
        assert server.state == "ready", server.problem
        names = {tool["name"]: tool for tool in server.tools}
        assert names["add"]["description"] == "Add two numbers."
        assert names["add"]["parameters"]["required"] == ["a", "b"]
        assert call(server, "add", a=1, b=2) == Reply("1 + 2 = 3")
        wrong = call(server, "add", a="x", b=2)
        assert wrong.is_error and "valid integer" in wrong.text
        assert call(server, "nothing") == Reply("Unknown tool: nothing", is_error=True)
        long = call(server, "colour", n=10**4)
        assert len(long.text) == 2**18 and long.left_out > 10**5

        cancel, file = CancelFlag(), tmp_path / "waiting"
        stopped: list[Reply] = []
        thread = threading.Thread(target=lambda: stopped.append(server.call("wait", {"file": str(file)}, cancel)))
        thread.start()
        until(file.exists)
        cancel.set()
        thread.join(PATIENCE_S)
        assert stopped == [Reply("", how="cancelled")]
        file.unlink()
        assert call(server, "add", a=2, b=2).text == "2 + 2 = 4"

        died = call(server, "fail", how="die")
        assert died.is_error and died.how == "failed"
        assert "out of order" in server.problem
        assert "has failed" in call(server, "add", a=1, b=2).text
        server.start()
        server.wait(CancelFlag())
        assert call(server, "add", a=1, b=2) == Reply("1 + 2 = 3")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([sys.executable, "-c", "import sys; print('hi'); sys.exit('no key is set')"], "no key is set"),
        (["/nowhere/such-program"], "there is no program such-program"),
    ],
)
def test_a_server_that_does_not_start_fails_with_the_reason(command: list[str], said: str) -> None:
    with ToolServer(ServerConfig("test", command=command[0], args=tuple(command[1:]))) as server:
        server.start()
        server.wait(CancelFlag())
        assert server.state == "failed"
        assert said in server.problem


@pytest.mark.long
@pytest.mark.parametrize(("kind", "said"), [("no name", "tools.0.inputSchema"), ("no schema", "tools.0.inputSchema")])
def test_a_server_whose_tools_are_described_wrongly_fails(kind: str, said: str) -> None:
    with running("hostile_tool_server.py", kind) as server:
        assert server.state == "failed"
        assert said in server.problem and "errors.pydantic.dev" not in server.problem


def test_long_lists_of_tools_are_cut_and_large_schemas_left_out() -> None:
    with running("hostile_tool_server.py", "odd") as server:
        assert len(server.tools) == 256
        assert [bool(tool["problem"]) for tool in server.tools[:2]] == [True, False]
        assert server.tools[0]["parameters"] == {}


@pytest.mark.long
def test_a_list_of_tools_without_end_is_cut() -> None:
    with running("hostile_tool_server.py", "pages") as server:
        assert server.state == "ready" and len(server.tools) < 256


def test_odd_replies_are_results_and_missing_ones_end_after_their_time() -> None:
    parts = "[image/png: only text can be passed on]\nreport: file:///report.txt\ninside"
    with running("hostile_tool_server.py", "stderr") as server:
        wrong = call(server, "wrong_result")
        assert wrong.is_error and wrong.text.startswith("the reply of the server is not valid: ")
        assert call(server, "error") == Reply("out of\x1b[2J order", is_error=True)
        assert call(server, "picture") == Reply(parts)
        server.call_s = 0.2
        for kind in ("wrong_id", "no_json"):
            assert call(server, kind) == Reply("no reply after 0 seconds", is_error=True, how="failed")
        server.call_s = PATIENCE_S
        assert call(server, "look") == Reply("seen")


def test_a_server_that_hangs_at_its_start_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "START_S", 0.1)
    with running("hostile_tool_server.py", "hangs") as server:
        assert server.problem == "it was not ready after 0 seconds"


def test_a_server_that_sends_without_end_is_ended() -> None:
    with running("hostile_tool_server.py", "") as server:
        server.limits = Limits(cpu_s=0.3)
        assert call(server, "flood").how == "failed"
        assert server.problem == "it sends messages without end"


@pytest.mark.long
def test_a_server_that_sends_one_line_without_end_is_ended() -> None:
    with ToolServer(config("hostile_tool_server.py", "one line")) as server:
        server.limits = Limits(memory_bytes=50 << 20, cpu_s=3.0)
        server.start()
        server.wait(CancelFlag())
        assert server.problem.startswith("it sends")


@pytest.mark.long(but=1)
@pytest.mark.parametrize("kind", ["", "deaf"])
def test_a_server_ends_when_its_parent_is_killed_even_if_it_ignores_signals(kind: str) -> None:
    program = (
        "import sys; from edgespec.cancel import CancelFlag; from edgespec.tools.config import ServerConfig;"
        "from edgespec.tools.server import ToolServer\n"
        f"server = ToolServer(ServerConfig(**{config('hostile_tool_server.py', kind).as_json()!r}))\n"
        "server.start(); server.wait(CancelFlag()); print(server.state, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline().strip() == b"ready"
    started = psutil.Process(parent.pid).children(recursive=True)
    assert len(started) == 2
    parent.kill()
    parent.wait()
    _, left = psutil.wait_procs(started, PATIENCE_S)
    assert left == []


def test_the_configuration_reaches_the_process_without_the_environment_of_the_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the chat")
    code = "import json, os, sys; open('seen', 'w').write(json.dumps(dict(os.environ)))"
    given = ServerConfig("test", command=sys.executable, args=("-c", code), env={"KEY": "1"}, cwd=str(tmp_path))
    with ToolServer(given) as server:
        server.start()
        server.wait(CancelFlag())
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["KEY"] == "1" and "SECRET" not in seen


@pytest.mark.long
def test_a_server_at_an_address_is_asked_with_its_headers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = (
        f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); from tool_server import server\n"
        f"server.run('streamable-http', host='127.0.0.1', port={port})"
    )
    url = f"http://127.0.0.1:{port}/mcp"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as program:
        try:
            until(lambda: is_open(port))
            with ToolServer(ServerConfig("test", url=url, headers={"X-Key": "1"})) as server:
                server.start()
                server.wait(CancelFlag())
                assert call(server, "add", a=1, b=2) == Reply("1 + 2 = 3")
                program.kill()
                assert call(server, "add", a=1, b=2).how == "failed"
                assert server.problem.startswith("it closed the connection")
        finally:
            program.kill()
    with ToolServer(ServerConfig("test", url=url)) as server:
        server.start()
        server.wait(CancelFlag())
        assert "connection" in server.problem


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
