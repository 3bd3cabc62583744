"""`edgespec pull`: killed and resumed, stopped, on a terminal, without a network."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from cli_program import COMMAND, Finished, edgespec_here, environment
from fake_hub import FakeHub, edgespec_with
from published_heads import config, eagle3
from published_heads import write_head as write_published
from terminal import at_terminal, read_rest, read_until
from tiny_assistant import write_assistant, write_gemma4
from tiny_gguf import CHATML, write_model
from tiny_head import write_head, write_hydra
from tiny_projector import picture, write_projector

from edgespec.gguf_file.head_check import check_draft_file
from edgespec.models.hub import pulling
from edgespec.text.figures import size_of

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
    return edgespec_with(hub, "pull", *args, home=home, stdin=b"", **variables)


def pulled(hub: FakeHub, home: Path, *args: str) -> list[str]:
    """Return what is said about each model."""
    done = pull(hub, home, "-q", *args)
    assert (done.returncode, done.stderr) == (0, b"")
    return [line for line in done.stdout.decode().splitlines() if not line.startswith(" ")]


@contextmanager
def begun(hub: FakeHub, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A download that stops after PART bytes."""
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
    assert first.startswith(f"{SPEC}: 300.0 kB downloaded in 0:0")
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
    (said,) = pulled(hub, tmp_path, SPEC)
    assert said.startswith(f"{SPEC}: {size_of(SIZE - PART)} downloaded in 0:0")
    assert hub.file_requests[-1].range == f"bytes={PART}-"


@pytest.mark.long(but=1)
@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_stops_at_once_and_keeps_what_came(hub: FakeHub, tmp_path: Path, number: int, code: int) -> None:
    with begun(hub, tmp_path) as program:
        program.send_signal(number)
        told, said = program.communicate(timeout=60)
    assert (program.returncode, told) == (code, b"")
    assert b"stopped: 100.0 kB of 300.0 kB downloaded" in said
    assert b"Traceback" not in said
    assert pulled(hub, tmp_path, SPEC)[0].startswith(f"{SPEC}: {size_of(SIZE - PART)} downloaded in 0:0")


@pytest.mark.skipif(os.name != "posix", reason="Windows refuses by itself to delete what is in use")
def test_what_is_being_fetched_is_not_deleted(hub: FakeHub, tmp_path: Path) -> None:
    with begun(hub, tmp_path):
        done = edgespec_with(hub, "rm", NAME, "-y", home=tmp_path)
        assert done.returncode == 1
        assert "a download from it is running" in done.stderr.decode()
    assert partial_bytes(tmp_path) == PART


def test_a_beginning_that_is_whole_is_verified(hub: FakeHub, tmp_path: Path) -> None:
    content = hub.repositories[NAME].files["tiny-Q4_K_M.gguf"]
    blobs = tmp_path / "hf" / "hub" / "models--owner--tiny-GGUF" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(content).hexdigest()}.incomplete").write_bytes(content)
    assert pulled(hub, tmp_path, SPEC) == [f"{SPEC}: available without a transfer"]


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.skipif(os.name != "posix", reason="Windows locks files in another way")
def test_a_file_system_without_locks_will_do(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    done = pull(hub, tmp_path, SPEC)
    assert done.stderr.decode() == f"note: {SPEC} is tiny-Q4_K_M.gguf, 300.0 kB\n"
    assert (done.returncode, hub.sent_bytes) == (0, SIZE)


def test_a_dry_run_fetches_nothing(hub: FakeHub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, SPEC, "--dry-run")
    first, file = done.stdout.decode().splitlines()
    assert first.startswith(f"{SPEC}: 300.0 kB to download, ")
    assert file == "  tiny-Q4_K_M.gguf  300.0 kB"
    assert (done.returncode, done.stderr, hub.file_requests) == (0, b"", [])
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("args", [[], ["--dry-run"]])
def test_models_that_have_no_room_together_are_not_begun(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    monkeypatch.setattr(pulling, "free_in", lambda folder: SIZE + 6)  # the draft has 7
    done = pull(hub, tmp_path, SPEC, "hf:owner/draft-GGUF", *args)
    assert (done.returncode, hub.file_requests) == (3, [])
    said = f"{SPEC}, hf:owner/draft-GGUF: there is not enough disk space for all of them: 300.0 kB needed, 300.0 kB"
    assert said in done.stderr.decode()
    for spec in (SPEC, "hf:owner/draft-GGUF"):
        assert pull(hub, tmp_path, spec, *args).returncode == 0


@pytest.fixture
def catalogue(tmp_path: Path) -> None:
    """`tiny` is a name of the catalogue, and has a draft."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text(CATALOGUE, encoding="utf-8")


def test_a_target_that_has_no_room_with_its_draft_is_not_begun(
    hub: FakeHub, catalogue: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "free_in", lambda folder: SIZE + 6)
    done = pull(hub, tmp_path, "tiny")
    assert (done.returncode, hub.file_requests) == (3, [])
    hint = "download fewer of them, or none of the drafts (edgespec pull MODEL --no-draft), or free some space, or set"
    assert f"{hint} HF_HOME" in done.stderr.decode()
    assert pull(hub, tmp_path, "tiny", "--no-draft").returncode == 0


@pytest.mark.parametrize("spec", ["tiny:Q8_0", "tiny"])
def test_no_draft_comes_without_its_target(hub: FakeHub, catalogue: None, tmp_path: Path, spec: str) -> None:
    if spec == "tiny":  # it fails during the download
        repository = tmp_path / "hf" / "hub" / "models--owner--tiny-GGUF"
        repository.mkdir(parents=True)
        (repository / "snapshots").write_text("in the way")
    done = pull(hub, tmp_path, spec)
    assert done.returncode == 3
    assert len(hub.file_requests) == int(spec == "tiny")
    assert done.stderr.decode().count("edgespec: ") == 1
    assert not (tmp_path / "hf" / "hub" / "models--owner--draft-GGUF").exists()


def test_a_target_comes_without_a_draft_that_cannot(hub: FakeHub, catalogue: None, tmp_path: Path) -> None:
    del hub.repositories["owner/draft-GGUF"]
    done = pull(hub, tmp_path, "tiny")
    assert (done.returncode, done.stdout.decode().partition(" kB ")[0]) == (3, "tiny: 300.0")
    assert "there is no repository owner/draft-GGUF" in done.stderr.decode()
    assert done.stderr.decode().endswith("edgespec: 1 of 2 models were not downloaded\n")


def test_a_draft_that_is_named_itself_comes_with_or_without_a_target(
    hub: FakeHub, catalogue: None, tmp_path: Path
) -> None:
    target, draft = pulled(hub, tmp_path, "tiny", "tiny-draft")
    assert target.startswith("tiny: 300.0 kB downloaded in ") and draft.startswith("tiny-draft: 7 B downloaded in ")


def test_a_name_of_the_catalogue_brings_its_draft(hub: FakeHub, catalogue: None, tmp_path: Path) -> None:
    lines = pull(hub, tmp_path, "tiny").stdout.decode().splitlines()
    assert "models--owner--tiny-GGUF" in lines[1] and "models--owner--draft-GGUF" in lines[3]
    assert Path(lines[3].strip()).read_bytes() == b"a draft"
    assert pulled(hub, tmp_path, "tiny", "--no-draft", SPEC) == ["tiny: already here", f"{SPEC}: already here"]


def test_what_is_named_twice_is_reported_once_and_a_folder_is_no_model(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    done = pull(hub, tmp_path, "demo", "./folder.gguf", "demo")
    assert (done.returncode, done.stdout.decode().count("demo: already here")) == (3, 1)
    assert done.stderr.decode().splitlines()[0] == "edgespec: ./folder.gguf is not a file"


HEAD = "eagle3-tiny-Q8_0.gguf"


@pytest.fixture
def headed(hub: FakeHub) -> None:
    """The repository holds drafts next to the model."""
    drafts = {HEAD: b"a head", "eagle3-tiny-F16.gguf": b"a larger head", "mtp-tiny-Q8_0.gguf": b"a block"}
    hub.add(NAME, hub.repositories[NAME].files | drafts)


def test_a_draft_in_the_repository_is_named_and_pulled_if_wanted(hub: FakeHub, headed: None, tmp_path: Path) -> None:
    """Without a terminal to ask, nothing but the model is downloaded."""
    done = pull(hub, tmp_path, SPEC)
    offered = f"note: {SPEC}/{HEAD} (6 B) drafts for {SPEC}: edgespec pull {SPEC}/{HEAD}"
    assert offered in " ".join(done.stderr.decode().split())
    assert not [*tmp_path.rglob(HEAD)]
    assert HEAD.encode() not in pull(hub, tmp_path, SPEC, "--no-draft").stderr
    listed = pull(hub, tmp_path, SPEC, "--list", COLUMNS="120").stdout.decode()
    assert f"drafts for these: {SPEC}/{HEAD}, 6 B" in listed and "mtp-" not in listed
    assert [line.partition(": ")[0] for line in pulled(hub, tmp_path, SPEC, "--head")] == [SPEC, f"{SPEC}/{HEAD}"]
    [head] = tmp_path.rglob(HEAD)
    assert head.read_bytes() == b"a head"
    assert HEAD.encode() not in pull(hub, tmp_path, SPEC).stderr  # it is here
    assert b"contradict" in pull(hub, tmp_path, SPEC, "--head", "--no-draft").stderr


def test_the_projector_and_the_assistant_of_a_gemma_4_come_and_are_used(catalogue: None, tmp_path: Path) -> None:
    """A newcomer names a model, and nothing else."""
    model, assistant, projector = "gemma-4-tiny-Q4_K_M.gguf", "mtp-gemma-4-tiny.gguf", "mmproj-F16.gguf"
    write_gemma4(tmp_path / model, knows_bigrams=True)
    write_assistant(tmp_path / assistant, knows_bigrams=True)
    write_projector(tmp_path / projector, "gemma4v")
    spec = "hf:owner/gemma-4-tiny-GGUF"
    with FakeHub() as hub:
        files = {name: (tmp_path / name).read_bytes() for name in (model, assistant, projector)}
        hub.add("owner/gemma-4-tiny-GGUF", files)
        hub.add("owner/draft-GGUF", {"draft-Q4_K_M.gguf": b"a draft"})  # of the catalogue, which is not needed then
        file = tmp_path / "config" / "models.toml"
        file.write_text(file.read_text().replace(NAME, "owner/gemma-4-tiny-GGUF"))
        assert [line.partition(": ")[0] for line in pulled(hub, tmp_path, "tiny")] == ["tiny", f"{spec}/{assistant}"]
        assert pulled(hub, tmp_path, spec, "--no-draft") == [f"{spec}: already here"]
        for name in ("other", "third"):
            (tmp_path / name).mkdir()
        listed = pull(hub, tmp_path / "other", spec, f"{spec}/{assistant}", f"{spec}/{model}", "--dry-run").stdout
        assert listed.count(b"%b: " % assistant.encode()) == 1
        (tmp_path / "cat.png").write_bytes(picture())
        asked = ["run", "-m", "tiny", "-n", "20", "--temp", "0", "--stats", "-f", "cat.png", "what is this?"]
        done = edgespec_with(hub, *asked, home=tmp_path, stdin=b"")
        assert done.returncode == 0, done.stderr
        assert assistant.encode() in done.stderr and b"assistant" in done.stderr
        only = ["--spec-type", "assistant", "--pace", "fixed:3"]  # whether or not it pays for such a tiny model
        for flags in ([], only):
            told = json.loads(edgespec_with(hub, *asked, "--json", *flags, home=tmp_path, stdin=b"").stdout)
            assert told["draft_model"].endswith(assistant)
        assert told["by_source"]["assistant"]["accepted"] > 0
        (tmp_path / "other" / "cat.png").write_bytes(picture())
        typed = b"/file cat.png\nwhat is this?\n/model\n/bye\n"
        said = edgespec_with(hub, "chat", "--plain", "-y", "-m", spec, "-n", "8", home=tmp_path / "other", stdin=typed)
        assert said.returncode == 0 and b"cannot see" not in said.stderr + said.stdout
        assert assistant.encode() in said.stdout and b"recycling, assistant, draft length" in said.stdout
        done = edgespec_with(hub, "run", "-m", spec, "-y", "-n", "4", "hello", home=tmp_path / "third", stdin=b"")
        assert done.returncode == 0
        for home in (tmp_path / "other", tmp_path / "third"):
            assert {path.name for path in home.rglob("snapshots/*/*")} == {model, assistant, projector}


# --- published draft heads --------------------------------------------------------------------------------------------

PUBLISHED = "owner/tiny-eagle3"
HEADS = f"""
[tiny]
repository = "{NAME}"
heads = [
    "eagle3 owner/gone",
    "eagle3 owner/pickled",
    {{ kind = "eagle3", repository = "{PUBLISHED}", tokens = 2.9 }},
]
"""


@pytest.fixture
def published(hub: FakeHub, tmp_path: Path) -> None:
    """`tiny` is a real model, for which a head is published in another repository."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text(HEADS, encoding="utf-8")
    model = write_model(tmp_path / "made.gguf", "llama", n_layers=4, chat_template=CHATML)
    folder = write_published(tmp_path / "published", config(), eagle3([3, 9, 60, 97]))
    hub.add(NAME, {"tiny-Q4_K_M.gguf": model.read_bytes()})
    names = ("config.json", "model.safetensors")
    hub.add(PUBLISHED, {name: (folder / name).read_bytes() for name in names} | {"training.pt": b"large"})
    hub.add("owner/pickled", {"config.json": b"{}", "pytorch_model.bin": b"PK"})
    model.unlink()


def test_the_best_published_head_that_can_be_had_is_named(hub: FakeHub, published: None, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, "tiny")
    facts = r"EAGLE-3 head, [\d.]+ kB, published: 2.9 tokens a step"
    said = " ".join(done.stderr.decode().split())
    assert re.search(rf"note: {PUBLISHED} \({facts}\) drafts for tiny: edgespec pull tiny --head", said), said
    assert not [*tmp_path.rglob("snapshots/*/*.safetensors")]
    assert PUBLISHED.encode() not in pull(hub, tmp_path, "tiny", "--no-draft").stderr
    assert pull(hub, tmp_path, "-q", "tiny").stderr == b""
    assert b"owner/tiny-eagle3: " in pull(hub, tmp_path, "tiny", "--head", "--dry-run").stdout


@pytest.mark.slow
def test_a_published_head_is_converted_and_drafts_from_then_on(hub: FakeHub, published: None, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, "tiny", "--head")
    assert done.returncode == 0, done.stderr
    file = tmp_path / "data" / "models" / "owner-tiny-eagle3-Q8_0.gguf"
    lines = done.stdout.decode().splitlines()
    assert lines[2].startswith(f"{PUBLISHED}: ") and lines[2].endswith(" downloaded, converted for tiny")
    assert lines[3].strip() == str(file) and check_draft_file(file).architecture == "eagle3"
    assert f"{PUBLISHED} is model.safetensors and 1 more file" in " ".join(done.stderr.decode().split())
    again = pull(hub, tmp_path, "tiny")
    assert (again.stdout.decode().splitlines()[0], again.stderr) == ("tiny: already here", b"")
    assert b"tiny needs no other draft head: eagle3 here" in pull(hub, tmp_path, "tiny", "--head").stderr
    told = edgespec_with(hub, "run", "-m", "tiny", "-n", "8", "--stats", "hello", home=tmp_path).stderr
    assert file.name.encode() in told
    file.unlink()  # what was downloaded is converted again
    n_requests = len(hub.file_requests)
    assert (
        f"{PUBLISHED}: already downloaded, converted for tiny" in pull(hub, tmp_path, "tiny", "--head").stdout.decode()
    )
    assert file.is_file() and len(hub.file_requests) == n_requests


@pytest.mark.slow
@pytest.mark.parametrize("tensors", [{"fc.weight": None}, {"midlayer.self_attn.q_proj.weight": (64, 100)}])
def test_a_model_stays_usable_if_its_head_cannot_be_converted(
    hub: FakeHub, published: None, tmp_path: Path, tensors: dict[str, tuple[int, int] | None]
) -> None:
    head = eagle3([3, 9, 60, 97])
    for name, shape in tensors.items():
        del head[name]
        if shape:
            head[name] = np.zeros(shape, np.float32)
    folder = write_published(tmp_path / "published", config(), head)
    hub.add(PUBLISHED, {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")})
    done = pull(hub, tmp_path, "tiny", "--head")
    assert done.returncode != 0 and b"Traceback" not in done.stderr
    *_, error, hint = done.stderr.decode().splitlines()
    assert error.startswith("edgespec: ") and hint.endswith("tiny can be used without it")
    assert done.stdout.startswith(b"tiny: ") and b"converted" not in done.stdout
    assert not [*tmp_path.rglob("owner-tiny-eagle3*")]
    assert edgespec_with(hub, "run", "-m", "tiny", "-n", "2", "hello", home=tmp_path).returncode == 0


def test_a_head_in_gguf_is_used_as_it_is(hub: FakeHub, published: None, tmp_path: Path) -> None:
    file = tmp_path / "config" / "models.toml"
    file.write_text(f'[tiny]\nrepository = "{NAME}"\nheads = ["eagle3 owner/tiny-eagle3-GGUF"]')
    good = write_head(tmp_path / "good.gguf")
    files = {"x-Q4_K_M.gguf": b"smaller", "x-Q8_0.gguf": good.read_bytes(), "x-F16.gguf": b"a"}
    hub.add("owner/tiny-eagle3-GGUF", files)
    done = pull(hub, tmp_path, "tiny", "--head")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines()[3].endswith("x-Q8_0.gguf")
    good.unlink()
    shown = " ".join(edgespec_with(hub, "show", "tiny", home=tmp_path).stdout.decode().split())
    assert "draft head eagle3 here" in shown


def test_a_head_in_gguf_for_another_model_is_an_error(hub: FakeHub, published: None, tmp_path: Path) -> None:
    file = tmp_path / "config" / "models.toml"
    file.write_text(
        f'[tiny]\nrepository = "{NAME}"\nheads = ["hydra-owner/x"]'.replace("hydra-owner/x", "eagle3 owner/x-GGUF")
    )
    hub.add("owner/x-GGUF", {"x-Q8_0.gguf": write_hydra(tmp_path / "bad.gguf", n_vocab=5).read_bytes()})
    done = pull(hub, tmp_path, "tiny", "--head")
    assert done.returncode != 0
    assert b"x-Q8_0.gguf cannot draft for tiny-Q4_K_M.gguf: it is a head for 5 tokens" in done.stderr
    assert done.stderr.endswith(b"; tiny can be used without it\n")


def test_no_head_is_offered_that_the_model_cannot_use_or_does_not_need(
    hub: FakeHub, published: None, tmp_path: Path
) -> None:
    hub.about[NAME] = {"gguf": {"architecture": "mamba"}}
    done = pull(hub, tmp_path, "tiny", "--dry-run")
    assert done.stderr == b""
    assert b"no draft head was found for tiny" in pull(hub, tmp_path, "tiny", "--dry-run", "--head").stderr
    del hub.about[NAME]
    file = tmp_path / "config" / "models.toml"
    file.write_text(file.read_text().replace("heads = [", 'heads = [ "mtp",'))
    assert pull(hub, tmp_path, "tiny", "--dry-run").stderr == b""
    done = pull(hub, tmp_path, "tiny", "--dry-run", "--head")
    assert b"tiny needs no other draft head: mtp in its file" in done.stderr


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("answer", "comes"), [(b"\n", True), (b"n\n", False)])
def test_on_a_terminal_a_published_head_is_offered(
    hub: FakeHub, published: None, tmp_path: Path, answer: bytes, comes: bool
) -> None:
    on = at_terminal(tmp_path, ["pull", "tiny"], streams=["stdin", "stderr"], **hub.environment(tmp_path))
    with on as (program, master):
        seen = read_until(master, "[Y/n]")
        assert f"Also download {PUBLISHED} (EAGLE-3 head, " in seen and "published: 2.9 tokens a step)?" in seen
        os.write(master, answer)
        read_rest(master)
        assert program.wait(60) == 0
    assert bool([*tmp_path.rglob("owner-tiny-eagle3-Q8_0.gguf")]) == comes


def test_a_repository_without_a_draft_says_so_if_one_is_wanted(hub: FakeHub, tmp_path: Path) -> None:
    assert f"no draft head was found for {SPEC}".encode() in pull(hub, tmp_path, SPEC, "--head").stderr


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("answer", "comes"), [(b"\n", True), (b"n\n", False)])
def test_on_a_terminal_the_draft_of_a_repository_is_offered(
    hub: FakeHub, headed: None, tmp_path: Path, answer: bytes, comes: bool
) -> None:
    on = at_terminal(tmp_path, ["pull", SPEC], streams=["stdin", "stderr"], **hub.environment(tmp_path))
    with on as (program, master):
        assert HEAD in read_until(master, "[Y/n]")
        os.write(master, answer)
        read_rest(master)
        assert program.wait(60) == 0
    assert bool([*tmp_path.rglob(HEAD)]) == comes


def test_where_one_cannot_be_fetched_none_is(hub: FakeHub, tmp_path: Path) -> None:
    specs = ["hf:owner/missing", "nonsense", SPEC, "demo", "hf:owner/draft-GGUF"]
    done = pull(hub, tmp_path, *specs, "--no-draft")
    assert (done.returncode, hub.file_requests) == (3, [])
    assert [line for line in done.stdout.decode().splitlines() if line[0] != " "] == ["demo: already here"]
    assert "there is no repository owner/missing" in done.stderr.decode()
    assert done.stderr.decode().splitlines()[-2:] == [
        "edgespec: nothing was downloaded: 2 of 5 models cannot be downloaded",
        f"  to download the others: edgespec pull {SPEC} hf:owner/draft-GGUF --no-draft",
    ]
    assert pull(hub, tmp_path, SPEC, "hf:owner/draft-GGUF", "--no-draft").returncode == 0


def test_one_that_fails_while_it_comes_keeps_no_other_from_being_fetched(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "hf" / "hub" / "models--owner--tiny-GGUF").mkdir(parents=True)
    (tmp_path / "hf" / "hub" / "models--owner--tiny-GGUF" / "snapshots").write_text("in the way")
    done = pull(hub, tmp_path, SPEC, "hf:owner/draft-GGUF")
    assert (done.returncode, done.stdout.decode().partition(" B ")[0]) == (3, "hf:owner/draft-GGUF: 7")
    assert done.stderr.decode().splitlines()[-1] == "edgespec: 1 of 2 models were not downloaded"


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (SPEC, [f"{SPEC}:Q2_K", f"{SPEC}:Q4_K_M", f"{SPEC}/x-00001-of-00002.gguf"]),
        ("tiny:Q8_0", ["tiny:Q2_K", "tiny:Q4_K_M", f"{SPEC}/x-00001-of-00002.gguf"]),
    ],
)
def test_what_a_repository_offers_is_listed(
    hub: FakeHub, catalogue: None, tmp_path: Path, spec: str, names: list[str]
) -> None:
    pulled(hub, tmp_path, SPEC)
    files = hub.repositories[NAME].files | {f"x-0000{part}-of-00002.gguf": bytes(SIZE) for part in (1, 2)}
    hub.add(NAME, files | {"tiny-Q2_K.gguf": b"x" * 1234, "README.md": b"# tiny"})
    commit = pull(hub, tmp_path, SPEC).stdout.decode().partition("/snapshots/")[2].partition("/")[0]
    hub.repositories[NAME].commit = commit
    n_requests = len(hub.file_requests)
    done = pull(hub, tmp_path, spec, "--list", COLUMNS="120")
    first, _, _, *rows = done.stdout.decode().splitlines()
    assert first.startswith(f"{NAME}, ")
    assert [row.split() for row in rows] == [
        [names[0], "1.2", "kB", "1", "no"], [names[1], "300.0", "kB", "1", "yes"], [names[2], "600.0", "kB", "2", "no"]
    ]  # fmt: skip
    assert (done.returncode, len(hub.file_requests)) == (0, n_requests)


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["demo"], 2, "'demo' is not in a repository"),
        ([SPEC, "--offline"], 3, f"the contents of {NAME} are not known offline"),
        (["hf:owner/plain"], 3, "owner/plain has no GGUF model"),
    ],
)
def test_what_cannot_be_listed_is_said(hub: FakeHub, tmp_path: Path, args: list[str], code: int, said: str) -> None:
    hub.add("owner/plain", {"model.safetensors": b"weights"})
    done = pull(hub, tmp_path, "--list", *args)
    assert (done.returncode, done.stdout) == (code, b"")
    assert said in done.stderr.decode()


def test_a_failure_alone_is_said_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.gated = True
    done = pull(hub, tmp_path, SPEC, "-q")
    assert (done.returncode, done.stdout) == (3, b"")
    first, hint = done.stderr.decode().splitlines()
    assert first == f"edgespec: {NAME} is gated: its licence must be accepted first"
    assert hint.startswith(f"  request access, or accept the licence, on {hub.endpoint}/{NAME}; then log in: ")


def test_offline_nothing_is_asked(hub: FakeHub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, SPEC, HF_HUB_OFFLINE="1")
    assert (done.returncode, hub.requests) == (3, [])
    assert f"without them: edgespec pull {SPEC}" in done.stderr.decode()


def test_with_offline_what_is_here_is_reported_and_what_is_not_is_named(hub: FakeHub, tmp_path: Path) -> None:
    pulled(hub, tmp_path, SPEC)
    n_requests = len(hub.requests)
    done = pull(hub, tmp_path, "--offline", SPEC, "hf:owner/draft-GGUF")
    assert (done.returncode, len(hub.requests)) == (3, n_requests)
    assert done.stdout.decode().startswith(f"{SPEC}: already here\n")
    said = done.stderr.decode()
    assert "hf:owner/draft-GGUF is not on this machine: --offline or HF_HUB_OFFLINE prevents the download" in said
    assert "\n  without them: edgespec pull hf:owner/draft-GGUF\n" in said
    assert "hf:owner/draft-GGUF: hf:owner" not in said


def test_that_there_is_no_network_is_said_once(hub: FakeHub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, SPEC, "hf:owner/draft-GGUF", HF_ENDPOINT="http://127.0.0.1:9")
    said = done.stderr.decode().splitlines()
    assert (done.returncode, len(said)) == (3, 3)
    assert said[0].startswith(f"edgespec: {SPEC}, hf:owner/draft-GGUF: 127.0.0.1:9 cannot be reached: ")


@pytest.mark.long(but=1)
@pytest.mark.parametrize("args", [["-v"], []])
def test_the_password_in_an_address_is_not_printed(hub: FakeHub, tmp_path: Path, args: list[str]) -> None:
    for endpoint in (hub.endpoint, "http://127.0.0.1:9"):
        done = pull(hub, tmp_path, SPEC, *args, HF_ENDPOINT=endpoint.replace("//", "//bob:s3cret@"))
        assert b"s3cret" not in done.stdout + done.stderr
    assert (done.returncode, b"127.0.0.1:9 cannot be reached: " in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [
        ("http://bob:s3cret@mirror", "http://mirror"),
        ("bob:s3cret@mirror", "HF_ENDPOINT, which is not a web address"),
        ("mirror/hf?token=s3cret", "HF_ENDPOINT, which is not a web address"),
    ],
)
def test_the_password_in_an_address_is_not_in_a_bug_report(tmp_path: Path, endpoint: str, told: str) -> None:
    text = " ".join(edgespec_here("doctor", home=tmp_path, HF_ENDPOINT=endpoint).stdout.decode().split())
    assert (f", at {told}" in text, "s3cret" in text) == (True, False)


def test_an_endpoint_that_is_no_address_is_said(hub: FakeHub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, SPEC, HF_ENDPOINT="http://host:port")
    said = done.stderr.decode().splitlines()[0]
    assert (done.returncode, said) == (3, "edgespec: HF_ENDPOINT is not a web address")


@pytest.mark.long(but=2)
@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("ALL_PROXY", "socks5://bob:s3cret@127.0.0.1:1", "socksio"),
        ("ALL_PROXY", "foo://bob:s3cret@127.0.0.1:1", "Unknown scheme for proxy URL"),
        ("HTTPS_PROXY", "http://bob:s3cret/@127.0.0.1:1", "one of them is not an address"),
        ("SSL_CERT_FILE", "/nonexistent.pem", "No such file or directory"),
    ],
)
def test_settings_of_the_connection_that_cannot_be_used_are_named(
    hub: FakeHub, tmp_path: Path, name: str, value: str, why: str
) -> None:
    done = pull(hub, tmp_path, SPEC, **{"NO_PROXY": "", name: value})
    first, hint = done.stderr.decode().splitlines()
    assert (done.returncode, hub.requests) == (3, [])
    assert first.startswith("edgespec: the proxy or certificate settings cannot be used: ")
    assert why in first
    assert name in hint
    assert "s3cret" not in first


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_what_the_terminal_writes_for_ctrl_c_is_taken_away(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.stall_after, hub.faults.stalls = PART, 1
    variables = hub.environment(tmp_path, HF_HUB_DOWNLOAD_TIMEOUT="60")
    with at_terminal(tmp_path, ["pull", SPEC], streams=["stderr"], **variables) as (program, master):
        read_until(master, "100.0 kB of 300.0 kB, ")
        program.send_signal(signal.SIGINT)
        seen = read_rest(master)
        assert program.wait(60) == 130
    assert seen.partition("note: stopped")[0].partition("\r\x1b[K")[1]


@pytest.mark.long
def test_a_server_that_cuts_again_and_again_is_reported_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.cut_after, hub.faults.cuts = PART, 2
    done = pull(hub, tmp_path, SPEC, HF_HUB_DISABLE_TELEMETRY="1")
    _, broke = done.stderr.decode().splitlines()
    assert (done.returncode, len(hub.file_requests)) == (0, 3)
    assert broke.endswith(" broke: retrying in 1 s, giving up in 10 minutes if no data arrives")


@pytest.mark.long
def test_on_a_terminal_one_line_tells_how_far_it_is(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.stall_after, hub.faults.stalls = PART, 1
    with at_terminal(tmp_path, ["pull", SPEC], streams=["stderr"], **hub.environment(tmp_path)) as (program, master):
        seen = read_rest(master)
        assert program.wait(60) == 0
    shown = [line.rstrip() for line in seen.replace("\n", "\r").split("\r")]
    assert any(line.startswith("100.0 kB of 300.0 kB, ") and line.endswith(" 33%") for line in shown)
    assert any("retrying in 1 s" in line for line in shown)
    assert "Fetching" not in seen  # huggingface_hub's own bars
    assert seen.endswith("\r")
