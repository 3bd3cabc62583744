"""Images in chats: attached like text files, kept as files, and sent with each later message."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import edgespec_here
from tiny_projector import picture, write_seeing

from edgespec.chat.attachments import (
    attachment,
    delete_chats,
    described,
    kept_file,
    with_files,
    with_images,
    without_files,
)
from edgespec.errors import UsageError
from edgespec.files.images import SUFFIXES
from edgespec.history import Store

CAT = picture(1, 64, 48)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))


def test_an_image_becomes_a_part_of_the_message_and_is_found_in_it_again() -> None:
    files = [attachment("notes.txt", b"hello"), attachment("a]cat.png", CAT)]
    content = with_files(files, "what is this?")
    assert "data:" not in content
    again, text = without_files(content)
    assert ([file.name for file in again], text) == (["a)cat.png", "notes.txt"], "what is this?")
    assert with_files(again, text) == content
    assert described(again[:1], 16) == "64x48, 16 tokens"


def test_the_model_gets_the_image_where_the_message_names_it() -> None:
    content = with_files([attachment("cat.png", CAT)], "what is this?")
    message = with_images("user", content)
    assert (message.content, [image.data for image in message.images]) == ("what is this?", [CAT])
    assert message.images[0].at == 0
    assert with_images("assistant", content).content == content
    [file] = [*kept_file("").iterdir()]
    file.unlink()
    gone = with_images("user", content)
    assert (gone.content, gone.images) == ("[cat.png, an image that was deleted]\n\nwhat is this?", ())


def test_images_are_deleted_with_the_last_chat_that_has_them() -> None:
    texts = [with_files([attachment(f"{size}.png", picture(1, size, 48))], "?") for size in (32, 64, 96)]
    with Store() as store:
        chats = dict(zip("ab", (texts[:2], texts[1:]), strict=True))
        for chat, contents in chats.items():
            store.create(chat)
            for content in contents:
                store.append(chat, None, "user", content)
        for deleted, left in (["?"], texts), (["a"], texts[1:]), (["b"], []):
            assert delete_chats(store, deleted) == (deleted != ["?"])
            assert [text for text in texts if with_images("user", text).images] == left


def test_other_files_with_names_of_images_are_text_or_errors() -> None:
    assert attachment("cat.png", b"just text").text == "just text"
    with pytest.raises(UsageError, match=r"not an image|cannot be"):
        attachment("cat.png", CAT[:20])
    assert ".png" in SUFFIXES


def test_a_chat_remembers_its_image(tmp_path: Path) -> None:
    model = write_seeing(tmp_path / "models", "llama")
    (tmp_path / "cat.png").write_bytes(CAT)
    chat = ["chat", "-m", str(model), "--temp", "0", "-n", "8", "-t", "1", "--plain", "--seed", "1"]
    first = edgespec_here(*chat, "-f", "cat.png", "what is this?", home=tmp_path)
    assert first.returncode == 0, first.stderr.decode()
    asked = ["run", "-m", str(model), "--temp", "0", "-n", "8", "-t", "1", "-q", "what is this?"]
    seen = edgespec_here(*asked, "-f", "cat.png", home=tmp_path)
    assert first.stdout.split() == seen.stdout.split() != edgespec_here(*asked, home=tmp_path).stdout.split()
    later = edgespec_here(*chat, "--resume", "last", "and now?", home=tmp_path)
    assert later.returncode == 0, later.stderr.decode()
    blind = edgespec_here(*chat, "--mmproj", "none", "--resume", "last", "and now?", home=tmp_path)
    assert b"cannot see images" in blind.stderr
    assert b"/file none" not in blind.stderr  # nothing is attached


def test_a_model_that_cannot_see_says_so_when_an_image_is_attached(tmp_path: Path) -> None:
    model = write_seeing(tmp_path / "models", "llama")
    (tmp_path / "cat.png").write_bytes(CAT)
    chat = ["chat", "-m", str(model), "-n", "2", "-t", "1", "--plain", "--mmproj", "none"]
    attached = edgespec_here(*chat, home=tmp_path, stdin=b"/file cat.png\n/file none\nhello\n")
    assert attached.returncode == 0
    assert attached.stderr.decode().count(f"{model.name} cannot see images: ") == 1
    sent = edgespec_here(*chat, "-f", "cat.png", "hello", home=tmp_path)
    asked = edgespec_here("run", *chat[1:7], "--mmproj", "none", "-f", "cat.png", "hello", home=tmp_path)
    assert sent.returncode == asked.returncode == 2
    assert "; /file none removes attached images" in sent.stderr.decode()
