"""The KV cache of a chat is restored from a file in another process bit for bit, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import CHATML, write_model

import edgespec
from edgespec.files import bounded_folder
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message

KINDS = ("llama", "gemma3", "lfm2", "mamba")
MUCH = 1 << 30
SETTINGS: dict[str, Any] = {"threads": 1, "ctx_size": 1024}
SAMPLING: dict[str, Any] = {"max_tokens": 20, "temperature": 0.9, "seed": 5, "ignore_eos": True, "logprobs": 1}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: str(write_model(folder / f"{kind}.gguf", kind, width=128, chat_template=CHATML)) for kind in KINDS}


@pytest.fixture(scope="module")
def written(
    files: dict[str, str], tmp_path_factory: pytest.TempPathFactory, home: Path
) -> tuple[Path, tuple[Message, ...]]:
    """The file of a chat, and its messages."""
    chat, file = [Message("user", "print the number " * 40)], tmp_path_factory.mktemp("written") / "chats" / "a.kv"
    with opened(files["llama"]) as llm:
        say(llm, chat)
        assert llm.keep_state(chat, file, MUCH) > 0
    return file, tuple(chat)


@pytest.fixture
def kept(written: tuple[Path, tuple[Message, ...]], tmp_path: Path) -> tuple[Path, list[Message]]:
    """A copy of that file, and its messages."""
    return Path(shutil.copytree(written[0].parent, tmp_path / "chats")) / "a.kv", [*written[1]]


def opened(file: str, **settings: Any) -> Runtime:
    llm = edgespec.load(file, **(SETTINGS | settings))
    llm.engine.slots.cache.observe_read(10**6, 10**6)  # a model so small reads as fast as it copies
    return llm


def say(llm: Runtime, chat: list[Message]) -> list[tuple[int, float | None]]:
    """Return the tokens of an answer and their log-probabilities, and add the answer to the chat."""
    events = [event for event in llm.chat(chat, **SAMPLING) if event.id >= 0]
    text = "".join(event.text for event in events)
    chat.append(Message("assistant", text, tokens=tuple(event.id for event in events)))
    return [(event.id, event.logprob) for event in events]


@pytest.mark.long(but=2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("home")
def test_a_chat_goes_on_after_a_restart_as_it_would_have(files: dict[str, str], tmp_path: Path, kind: str) -> None:
    file, chat, more = tmp_path / "chat.kv", [Message("user", "print the number " * 40)], Message("user", "return x")
    with opened(files[kind]) as llm:
        say(llm, chat)
        assert llm.keep_state(chat, file, MUCH) == file.stat().st_size
        assert llm.keep_state(chat, file, MUCH) == 0  # nothing is new
        going_on = [*chat, more]
        expected = say(llm, going_on)
        n_cached = llm.stats.cached_tokens
    for _ in range(2):
        with opened(files[kind]) as llm:
            again = [*chat, more]
            assert llm.recall_state(again, file) == n_cached > 128
            assert say(llm, again) == expected
            assert llm.stats.cached_tokens == n_cached
            assert llm.recall_state(again, file) == 0  # it is there


def test_a_damaged_file_is_removed_and_never_restored(
    files: dict[str, str], kept: tuple[Path, list[Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, chat = kept
    data, more = bytearray(file.read_bytes()), [*chat, Message("user", "more")]
    with opened(files["llama"]) as llm:
        monkeypatch.setattr(llm.context, "restore", lambda *args: pytest.fail("it was restored"))
        for place in (3, 20, 100, -40_000, -10):
            cut = bytes(data[:place])
            for changed in (cut, cut + bytes([data[place] ^ 1]) + bytes(data[place:][1:])):
                file.write_bytes(changed)
                assert llm.recall_state(more, file) == 0
                # What it depends on may be changed so that it is valid elsewhere; here it is not used all the same.
                assert not file.exists() or place in (20, 100)
        line, _, rest = bytes(data).partition(b"\n")
        file.write_bytes(json.dumps(json.loads(line) | {"states": [[0, float("inf")]]}).encode() + b"\n" + rest)
        assert llm.recall_state(more, file) == 0
        assert not file.exists()
        assert len(say(llm, more)) == 20


@pytest.mark.parametrize("settings", [{"ctx_size": 768}, {"cache_type_k": "q8_0"}, {"exact": False}])
def test_other_settings_leave_it_alone(
    files: dict[str, str], kept: tuple[Path, list[Message]], settings: dict[str, Any]
) -> None:
    file, chat = kept
    with opened(files["llama"], **settings) as llm:
        assert llm.recall_state([*chat, Message("user", "more")], file) == 0
    before = Path(files["llama"]).stat()
    with opened(files["llama"]) as llm:
        os.utime(files["llama"])  # written anew
        assert llm.recall_state([*chat, Message("user", "more")], file) > 128
    with opened(files["llama"]) as llm:
        assert llm.recall_state([*chat, Message("user", "more")], file) == 0
    os.utime(files["llama"], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.exists()


@pytest.mark.usefixtures("home")
def test_what_is_not_worth_it_is_not_kept(files: dict[str, str], tmp_path: Path) -> None:
    file, short, long = tmp_path / "a.kv", [Message("user", "print")], [Message("user", "print the number " * 40)]
    with opened(files["llama"]) as llm:
        say(llm, short)
        assert llm.keep_state(short, file, MUCH) == 0
        say(llm, long)
        assert llm.keep_state(long, file, 1000) == 0  # more than its share
        assert llm.keep_state(long, file, MUCH, within_s=0.0) == -1
        assert llm.keep_state([Message("user", "x y z")], file, MUCH) == 0  # another text, of which no slot has much
        for _ in range(60):
            llm.engine.slots.cache.observe_read(10**9, 1e-3)
        assert llm.keep_state(long, file, MUCH) == 0
    assert [*tmp_path.iterdir()] == []


def test_the_folder_is_bounded_and_the_disk_is_not_filled(
    files: dict[str, str], kept: tuple[Path, list[Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = kept
    size = file.stat().st_size
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    folder = bounded_folder.BoundedFolder(file.parent, 3 * size)
    for number, name in enumerate("bcd"):
        with folder.writing(file.parent / name, size) as opened_file:
            opened_file.write(bytes(size))
        os.utime(file.parent / name, (number, number))
    bounded_folder.used(file)
    left = file.with_name("a.kv.9.part")  # of a process that was killed
    left.write_bytes(b"x")
    os.utime(left, (0, 0))
    with folder.writing(file.parent / "e", size) as opened_file:
        opened_file.write(bytes(size))
    assert {path.name for path, _ in folder.files()} == {"a.kv", "d", "e"}
    with pytest.raises(ZeroDivisionError), folder.writing(file.parent / "e", size):
        raise ZeroDivisionError
    assert {path.name for path, _ in folder.files()} == {"a.kv", "d", "e"}
    monkeypatch.setattr(bounded_folder, "free_in", lambda folder: 0)
    with pytest.raises(OSError, match="full"), folder.writing(file.parent / "g", 1):
        pass
    assert folder.clear() == 3 * size  # nothing is given up for what has no room all the same


@pytest.mark.usefixtures("home")
@pytest.mark.native
def test_a_worker_keeps_and_recalls(files: dict[str, str], tmp_path: Path) -> None:
    from edgespec.runtime.worker import Worker
    from edgespec.settings import LoadSettings

    chat, file = [Message("user", "print the number " * 300)], tmp_path / "a.kv"
    settings = LoadSettings(files["llama"], threads=1, ctx_size=2048, spec_type="none")
    with Worker(settings) as worker:
        assert (worker.keep_state(chat, file, MUCH), worker.recall_state(chat, file)) == (0, 0)
    assert not file.exists()
