"""`edgespec pull` as a user meets it: killed and called again, stopped, on a terminal, as JSON, without a network."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cli_program import COMMAND, Finished, edgespec, edgespec_changed, environment
from fake_hub import FakeHub
from terminal import at_terminal, read_rest

SIZE, PART = 300_000, 100_000
NAME = "owner/tiny-GGUF"
SPEC = f"hf:{NAME}"
CATALOGUE = f"""
[tiny]
repository = "{NAME}"
drafts = ["tiny-draft"]

[tiny-draft]
repository = "owner/draft-GGUF"
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        hub.add(NAME, {"tiny-Q4_K_M.gguf": random.Random(0).randbytes(SIZE)})
        hub.add("owner/draft-GGUF", {"draft-Q4_K_M.gguf": b"a draft"})
        yield hub


def pull(hub: FakeHub, home: Path, *args: str, **variables: str) -> Finished:
    return edgespec("pull", *args, home=home, stdin=b"", **hub.environment(home, **variables))


def pulled(hub: FakeHub, home: Path, *args: str) -> list[dict[str, Any]]:
    """What --json tells of each model."""
    done = pull(hub, home, "--json", "-q", *args)
    assert (done.returncode, done.stderr) == (0, b"")
    models: list[dict[str, Any]] = json.loads(done.stdout)["models"]
    return models


@contextmanager
def begun(hub: FakeHub, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A pull of which PART bytes are here and the rest does not come."""
    hub.faults.stall_after, hub.faults.stalls = PART, 1
    with subprocess.Popen(
        [*COMMAND, "pull", SPEC], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=home,
        env=environment(home, **hub.environment(home, HF_HUB_DOWNLOAD_TIMEOUT="60")),
    ) as program:  # fmt: skip
        try:
            while partial_bytes(home) < PART:
                with suppress(subprocess.TimeoutExpired):
                    raise AssertionError(f"it ended with {program.wait(0.05)}")
            yield program
        finally:
            program.kill()


def partial_bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "hf").rglob("*.incomplete"))


def test_a_model_is_fetched_and_then_it_is_there(hub: FakeHub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, SPEC)
    first, path = done.stdout.decode().splitlines()
    assert first.startswith(f"{SPEC}: 300.0 kB fetched in 0:0")
    assert first.endswith(", hash verified")
    assert Path(path.strip()).stat().st_size == SIZE
    assert done.stderr.decode() == f"note: {SPEC} is tiny-Q4_K_M.gguf, 300.0 kB\n"
    again = pull(hub, tmp_path, SPEC)
    assert (again.stdout.decode(), again.stderr) == (f"{SPEC}: already here\n{path}\n", b"")
    assert hub.sent_bytes == SIZE


def test_a_pull_that_was_killed_goes_on_where_it_was(hub: FakeHub, tmp_path: Path) -> None:
    with begun(hub, tmp_path) as program:
        program.kill()
        assert program.wait(60) != 0
    (model,) = pulled(hub, tmp_path, SPEC)
    assert model["transferred_bytes"] + PART == model["size_bytes"] == SIZE
    assert (model["missing_bytes"], model["verified"]) == (SIZE - PART, True)
    assert hub.file_requests[-1].range == f"bytes={PART}-"


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_stops_at_once_and_keeps_what_came(hub: FakeHub, tmp_path: Path, number: int, code: int) -> None:
    with begun(hub, tmp_path) as program:
        program.send_signal(number)
        told, said = program.communicate(timeout=60)
    assert (program.returncode, told) == (code, b"")
    assert b"stopped: 100.0 kB of 300.0 kB are here" in said
    assert b"Traceback" not in said
    (model,) = pulled(hub, tmp_path, SPEC)
    assert model["transferred_bytes"] == SIZE - PART


@pytest.mark.skipif(os.name != "posix", reason="Windows refuses by itself to delete what is in use")
def test_what_is_being_fetched_is_not_deleted(hub: FakeHub, tmp_path: Path) -> None:
    with begun(hub, tmp_path) as program:
        done = edgespec("rm", "--unfinished", NAME, "-y", home=tmp_path, stdin=b"", **hub.environment(tmp_path))
        assert done.returncode == 1
        assert f"process {program.pid} uses it" in done.stderr.decode()
    assert partial_bytes(tmp_path) == PART


def test_a_dry_run_fetches_nothing(hub: FakeHub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, SPEC, "--dry-run")
    first, file = done.stdout.decode().splitlines()
    assert first.startswith(f"{SPEC}: 300.0 kB to fetch, ")
    assert file == "  tiny-Q4_K_M.gguf  300.0 kB"
    assert (done.returncode, done.stderr, hub.file_requests) == (0, b"", [])
    assert not (tmp_path / "hf").exists()


def test_a_dry_run_says_what_may_not_be_fetched(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.gated = True
    done = pull(hub, tmp_path, SPEC, "--dry-run")
    assert (done.returncode, hub.file_requests) == (3, [])
    assert done.stdout.decode().startswith(f"{SPEC}: 300.0 kB to fetch, ")
    assert f"{NAME} is gated: its licence has to be accepted first" in done.stderr.decode()
    assert f"accept it on {hub.endpoint}/{NAME}, then log in: hf auth login" in done.stderr.decode()
    assert pull(hub, tmp_path, SPEC, "--dry-run", HF_TOKEN="hf_granted").returncode == 0
    assert hub.file_requests == []


@pytest.mark.parametrize("args", [[], ["--dry-run"]])
def test_models_that_have_no_room_together_are_not_begun(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    for name, value in hub.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    little = f"from edgespec.models import fetch; fetch.free_bytes = lambda: {SIZE + 6}"  # the draft has 7
    done = edgespec_changed(little, "pull", SPEC, "hf:owner/draft-GGUF", *args, home=tmp_path)
    assert (done.returncode, hub.file_requests) == (3, [])
    said = f"{SPEC}, hf:owner/draft-GGUF: there is not enough space for all of them: 300.0 kB are needed, and 300.0 kB"
    assert said in done.stderr.decode()
    for spec in (SPEC, "hf:owner/draft-GGUF"):
        assert edgespec_changed(little, "pull", spec, *args, home=tmp_path).returncode == 0


def test_a_name_of_the_catalogue_brings_its_draft(hub: FakeHub, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "models.toml").write_text(CATALOGUE, encoding="utf-8")
    target, draft = pulled(hub, tmp_path, "tiny")
    assert (target["repository"], draft["repository"]) == (NAME, "owner/draft-GGUF")
    assert Path(draft["path"]).read_bytes() == b"a draft"
    assert [model["already_here"] for model in pulled(hub, tmp_path, "tiny", "--no-draft", SPEC)] == [True, True]


def test_a_revision_can_be_named_aside(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories[NAME].branches["v1"] = hub.repositories[NAME].commit
    (model,) = pulled(hub, tmp_path, SPEC, "--revision", "v1")
    assert (model["revision"], model["done"]) == ("v1", True)
    assert pull(hub, tmp_path, SPEC, "--revision", "v9").returncode == 3


@pytest.mark.parametrize("revision", ["../../../x", "/x", "a//b", ".."])
def test_a_revision_leads_out_of_no_folder(hub: FakeHub, tmp_path: Path, revision: str) -> None:
    done = pull(hub, tmp_path, SPEC, "--revision", revision)
    assert (done.returncode, hub.requests) == (2, [])
    assert "cannot be a revision" in done.stderr.decode()


def test_what_is_named_twice_is_told_once_and_a_folder_is_no_model(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    done = pull(hub, tmp_path, "demo", "./folder.gguf", "demo")
    assert (done.returncode, done.stdout.decode().count("demo: already here")) == (3, 1)
    assert done.stderr.decode().splitlines()[0] == "edgespec: ./folder.gguf is no file"


def test_one_that_fails_keeps_no_other_from_being_fetched(hub: FakeHub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, "hf:owner/missing", "nonsense", SPEC, "demo", "--json")
    assert done.returncode == 3
    models = json.loads(done.stdout)["models"]
    assert [model["done"] for model in models] == [False, False, True, True]
    assert "there is no repository owner/missing" in models[0]["error"]
    assert done.stderr.decode().splitlines()[-1] == "edgespec: 2 of 4 models were not fetched"


def test_a_failure_alone_is_said_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.gated = True
    done = pull(hub, tmp_path, SPEC, "-q")
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.decode() == (
        f"edgespec: {NAME} is gated: its licence has to be accepted first\n"
        f"  accept it on {hub.endpoint}/{NAME}, then log in: hf auth login (or set HF_TOKEN)\n"
    )


def test_offline_nothing_is_asked(hub: FakeHub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, SPEC, HF_HUB_OFFLINE="1")
    assert (done.returncode, hub.requests) == (3, [])
    assert f"without these: edgespec pull {SPEC}" in done.stderr.decode()


def test_with_offline_what_is_here_is_told_and_what_is_not_is_named(hub: FakeHub, tmp_path: Path) -> None:
    pulled(hub, tmp_path, SPEC)
    n_requests = len(hub.requests)
    done = pull(hub, tmp_path, "--offline", SPEC, "hf:owner/draft-GGUF")
    assert (done.returncode, len(hub.requests)) == (3, n_requests)
    assert done.stdout.decode().startswith(f"{SPEC}: already here\n")
    said = done.stderr.decode()
    assert "hf:owner/draft-GGUF is not on this machine: --offline or HF_HUB_OFFLINE forbids to fetch it" in said
    assert "\n  without these: edgespec pull hf:owner/draft-GGUF\n" in said
    assert "hf:owner/draft-GGUF: hf:owner" not in said


def test_that_there_is_no_network_is_said_once(hub: FakeHub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, SPEC, "hf:owner/draft-GGUF", HF_ENDPOINT="http://127.0.0.1:9")
    said = done.stderr.decode().splitlines()
    assert (done.returncode, len(said)) == (3, 3)
    assert said[0].startswith(f"edgespec: {SPEC}, hf:owner/draft-GGUF: 127.0.0.1:9 cannot be reached: ")


def test_on_a_terminal_one_line_tells_how_far_it_is(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.stall_after, hub.faults.stalls = PART, 1
    with at_terminal(tmp_path, ["pull", SPEC], streams=["stderr"], **hub.environment(tmp_path)) as (program, master):
        seen = read_rest(master)
        assert program.wait(60) == 0
    shown = [line.rstrip() for line in seen.replace("\n", "\r").split("\r")]
    assert any(line.startswith("100.0 kB of 300.0 kB, ") and line.endswith(" 33%") for line in shown)
    assert any("trying again in 1 s" in line for line in shown)
    assert "Fetching" not in seen  # huggingface_hub's own bars
    assert seen.endswith("\r")
