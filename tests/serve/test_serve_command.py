"""`edgespec serve` as a process: what it prints, whom it listens to, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import MagicMock

import httpx2
import pytest
from cli_program import COMMAND, edgespec_here, environment
from endless import ENDLESS_BODY
from serve_program import program
from tiny_encoder import write_encoder

from edgespec.cli.commands.serve import _example
from edgespec.llm.info import ModelInfo
from edgespec.models.names.spec import resolve

posix = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")


@posix
@pytest.mark.cli
def test_a_signal_lets_answers_finish_and_models_load(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer key"}
    with (
        program(tmp_path, EDGESPEC_API_KEY="key") as (process, url),
        httpx2.Client(base_url=url, headers=headers, timeout=60) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        body = {"prompt": "def f(", "max_tokens": 150, "ignore_eos": True, "stream": True}
        assert httpx2.post(f"{url}/v1/completions", json=body).status_code == 401
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            other = {"prompt": "def f(", "max_tokens": 2, "model": "demo:draft"}
            answer = threads.submit(client.post, "/v1/completions", json=other)
            while client.get("/v1/models/demo:draft").json()["status"]["value"] == "unloaded":
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            said = [line for line in lines if line]
        assert said[-1] == "data: [DONE]"
        assert json.loads(said[-2].removeprefix("data: "))["timings"]["predicted_n"] == 150
        assert answer.result().json()["usage"]["completion_tokens"] == 2
        assert process.wait(30) == 0
        assert process.stdout is not None
        records = [json.loads(line) for line in process.stdout]
        kinds = [record["event"] for record in records if record["event"] != "request"]
        assert (sorted(kinds[:-1]), kinds[-1]) == (["loaded", "stopping"], "stopped")
        answers = [record for record in records if record.get("path") == "/v1/completions"]
        assert sorted((record["status"], record.get("tokens")) for record in answers[1:]) == [(200, 2), (200, 150)]
        assert answers[0]["status"] == 401


@posix
@pytest.mark.cli
def test_an_idle_server_ends_without_a_note_about_answers(tmp_path: Path) -> None:
    with program(tmp_path) as (process, _):
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert b"running answers" not in said


@pytest.mark.long
@posix
@pytest.mark.cli
def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with program(tmp_path) as (process, url):
        body = ENDLESS_BODY | {"n": 32}
        with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert b"Ctrl-C again" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130


@pytest.mark.long
@pytest.mark.cli
def test_models_are_loaded_for_requests_and_the_log_says_so(tmp_path: Path) -> None:
    with program(tmp_path, "-m", "demo", "-m", "demo:draft", "--only") as (process, url):
        listed = httpx2.get(f"{url}/v1/models").json()["data"]
        assert [(model["id"], model["status"]["value"]) for model in listed] == [
            ("demo", "loaded"),
            ("demo:draft", "unloaded"),
        ]
        body = {"prompt": "def f(", "max_tokens": 2, "model": "demo:draft"}
        assert httpx2.post(f"{url}/v1/completions", json=body, timeout=60).json()["model"] == "demo:draft"
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
        assert [line["event"] for line in lines] == ["request", "loaded", "request"]


# --- output -----------------------------------------------------------------------------------------------------------


@pytest.mark.cli
def test_a_log_that_nobody_reads_holds_up_no_request(tmp_path: Path) -> None:
    with program(tmp_path, "--only") as (process, url), httpx2.Client(base_url=url, timeout=60) as client:
        paths = [f"/{number:04}{'x' * 8000}" for number in range(20)]  # more than a pipe holds
        assert [client.get(path).status_code for path in paths] == [404] * len(paths)
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["path"] for _ in paths] == paths


@posix
@pytest.mark.cli
def test_a_closed_log_is_reported_once_and_requests_are_answered(tmp_path: Path) -> None:
    with program(tmp_path, "--only") as (process, url), httpx2.Client(base_url=url, timeout=60) as client:
        assert process.stdout is not None
        process.stdout.close()
        assert [client.get("/health").status_code for _ in range(3)] == [200] * 3
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(30) == 0
        assert said.count(b"warning: stdout was closed") == 1
        assert b"Traceback" not in said


@posix
@pytest.mark.cli
def test_connections_beyond_the_limit_of_files_wait_and_are_reported_once(tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -n 40; exec "$@"', "sh", *COMMAND]
    with program(tmp_path, "--only", command=limited) as (process, url), ExitStack() as open_ones:
        host, port = url.removeprefix("http://").split(":")
        for _ in range(60):
            open_ones.enter_context(socket.create_connection((host, int(port))))
        assert process.stderr is not None
        assert b"no more connections can be accepted" in process.stderr.readline()
        waiting = open_ones.pop_all()
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(httpx2.get, f"{url}/health", timeout=60)
            waiting.close()
            assert answer.result().status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert b"accept" not in process.stderr.read()


# --- loading ----------------------------------------------------------------------------------------------------------

NEVER_LOADS = """
import sys, threading
from edgespec.cli import main
from edgespec.llama.model import LlamaModel
begin = LlamaModel.__init__
def hang(self, path, *args, **more):
    begin(self, path, *args, **more)
    if {name!r} in str(path) and not more.get("vocabulary_only"):
        threading.Event().wait()
LlamaModel.__init__ = hang  # the worker process imports this file, too
if __name__ == "__main__":
    sys.exit(main())
"""


def never_loading(home: Path, name: str) -> list[str]:
    """Return the command of a program in which the load of a file with this name never ends."""
    script = home / "never_loads.py"
    script.write_text(NEVER_LOADS.format(name=name))
    return [sys.executable, str(script)]


@pytest.mark.long
@posix
@pytest.mark.cli
def test_a_second_signal_ends_a_load(tmp_path: Path) -> None:
    never_loads = never_loading(tmp_path, resolve("demo:draft").path.name)
    with program(tmp_path, "--spec-type", "none", command=never_loads) as (process, url):
        body = {"prompt": "def f(", "max_tokens": 2, "model": "demo:draft"}
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(httpx2.post, f"{url}/v1/completions", json=body, timeout=60)
            while httpx2.get(f"{url}/v1/models/demo:draft").json()["status"]["value"] == "unloaded":
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert any(b"Ctrl-C again" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 128 + signal.SIGTERM
            assert answer.exception() is not None


@pytest.mark.long
@posix
@pytest.mark.cli
def test_a_signal_before_the_first_model_is_loaded_ends_the_command(tmp_path: Path) -> None:
    never_ready = never_loading(tmp_path, resolve("demo").path.name)
    command = [*never_ready, "serve", "--port", "0", "-t", "1", "-v", "-m", "demo"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path, env=environment(tmp_path)) as process:
        assert process.stderr is not None
        process.stderr.readline()  # it has begun
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM


@pytest.mark.long
@pytest.mark.cli
def test_the_first_model_may_be_one_for_vectors(tmp_path: Path) -> None:
    path = write_encoder(tmp_path / "bert.gguf")
    with program(tmp_path, "-m", str(path), "--only") as (process, url):
        answer = httpx2.post(f"{url}/v1/embeddings", json={"input": "the cat"}, timeout=60).json()
        assert (answer["model"], answer["usage"]["prompt_tokens"]) == ("bert", 4)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["texts"] == 1


@pytest.mark.parametrize(
    ("pooling", "path"),
    [
        ("", "chat/completions"),
        ("mean", "embeddings"),
        ("rank", "rerank"),
    ],
)
def test_the_example_is_one_that_the_model_can_answer(pooling: str, path: str) -> None:
    found, body = _example("m", ModelInfo("m", pooling=pooling))
    assert (found, body["model"]) == (path, "m")


def test_nobody_beyond_this_machine_is_answered_without_a_key(tmp_path: Path) -> None:
    done = edgespec_here("serve", "-m", "demo", "--host", "0.0.0.0", home=tmp_path)
    assert done.returncode == 2
    assert b"needs a key" in done.stderr


def test_an_origin_that_can_match_nothing_is_a_usage_error(tmp_path: Path) -> None:
    done = edgespec_here("serve", "-m", "nowhere", "--cors", "app://obsidian.md/", home=tmp_path)
    assert done.returncode == 2
    assert b"use app://obsidian.md" in done.stderr


def test_a_port_that_is_taken_is_reported_before_a_model_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = edgespec_here("serve", "-m", "nowhere", "--port", str(taken.getsockname()[1]), home=tmp_path)
    assert done.returncode == 2
    assert b"cannot listen on 127.0.0.1" in done.stderr


@posix
def test_a_port_that_is_taken_while_the_model_is_loaded_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        worker = MagicMock(info=ModelInfo("demo"))
        worker.check_settings = lambda request: other.listen()  # called once the model is loaded
        monkeypatch.setattr("edgespec.cli.commands.serve.open_worker", lambda *args: worker)
        done = edgespec_here("serve", "-m", "demo", "--port", str(other.getsockname()[1]), home=tmp_path)
    assert done.returncode == 2
    assert b"cannot listen on 127.0.0.1" in done.stderr


def test_the_help_fits_a_screen(tmp_path: Path) -> None:
    assert len(edgespec_here("serve", "--help", home=tmp_path).stdout.splitlines()) <= 60
