"""`run --server auto`, `run --keep-alive` and `ps`: a loaded model answers as one that is loaded for the answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn
from unittest.mock import Mock

import psutil
import pytest
from cli_program import COMMAND, Finished, edgespec_here, environment, started
from endless import ENDLESS_OPTIONS
from serving import Serving, serving
from tiny_gguf import CHATML, write_model

from edgespec.cli.setup.running_servers import Presence, RunningServer, servers
from edgespec.remote.loaded_model import LoadedModel, UnansweredError
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings

POSIX = pytest.mark.skipif(os.name != "posix", reason="kills processes")
ASKED = ("run", "def return", "-t", "1", "-c", "256", "--no-store", "--seed", "7")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_model(folder / "chat.gguf", "llama", chat_template=CHATML)
    (folder / "notes.csv").write_text("a,b\n1,2\n")
    return folder


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Serving]:
    """A server that other commands find."""
    settings = LoadSettings(str(home / "chat.gguf"), threads=1, ctx_size=256, sequences=2, store=False)
    with Worker(settings) as worker, serving(worker, name="chat") as found, announced(home, found.url, found):
        yield found


@contextmanager
def announced(home: Path, url: str, model: Serving, keep_s: float | None = None) -> Iterator[Presence]:
    """Announce a server at `url`, which says that it has loaded this model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(home))
        presence = Presence(url, "", keep_s, Mock())
        presence.tell(model.pool, "ready")
    with presence:
        yield presence


def run(home: Path, *args: str, model: str = "chat.gguf", n: int = 24) -> Finished:
    return edgespec_here(*ASKED, "-m", model, "-n", str(n), *args, home=home)


def said(done: Finished) -> list[str]:
    return done.stderr.decode().splitlines()


# --- --server auto ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--raw",),
        ("-s", "be brief", "--stop", "e"),
        ("--samples", "3"),
        ("-n", "100000"),
        ("--pace", "off"),
        ("-f", "notes.csv"),
        ("--special", "--repeat-penalty", "1.3", "--top-k", "0", "-l", "5-inf"),
    ],
)
def test_a_loaded_model_answers_as_one_that_is_loaded_now(home: Path, server: Serving, args: tuple[str, ...]) -> None:
    here, there = run(home, *args), run(home, *args, "--server", "auto")
    port = server.url.rpartition(":")[2]
    assert said(there) == [f"note: using the server on port {port}, which has chat loaded", *said(here)]
    assert (there.returncode, there.stdout) == (here.returncode, here.stdout)
    assert here.stdout


def test_its_json_is_the_same_but_for_the_times(home: Path, server: Serving) -> None:
    args = ("--json", "--logprobs", "2", "--samples", "2", "--pace", "fixed:3")
    with announced(home, server.url, server):
        here, there = (json.loads(run(home, *args[:-2], *more).stdout) for more in ((), ("--server", "auto")))
    for answer in (here, there):
        assert answer.pop("timings")["predicted_n"] == 48
        assert answer.pop("by_source").keys() <= {"suffix", "recycling"}
        for name in ("rounds", "acceptance", "tokens_per_round", "proposed_per_pos", "accepted_per_pos"):
            answer.pop(name)
        answer.pop("accepted_histogram")
        for choice in answer["choices"]:
            for token in choice["tokens"]:
                for name in ("from_draft", "source", "round"):
                    token.pop(name)
    assert here == there


def test_what_each_drafter_did_is_shown(home: Path, server: Serving) -> None:
    done = run(home, "--server", "auto", "--explain", "--stats", n=60)
    text = done.stderr.decode()
    assert "what each drafter did" in text
    assert "expected tokens per draft" in text
    assert "suffix, recycling" in text.splitlines()[-1]


def test_tools_need_a_model_in_this_process(home: Path, server: Serving) -> None:
    (home / "mcp.json").write_text('{"mcpServers": {}}')
    tools = ("--mcp-config", "mcp.json", "--allow-tool", "clock")
    assert (
        said(run(home, *tools, "--server", "auto"))[0] == "note: loading chat.gguf: tools need a model in this process"
    )
    assert "--allow-tool and --server exclude each other" in said(run(home, *tools, "--server", server.url))[0]


@pytest.mark.parametrize("args", [("--fast",), ("-c", "128"), ("-ctk", "f32"), ("-t", "2")])
def test_other_settings_load_the_model(home: Path, server: Serving, args: tuple[str, ...]) -> None:
    done = run(home, *args, "--server", "auto", n=2)
    assert done.returncode == 0
    assert said(done)[0] == "note: loading chat.gguf: no server of yours has loaded it with these settings"


@pytest.mark.parametrize("args", [("--logprobs", "100", "--json"), ("-f", "long.txt")])
def test_what_the_server_refuses_is_answered_here(home: Path, server: Serving, args: tuple[str, ...]) -> None:
    (home / "long.txt").write_text("x" * 10_000)
    here, there = run(home, *args), run(home, *args, "--server", "auto")
    assert said(there)[2:] == said(here)
    assert "; loading chat.gguf" in said(there)[1]
    assert there.returncode == here.returncode


def test_a_seed_is_shown_once_where_the_model_is_loaded_after_all(
    home: Path, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(*_: object) -> Iterator[NoReturn]:
        raise UnansweredError("the server has gone")
        yield

    monkeypatch.setattr(LoadedModel, "stream", unanswered)
    done = run(home, "--server", "auto", "--seed", "-1", n=4)
    assert done.returncode == 0 and done.stdout
    assert said(done)[1] == "note: the server has gone; loading chat.gguf"
    assert [line.split()[0] for line in said(done)].count("seed") == 1


def test_texts_that_depend_on_earlier_drafts_need_a_new_model(home: Path, server: Serving) -> None:
    done = run(home, "--server", "auto", "--verify", "rejection", n=2)
    assert said(done)[0] == "note: loading chat.gguf: texts of --verify rejection depend on what was drafted before"


def test_without_the_option_no_server_is_used(home: Path, server: Serving) -> None:
    assert not any("server" in line for line in said(run(home)))


def test_the_option_can_be_set_for_all_calls(home: Path, server: Serving) -> None:
    done = edgespec_here(*ASKED, "-m", "chat.gguf", "-n", "2", home=home, EDGESPEC_SERVER="auto")
    assert said(done)[0].startswith("note: using the server")


# --- servers that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [(), ("--samples", "2"), ("--json",)])
def test_a_server_that_is_lost_before_the_first_token_is_replaced(
    home: Path, server: Serving, tmp_path: Path, args: tuple[str, ...]
) -> None:
    model = str(home / "chat.gguf")
    with announced(tmp_path, "http://127.0.0.1:1", server):
        there = run(tmp_path, *args, "--server", "auto", model=model, n=8)
    here = run(tmp_path, *args, model=model, n=8)
    assert said(there)[1].startswith("note: cannot reach http://127.0.0.1:1: ")
    assert said(there)[2:] == said(here)
    if args != ("--json",):
        assert there.stdout == here.stdout


class _Dying(BaseHTTPRequestHandler):
    """Sends the first token of an answer, and then nothing more."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        chunk = {"choices": [{"index": 0, "delta": {"content": "Hel"}}], "tokens": [{"id": 5, "text": "Hel"}]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *args: Any) -> None:
        pass


def test_a_server_that_dies_in_the_middle_of_an_answer_is_an_error(home: Path, server: Serving, tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), _Dying) as dying:
        Thread(target=dying.serve_forever, args=(0.01,), daemon=True).start()
        with announced(tmp_path, f"http://127.0.0.1:{dying.server_port}", server):
            done = run(tmp_path, "--server", "auto", model=str(home / "chat.gguf"))
        dying.shutdown()
    assert (done.returncode, done.stdout) == (1, b"Hel\n")
    assert "went away in the middle of the answer" in said(done)[-1]


# --- --server URL -----------------------------------------------------------------------------------------------------


def test_a_server_can_be_named(home: Path, server: Serving) -> None:
    args = ("run", "def return", "--seed", "7", "-n", "24")
    there = edgespec_here(*args, "--server", server.url, home=home)
    assert there.stdout == run(home).stdout
    refused = edgespec_here(*args, "--server", server.url, "-t", "2", "--keep-alive", "1m", home=home)
    assert refused.returncode == 2
    assert b"--threads, --keep-alive cannot be combined with --server" in refused.stderr


# --- models that are kept ---------------------------------------------------------------------------------------------


def near(home: Path) -> list[RunningServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(home))
        return servers()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Path]:
    """A home whose kept models are unloaded at the end."""
    environment(tmp_path)
    yield tmp_path
    for server in near(tmp_path):
        os.kill(server.pid, signal.SIGTERM)


@pytest.mark.cli
@pytest.mark.slow
def test_a_model_is_kept_loaded_until_it_is_stopped(kept: Path) -> None:
    args = ("run", "def return", "-m", "demo", "-t", "1", "-n", "8", "--seed", "7", "--keep-alive")
    first = edgespec_here(*args, "5m", home=kept, EDGESPEC_HOME=".")
    assert said(first)[0] == "note: loading demo, to keep it loaded after the answer"
    second = edgespec_here(*args, "2h", home=kept)
    assert said(second)[0].startswith("note: using the server on port ")
    assert first.stdout == second.stdout == edgespec_here(*args, "0s", home=kept).stdout
    [server] = near(kept)
    assert server.kept_s == 7200
    assert psutil.Process(server.pid).cwd() == kept.anchor
    [line] = edgespec_here("ps", "--json", home=kept).stdout.splitlines()
    assert json.loads(line).items() >= {"model": "demo", "keep_alive_s": 7200.0, "pid": server.pid}.items()
    assert b"for 120 min after an answer" in edgespec_here("ps", home=kept).stdout
    assert said(edgespec_here("ps", "--stop", home=kept)) == ["note: stopped: demo"]
    assert near(kept) == []
    assert said(edgespec_here("ps", home=kept)) == ["note: no server of yours has a model loaded"]


class _Unloading(BaseHTTPRequestHandler):
    """Ends the server's presence when a model shall be unloaded."""

    ends: Presence

    def do_POST(self) -> None:
        self.ends.close()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: Any) -> None:
        pass


def test_a_server_that_hangs_does_not_keep_others_from_being_stopped(
    server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.cli.commands.ps.END_S", 0.3)
    with (
        HTTPServer(("127.0.0.1", 0), _Unloading) as ending,
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_server(("127.0.0.1", 0)) as mute,
        announced(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", server, 60),
        announced(tmp_path, f"http://127.0.0.1:{mute.getsockname()[1]}", server, 60),
        announced(tmp_path, f"http://127.0.0.1:{ending.server_port}", server, 60) as _Unloading.ends,
    ):
        Thread(target=ending.serve_forever, args=(0.01,), daemon=True).start()
        done = edgespec_here("ps", "--stop", home=tmp_path)
        ending.shutdown()
        left = near(tmp_path)
    assert done.returncode == 1
    first, *errors = said(done)
    assert first == "note: stopped: chat"
    assert len(left) == 2
    for each, error, hint in zip(left, errors[::2], errors[1::2], strict=True):
        assert error.startswith(f"edgespec: {each.url} does not reply: ")
        assert hint == f"  end its process: {each.pid}"


def test_a_model_that_cannot_be_kept_answers_all_the_same(home: Path, tmp_path: Path) -> None:
    environment(tmp_path)
    (tmp_path / "state").write_text("no folder")
    done = run(tmp_path, "--keep-alive", "5m", model=str(home / "chat.gguf"))
    assert (done.returncode, done.stdout) == (0, run(home).stdout)
    assert "chat.gguf cannot be kept loaded: " in "\n".join(said(done))  # the folder is named, too


@pytest.mark.parametrize("time_", ["5", "ten", "1h2", "-1m", ""])
def test_a_time_needs_a_unit(home: Path, time_: str) -> None:
    done = edgespec_here(*ASKED, f"--keep-alive={time_}", home=home)
    assert done.returncode == 2
    assert b"is not a duration, such as 90s, 10m or 1h30m" in done.stderr


def test_no_time_keeps_nothing(home: Path) -> None:
    done = edgespec_here(*ASKED, "--keep-alive", "0", home=home)
    assert (done.returncode, b"keep" in done.stderr) == (0, False)


ENDLESS = ("run", "def return", "-m", "demo", "-t", "1", *ENDLESS_OPTIONS, "--seed", "7", "--raw")


@pytest.mark.long
@POSIX
@pytest.mark.cli
def test_two_calls_at_once_start_one_server(kept: Path) -> None:
    command = [*COMMAND, *ENDLESS, "-n", "50", "--keep-alive", "1m"]
    with started(command, kept) as one, started(command, kept) as two:
        answers = [program.communicate(timeout=60) for program in (one, two)]
    assert answers[0][0] == answers[1][0] != b""
    assert len(near(kept)) == 1


@pytest.mark.long
@POSIX
@pytest.mark.cli
def test_a_kept_server_ends_after_its_time_and_is_not_stopped_by_ctrl_c(kept: Path) -> None:
    command = [*COMMAND, *ENDLESS, "--keep-alive", "2s"]
    with started(command, kept) as program:
        assert program.stdout is not None
        assert program.stdout.read(1)
        [server] = near(kept)
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
    assert len(near(kept)) == 1
    while near(kept):
        time.sleep(0.1)
    while psutil.pid_exists(server.pid):
        time.sleep(0.1)


@pytest.mark.long
@POSIX
@pytest.mark.cli
@pytest.mark.parametrize("killed", ["server", "client"])
def test_either_side_is_killed_in_the_middle_of_an_answer(kept: Path, killed: str) -> None:
    with started([*COMMAND, *ENDLESS, "--keep-alive", "1m"], kept) as program:
        assert program.stdout is not None
        assert program.stdout.read(1)
        [server] = near(kept)
        if killed == "client":
            program.kill()
            answer = edgespec_here(*ENDLESS, "-n", "4", "--server", "auto", home=kept)
            assert said(answer)[0].startswith("note: using the server")
            return
        os.kill(server.pid, signal.SIGKILL)
        _, errors = program.communicate(timeout=30)
        assert program.returncode == 1
        assert b"went away in the middle of the answer" in errors
    assert near(kept) == []
    assert said(edgespec_here(*ENDLESS, "-n", "4", "--server", "auto", home=kept))[0].startswith("note: loading demo:")


@pytest.mark.long
@POSIX
@pytest.mark.cli
def test_ctrl_c_while_a_server_starts_ends_it(kept: Path) -> None:
    def starting() -> bool:
        found = (process.info for process in psutil.process_iter(["environ", "cmdline"]))
        homes = ((each["environ"] or {}).get("EDGESPEC_HOME") for each in found if "serve" in (each["cmdline"] or ()))
        return str(kept) in homes

    with started([*COMMAND, *ENDLESS, "--keep-alive", "1m"], kept) as program:
        while not starting():
            time.sleep(0.01)
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
    while starting():
        time.sleep(0.01)
    assert near(kept) == []
