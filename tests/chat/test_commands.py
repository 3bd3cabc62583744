"""Commands of a chat that work with any front end."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine

from edgespec.chat.commands import COMMANDS, completions, find, run_line
from edgespec.chat.controls import Controls
from edgespec.chat.session import Session
from edgespec.chat.store_commands import file_stem
from edgespec.errors import UsageError
from edgespec.history import Store
from edgespec.runtime.worker import WorkerDiedError
from edgespec.settings import LoadSettings

CODE = "Here:\n\n```python\nprint(1)\n```\n\n```cpp title=x\nint x;\n```\n\n```nonsense\n?\n```"


class Said:
    """A front end that records its calls."""

    def __init__(self) -> None:
        self.texts: list[str] = []

        self.loads: list[LoadSettings] = []

    def say(self, text: str, level: str = "info") -> None:
        self.texts.append(text)

    def copy(self, text: str) -> None:
        self.texts.append(text)

    def load(self, settings: LoadSettings) -> None:
        self.loads.append(settings)


@pytest.fixture
def controls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    session = Session(Store.in_memory(), lambda *_: FakeEngine(CODE), LoadSettings("demo"))
    session.load()
    deque(session.ask("code, please"), maxlen=0)
    front: Any = Said()
    return Controls(session, front)


def test_a_code_block_is_saved_under_a_free_name_with_the_suffix_of_its_language(controls: Any, tmp_path: Path) -> None:
    for line in ("/save", "/save 1", "/save 1", "/save 2", "/save 2 own.txt", "/save own.py"):
        run_line(controls, line)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "code.txt": "?\n",
        "code.py": "print(1)\n",
        "code-2.py": "print(1)\n",
        "code.cpp": "int x;\n",
        "own.txt": "int x;\n",
        "own.py": "?\n",
    }
    assert controls.front.texts[0] == f"written to {tmp_path / 'code.txt'}"


def test_saving_code_overwrites_nothing_and_says_what_is_wrong(controls: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("mine")
    for line, why in (("/save mine.py", "already exists"), ("/save 4", "from 1 to 3"), ("/save no/where.py", "cannot")):
        with pytest.raises(UsageError, match=why):
            run_line(controls, line)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.py"]
    assert (tmp_path / "mine.py").read_text() == "mine"


def test_a_persona_is_saved_if_there_is_something_to_save(
    controls: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="needs a name"):
        run_line(controls, "/persona save")
    with pytest.raises(UsageError, match="there is nothing to save") as caught:
        run_line(controls, "/persona save mine")
    assert caught.value.hint == "/system TEXT sets a prompt, /set NAME VALUE a setting; then /persona save mine"
    run_line(controls, "/set temp 0.3")
    run_line(controls, "/persona save mine")
    file = tmp_path / "config" / "personas" / "mine.toml"
    assert controls.front.texts[-1] == f"saved persona mine to {file}: no system prompt and 1 setting of this chat"
    run_line(controls, "/system Be brief.")
    run_line(controls, "/persona save mine")
    assert controls.front.texts[-1] == f"saved persona mine to {file}: the system prompt and 1 setting of this chat"


def test_a_restart_without_a_number_loads_the_model_as_it_was(controls: Any) -> None:
    with pytest.raises(WorkerDiedError), controls.session.model.watched():
        raise WorkerDiedError("the model process was killed", out_of_memory=True)
    assert controls.remedies().startswith("1  Use half the context (512 tokens)\n")
    for line in ("/restart", "/restart 1"):
        run_line(controls, line)
    assert [settings.ctx_size for settings in controls.front.loads] == [0, 512]


@pytest.mark.parametrize(
    ("title", "stem"),
    [
        ("Name three fruits, and say why you like them", "Name-three-fruits-and-say-why-you-like"),
        ("x" * 50, "x" * 40),
        ("a" * 20 + " " + "b" * 19 + " c", "a" * 20 + "-" + "b" * 19),
        ("What is it?", "What-is-it"),
        ("?", ""),
    ],
)
def test_a_file_name_from_a_long_title_ends_with_a_whole_word(title: str, stem: str) -> None:
    assert file_stem(title) == stem


def test_the_first_answer_is_neither_copied_nor_saved_before_it_ends(controls: Any) -> None:
    controls.session.chat.new()
    with pytest.raises(UsageError, match="there is no answer yet"):
        run_line(controls, "/save")
    events = controls.session.ask("code, please")
    next(events)
    for line in ("/save", "/copy code", "/copy"):
        with pytest.raises(UsageError, match="the answer is not finished"):
            run_line(controls, line)
    deque(events, maxlen=0)
    run_line(controls, "/save")


def test_names_of_commands_and_ids_of_chats_are_completed(controls: Any) -> None:
    session = controls.session
    chat = session.chat.saved_id
    assert completions(session, "/co") == ["/compare", "/continue", "/copy"]
    assert completions(session, "/load ") == completions(session, f"/load {chat[:4]}") == [f"/load {chat}"]
    assert completions(session, "/load nothing") == completions(session, "/copy ") == completions(session, "/no ") == []
    assert completions(session, "co") == completions(session, "//co") == []


def test_every_command_is_found_by_its_name_its_aliases_and_help(controls: Any) -> None:
    for command in COMMANDS:
        for name in (command.name, *command.aliases):
            assert find(name) is command
            run_line(controls, f"/help {name}")
            assert controls.front.texts[-1] == f"{command.title}\n{command.help}"
    keys = [command.key for command in COMMANDS if command.key]
    assert len({*keys}) == len(keys)


def test_a_chat_is_moved_into_a_folder_and_out_of_it(controls: Any) -> None:
    controls.front.redraw = lambda: None
    with pytest.raises(UsageError, match="no folders yet"):
        run_line(controls, "/folder")
    for line in ("/folder work", "/folder", "/folder none"):
        run_line(controls, line)
    moved, listed, removed = controls.front.texts
    assert (moved, removed) == ("moved to work", "removed from its folder")
    assert listed.startswith("work  (1 chat)\n")
