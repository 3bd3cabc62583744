"""Writing a message in the editor that the environment names."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from edgespec.chat.programs import edited
from edgespec.errors import UsageError

pytestmark = pytest.mark.cli


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("VISUAL", raising=False)
    return tmp_path


def use(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Make a Python program the editor; it gets the name of the file as its last argument."""
    script = folder / "an editor.py"
    script.write_text(f"import pathlib, sys\nfile = pathlib.Path(sys.argv[-1])\n{code}\n", encoding="utf-8")
    monkeypatch.setenv("EDITOR", shlex.join([sys.executable, str(script), "--wait"]))


def test_the_text_goes_to_the_editor_and_comes_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(folder, monkeypatch, 'file.write_text(file.read_text("utf-8") + file.suffix + " \N{SNOWMAN}\\n", "utf-8")')
    assert edited("one\ntwo") == "one\ntwo\n.md \N{SNOWMAN}"


def test_nothing_saved_is_no_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(folder, monkeypatch, "")
    assert edited("one") is None


@pytest.mark.parametrize(
    ("code", "why"), [("sys.exit(3)", "Editing failed"), ("file.write_bytes(b'\\xff')", "can't decode")]
)
def test_an_editor_that_fails_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str) -> None:
    use(folder, monkeypatch, code)
    with pytest.raises(UsageError, match=why):
        edited("one")


@pytest.mark.parametrize("editor", ["/nowhere/no-editor", "'unclosed"])
def test_a_missing_editor_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch, editor: str) -> None:
    monkeypatch.setenv("EDITOR", editor)
    with pytest.raises(UsageError, match="the message is unchanged") as caught:
        edited("one")
    assert "EDITOR sets the editor" in caught.value.hint
