"""Bad model files by hand: the right error, a message that helps, exit code 3, and nothing broken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import cli_program
import pytest
from bad_files import BAD_FILES, written
from tiny_gguf import write_model

import edgespec
from edgespec.errors import ModelFileError, ModelNotFoundError

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize("write", BAD_FILES, ids=lambda write: write.__name__)
def test_a_bad_file_is_refused_with_its_reason(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = written(write, tmp_path)
    with pytest.raises(ModelFileError) as refused:
        edgespec.load(str(path), threads=1)
    assert path.name in str(refused.value)
    assert BAD_FILES[write] in str(refused.value)
    assert refused.value.exit_code == 3


@pytest.mark.long(but=3)
@pytest.mark.parametrize("write", BAD_FILES, ids=lambda write: write.__name__)
def test_the_program_says_why_and_exits_with_3(home: Path, tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = written(write, tmp_path)
    done = cli_program.edgespec_here("run", "hello", "-m", str(path), home=home)
    message = done.stderr.decode()
    assert (done.returncode, done.stdout) == (3, b"")
    assert BAD_FILES[write] in message
    assert "Traceback" not in message


def test_a_file_that_is_not_there(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "nothing.gguf"
    with pytest.raises(ModelNotFoundError, match=r"nothing\.gguf"):
        edgespec.load(str(path), threads=1)
    done = cli_program.edgespec_here("run", "hello", "-m", str(path), home=home)
    assert (done.returncode, done.stdout) == (3, b"")
    assert "nothing.gguf" in done.stderr.decode()


def test_a_file_without_read_permission(tmp_path: Path) -> None:
    path = write_model(tmp_path / "locked.gguf", "llama")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ModelFileError, match="permission denied"):
        edgespec.load(str(path), threads=1)


def test_a_good_file_still_loads_after_all_that(tmp_path: Path) -> None:
    with edgespec.load(str(write_model(tmp_path / "good.gguf", "llama")), threads=1) as llm:
        assert [event.finish_reason for event in llm.generate("def", max_tokens=2)][-1] == "length"
