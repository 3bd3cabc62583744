"""Folders and files of edgespec that cannot be used: commands work without them, and say once what is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest
from cli_program import edgespec_alone, edgespec_here, environment

FOLDERS = ("cache", "data", "config", "state")
FILES = ("cache/successors.lock", "data/chats.db", "data/chat_history", "config/config.toml", "config/mcp.json")
INNER = ("cache/trials", "cache/pace", "cache/answers", "cache/successors", "data/models")
RUN = ("run", "-m", "demo", "-t", "1", "-n", "12", "--seed", "1", "def f(")
CHAT = ("chat", "-m", "demo", "-t", "1", "-n", "12", "--seed", "1")


def file_for_folder(path: Path) -> None:
    path.write_text("")


def folder_for_file(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path)


def without(home: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Put something that cannot be used in the place of one of edgespec's folders or files."""
    environment(home)  # which fills the cache
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        rmtree(path)
    path.unlink(missing_ok=True)
    make(path)
    return path


def warnings(stderr: bytes) -> list[str]:
    return [line for line in stderr.decode().splitlines() if "warning" in line]


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("make", [file_for_folder, loop])
@pytest.mark.parametrize(("args", "stdin"), [(RUN, b""), (CHAT, b"def f(\n")])
def test_an_answer_and_a_chat_work_without_a_folder(
    name: str, make: Callable[[Path], None], args: tuple[str, ...], stdin: bytes, tmp_path: Path
) -> None:
    path = without(tmp_path, name, make)
    done = edgespec_alone(*args, home=tmp_path, stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    is_used = name != "state"  # by commands that look for servers
    assert [line.startswith(f"warning: {path} cannot be used (") for line in warnings(done.stderr)] == [True] * is_used


@pytest.mark.parametrize("name", INNER)
def test_an_answer_works_without_a_folder_inside(name: str, tmp_path: Path) -> None:
    path = without(tmp_path, name, file_for_folder)
    done = edgespec_alone(*RUN, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.startswith(f"warning: {path} cannot be used (") for line in warnings(done.stderr)] == [True]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("make", [folder_for_file, loop])
def test_a_chat_works_without_a_file(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    path = without(tmp_path, name, make)
    done = edgespec_alone(*CHAT, home=tmp_path, stdin=b"def f(\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout
    needed = name != "data/chat_history"  # there is no terminal
    assert [line.startswith(f"warning: {path} cannot be used (") for line in warnings(done.stderr)] == [True] * needed


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("data", ("ls",)),
        ("data", ("corpus", "ls")),
        ("data", ("show", "demo")),
        ("state", ("ps",)),
        ("config", ("config",)),
        ("config/personas", ("config",)),
    ],
)
def test_other_commands_work_without_a_folder(name: str, args: tuple[str, ...], tmp_path: Path) -> None:
    path = without(tmp_path, name, loop)
    done = edgespec_here(*args, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.startswith(f"warning: {path} cannot be used (") for line in warnings(done.stderr)] == [True]


def test_a_file_of_the_cache_is_not_needed(tmp_path: Path) -> None:
    environment(tmp_path)
    for file in [*(tmp_path / "cache").rglob("*.json")]:
        file.unlink()
        file.mkdir()
    done = edgespec_alone(*RUN, home=tmp_path)
    assert done.returncode == 0
    assert "warning: " in done.stderr.decode()


# --- doctor -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FOLDERS, *INNER, *FILES])
def test_the_doctor_lists_what_cannot_be_used(name: str, tmp_path: Path) -> None:
    path = without(tmp_path, name, loop)
    done = edgespec_here("doctor", home=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.decode().split())
    assert f"{path} cannot be used (Too many levels of symbolic links): " in said
    assert "move it away, or set EDGESPEC_HOME to another folder" in said


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions are others there")
def test_the_doctor_says_which_permission_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(tmp_path)
    denied = tmp_path / "cache" / "pace"
    access = os.access  # which allows root everything
    monkeypatch.setattr(os, "access", lambda path, mode, **more: Path(path) != denied and access(path, mode, **more))
    said = " ".join(edgespec_here("doctor", home=tmp_path).stdout.decode().split())
    assert f"{denied} cannot be used (permission denied): " in said
    assert "chmod -R u+rwX" in said


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.toml", b"temp = [", "config.toml is not valid TOML"),
        ("config.toml", b"temp = 'secret'", "config.toml: invalid value for 'temp'"),
        ("config.toml", b"\xff", "config.toml is not UTF-8"),
        ("models.toml", b"[", "models.toml cannot be read as TOML"),
        ("mcp.json", b"{", "mcp.json is not valid JSON"),
        ("personas/me.toml", b"[", "personas that cannot be used: 1"),
    ],
)
def test_the_doctor_works_with_a_malformed_configuration(file: str, content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "config" / file
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    done = edgespec_here("doctor", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert said in " ".join(done.stdout.decode().split())
    assert b"secret" not in done.stdout
