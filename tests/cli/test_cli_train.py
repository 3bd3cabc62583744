"""`edgespec draft train`: errors, and Ctrl-C, which keeps the progress."""

from __future__ import annotations

import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from cli_program import COMMAND, edgespec_here, environment
from tiny_gguf import CHATML, write_model

from edgespec import extras
from edgespec.training import answers
from edgespec.training.features import read_rows

PYTORCH = pytest.mark.skipif(find_spec("torch") is None, reason="heads are trained with PyTorch")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target.gguf", "llama", n_layers=4, chat_template=CHATML)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tokens", "many"], b"'many' is not a valid integer"),
        (["--kind", "eagle9"], b"'eagle9' is not"),
        (["--prompts", "nowhere.jsonl"], b"'nowhere.jsonl' does not exist"),
        (["--kind", "hydra", "--block", "8"], b"--kind hydra does not use --block"),
    ],
)
def test_options_that_mean_nothing_are_refused(target: Path, tmp_path: Path, options: list[str], said: bytes) -> None:
    done = edgespec_here("draft", "train", str(target), "-o", str(tmp_path / "h.gguf"), *options, home=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


def test_without_pytorch_one_line_says_how_to_get_it(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    done = edgespec_here("draft", "train", str(target), "-o", str(tmp_path / "h.gguf"), home=tmp_path)
    assert done.returncode == 2
    assert b"training needs packages that are not installed: there is no torch" in done.stderr
    assert b"pip install 'edgespec[train]'" in done.stderr


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("t.gguf", [], b"t.gguf does not end with .ngram"),
        ("t.ngram", ["--minutes", "5"], b"--kind ngram does not use --minutes"),
    ],
)
def test_a_table_is_refused_before_anything_is_answered(
    target: Path, tmp_path: Path, name: str, options: list[str], said: bytes
) -> None:
    command = ["draft", "train", str(target), "--kind", "ngram", "-o", str(tmp_path / name), *options]
    done = edgespec_here(*command, home=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_table_is_one_command(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "held_out", lambda *, chat: [])
    monkeypatch.setattr(answers, "MAX_TOKENS", 16)
    out = tmp_path / "t.ngram"
    command = ["draft", "train", str(target), "--kind", "ngram", "-o", str(out), "--tokens", "40", "-t", "1"]
    done = edgespec_here(*command, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert out.is_file() and b"--spec-type recycling" in done.stdout


@PYTORCH
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has other signals")
def test_ctrl_c_keeps_the_answers_so_far(target: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    options = ["-o", str(tmp_path / "h.gguf"), "--work", str(work), "--tokens", "10000000", "-t", "1"]
    command = [*COMMAND, "draft", "train", str(target), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(tmp_path)) as program:
        while program.poll() is None and not (work / "answers.jsonl").exists():
            pass
        while program.poll() is None and not (work / "answers.jsonl").stat().st_size:
            pass
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=60)
    assert program.returncode == 128 + signal.SIGINT
    assert b"the same command resumes" in said
    assert read_rows(work)
    assert not (tmp_path / "h.gguf").exists()
