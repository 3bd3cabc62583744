"""Quantised copies of models: their files, progress, and refusals."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_gguf import write_model, write_vocabulary

from edgespec.errors import EdgespecError, ModelFileError, ModelNotFoundError, UsageError
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.quantize import quantize


def test_a_file_is_quantised_and_replaces_what_was_there(tmp_path: Path) -> None:
    source, destination = write_model(tmp_path / "f16.gguf", "llama", type="F16"), tmp_path / "q4_0.gguf"
    destination.write_bytes(b"GGUF, an old one")
    told: list[float] = []
    quantize(source, destination, "q4_0", progress=told.append)
    assert told == sorted(told) and told[0] < 0.2 and told[-1] == 1.0
    made = check_model(destination)
    types = {tensor.type for tensor in made.tensors.values() if len(tensor.shape) > 1}
    assert types == {"Q4_0", "Q8_0"}  # llama.cpp keeps the output better, with short rows in Q8_0
    assert made.metadata["general.file_type"] == 2

    def stop(done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(source, tmp_path / "other.gguf", "Q4_0", progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f16.gguf", "q4_0.gguf"]


def test_a_quantiser_whose_parent_is_killed_removes_its_file(tmp_path: Path) -> None:
    write_model(tmp_path / "f16.gguf", "llama", type="F16")
    code = (
        "import os; from pathlib import Path; from edgespec.llama.quantize import quantize\n"
        "quantize(Path('f16.gguf'), Path('other.gguf'), 'Q4_0', progress=lambda done: os._exit(3))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 3
    until_s = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) > 1 and time.monotonic() < until_s:
        time.sleep(0.05)
    assert [path.name for path in tmp_path.iterdir()] == ["f16.gguf"]


@pytest.mark.parametrize(
    ("source", "destination", "type", "error", "reason"),
    [
        ("f16.gguf", "x.gguf", "Q9_X", UsageError, "Q4_K_M"),
        ("f16.gguf", "f16.gguf", "Q4_0", UsageError, "with itself"),
        ("f16.gguf", "missing/x.gguf", "Q4_0", UsageError, "no folder"),
        ("f16.gguf", ".", "Q4_0", UsageError, "is a folder"),
        ("f16.gguf", "notes.txt", "Q4_0", UsageError, "another kind of file"),
        ("q8_0.gguf", "x.gguf", "Q4_0", ModelFileError, "quantised already"),
        ("vocabulary.gguf", "x.gguf", "Q4_0", ModelFileError, "no weights"),
        ("nothing.gguf", "x.gguf", "Q4_0", ModelNotFoundError, "does not exist"),
    ],
)
def test_what_cannot_be_quantised_is_refused(
    tmp_path: Path, source: str, destination: str, type: str, error: type[EdgespecError], reason: str
) -> None:
    write_model(tmp_path / "f16.gguf", "llama", type="F16")
    write_model(tmp_path / "q8_0.gguf", "llama", type="Q8_0")
    write_vocabulary(tmp_path / "vocabulary.gguf")
    (tmp_path / "notes.txt").write_text("precious")
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.iterdir())
    with pytest.raises(error, match=reason):
        quantize(tmp_path / source, tmp_path / destination, type)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.iterdir()) == before


def test_a_full_disk_is_not_said_to_be_a_fault_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "f16.gguf", "llama", type="F16")
    monkeypatch.setattr("edgespec.llama.quantize._run", lambda *_, **__: (1, ["failed to quantize"]))
    monkeypatch.setattr("edgespec.llama.quantize.free_in", lambda folder: 0)
    with pytest.raises(EdgespecError, match="the disk is full") as caught:
        quantize(tmp_path / "f16.gguf", tmp_path / "x.gguf", "Q4_0")
    assert caught.value.exit_code == 1
