"""A model that a command needs and that is not here: fetched with `-y`, after a question at a terminal, or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import Finished, edgespec
from fake_hub import FakeHub
from terminal import at_terminal, read_until

from edgespec.models.spec import BUNDLED

CATALOGUE = """
[demo-pair]
repository = "owner/demo-GGUF"
quant = "Q8_0"
drafts = ["demo-draft"]

[demo-draft]
repository = "owner/draft-GGUF"
quant = "Q8_0"
"""
ASKED = ["run", "def add(a, b):", "-m", "demo-pair", "-n", "4", "-t", "1", "--raw", "--seed", "1", "--no-store"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text(CATALOGUE, encoding="utf-8")
    with FakeHub() as hub:
        hub.add("owner/demo-GGUF", {"demo-Q8_0.gguf": (BUNDLED / "target.gguf").read_bytes()})
        hub.add("owner/draft-GGUF", {"draft-Q8_0.gguf": (BUNDLED / "draft.gguf").read_bytes()})
        yield hub


def run(hub: FakeHub, home: Path, *args: str) -> Finished:
    return edgespec(*ASKED, *args, home=home, stdin=b"", **hub.environment(home))


def test_with_yes_the_model_and_its_draft_are_fetched_and_used(hub: FakeHub, tmp_path: Path) -> None:
    done = run(hub, tmp_path, "-y", "--json")
    assert done.returncode == 0, done.stderr
    assert b'"draft_model": "' in done.stdout
    assert b"draft-Q8_0.gguf" in done.stdout
    n_requests = len(hub.requests)
    again = run(hub, tmp_path, "--offline", "--json")
    assert again.returncode == 0, again.stderr
    assert len(hub.requests) == n_requests


@pytest.mark.parametrize("args", [[], ["--offline", "-y"]])
def test_where_nobody_can_be_asked_the_command_that_fetches_it_is_named(
    hub: FakeHub, tmp_path: Path, args: list[str]
) -> None:
    done = run(hub, tmp_path, *args)
    assert done.returncode == 3
    assert "model 'demo-pair' is not on this machine" in done.stderr.decode()
    assert "edgespec pull demo-pair" in done.stderr.decode()
    assert not hub.requests


def test_a_target_goes_without_a_draft_that_cannot_be_fetched(hub: FakeHub, tmp_path: Path) -> None:
    catalogue = CATALOGUE.replace("owner/draft-GGUF", "owner/gone-GGUF")
    (tmp_path / "config" / "models.toml").write_text(catalogue, encoding="utf-8")
    done = run(hub, tmp_path, "-y")
    assert done.returncode == 0, done.stderr
    assert "its draft cannot be fetched" in done.stderr.decode()


@pytest.mark.parametrize(("answer", "code"), [(b"\n", 0), (b"n\n", 3)])
def test_at_a_terminal_it_asks_first(hub: FakeHub, tmp_path: Path, answer: bytes, code: int) -> None:
    on = at_terminal(tmp_path, ASKED, streams=["stdin", "stderr"], **hub.environment(tmp_path))
    with on as (program, master):
        assert "demo-Q8_0.gguf, 10.9 MB" in read_until(master, "Fetch them?")
        os.write(master, answer)
        assert program.stdout is not None
        program.stdout.read()
        assert program.wait(60) == code
