"""Every command and snippet of the README, and every command of docs/recipes.md, works as written."""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from cli_program import edgespec_alone, edgespec_here

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECIPES = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
COMMANDS = [
    line.partition("  #")[0].strip()
    for page in (README, RECIPES)
    for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    for line in block.replace("\\\n    ", "").splitlines()
]
COMMAND = re.compile(r"""(?:echo (["'])(?P<piped>.*)\1 \| )?(?:\./scripts/)?edgespec (?P<command>.*)""")
pytestmark = pytest.mark.timeout(900)  # `bench` takes 45 s on a quiet machine, and above 300 s on a busy one
MEASURING = [line for line in COMMANDS if re.search(r"edgespec (bench|compare|tune) ", line)]


def test_the_pages_have_commands() -> None:
    assert len(COMMANDS) > 40


@pytest.mark.native
@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[pytest.mark.long] * (line in MEASURING)) for line in COMMANDS]
)
def test_a_command_of_the_readme_answers(line: str, home: Path) -> None:
    found = COMMAND.fullmatch(line)
    assert found
    command, piped = found["command"], found["piped"]
    if command == "chat":  # with a person at the terminal
        piped = "hello"
    # The commands run in the project's folder, and may write into it.
    for folder in {"scripts", "tests"} & set(command.split()):
        shutil.copytree(ROOT / folder, home / folder, ignore=shutil.ignore_patterns("__pycache__"))
    if command.startswith("config unset "):  # the command that sets it may have run in another process
        assert edgespec_here("config", "set", *command.split()[2:], "0.3", home=home).returncode == 0
    if "last" in command.split():  # so may the command that begins a chat
        assert edgespec_alone("chat", "-m", "demo", "-n", "4", home=home, stdin=b"hello\n").returncode == 0
    done = edgespec_alone(*shlex.split(command), home=home, stdin=f"{piped}\n".encode() if piped else b"")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.strip()


@pytest.mark.parametrize("line", MEASURING)
def test_a_command_that_measures_has_options_that_exist(line: str, tmp_path: Path) -> None:
    command = shlex.split(line)[1:]
    assert edgespec_here(*command, "--help", home=tmp_path).returncode == 0
    assert edgespec_here(*command, "--no-such-option", "--help", home=tmp_path).returncode == 2


@pytest.mark.long
@pytest.mark.native
def test_the_python_snippet_prints_an_answer(home: Path) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert edgespec_alone("pull", "smollm2", "-q", home=home).returncode == 0  # as the first command of the README does
    with redirect_stdout(StringIO()) as printed:
        exec(snippet, {})
    assert re.search(r"\n64 tokens in .* tok/s\)", printed.getvalue())


def test_the_files_it_links_to_are_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
