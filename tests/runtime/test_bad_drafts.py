"""A draft file that is bad in any way a target can be: the error names the draft, and the target's memory is freed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cli_program
import numpy as np
import pytest
from bad_files import BAD_FILES, truncated_header, written
from tiny_gguf import HYBRID, RECURRENT, write_model

import edgespec
from edgespec.errors import ModelFileError, ModelNotFoundError, PairError

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("models") / "target.gguf", "llama"))


def random_bytes(path: Path) -> None:
    path.write_bytes(np.random.default_rng(1).bytes(5000))


def random_bytes_after_the_magic(path: Path) -> None:
    path.write_bytes(b"GGUF\x03\0\0\0" + np.random.default_rng(1).bytes(5000))


def tensor_cut(path: Path) -> None:
    """The file ends in the middle of one of its last tensors."""
    write_model(path, "llama")
    path.write_bytes(path.read_bytes()[:-20_000])


def tensor_of_another_shape(path: Path) -> None:
    """Well-formed, and found out by llama.cpp itself."""
    write_model(path, "llama", tensors={"blk.0.ffn_up.weight": np.zeros((64, 64), np.float32)})


BAD_DRAFTS = BAD_FILES | {
    random_bytes: "not a GGUF file",
    random_bytes_after_the_magic: "",
    tensor_cut: "incomplete",
    tensor_of_another_shape: "ffn_up",
}


@pytest.mark.parametrize("write", BAD_DRAFTS, ids=lambda write: write.__name__)
def test_a_bad_draft_is_refused_by_its_name(tmp_path: Path, target: str, write: Callable[[Path], None]) -> None:
    path = written(write, tmp_path)
    with pytest.raises(ModelFileError) as refused:
        edgespec.load(target, draft_model=str(path), threads=1)
    assert path.name in str(refused.value)
    assert "target.gguf" not in str(refused.value)
    assert BAD_DRAFTS[write] in str(refused.value)
    assert refused.value.exit_code == 3


def test_a_draft_that_is_not_there_is_refused_by_its_name(tmp_path: Path, target: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nothing\.gguf"):
        edgespec.load(target, draft_model=str(tmp_path / "nothing.gguf"), threads=1)


@pytest.mark.parametrize("architecture", [*HYBRID, *RECURRENT])
def test_a_draft_whose_memory_forgets_nothing_is_refused(tmp_path: Path, target: str, architecture: str) -> None:
    draft = write_model(tmp_path / "draft.gguf", architecture)
    with pytest.raises(PairError, match=rf"draft\.gguf cannot draft: the state of a {architecture} model"):
        edgespec.load(target, draft_model=str(draft), threads=1)


def test_the_program_says_which_file_it_is(home: Path, tmp_path: Path, target: str) -> None:
    draft = written(truncated_header, tmp_path)
    for path, reason in ((draft, "incomplete"), (tmp_path / "nothing.gguf", "nothing.gguf")):
        done = cli_program.edgespec_here("run", "hello", "-m", target, "-md", str(path), home=home)
        assert (done.returncode, done.stdout) == (3, b"")
        assert path.name in done.stderr.decode()
        assert reason in done.stderr.decode()
        assert "Traceback" not in done.stderr.decode()


def test_a_bad_draft_that_is_not_asked_for_does_not_matter(tmp_path: Path, target: str) -> None:
    draft = str(written(truncated_header, tmp_path))
    for settings in ({"spec_type": "none"}, {"spec_type": "lookup"}, {"spec_draft_n_max": 0}):
        with edgespec.load(target, draft_model=draft, threads=1, **settings) as llm:
            assert [event.finish_reason for event in llm.generate("def", max_tokens=2)][-1] == "length"


def test_the_target_still_answers_after_all_that(tmp_path: Path, target: str) -> None:
    draft = write_model(tmp_path / "draft.gguf", "llama", noise=0.05)
    with edgespec.load(target, draft_model=str(draft), threads=1) as llm:
        assert [event.finish_reason for event in llm.generate("def", max_tokens=2)][-1] == "length"
