"""The packages that only parts of the program need, and what the program says without them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cli_program import environment

from edgespec import extras
from edgespec.errors import UsageError
from edgespec.extras import MODULES, check_extra, is_installed

ROOT = Path(__file__).resolve().parent.parent
OF_PACKAGE = {"beautifulsoup4": "bs4"}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without extras."""
    modules = {module for each in MODULES.values() for module in each}
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in modules else object())


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    names = {name: [re.split(r"[<>=~\[ ]", each)[0] for each in packages] for name, packages in optional.items()}
    for extra, modules in MODULES.items():
        assert [OF_PACKAGE.get(name, name) for name in names[extra]] == [*modules]
    assert optional["all"] == ["edgespec[documents,serve,tui]"]
    needed = {re.split(r"[<>=~\[ ]", each)[0] for each in project["dependencies"]}
    assert needed.isdisjoint({name for extra in MODULES for name in names[extra]})


def test_a_missing_package_is_named_with_the_command_that_installs_it(bare: None) -> None:
    assert not is_installed("serve")
    with pytest.raises(UsageError) as raised:
        check_extra("serve", "the server")
    assert raised.value.line == "the server needs packages that are not installed: there is no starlette"
    assert raised.value.hint == f"{sys.executable} -m pip install 'edgespec[serve]'"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["serve", "-m", "demo"], "the server needs packages"),
        (["chat", "-m", "demo", "--tui"], "the full-screen chat needs packages"),
        (["run", "-m", "demo", "-f", "a.pdf", "Hi", "-n", "1"], "reading a.pdf needs packages"),
        (["run", "-m", "demo", "-f", "a.txt", "Hi", "-n", "1"], ""),
    ],
)
def test_commands_without_their_packages_say_so_and_others_work(
    tmp_path: Path, arguments: list[str], what: str
) -> None:
    modules = [module for each in MODULES.values() for module in each]
    code = f"import sys; sys.modules.update(dict.fromkeys({modules}))\n"
    code += f"from edgespec.cli import main; sys.exit(main({arguments}))"
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4 not read")
    (tmp_path / "a.txt").write_text("text")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, encoding="utf-8", env=environment(tmp_path)
    )
    assert (done.returncode, what in done.stderr) == (2 if what else 0, True), done.stderr
