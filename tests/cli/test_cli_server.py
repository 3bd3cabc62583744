"""`--server`: chats and batches on the engine of another machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_program import COMMAND, edgespec_here, environment, started
from serving import Serving, serving

from edgespec.runtime.worker import Worker
from edgespec.serve.guard import Rules
from edgespec.settings import LoadSettings

KEY = "sesame"
LINES = b'def f(x):\nand then?\n/regen\n"""\ntwo\nlines\n"""\n/continue\n'
posix = pytest.mark.skipif(os.name != "posix", reason="kills processes")


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    settings = LoadSettings("demo", threads=1, sequences=2, store=False)
    with Worker(settings) as worker, serving(worker, rules=Rules(KEY)) as found:
        yield found


def chat(home: Path, *args: str, stdin: bytes = LINES, **variables: str) -> tuple[int, str, str]:
    done = edgespec_here("chat", "--seed", "3", "-n", "24", *args, home=home, stdin=stdin, **variables)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_chat_says_what_it_says_on_this_machine(server: Serving, tmp_path: Path) -> None:
    there = chat(tmp_path, "--server", server.url, EDGESPEC_API_KEY=KEY)
    here = chat(tmp_path, "-m", "demo", "-t", "1")
    assert there == here
    assert here[0] == 0


@pytest.mark.long
def test_a_chat_is_resumed_on_either_side(server: Serving, tmp_path: Path) -> None:
    remote = ("--server", server.url)
    chat(tmp_path, *remote, stdin=b"def f(x):\n", EDGESPEC_API_KEY=KEY)
    code, here, _ = chat(tmp_path, "-r", "last", "-t", "1", stdin=b"/regen\n/branches\n")
    assert code == 0
    commands = b"/branches 1\n/regen\n/stats\n/model\n"
    code, there, said = chat(tmp_path, "-r", "last", *remote, "--stats", stdin=commands, EDGESPEC_API_KEY=KEY)
    assert code == 0
    assert "* 1  2 messages" in here
    assert f"model demo of {server.url}" in there
    assert "tokens/s" in there
    assert "speculative decoding:" in said
    assert KEY not in there + said


def test_commands_about_models_are_about_those_of_the_server(server: Serving, tmp_path: Path) -> None:
    commands = b"/models\n/draft auto\n/model nope\n/set spec-tree 3\nhi\n"
    code, out, err = chat(tmp_path, "--server", server.url, stdin=commands, EDGESPEC_API_KEY=KEY)
    assert code == 2  # that of the first error
    assert f"models of {server.url}:\n* demo\n" in out
    assert "the server chooses the draft model" in err
    assert "has no model 'nope'" in err
    assert "spec-tree is up to the server" in err
    assert out.count("\n") > 4  # the server still answers


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--server", "127.0.0.1:1"), "cannot reach http://127.0.0.1:1"),
        (("--server", "ftp://x"), "'ftp://x' is not the URL of a server"),
        (("--server", "http://me:secret@x"), "must not contain a password"),
        (("--server", "x", "-t", "4", "-ngl", "2"), "--gpu-layers, --threads cannot be combined with --server"),
        (("--server", "x", "-md", "auto", "--no-store", "--fast"), "--draft-model, --no-store, --fast cannot be"),
    ],
)
@pytest.mark.parametrize("command", [("chat", "--plain"), ("batch", "in.jsonl")])
def test_what_cannot_work_is_said_at_once(
    tmp_path: Path, command: tuple[str, ...], args: tuple[str, ...], said: str
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "x"}\n')
    done = edgespec_here(*command, *args, home=tmp_path)
    assert said in done.stderr.decode()
    assert done.returncode == (1 if "127.0.0.1:1" in args else 2)
    assert b"secret" not in done.stderr


def test_a_key_is_needed_and_not_shown(server: Serving, tmp_path: Path) -> None:
    code, _, said = chat(tmp_path, "--server", server.url)
    assert (code, "needs a key" in said) == (2, True)
    code, _, said = chat(tmp_path, "--server", server.url, EDGESPEC_API_KEY="sesamy")
    assert (code, "does not accept this key" in said, "sesamy" in said) == (2, True, False)


def test_options_of_files_are_about_this_machine(server: Serving, tmp_path: Path) -> None:
    """Settings of models are ignored, settings of answers apply."""
    (tmp_path / "edgespec.toml").write_text('model = "elsewhere.gguf"\nthreads = 7\ntemp = 0.0\n')
    code, out, _ = chat(tmp_path, "--server", server.url, stdin=b"hi\n/set temp\n", EDGESPEC_API_KEY=KEY)
    assert code == 0
    assert "temp 0.0" in out


# --- batches ----------------------------------------------------------------------------------------------------------


def write_rows(home: Path, n: int, **settings: object) -> None:
    rows = [{"id": number, "prompt": f"def f{number}(", **settings} for number in range(n)]
    (home / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.long
def test_a_batch_is_that_of_this_machine_and_resumes_there(server: Serving, tmp_path: Path) -> None:
    write_rows(tmp_path, 12, max_tokens=16)
    args = ("batch", "in.jsonl", "--seed", "3", "--ordered")
    remote = ("--server", server.url, "--server", f"{server.url}/v1/")  # the same server
    first = edgespec_here(*args, "-o", "a", "-m", "demo", "-t", "1", "--limit", "5", home=tmp_path)
    assert first.returncode == 0
    for target in ("a", "b"):
        done = edgespec_here(*args, "-o", target, *remote, home=tmp_path, EDGESPEC_API_KEY=KEY)
        assert done.returncode == 0, done.stderr.decode()
    edgespec_here(*args, "-o", "c", "-m", "demo", "-t", "1", home=tmp_path)
    found = [(tmp_path / name).read_text() for name in ("a", "b", "c")]
    assert found[0] == found[1] == found[2]
    assert (tmp_path / "b.job.json").read_text() == (tmp_path / "c.job.json").read_text()


def test_a_batch_goes_on_without_a_server_that_is_not_there(server: Serving, tmp_path: Path) -> None:
    write_rows(tmp_path, 3, max_tokens=4)
    servers = ("--server", "127.0.0.1:1", "--server", server.url)
    done = edgespec_here("batch", "in.jsonl", *servers, home=tmp_path, EDGESPEC_API_KEY=KEY)
    assert done.returncode == 0
    assert b"cannot reach http://127.0.0.1:1: continuing without this server" in done.stderr
    assert len(done.stdout.splitlines()) == 3


@contextmanager
def program(home: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    command = [*COMMAND, "serve", "-m", "demo", "--port", "0", "-t", "1", "--json", "--parallel", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=home, env=environment(home)
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


@pytest.mark.long
@posix
@pytest.mark.cli
@pytest.mark.slow
def test_servers_are_killed_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    """One server fails, and the other one answers its rows. Then that fails, too, and the same command resumes.

    The rows come in parts, so that the batch is not complete before both have failed.
    """
    write_rows(tmp_path, 30, max_tokens=60, ignore_eos=True)
    rows = (tmp_path / "in.jsonl").read_bytes().splitlines(keepends=True)
    out = tmp_path / "out.jsonl"
    with program(tmp_path) as (first, one), program(tmp_path) as (second, two):
        command = [*COMMAND, "batch", "-", "-o", "out.jsonl", "--seed", "3"]
        with started([*command, "--server", one, "--server", two], tmp_path, subprocess.PIPE) as job:
            assert job.stdin is not None
            for process, more, n_lines in ((first, rows[:8], 3), (second, rows[8:16], 9)):
                job.stdin.writelines(more)
                job.stdin.flush()
                while not out.exists() or out.read_bytes().count(b"\n") < n_lines:
                    assert job.poll() is None
                process.send_signal(signal.SIGKILL)
            job.stdin.writelines(rows[16:])
            job.stdin.close()
            assert job.stderr is not None
            said = job.stderr.read()
            assert job.wait(60) == 1
    assert b"every server is lost" in said
    assert b"the same command resumes" in said
    resumed = [*command[len(COMMAND) :], "-m", "demo", "-t", "1"]
    done = edgespec_here(*resumed, home=tmp_path, stdin=b"".join(rows))
    assert done.returncode == 0, done.stderr.decode()
    whole = edgespec_here("batch", "in.jsonl", "--seed", "3", "-m", "demo", "-t", "1", home=tmp_path)
    assert sorted(out.read_bytes().splitlines()) == sorted(whole.stdout.splitlines())
