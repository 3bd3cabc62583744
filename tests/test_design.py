"""docs/design.md names files, classes and functions that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
FILE = re.compile(r"[\w.-]*/?(?:[\w-]+/)*[\w-]+\.(?:py|toml|md|cpp|h|tcss|cmd|jsonl)|(?:[\w.-]+/)+")
NAME = re.compile(r"_*[A-Za-z]\w*(?:\.\w+)*(?:\(\))?")


@cache
def files() -> list[str]:
    """The paths of all files and folders of the project, folders with a slash at their end."""
    tops = ("edgespec", "models", "tui", "tests", "scripts", "docs", ".github")
    found = [path for top in tops for path in (ROOT / top).rglob("*") if "__pycache__" not in path.parts]
    paths = [*found, *(ROOT / top for top in tops), *ROOT.glob("*.*")]
    return [f"/{path.relative_to(ROOT).as_posix()}{'/' if path.is_dir() else ''}" for path in paths]


@cache
def words() -> frozenset[str]:
    """All words of the sources: names of functions, settings, packages, keys."""
    sources = [path for path in files() if path.endswith((".py", ".toml", ".cpp", ".h", ".tcss"))]
    text = "\n".join((ROOT / path[1:]).read_text(encoding="utf-8") for path in sources if "/test_design" not in path)
    return frozenset(re.findall(r"\w+", text))


def test_the_files_exist() -> None:
    names = {name for name in re.findall(r"`([^`\s]+)`", TEXT) if FILE.fullmatch(name)}
    assert len(names) > 200
    assert [name for name in sorted(names) if not any(path.endswith(f"/{name}") for path in files())] == []


@pytest.mark.parametrize("line", [line for line in TEXT.splitlines() if line.startswith("| `") and "/` |" in line])
def test_the_files_of_a_room_are_in_it(line: str) -> None:
    room, holds = re.findall(r"\| `([\w/.]+/)` \| (.*?) \|", line)[0]
    names = [name for name in re.findall(r"`([^`\s]+)`", holds) if FILE.fullmatch(name) and "/" not in name[:-1]]
    inside = [path for path in files() if path.startswith(f"/{room}")]
    assert [name for name in names if not any(path.endswith(f"/{name}") for path in inside)] == []


def test_the_names_exist() -> None:
    names = {name for name in re.findall(r"`([^`\s]+)`", TEXT) if NAME.fullmatch(name) and not FILE.fullmatch(name)}
    assert len(names) > 50
    unknown = {name for name in names if not {*re.findall(r"\w+", name)} <= words()}
    assert unknown == set()
