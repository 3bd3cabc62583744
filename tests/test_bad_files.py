"""Bad model files by hand: the right error, a message that helps, exit code 3, and nothing broken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import cli_program
import numpy as np
import pytest
import tiny_gguf
from tiny_gguf import write_model

import edgespec
from edgespec.errors import ModelFileError, ModelNotFoundError

pytestmark = pytest.mark.usefixtures("home")


def empty(path: Path) -> None:
    path.touch()


def directory(path: Path) -> None:
    path.mkdir()


def text(path: Path) -> None:
    path.write_text("this is no model\n", encoding="utf-8")


def safetensors(path: Path) -> None:
    path.write_bytes(b"\x40\0\0\0\0\0\0\0" + b'{"weight":{"dtype":"F32"}}')


def truncated_header(path: Path) -> None:
    write_model(path, "llama")
    path.write_bytes(path.read_bytes()[:3000])


def truncated_data(path: Path) -> None:
    write_model(path, "llama")
    path.write_bytes(path.read_bytes()[:-1000])


def wrong_version(path: Path) -> None:
    tiny_gguf.raw_file(path, version=b"\x09\0\0\0")


def huge_counts(path: Path) -> None:
    tiny_gguf.raw_file(path, n_entries=1 << 40, n_tensors=1 << 40)


def tensor_outside(path: Path) -> None:
    tiny_gguf.raw_file(path, tensors=[tiny_gguf.raw_tensor("token_embd.weight", (64, 4), offset=1 << 41)])


def unknown_architecture(path: Path) -> None:
    write_model(path, "llama", metadata={"general.architecture": "llama9"})


def vocabulary_only(path: Path) -> None:
    tiny_gguf.write_vocabulary(path)


def embedding_only(path: Path) -> None:
    tiny_gguf.write_embedding_model(path)


def projector(path: Path) -> None:
    tiny_gguf.write_file(path, {"general.architecture": "clip"}, {"v.patch_embd.weight": np.zeros((8, 8), np.float32)})


def adapter(path: Path) -> None:
    write_model(path, "llama", metadata={"general.type": "adapter"})


def missing_part(path: Path) -> None:
    first, second = tiny_gguf.write_split(path.parent)
    second.unlink()
    first.rename(path)


def missing_tensor(path: Path) -> None:
    """Well-formed, and found out by llama.cpp itself."""
    write_model(path, "llama", tensors={"blk.1.ffn_up.weight": None})


def unknown_tokenizer(path: Path) -> None:
    """Well-formed, and found out by llama.cpp itself."""
    write_model(path, "llama", metadata={"tokenizer.ggml.pre": "no such thing"})


BAD_FILES: dict[Callable[[Path], None], str] = {
    empty: "is empty",
    directory: "is a directory",
    text: "not a GGUF file",
    safetensors: "safetensors",
    truncated_header: "incomplete",
    truncated_data: "incomplete",
    wrong_version: "version 9",
    huge_counts: "1,099,511,627,776",
    tensor_outside: "outside the file",
    unknown_architecture: "does not know its architecture 'llama9'",
    vocabulary_only: "only a vocabulary",
    embedding_only: "an embedding model",
    projector: "a vision projector",
    adapter: "a LoRA adapter",
    missing_part: "parts",
    missing_tensor: "ffn_up",
    unknown_tokenizer: "no such thing",
}


def written(write: Callable[[Path], None], folder: Path) -> Path:
    path = folder / ("tiny-00001-of-00002.gguf" if write is missing_part else f"{write.__name__}.gguf")
    write(path)
    return path


@pytest.mark.parametrize("write", BAD_FILES, ids=lambda write: write.__name__)
def test_a_bad_file_is_refused_with_its_reason(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = written(write, tmp_path)
    with pytest.raises(ModelFileError) as refused:
        edgespec.load(str(path))
    assert path.name in str(refused.value)
    assert BAD_FILES[write] in str(refused.value)
    assert refused.value.exit_code == 3


@pytest.mark.parametrize("write", BAD_FILES, ids=lambda write: write.__name__)
def test_the_program_says_why_and_exits_with_3(home: Path, tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = written(write, tmp_path)
    done = cli_program.edgespec_here("run", "hello", "-m", str(path), home=home)
    message = done.stderr.decode()
    assert (done.returncode, done.stdout) == (3, b"")
    assert BAD_FILES[write] in message
    assert "Traceback" not in message


def test_a_file_that_is_not_there(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "nothing.gguf"
    with pytest.raises(ModelNotFoundError, match=r"nothing\.gguf"):
        edgespec.load(str(path))
    done = cli_program.edgespec_here("run", "hello", "-m", str(path), home=home)
    assert (done.returncode, done.stdout) == (3, b"")
    assert "nothing.gguf" in done.stderr.decode()


def test_a_file_without_read_permission(tmp_path: Path) -> None:
    path = write_model(tmp_path / "locked.gguf", "llama")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ModelFileError, match="permission denied"):
        edgespec.load(str(path))


@pytest.mark.parametrize("write", [empty, truncated_data, vocabulary_only])
def test_a_bad_draft_is_refused_like_a_bad_target(tmp_path: Path, write: Callable[[Path], None]) -> None:
    target, draft = write_model(tmp_path / "target.gguf", "llama"), written(write, tmp_path)
    with pytest.raises(ModelFileError) as refused:
        edgespec.load(str(target), draft_model=str(draft))
    assert draft.name in str(refused.value)
    assert BAD_FILES[write] in str(refused.value)


def test_a_good_file_still_loads_after_all_that(tmp_path: Path) -> None:
    with edgespec.load(str(write_model(tmp_path / "good.gguf", "llama"))) as llm:
        assert [event.finish_reason for event in llm.generate("def", max_tokens=2)][-1] == "length"
