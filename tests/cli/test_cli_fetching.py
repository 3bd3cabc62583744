"""Missing models of commands: downloaded with `-y`, after a question on a terminal, or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import Finished, a_model_in_this_process
from fake_hub import CATALOGUE, FakeHub, edgespec_with, hub_with_demo_pair
from terminal import at_terminal, read_rest, read_until

from edgespec.models.names.source import BUNDLED
from edgespec.text.figures import size_of

ASKED = ["run", "def add(a, b):", "-m", "demo-pair", "-n", "4", "-t", "1", "--raw", "--seed", "1", "--no-store"]
SIZE = size_of(sum((BUNDLED / name).stat().st_size for name in ("target.gguf", "draft.gguf")))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    with hub_with_demo_pair(tmp_path) as hub:
        yield hub


def run(hub: FakeHub, home: Path, *args: str) -> Finished:
    return edgespec_with(hub, *ASKED, *args, home=home)


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
    assert done.stderr.decode().count("running without its draft") == 1


def test_a_target_goes_without_a_draft_that_fails_while_it_comes(hub: FakeHub, tmp_path: Path) -> None:
    repository = tmp_path / "hf" / "hub" / "models--owner--draft-GGUF"
    repository.mkdir(parents=True)
    (repository / "snapshots").write_text("in the way")
    done = run(hub, tmp_path, "-y")
    assert done.returncode == 0, done.stderr
    assert len(hub.file_requests) == 2
    assert done.stderr.decode().count("running without its draft") == 1
    again = run(hub, tmp_path)
    assert b"running without its draft model; download it with 'edgespec pull demo-draft'" in again.stderr


def asked_repositories(hub: FakeHub) -> set[str]:
    return {name for name in hub.repositories for request in hub.requests if name in request.path}


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    "args", [["--spec-type", "none"], ["--spec-type", "suffix"], ["--spec-draft-n-max", "0"], ["-md", "demo:draft"]]
)
def test_a_draft_that_would_not_be_used_is_not_fetched(hub: FakeHub, tmp_path: Path, args: list[str]) -> None:
    done = run(hub, tmp_path, "-y", *args)
    assert done.returncode == 0, done.stderr
    assert asked_repositories(hub) == {"owner/demo-GGUF"}


@pytest.mark.parametrize(
    ("args", "with_draft"),
    [
        ("bench demo-pair --prompts none", True),
        ("bench demo-pair --prompts none --mode suffix --mode plain", False),
        ("bench demo-pair --prompts none -md demo:draft", False),
        ("compare demo-pair demo --text none", True),
        ("compare demo-pair demo --text none --modes suffix,recycling+lookup", False),
        ("compare demo-pair --text none -md demo:draft", False),
        ("compare demo-pair --text none --reference demo", False),
        ("perplexity demo-pair --text none", False),
    ],
)
def test_other_commands_fetch_a_draft_only_if_they_use_one(
    hub: FakeHub, tmp_path: Path, args: str, with_draft: bool
) -> None:
    hub.add("owner/demo-GGUF", {"demo-Q8_0.gguf": b"what fails later"})
    done = edgespec_with(hub, *args.split(), "-y", home=tmp_path)
    assert b"none" in done.stderr
    assert asked_repositories(hub) == {"owner/demo-GGUF"} | ({"owner/draft-GGUF"} if with_draft else set())


def test_nothing_is_fetched_before_all_that_is_named_can_be_meant(hub: FakeHub, tmp_path: Path) -> None:
    done = run(hub, tmp_path, "-y", "-md", "nonsense")
    assert (done.returncode, hub.requests) == (3, [])
    assert "model 'nonsense' was not found" in done.stderr.decode()


def test_several_models_are_asked_for_in_one_question(hub: FakeHub, tmp_path: Path) -> None:
    args = ["run", "hi", "-q", "-m", "demo-pair", "-md", "demo-draft"]
    with at_terminal(tmp_path, args, streams=["stdin", "stderr"], **hub.environment(tmp_path)) as (program, master):
        asked = read_until(master, "[Y/n]")
        assert asked.startswith("Download the model demo-pair (10.9 MB) and the draft demo-draft (1.3 MB), ")
        os.write(master, b"n\n")
        assert program.wait(60) == 3
    assert not hub.file_requests


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("answer", "code", "quiet"), [(b"\n", 0, []), (b"n\n", 3, ["-q"])])
def test_at_a_terminal_it_asks_first(hub: FakeHub, tmp_path: Path, answer: bytes, code: int, quiet: list[str]) -> None:
    on = at_terminal(tmp_path, [*ASKED, *quiet], streams=["stdin", "stderr"], **hub.environment(tmp_path))
    with on as (program, master):
        seen = read_until(master, "[Y/n]")
        asked = f"Download the model demo-pair (10.9 MB) and its draft hf:owner/draft-GGUF:Q8_0 (1.3 MB), {SIZE} ("
        assert asked in seen
        assert "B free)? [Y/n]" in seen
        assert ("demo-Q8_0.gguf, 10.9 MB" in seen) == (not quiet)
        os.write(master, answer)
        assert program.stdout is not None
        program.stdout.read()
        assert program.wait(60) == code
        if code:
            said = " ".join(read_rest(master).split())
            assert "edgespec pull demo-pair, or without its draft: edgespec pull demo-pair --no-draft" in said


def test_what_is_here_is_not_asked_for(hub: FakeHub, tmp_path: Path) -> None:
    pulled = edgespec_with(hub, "pull", "demo-pair", "--no-draft", home=tmp_path)
    assert pulled.returncode == 0, pulled.stderr
    args = ["run", "hi", "-q", "-m", "demo-pair", "-md", "demo-draft"]
    with at_terminal(tmp_path, args, streams=["stdin", "stderr"], **hub.environment(tmp_path)) as (program, master):
        assert read_until(master, "[Y/n]").startswith("Download the draft demo-draft, 1.3 MB (")
        os.write(master, b"n\n")
        assert program.wait(60) == 3


def test_a_draft_that_is_named_is_not_fetched_without_its_target(hub: FakeHub, tmp_path: Path) -> None:
    repository = tmp_path / "hf" / "hub" / "models--owner--demo-GGUF"
    repository.mkdir(parents=True)
    (repository / "snapshots").write_text("in the way")
    done = run(hub, tmp_path, "-y", "-md", "demo-draft")
    assert done.returncode == 3
    assert len(hub.file_requests) == 1


@pytest.mark.long
def test_a_chat_lists_and_fetches_a_model_and_goes_on_with_it(hub: FakeHub, tmp_path: Path) -> None:
    lines = b"/models demo-p\n/model demo-pair\n/model\n"
    args = ["chat", "--plain", "-m", "demo", "-t", "1", "--no-history", "-y"]
    with a_model_in_this_process():
        done = edgespec_with(hub, *args, home=tmp_path, stdin=lines)
    assert done.returncode == 0, done.stderr
    told = done.stdout.decode()
    assert re.search(r"^demo-pair  to download$", told, re.MULTILINE)
    assert "draft-Q8_0.gguf" in told.partition("model demo-pair")[2]
    assert len(hub.file_requests) == 2
