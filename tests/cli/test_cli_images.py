"""Images on the command line: `run -f`, `--mmproj` and rows of a batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_program import edgespec_here
from tiny_projector import picture, write_seeing

from edgespec.files.images import data_url


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "cat.png").write_bytes(picture(1))
    (tmp_path / "dog.jpg").write_bytes(picture(2, format="JPEG"))
    return write_seeing(tmp_path / "models", "llama")


def answered(model: Path, *arguments: str) -> str:
    command = ["run", "-m", str(model), "--seed", "1", "--temp", "0", "-n", "8", "-t", "1", "-q", *arguments]
    done = edgespec_here(*command, home=model.parent.parent)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_run_shows_the_model_an_image(model: Path) -> None:
    texts = {answered(model, *files, "what is this?") for files in ([], ["-f", "cat.png"], ["-f", "dog.jpg"])}
    assert len(texts) == 3
    both = answered(model, "-f", "cat.png", "-f", "dog.jpg")
    assert both not in texts


def test_errors_come_before_the_answer(model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    (tmp_path / "cut.png").write_bytes(picture(1)[:400])
    for arguments, why in (
        (["-f", "bad.png", "?"], "bad.png is not an image"),
        (["-f", "cut.png", "?"], "cut.png cannot be decoded"),
        (["-f", "missing.png", "?"], "cannot be read"),
        (["-f", "cat.png", "--raw", "?"], "images need a chat"),
        (["-f", "cat.png", "--mmproj", "none", "?"], "tiny.gguf cannot see images"),
        (["--mmproj", "nowhere.gguf", "?"], "projector file 'nowhere.gguf' was not found"),
    ):
        done = edgespec_here("run", "-m", str(model), "-t", "1", *arguments, home=tmp_path)
        assert (done.returncode != 0, done.stdout) == (True, b"")
        assert why in done.stderr.decode()


def test_rows_of_a_batch_have_images_in_their_messages(model: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(data)}},
                                                   {"type": "text", "text": "?"}]}]}
        for data in (picture(1), picture(2))
    ]  # fmt: skip
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["batch", "in.jsonl", "-o", "out.jsonl", "-m", str(model), "--temp", "0", "-n", "8", "-t", "1", "-q"]
    done = edgespec_here(*command, home=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    texts = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len({json.dumps(text.get("content") or text) for text in texts}) == 2
