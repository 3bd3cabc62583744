"""`edgespec serve` as a process: what it prints, whom it listens to, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from cli_program import COMMAND, edgespec_here, environment

posix = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")


@contextmanager
def program(home: Path, *args: str, **variables: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The server, and its URL."""
    command = [*COMMAND, "serve", "-m", "demo", "--port", "0", "-t", "1", "--json", *args]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=home, env=environment(home, **variables)
    ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert ready["models"] == ["demo"]
            yield process, ready["url"]
        finally:
            process.kill()


@posix
@pytest.mark.cli
def test_a_signal_lets_answers_finish(tmp_path: Path) -> None:
    with program(tmp_path, "--parallel", "1", EDGESPEC_API_KEY="key") as (process, url):
        body = {"prompt": "def f(", "max_tokens": 200, "ignore_eos": True, "stream": True}
        assert httpx2.post(f"{url}/v1/completions", json=body).status_code == 401
        headers = {"Authorization": "Bearer key"}
        with httpx2.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            said = [line for line in lines if line]
        assert said[-1] == "data: [DONE]"
        assert json.loads(said[-2].removeprefix("data: "))["timings"]["predicted_n"] == 200
        assert process.wait(30) == 0
        assert process.stdout is not None
        records = [json.loads(line) for line in process.stdout]
        assert [(record["path"], record["status"]) for record in records] == [("/v1/completions", 200)]
        assert records[0]["tokens"] == 200


@posix
@pytest.mark.cli
def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with program(tmp_path) as (process, url):
        body = {"prompt": "def f(", "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 32}
        with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert b"Ctrl-C again" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130


def test_nobody_beyond_this_machine_is_answered_without_a_key(tmp_path: Path) -> None:
    done = edgespec_here("serve", "-m", "demo", "--host", "0.0.0.0", home=tmp_path)
    assert done.returncode == 2
    assert b"needs a key" in done.stderr


def test_a_port_that_is_taken_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = edgespec_here("serve", "-m", "nowhere", "--port", str(taken.getsockname()[1]), home=tmp_path)
    assert done.returncode == 2
    assert b"cannot listen on 127.0.0.1" in done.stderr


def test_the_help_fits_a_screen(tmp_path: Path) -> None:
    assert len(edgespec_here("serve", "--help", home=tmp_path).stdout.splitlines()) <= 60
