"""GitHub's workflows: what they run exists, and the actions are those that were looked at."""

from __future__ import annotations

import re
from pathlib import Path

import checks
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_named_by_commit(workflow: Path) -> None:
    """A tag may be moved to another commit; the comment says which version the commit is."""
    used = re.findall(r"uses: (.*)", workflow.read_text(encoding="utf-8"))
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each) for each in used)


def test_the_tests_run_on_each_system_and_with_the_oldest_and_newest_python() -> None:
    text = (ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8")
    assert "push:" in text and "pull_request:" in text
    jobs = re.findall(r'system: (\w+)-[\w-]+, python: "([\d.]+)", command: (\S+) (--\w+)', text)
    assert {(system, arguments) for system, _, _, arguments in jobs} == {
        ("ubuntu", "--all"), ("macos", "--fast"), ("windows", "--fast"),
    }  # fmt: skip
    for _, _, script, arguments in jobs:
        assert (ROOT / script.replace("\\", "/")).is_file() and arguments in checks.CHECKS
    oldest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert oldest and {oldest[1], "3.14"} == {python for system, python, _, _ in jobs if system == "ubuntu"}
