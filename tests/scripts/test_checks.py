"""The tests themselves: they pass in every terminal and environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from terminal import at_terminal, read_rest

TESTS = Path(__file__).parents[1]
WIDTH_MATTERS = [str(TESTS / "cli/test_doctor.py"), "-k", "80_columns or cannot_be_written"]
OPINIONS = {"NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "dumb", "LANG": "xx", "TEXTUAL_COLOR_SYSTEM": "standard"}


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "variables"), [("200", {}), ("60", OPINIONS)])
def test_tests_pass_in_every_terminal(columns: str, variables: dict[str, str], tmp_path: Path) -> None:
    pytest_command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "1"]
    with at_terminal(tmp_path, WIDTH_MATTERS, pytest_command, COLUMNS=columns, **variables) as (program, master):
        shown = read_rest(master)
        assert program.wait(60) == 0, shown
