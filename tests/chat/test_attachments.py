"""Files that go with a message: their names, what is refused, and what the message and its transcript show."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from made_documents import pdf

from edgespec.cancel import CancelFlag
from edgespec.chat import paths
from edgespec.chat.attachments import Attachment, Read, joined, read_named, with_files, with_span, without_files
from edgespec.chat.paths import named_files, pasted_files
from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings
from edgespec.errors import UsageError
from edgespec.history import Store
from edgespec.settings import LoadSettings


def attach(attached: Sequence[Attachment], names: str) -> Read:
    """Attach the files that `names` means, as `/file` does; return all attachments, and what was left out."""
    added, left_out = read_named(names)
    return joined(attached, added), left_out


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names = ("src/a.py", "src/deep/b.py", "src/.hidden/c.py", "my notes.txt", "it's.txt", "Makefile", "odd[1]/d.py")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("src/**/*.py", ["src/a.py", "src/deep/b.py"]),
        ("src", ["src/a.py", "src/deep/b.py"]),
        ("src/*.py Makefile", ["src/a.py", "Makefile"]),
        ("my notes.txt", ["my notes.txt"]),
        ("it's.txt", ["it's.txt"]),
        ("'my notes.txt' my\\ notes.txt src/a.py", ["my notes.txt", "src/a.py"]),
        ("src/[ab].py", ["src/a.py"]),
        ("**/.hidden/*.py", ["src/.hidden/c.py"]),
        ("odd[1]", ["odd[1]/d.py"]),
    ],
)
def test_names_are_read_as_a_shell_does(folder: Path, text: str, names: list[str]) -> None:
    assert [path.as_posix() for path in named_files(text)] == names
    assert named_files("~/Makefile") == [folder / "Makefile"]


def test_what_stands_for_nothing_or_for_too_much_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, said in (("*.rs", "no file matches"), ("'open", "quote is not closed"), ("a\0b", "null character")):
        with pytest.raises(UsageError, match=said):
            named_files(text)
    monkeypatch.setattr(paths, "MOST_FILES", 1)
    with pytest.raises(UsageError, match="more than 1 files"):
        named_files("src")
    monkeypatch.setattr(paths, "MOST_ENTRIES", 2)
    with pytest.raises(UsageError, match="given up after 2"):
        named_files("**/*.none")


def test_a_paste_is_files_only_if_it_is_nothing_else(folder: Path) -> None:
    notes, script = folder / "my notes.txt", folder / "src" / "a.py"
    quoted = str(notes).replace(" ", "\\ ")
    for text in (f"'{notes}' {script} ", f"{quoted} {script}", f"{notes.as_uri()}\n{script}", f"{notes}\r\n{script}"):
        assert pasted_files(text) == [notes, script]
    for text in ("Makefile", "/", str(folder), f"see {script}", f"{script} is it", "/nothing/here", "'open", ""):
        assert pasted_files(text) == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty: 0 bytes"),
        (b" \n", "only white space"),
        (b"a\0b", "binary file: byte 1"),
        (b"caf\xe9", "not UTF-8: byte 3"),
        ("a\0b".encode("utf-16"), "binary file"),
        (b"x" * (4 << 20) + b"x", "too large"),
    ],
)
def test_what_is_no_text_is_refused_with_its_reason(folder: Path, data: bytes, said: str) -> None:
    (folder / "f.txt").write_bytes(data)
    with pytest.raises(UsageError, match=said):
        attach([], "f.txt")


def test_what_is_no_file_is_never_opened(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for name, said in (("pipe", "not a file"), ("gone", "No such file"), ("x" * 300, "too long")):
        with pytest.raises(UsageError, match=said):
            attach([], name)


def test_the_others_are_attached_where_one_cannot_be_and_a_file_is_attached_once(folder: Path) -> None:
    (folder / "src" / "bin").write_bytes(b"\0")
    first, left_out = attach([], "src Makefile")
    assert [file.name for file in first] == ["src/a.py", "src/deep/b.py", "./Makefile"]
    assert left_out == ["src/bin is a binary file: byte 0 is null"]
    (folder / "Makefile").write_text("new")
    again, _ = attach(first, "Makefile")
    assert [file.text for file in again][2:] == ["new"]


def test_pages_of_a_document_are_attached_and_found_again_in_the_message(folder: Path) -> None:
    (folder / "my report.pdf").write_bytes(pdf("one", "two", "three"))
    files, _ = attach([], "Makefile 'my report.pdf'")
    assert [(file.name, file.about) for file in files] == [("./Makefile", ""), ("my report.pdf", "3 pages")]
    files, _ = attach(files, "my report.pdf 2-")  # instead of the whole document
    assert files[1].text == "[page 2]\ntwo\n\n[page 3]\nthree"
    content = with_files(files, "why?")
    assert "my report.pdf (pages 2-3 of 3):\n```\n[page 2]\n" in content
    assert without_files(content) == (files, "why?")


def test_a_range_is_not_taken_from_the_name_of_a_file(folder: Path) -> None:
    assert with_span("src/a.py 1-20")[0] == "src/a.py"
    for name in ("notes 2024", "7"):
        (folder / name).write_text("text")
        assert with_span(name) == (name, None)
    assert with_span("Makefile 7") == ("Makefile 7", None)  # two files
    assert attach([], "Makefile 7")[0][1].name == "./7"


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("sales.csv 10-1", "rows 10-1 of sales.csv cannot be read: the first is after the last"),
        ("sales.csv 0-3", "rows 0-3 of sales.csv cannot be read: rows count from 1"),
        ("'my notes.txt' 0", "lines 0 of 'my notes.txt' cannot be read: lines count from 1"),
        ("gone.csv 10-1", "gone.csv cannot be read: No such file"),
    ],
)
def test_a_wrong_range_of_a_file_is_not_taken_for_a_file(folder: Path, names: str, why: str) -> None:
    (folder / "sales.csv").write_text("n\n1\n")
    (folder / "my notes.txt").write_text("text")
    with pytest.raises(UsageError) as refused:
        attach([], names)
    assert why in str(refused.value)


def test_nothing_is_attached_after_reading_was_cancelled(folder: Path) -> None:
    (folder / "a.pdf").write_bytes(pdf("one", "two"))
    cancel = CancelFlag()
    cancel.set()
    with pytest.raises(UsageError, match="nothing was attached: reading was cancelled"):
        read_named("src/a.py a.pdf", cancel=cancel)


@settings(max_examples=50)
@given(st.lists(st.text(st.sampled_from("a`\n :.~"), min_size=1).filter(str.strip), max_size=3), st.text("a`\n :.~"))
def test_files_are_found_again_in_the_message(texts: list[str], said: str) -> None:
    abouts = ("", "3 pages, 1 without text", "rows 1-20 of 1,234")
    files = [Attachment(f"f{number}.x", text.rstrip(), abouts[number]) for number, text in enumerate(texts)]
    content = with_files(files, said)
    found, text = without_files(content)
    assert found[: len(files)] == files
    assert with_files(found, text) == content


def test_what_a_user_has_typed_is_not_taken_for_a_file() -> None:
    for text in ("My code:\n```\nx\n```\n\nwhy?", "a.py:\n```python\nx\n```\n\nwhy?", "a.py:\n```\nx", "a.py:\nx"):
        assert without_files(text) == ([], text)


def test_attachments_stay_with_their_message(folder: Path) -> None:
    with Store.in_memory() as store:
        engine = FakeEngine("fine")
        session = Session(store, lambda *_: engine, LoadSettings("demo"), ChatSettings(max_tokens=20))
        session.load()
        session.chat.attached, _ = attach([], "Makefile")
        (folder / "Makefile").unlink()  # its text has been read
        assert session.chat.counts.count(session.chat.attached[0]) == 6  # two fences, the name and three words
        list(session.ask("what?"))
        assert session.chat.turns[0].content == "./Makefile:\n```\ntext of Makefile\n```\n\nwhat?"
        assert (session.chat.attached, session.chat.title) == ([], "what?")
        list(session.edit(0, "why?"))
        assert session.chat.turns[0].content.endswith("```\n\nwhy?")
        assert session.chat.undo() == "why?"
        assert [file.name for file in session.chat.attached] == ["./Makefile"]
        session.chat.attached = []
        list(session.ask("first"))
        session.chat.attached = [Attachment("a.txt", "word " * 2000)]
        assert session.chat.trouble() == ""  # not counted yet
        session.chat.counts.count(session.chat.attached[0])
        assert session.chat.trouble().startswith(
            "2,003 tokens are attached, 980 too many for the context of 1,024\n  attach"
        )
        with pytest.raises(UsageError, match="the context holds"):
            session.ask("now?")
        assert len(session.chat.attached) == 1


def test_one_attachment_or_all_are_removed() -> None:
    with Store.in_memory() as store:
        chat = Session(store, lambda *_: FakeEngine("fine"), LoadSettings("demo"), ChatSettings()).chat
        chat.attached = [Attachment(name, name) for name in ("a", "b", "c")]
        for number, left in (("1", ["b", "c"]), ("2", ["b"])):
            chat.detach(number)
            assert [file.name for file in chat.attached] == left
        for wrong in ("0", "2", "-1", "b"):
            with pytest.raises(UsageError, match="no attachment"):
                chat.detach(wrong)
        chat.detach()
        assert chat.attached == []
