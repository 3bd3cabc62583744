"""A corpus: built from texts, searched, refused if it is damaged or has another vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_program import edgespec_alone
from tiny_gguf import write_model

import edgespec
from edgespec.core.index.continuation import BETWEEN
from edgespec.datastore import corpus
from edgespec.datastore.corpus import START, Corpus, build, corpus_dir, file_for, find, listed, read_about, text_files
from edgespec.errors import EdgespecError, UsageError
from edgespec.llama.model import LlamaModel
from edgespec.models.names.spec import resolve

TEXT = "import os\n" + "    self.assertEqual(os.path.join('a', 'b'), 'a/b')\n" * 6


@pytest.fixture(scope="module")
def vocabulary() -> Any:
    with LlamaModel.load_vocabulary(resolve("demo").path) as model:
        yield model


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    (folder / "below").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / "a.txt").write_text(TEXT, encoding="utf-8")
    (folder / "below" / "b.txt").write_text("Über das Meer", encoding="utf-8")
    (folder / "c.bin").write_bytes(b"\xff\xfe\x00")
    (folder / ".hidden" / "d.txt").write_text("not this one", encoding="utf-8")
    return folder


@pytest.fixture
def built(texts: Path, tmp_path: Path, vocabulary: LlamaModel) -> Path:
    out = tmp_path / "x.corpus"
    build(text_files([texts]), vocabulary, out)
    return out


def test_folders_are_searched_and_what_is_no_text_is_left_out(
    texts: Path, tmp_path: Path, vocabulary: LlamaModel
) -> None:
    assert [file.name for file in text_files([texts])] == ["a.txt", "b.txt", "c.bin"]
    told: list[str] = []
    about, left_out = build(
        text_files([texts]), vocabulary, tmp_path / "x.corpus", lambda what, done: told.append(what)
    )
    assert (about.files, len(left_out)) == (2, 1) and "c.bin" in left_out[0]
    assert about.texts_bytes == len(TEXT) + len("Über das Meer".encode())
    assert {"tokenising", "sorting"} <= set(told)
    opened = Corpus(tmp_path / "x.corpus")
    opened.check()
    assert (opened.index.tokens == BETWEEN).sum() == 2
    assert (tmp_path / "x.corpus").stat().st_size == START + 8 * about.tokens
    assert not list(tmp_path.glob("*.tmp"))


def test_long_texts_are_tokenised_in_parts(
    tmp_path: Path, vocabulary: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "long.txt").write_text(TEXT * 20 + "x" * 5000, encoding="utf-8")
    monkeypatch.setattr(corpus, "CHUNK", 1000)
    build([tmp_path / "long.txt"], vocabulary, tmp_path / "x.corpus")
    tokens = Corpus(tmp_path / "x.corpus").index.tokens
    assert vocabulary.detokenize(tokens[tokens != BETWEEN].tolist()).decode() == TEXT * 20 + "x" * 5000


def test_nothing_to_read_is_refused(tmp_path: Path, vocabulary: LlamaModel) -> None:
    (tmp_path / "c.bin").write_bytes(b"\xff")
    (tmp_path / "empty.txt").touch()
    for name in ("c.bin", "empty.txt"):
        with pytest.raises(UsageError, match="nothing to build"):
            build([tmp_path / name], vocabulary, tmp_path / "x.corpus")
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(UsageError, match="is another kind of file"):
        build([tmp_path / "notes.txt"], vocabulary, tmp_path / "notes.txt")
    with pytest.raises(UsageError, match="no file or folder"):
        text_files([tmp_path / "nothing"])
    with pytest.raises(UsageError, match="there is no folder"):
        build([tmp_path / "notes.txt"], vocabulary, tmp_path / "mistyped" / "x.corpus")
    assert not (tmp_path / "mistyped").exists()
    assert not list(tmp_path.glob("x.corpus*"))


def test_a_full_disk_leaves_nothing_behind(
    texts: Path, tmp_path: Path, vocabulary: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(corpus, "order_of", full)
    with pytest.raises(EdgespecError, match="No space left"):
        build(text_files([texts]), vocabulary, tmp_path / "x.corpus")
    assert not list(tmp_path.glob("x.corpus*"))


@pytest.mark.parametrize("damage", ["cut", "longer", "magic", "header", "version"])
def test_a_damaged_corpus_is_refused_with_the_reason(built: Path, damage: str) -> None:
    data = built.read_bytes()
    damaged = {
        "cut": data[:-4],
        "longer": data + b"1234",
        "magic": b"x" + data[1:],
        "header": data.replace(b'"files"', b'"filez"', 1),
        "version": data.replace(b'"version": 1', b'"version": 0', 1),
    }[damage]
    built.write_bytes(damaged)
    said = {"cut": "bytes instead of", "longer": "bytes instead of", "magic": "is not a corpus"}
    with pytest.raises(UsageError) as error:
        Corpus(built)
    assert said.get(damage, "header cannot be read" if damage == "header" else "another version") in str(error.value)


def test_changed_data_are_found_when_all_is_read_and_change_no_text(built: Path, home: Path) -> None:
    settings: dict[str, Any] = {"max_tokens": 32, "temperature": 0.0, "ignore_eos": True}
    with edgespec.load("demo", spec_type="none", threads=1) as plain:
        want = [event.id for event in plain.generate(TEXT, **settings)]
    data = np.fromfile(built, np.uint32)
    data[START // 4 :: 3] ^= 0x5555
    data.tofile(built)
    with pytest.raises(UsageError, match="is damaged"):
        Corpus(built).check()
    with edgespec.load("demo", spec_type="corpus", corpus=str(built), pace="fixed:6", threads=1) as llm:
        assert [event.id for event in llm.generate(TEXT, **settings)] == want


@pytest.mark.long(but=2)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("tree", [1, 4])
def test_a_corpus_drafts_and_changes_no_text(built: Path, temperature: float, tree: int, home: Path) -> None:
    settings: dict[str, Any] = {"max_tokens": 48, "temperature": temperature, "seed": 5, "ignore_eos": True}
    with edgespec.load("demo", spec_type="none", spec_tree=tree, threads=1) as plain:
        want = [event.id for event in plain.generate(TEXT, **settings)]
    with edgespec.load("demo", spec_type="corpus", corpus=str(built), pace="fixed:6", spec_tree=tree, threads=1) as llm:
        assert [event.id for event in llm.generate(TEXT, **settings)] == want
        assert llm.stats.by_source["corpus"].accepted > 0


def test_a_corpus_of_another_vocabulary_is_refused(built: Path, tmp_path: Path) -> None:
    target = write_model(tmp_path / "tiny.gguf", "llama")
    with pytest.raises(UsageError, match=r"does not fit tiny\.gguf: it was made with the vocabulary of target\.gguf"):
        edgespec.load(str(target), spec_type="auto", corpus=str(built), threads=1)
    with pytest.raises(UsageError, match="no corpus was given"):
        edgespec.load("demo", spec_type="corpus", threads=1)


def test_names_and_paths(home: Path, built: Path) -> None:
    assert file_for("mine") == corpus_dir() / "mine.corpus"
    assert file_for("./mine") == Path("mine") and file_for("mine.corpus") == Path("mine.corpus")
    with pytest.raises(UsageError, match="no corpus mine"):
        find("mine")
    corpus_dir().mkdir(parents=True)
    (corpus_dir() / "mine.corpus").write_bytes(built.read_bytes())
    (corpus_dir() / "bad.corpus").write_bytes(b"")
    notes: list[str] = []
    assert [path.stem for path, _ in listed(notes.append)] == ["mine"] and "bad.corpus" in notes[0]
    assert find("mine") == corpus_dir() / "mine.corpus" and find(str(built)) == built
    assert read_about(built).model == "target.gguf"
    with pytest.raises(UsageError, match="there is no corpus mnie") as caught:
        find("mnie")
    assert caught.value.hint == "did you mean mine?"


def test_the_command(texts: Path, tmp_path: Path) -> None:
    def call(*arguments: str, status: int = 0) -> str:
        done = edgespec_alone(*arguments, home=tmp_path / "home")
        assert done.returncode == status, done.stderr
        return str(done.stdout.decode() + done.stderr.decode())

    (tmp_path / "home").mkdir()
    assert "there is no corpus yet" in call("corpus", "ls")
    said = call("corpus", "build", str(texts), "-o", "mine")
    assert "tokens of 2 files" in said and "skipped" in said
    assert call("corpus", "ls").splitlines()[2].split()[:1] == ["mine"]
    assert call("corpus", "ls").splitlines()[2].split()[-2] == "2"
    prompt = str(texts / "a.txt")
    options = ["--raw", "-n", "8", "--temp", "0", "-t", "1", "--corpus", "mine", "--spec-type", "corpus"]
    assert "corpus" in call("run", "-f", prompt, *options, "--pace", "fixed:4", "--explain")
    assert "add -y" in call("corpus", "rm", "mine", status=2)
    call("corpus", "rm", "mine", "-y")
    assert "no corpus mine" in call("corpus", "rm", "mine", status=2)
