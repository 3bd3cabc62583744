"""Messages name settings by their fields; the command line and chats show their own names for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import cli_program
import pytest
from fake_engine import FakeEngine
from serving import serving

import edgespec
from edgespec.chat.model import ChatModel
from edgespec.chat.settings import in_chats
from edgespec.core.sampling import SamplingSettings
from edgespec.core.setting import facts_of, option_names
from edgespec.errors import OutOfMemoryError, UsageError
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings, Request, option_of, with_options

ROOT = Path(edgespec.__file__).parent
ROOMS = "core datastore drafters engine gguf_file llama llm runtime"
NAMED = re.compile(r"`([a-z_]+)[=`]")  # of a part of an f-string, too


# --- one error, four fronts -------------------------------------------------------------------------------------------


def test_python_names_the_field() -> None:
    with pytest.raises(UsageError) as caught:
        edgespec.load("demo", pace="fixed:12", spec_draft_n_max=4)
    assert str(caught.value) == "pace fixed:12 needs `spec_draft_n_max=12` or more, not 4"


def test_the_command_line_names_the_option(tmp_path: Path) -> None:
    asked = ("run", "hello", "-m", "demo", "--pace", "fixed:12", "--spec-draft-n-max", "4")
    done = cli_program.edgespec_here(*asked, home=tmp_path)
    assert done.returncode == 2
    assert done.stderr == b"edgespec: pace fixed:12 needs --spec-draft-n-max 12 or more, not 4\n"


def test_the_server_names_the_field_of_a_request() -> None:
    with Worker(LoadSettings("demo", threads=1, store=False)) as worker, serving(worker) as server:
        body = {"prompt": "x", "max_tokens": 1, "pace": "fixed:12", "draft_n_max": 4}
        error = server.posted("/v1/completions", body, 400)["error"]
    assert error["message"] == "pace fixed:12 needs draft_n_max 12 or more, not 4"


def test_a_chat_names_its_command(tmp_path: Path) -> None:
    lines = b"/set spec-draft-n-max 4\n/set pace fixed:12\n"
    done = cli_program.edgespec_alone("chat", "--plain", "-m", "demo", "-t", "1", home=tmp_path, stdin=lines)
    assert b"edgespec: pace fixed:12 needs /set spec-draft-n-max 12 or more, not 4\n" in done.stderr


# --- the words of a front ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "on_the_command_line", "in_a_chat"),
    [
        ("`ctx_size`", "-c", "-c; -c is an option of 'edgespec chat'"),
        ("`ctx_size=512` fits", "-c 512 fits", "-c 512 fits; -c is an option of 'edgespec chat'"),
        (
            "`gpu_layers=0` `n_cpu_moe`",
            "-ngl 0 -ncmoe",
            "-ngl 0 -ncmoe; -ngl and -ncmoe are options of 'edgespec chat'",
        ),
        ("`exact=False` does", "--fast does", "--fast does; --fast is an option of 'edgespec chat'"),
        ("`strict=True`", "--strict", "--strict; --strict is an option of 'edgespec chat'"),
        ("`store=False`", "--no-store", "--no-store; --no-store is an option of 'edgespec chat'"),
        ("`mmproj=FILE`", "--mmproj FILE", "--mmproj FILE; --mmproj is an option of 'edgespec chat'"),
        ("`lora=NAME=FILE`", "--lora NAME=FILE", "--lora NAME=FILE; --lora is an option of 'edgespec chat'"),
        ("`draft_model=MODEL`", "-md MODEL", "/draft MODEL"),
        ("none (`spec_type=none`)", "none (--spec-type none)", "none (/draft none)"),
        ("`temperature=0`", "--temp 0", "/set temp 0"),
        ("a plain prompt (`prompt`)", "a plain prompt (--raw)", "a plain prompt (edgespec run --raw)"),
        ("`sequences=2`", "`sequences=2`", "`sequences=2`"),  # no option has this name
        ("the file `notes`, {ctx_size}, `", "the file `notes`, {ctx_size}, `", "the file `notes`, {ctx_size}, `"),
    ],
)
def test_each_front_has_its_words(message: str, on_the_command_line: str, in_a_chat: str) -> None:
    assert with_options(message) == on_the_command_line
    assert in_chats(message) == in_a_chat


def test_the_notes_of_a_model_have_the_names_of_a_chat() -> None:
    engine = FakeEngine()
    engine.notes.add("trees are not exact (leave out `spec_tree`)")
    model = ChatModel(lambda wanted, progress, cancel: engine, LoadSettings("demo"))
    model.engine = engine
    assert model.new_notes()[-1] == (
        "trees are not exact (leave out --spec-tree); --spec-tree is an option of 'edgespec chat'"
    )


def test_python_gets_the_hint_with_fields() -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        edgespec.load("demo", ctx_size=2**31 - 1, spec_type="none", threads=1)
    assert "`ctx_size" in caught.value.hint and not re.search(r"(^|[ (])-", caught.value.hint)


# --- all messages -----------------------------------------------------------------------------------------------------


def texts(room: Path) -> Iterator[tuple[str, str]]:
    """Yield the texts in the source of a room, each with its place, without docstrings."""
    for path in sorted(room.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        loose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loose:
                yield f"{path.name}:{node.lineno}", node.value


@pytest.mark.slow
def test_no_message_below_the_fronts_names_an_option() -> None:
    declared = [facts_of(kind) for kind in (LoadSettings, Request, SamplingSettings)]
    options = {name for found in declared for field, facts in found.items() for name in option_names(field, facts)}
    flat = {part for name in options for part in name.split("/")}
    named = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(flat, key=len, reverse=True)))})(?![\w-])")
    found = [
        (place, text)
        for room in ROOMS.split()
        for place, text in texts(ROOT / room)
        if named.search(text) and text not in flat and "edgespec " not in text and place.split(":")[0] not in HELP
    ]
    assert found == []


HELP = ("registry.py", "heads.py", "sampling.py")  # the help of options


@pytest.mark.slow
def test_every_field_that_a_message_names_has_an_option() -> None:
    known = {name for kind in (LoadSettings, Request, SamplingSettings) for name in facts_of(kind)} | {"prompt"}
    named = [
        (place, name)
        for folder in (*ROOMS.split(), "bench", "remote", "chat")
        for place, text in texts(ROOT / folder)
        for name in NAMED.findall(text)
    ]
    assert len(named) > 20
    assert [(place, name) for place, name in named if name not in known or not option_of(name)] == []
