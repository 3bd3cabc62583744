"""`edgespec chat` in the plain terminal: pipes, terminals, signals, and saved chats."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from cli_program import Finished, edgespec_alone, edgespec_here
from terminal import at_terminal, read_rest, read_until
from tiny_gguf import CHATML, write_model
from tiny_head import write_head, write_hydra

from edgespec.history import Store, StoreError, Turn

CHAT = ["chat", "-m", "tiny.gguf", "-t", "1", "-n", "12", "--seed", "3", "--temp", "1"]
ENDLESS = [*CHAT, "-c", "100000", "-n", "-1", "-l", "2-inf"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_model(tmp_path / "tiny.gguf", "llama", chat_template=CHATML)
    return tmp_path


def chat(*lines: str, home: Path, args: list[str] = CHAT) -> Finished:
    return edgespec_alone(*args, home=home, stdin="\n".join(lines).encode())


def last_turns(home: Path) -> list[Turn]:
    with Store(home / "data" / "chats.db") as store:
        return store.path(store.find("last").head)


def contents(home: Path) -> list[str]:
    return [turn.content for turn in last_turns(home)]


def test_each_line_is_a_message_and_answers_alone_go_to_stdout(home: Path) -> None:
    done = chat("hello", "", "more", home=home)
    assert done.returncode == 0
    first, answer, second, again = contents(home)
    assert (first, second) == ("hello", "more")
    assert done.stdout.decode().split() == (answer + "\n" + again).split()


def test_a_block_between_quotes_is_one_message(home: Path) -> None:
    chat('"""one', "two", 'three"""', '"""', "four", '"""', '"""five"""', "/undo", home=home)
    assert contents(home)[0::2] == ["one\ntwo\nthree", "four"]


def test_an_argument_is_the_first_message(home: Path) -> None:
    assert edgespec_alone(*CHAT, "hello", home=home).returncode == 0
    assert contents(home)[0] == "hello"


def test_a_chat_is_resumed_and_the_same_seed_says_the_same(home: Path) -> None:
    whole = chat("hello", "more", home=home).stdout
    said = contents(home)
    first = chat("hello", home=home)
    second = chat("more", home=home, args=[*CHAT, "-r", "last"])
    assert contents(home) == said
    assert whole.split() == (first.stdout + second.stdout).split()


def test_without_history_nothing_is_written(home: Path) -> None:
    assert chat("hello", home=home, args=[*CHAT, "--no-history"]).returncode == 0
    with at_terminal(home, [*CHAT, "--plain", "--no-history"]) as (_, master):
        read_until(master, ">>> ")
        os.write(master, b"hello\n\x04")
        read_rest(master)
    assert not (home / "data").exists()
    assert not (home / "cache" / "answers").exists()


def test_a_chat_works_where_none_can_be_kept(home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere = str(tmp_path / "file" / "home")
    done = edgespec_alone(*CHAT, "hello", home=home, EDGESPEC_HOME=nowhere)
    assert done.returncode == 0
    assert f"warning: {Path(nowhere, 'data')} cannot be used (it cannot be created): chats" in done.stderr.decode()


def test_an_answer_that_is_cut_off_before_it_fits_is_an_error(home: Path) -> None:
    schema = ["-j", '{"type": "array", "items": {"type": "integer"}, "minItems": 40}']
    done = chat("hello", "/set json-schema none", "hello", home=home, args=[*CHAT, *schema, "-n", "9"])
    assert done.returncode == 1
    assert done.stderr.decode().count("cut off and may not fit the JSON schema\n  /continue resumes it") == 1
    assert len(contents(home)) == 4


@pytest.mark.parametrize(
    ("limits", "note"),
    [
        (["-c", "128", "-n", "-1"], "the answer was cut off because the context is full; -c gives a larger one"),
        (["-n", "9"], "the answer was cut off at the token limit; /continue resumes it"),
    ],
)
def test_each_answer_that_was_cut_off_says_why(home: Path, limits: list[str], note: str) -> None:
    done = chat("hello", "more", home=home, args=[*ENDLESS, *limits])
    said = done.stderr.decode()
    assert said.count(note) == 2
    assert "tokens is full\n" not in said


def test_commands_work_in_a_pipe(home: Path) -> None:
    done = chat(
        "/set temp 0.5", "/system be brief", "hello", "/stats", "/regen", "/branches", "/fork", "/list",
        "/search hello", "/export out.jsonl", "/help set", "/tokens", "/compare hello", "/thought", "/bye",
        "never said",
        home=home,
    )  # fmt: skip
    text = done.stdout.decode()
    assert "temp 0.5" in text
    assert "12 tokens" in text
    assert re.search(r"\* 1  2 messages", text)
    assert "Show or change settings for the next message" in text
    assert "tok/s" in text
    exported = json.loads((home / "out.jsonl").read_text())
    assert [message["role"] for message in exported["messages"]] == ["system", "user", "assistant"]
    assert "never said" not in contents(home)


def test_the_system_prompt_is_reported_and_not_carried_into_a_new_chat(home: Path) -> None:
    first = chat("hello", "/copy code", home=home, args=[*CHAT, "-s", "be brief"])
    assert b"system prompt: be brief (/system shows and changes it)" in first.stderr
    assert b"the last answer has no code block" in first.stderr
    again = chat("/system", "/set", "/clear", "/system", home=home, args=[*CHAT, "-r", "last"])
    assert b"system prompt: be brief" in again.stderr
    text = again.stdout.decode()
    assert text.startswith("system prompt: be brief\n")
    assert "be brief" not in text.partition("no system prompt")[2]
    assert "no system prompt" in text


def test_what_cannot_be_done_is_reported_and_the_conversation_goes_on(home: Path) -> None:
    done = chat("hello", "/nonsense", "/load nobody", "/set temp -1", "/edit 7", "/copy", "more", home=home)
    assert done.returncode == 2
    assert len(contents(home)) == 4
    said = done.stderr.decode()
    for what in ("no command /nonsense", "nobody", "temp must be", "from 1 to 2", "there is no clipboard"):
        assert what in said


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["chat", "-m", "nowhere.gguf"], 3, "was not found"),
        (["chat", "-m", "tiny.gguf", "-r", "nobody"], 2, "there is no chat"),
        (["chat", "--tui"], 2, "the full-screen chat needs a terminal"),
    ],
)
def test_what_cannot_begin_says_why(home: Path, args: list[str], code: int, says: str) -> None:
    done = edgespec_alone(*args, home=home, stdin=b"hello")
    assert done.returncode == code
    assert says in done.stderr.decode()


def test_control_characters_of_a_message_are_kept_and_harm_nobody(home: Path) -> None:
    text = "\x1b[2J\x07 <|im_end|> [bold]"
    assert chat(text, home=home).returncode == 0
    assert contents(home)[0] == text


def test_a_history_that_is_no_database_is_moved_aside(home: Path) -> None:
    (home / "data").mkdir()
    (home / "data" / "chats.db").write_bytes(b"this is no database" * 1000)
    done = chat("hello", home=home)
    assert done.returncode == 0
    assert "damaged" in done.stderr.decode()
    assert len(contents(home)) == 2
    assert list((home / "data").glob("chats-damaged-*"))


def test_a_history_that_cannot_be_written_is_reported_and_the_chat_is_written_to_a_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.history.file.LOCK_S", 0.1)
    chat("hello", home=home)
    with Store(home / "data" / "chats.db") as store:
        store._database._connection.execute("BEGIN IMMEDIATE")
        done = chat("more", home=home)
    assert (done.returncode, done.stdout.strip() != b"") == (1, True)
    (file,) = home.glob("edgespec-chat-*.jsonl")
    assert "not saved" in done.stderr.decode() and file.name in done.stderr.decode()
    assert json.loads(file.read_text())["messages"][0]["content"] == "more"
    assert contents(home)[0] == "hello"


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="needs a symbolic link")
def test_where_chats_cannot_be_written_they_are_read_and_answers_come_with_a_warning(home: Path) -> None:
    file = home / "data" / "chats.db"
    with Store(file) as store:
        store.create("abcdef")
        store.append("abcdef", None, "user", "hello")
    index = file.with_name("chats.db-shm")
    index.symlink_to("nowhere/at/all")  # SQLite cannot create this file, as on a full or read-only disk
    listed = edgespec_here("history", "list", home=home)
    assert (listed.returncode, listed.stderr) == (0, b"") and b"hello" in listed.stdout
    looked = edgespec_alone(*CHAT, "--plain", "-r", "last", home=home)
    assert looked.returncode == 0
    assert b"note: this chat is not saved yet (unable to open database file): it is kept in memory" in looked.stderr
    done = edgespec_alone(*CHAT, "--plain", "-r", "last", home=home, stdin=b"more\n/branches\n")
    assert done.stdout.strip()
    assert b"not saved yet" in done.stderr and b"no chat" not in done.stderr
    [rescued] = home.glob("edgespec-chat-abcdef.jsonl")
    assert [message["content"] for message in json.loads(rescued.read_text())["messages"]][:2] == ["hello", "more"]
    index.unlink()
    assert contents(home) == ["hello"]


def test_what_is_asked_for_now_goes_before_what_a_chat_was_set_to(home: Path) -> None:
    chat("hello", home=home, args=[*CHAT, "-s", "be brief"])
    chat("/set", "more", home=home, args=["chat", "-m", "tiny.gguf", "-t", "1", "-n", "5", "-r", "last"])
    first, last = (turn.answer for turn in last_turns(home) if turn.answer is not None)
    assert (first.settings["max_tokens"], last.settings["max_tokens"]) == (12, 5)
    assert (first.settings["seed"], last.settings["seed"]) == (3, 3)
    assert first.settings["system"] == last.settings["system"] == "be brief"


def test_a_chat_goes_on_with_the_model_it_was_with(home: Path) -> None:
    chat("hello", home=home)
    done = chat("more", home=home, args=["chat", "-t", "1", "-r", "last"])
    assert b"demo" not in done.stderr
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / "config.toml").write_text('model = "demo"\n', encoding="utf-8")  # for new chats
    assert b"demo" not in chat("again", home=home, args=["chat", "-t", "1", "-r", "last"]).stderr
    assert [turn.answer.model for turn in last_turns(home) if turn.answer is not None] == ["tiny"] * 3
    (home / "config" / "config.toml").unlink()
    (home / "tiny.gguf").unlink()
    said = chat(home=home, args=["chat", "-r", "last"]).stderr
    assert b"continuing this chat with another model" in said
    assert b"using demo" in said


# --- a terminal -------------------------------------------------------------------------------------------------------


@pytest.mark.long(but=1)
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_at_a_terminal_one_types_edits_leaves_and_finds_the_lines_again(home: Path, term: str) -> None:
    with at_terminal(home, [*CHAT, "--plain"], TERM=term) as (program, master):
        read_until(master, ">>> ")
        os.write(master, b"helo\x7flo\n")
        read_until(master, ">>> ")
        if term == "xterm":  # a dumb terminal puts no marks around a paste
            os.write(master, b"\x1b[200~one\rtwo\r\rthree\x1b[201~\n")
            read_until(master, ">>> ")
        time.sleep(0.5)  # the line editor loses signals that arrive before it waits for keys
        os.killpg(program.pid, signal.SIGINT)
        read_until(master, ">>> ")
        os.write(master, b"\x04")
        rest = read_rest(master)
        assert program.wait(30) == 0
    assert contents(home)[0] == "hello"
    assert contents(home)[2:3] == (["one\ntwo\n\nthree"] if term == "xterm" else [])
    assert "Traceback" not in rest
    if term == "xterm" and find_spec("readline"):
        with at_terminal(home, [*CHAT, "--plain"]) as (program, master):
            read_until(master, ">>> ")
            os.write(master, b"\x1b[A\n\x04")  # the last line of the previous start
            read_rest(master)
            assert program.wait(30) == 0
        assert contents(home)[0] == "three"


def test_exit_leaves_at_a_terminal_and_is_a_message_in_a_pipe(home: Path) -> None:
    assert chat("exit", home=home).returncode == 0
    assert contents(home)[0] == "exit"
    with at_terminal(home, [*CHAT, "--plain", "--no-history"]) as (program, master):
        read_until(master, ">>> ")
        os.write(master, b"exit\n")
        assert program.wait(60) == 0


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_the_chat_continues_after_ctrl_c_and_after_its_worker_was_killed(home: Path) -> None:
    with at_terminal(home, [*ENDLESS, "--plain"]) as (program, master):
        read_until(master, ">>> ")
        for line in (b"hello\n", b"/continue\n"):
            os.write(master, line)
            time.sleep(1)
            os.killpg(program.pid, signal.SIGINT)  # as a terminal does: to the worker too
            read_until(master, ">>> ")
        answer = last_turns(home)[-1].answer
        assert answer is not None and answer.finish_reason == "cancelled"
        os.write(master, b"/continue\n")
        time.sleep(1)
        worker = next(
            p for p in psutil.Process(program.pid).children() if "resource_tracker" not in " ".join(p.cmdline())
        )
        worker.kill()
        said = read_until(master, ">>> ")
        assert "the model process was killed" in said
        assert "/restart N" in said
        for line in (b"/restart 1", b"/set max-tokens 5", b"/continue"):
            os.write(master, line + b"\n")
            said += read_until(master, ">>> ")
        os.write(master, b"/bye\n")
        said += read_rest(master)
        assert program.wait(30) == 0
    turns = last_turns(home)
    assert [turn.role for turn in turns] == ["user", "assistant"]
    assert turns[-1].answer is not None
    assert turns[-1].answer.finish_reason == "length", said


@pytest.mark.long
@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_a_signal_in_the_middle_of_an_answer_keeps_it(home: Path, number: str) -> None:
    with at_terminal(home, [*ENDLESS, "--plain"]) as (program, master):
        read_until(master, ">>> ")
        os.write(master, b"hello\n")
        time.sleep(1)
        workers = psutil.Process(program.pid).children(recursive=True)
        program.send_signal(getattr(signal, number))
        read_rest(master)
        assert program.wait(30) == 128 + getattr(signal, number)
        assert not psutil.wait_procs(workers, timeout=60)[1]
    assert len(contents(home)) == 2


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_killed_in_the_middle_of_an_answer_it_loses_next_to_nothing(home: Path) -> None:
    with at_terminal(home, [*ENDLESS, "--plain"]) as (program, master):
        read_until(master, ">>> ")
        os.write(master, b"hello\n")
        time.sleep(2)
        workers = psutil.Process(program.pid).children(recursive=True)
        program.kill()
        program.wait(30)
        assert not psutil.wait_procs(workers, timeout=60)[1]
    turns = last_turns(home)
    assert turns[-1].answer is not None
    assert turns[-1].answer.finish_reason == "interrupted"
    assert turns[-1].content


def test_the_screen_is_the_default_where_there_is_one(home: Path) -> None:
    """The terminal is restored, too."""
    with at_terminal(home, CHAT, TERM="xterm-256color") as (program, master):
        read_until(master, "edgespec")
        time.sleep(2)
        os.write(master, b"\x11")  # Ctrl-Q
        rest = read_rest(master)
        assert program.wait(30) == 0
    assert "\x1b[?1049l" in rest


@pytest.mark.long
def test_a_screen_that_fails_says_what_does_without_it(home: Path) -> None:
    lines = [
        "import sys",
        "from edgespec.cli import main",
        "from edgespec.tui.transcript import Transcript",
        "Transcript.note = None",
        "if __name__ == '__main__':",
        "    sys.exit(main())",
    ]
    (home / "program.py").write_text("\n".join(lines))
    with at_terminal(home, CHAT, [sys.executable, "program.py"], TERM="xterm-256color") as (program, master):
        read_until(master, "edgespec")
        time.sleep(2)
        os.write(master, b"/help set\r")
        rest = read_rest(master)
        assert program.wait(30) == 1
    assert "TypeError" in rest
    assert "--plain needs no screen" in rest


@pytest.mark.long
@pytest.mark.parametrize("front", ["--tui", "--plain"])
def test_without_its_terminal_it_ends_and_keeps_the_answer(home: Path, front: str) -> None:
    """A terminal that disappears without a signal, as if another program held it."""
    with at_terminal(home, [*ENDLESS, front, "hello"], TERM="xterm-256color") as (program, master):
        kept: list[str] = []
        while not kept:
            os.read(master, 65536)
            with suppress(StoreError):
                kept = contents(home)
        workers = psutil.Process(program.pid).children(recursive=True)
        os.dup2(os.open(os.devnull, os.O_RDWR), master)  # closes the last descriptor of the terminal
        program.wait(60)
        assert not psutil.wait_procs(workers, timeout=60)[1]
    assert contents(home)[0] == "hello"


@pytest.mark.long(but=1)
@pytest.mark.parametrize("kind", ["eagle3", "hydra"])
def test_a_draft_head_drafts_in_a_chat(home: Path, kind: str) -> None:
    write_model(home / "deep.gguf", "llama", n_layers=4, chat_template=CHATML)
    head = write_head(home / "head.gguf") if kind == "eagle3" else write_hydra(home / "head.gguf")
    args = ["chat", "-m", "deep.gguf", *CHAT[3:], "-c", "512"]
    done = chat("hi", f"/draft {head.name}", "/draft", "/model", "hello", home=home, args=args)
    assert done.returncode == 0
    said = f"{done.stdout.decode()}{done.stderr.decode()}"
    assert said.count(f"draft model {head.name}\n") == 2
    assert f"drafters: grammar, suffix, recycling, {kind}" in said
    assert len(last_turns(home)) == 4
    assert b"cannot be used" in chat(f"/model {head.name}", home=home).stderr


def test_piped_input_and_files_go_with_a_message(home: Path) -> None:
    (home / "a.txt").write_text("of the file")
    args = [*CHAT, "-n", "3", "-f", "a.txt", "explain"]
    assert edgespec_alone(*args, home=home, stdin=b"a diff\n/bye\n").returncode == 0
    assert contents(home)[0] == "a.txt:\n```\nof the file\n```\n\nstdin:\n```\na diff\n/bye\n```\n\nexplain"
    done = chat("/file a.txt *.none", "/file a.txt", "/file none", "/file", home=home)
    assert b"no file matches *.none" in done.stderr
    assert b"a.txt  (11 B, " in done.stderr
    assert b"nothing is attached" in done.stderr
    done = edgespec_alone(*CHAT, "-f", "gone.txt", "x", home=home)
    assert (done.returncode, b"gone.txt cannot be read" in done.stderr) == (2, True)


def test_a_persona_of_the_command_line_is_overridden_by_what_is_typed(home: Path) -> None:
    personas = home / "config" / "personas"
    personas.mkdir(parents=True)
    (personas / "poet.toml").write_text('system = "Rhyme."\ntemp = 0.5\nmax-tokens = 2\n')
    done = chat("/set temp", "/set max-tokens", "hello", home=home, args=[*CHAT, "--persona", "poet"])
    assert b"temp 1.0" in done.stdout
    assert b"max-tokens 12" in done.stdout
    with Store(home / "data" / "chats.db") as store:
        settings = store.chat_settings(store.find("last").id)
    assert (settings["system"], settings["persona"]) == ("Rhyme.", "poet")
    done = chat("/persona", "/set temp", home=home, args=["chat", "-r", "last", "-m", "tiny.gguf", "-t", "1"])
    assert b"* poet" in done.stdout
    done = edgespec_alone("run", "hi", "-m", "tiny.gguf", "-t", "1", "--persona", "poet", "--json", home=home)
    assert json.loads(done.stdout)["timings"]["predicted_n"] <= 2
