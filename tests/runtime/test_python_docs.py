"""Every example of docs/python.md runs as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import edgespec

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_answers(example: str, tmp_path: Path, home: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(script)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr


def test_the_names_it_uses_are_exported() -> None:
    assert {*re.findall(r"edgespec\.([A-Za-z]\w*)\b", "".join(EXAMPLES))} <= {*edgespec.__all__}
    errors = {name for name in edgespec.__all__ if name.endswith("Error")}
    assert errors - {*re.findall(r"\w+Error", PAGE)} == {"FailedRowsError"}  # of the command line


def test_the_fields_of_a_completion_are_described() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {*edgespec.Completion.__dataclass_fields__} <= described
