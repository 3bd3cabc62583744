"""Requests to the hub, downloads that resume after any interruption, and the messages of refusals."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub, lead_to
from filelock import FileLock
from huggingface_hub import close_session, constants, try_to_load_from_cache

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, ModelNotFoundError
from edgespec.models.hub import fetch as fetching
from edgespec.models.hub import pulling
from edgespec.models.hub import requests as hub_requests
from edgespec.models.hub.disk import DownloadCancelled, Progress
from edgespec.models.hub.fetch import fetch
from edgespec.models.hub.pulling import check_space
from edgespec.models.hub.repository import choices_in, look_up, plan
from edgespec.models.hub.requests import DownloadError, Patience, shown
from edgespec.models.names.source import HubSpec, cached
from edgespec.models.names.spec import resolve

SIZE = 300_000
DATA = random.Random(0).randbytes(SIZE)
NEWER = random.Random(1).randbytes(SIZE + 1)
NAME = "owner/tiny-GGUF"
TINY = HubSpec(NAME)
RETRIES = 5  # of requests without data, with the waits of these tests
PARTS = [f"split-Q8_0-{part:05}-of-00005.gguf" for part in range(1, 6)]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as hub:
        lead_to(hub, tmp_path, monkeypatch)
        hub.add(NAME, {"tiny-Q4_K_M.gguf": DATA, "tiny-F16.gguf": NEWER, "README.md": b"# a model"})
        yield hub


def pull(wanted: HubSpec = TINY, said: list[str] | None = None) -> int:
    """Download a model and check it; return the bytes that were transferred."""
    seen: list[Progress] = []
    tell = (lambda _: None) if said is None else said.append
    download = plan(wanted, tell)
    path = fetch(download, seen.append, CancelFlag(), tell)
    assert (path, download.is_here) == (cached(wanted), True)
    assert (seen[-1].here_bytes, seen[-1].files_done) == (download.size_bytes, len(download.files))
    return seen[-1].transferred_bytes


def failed(wanted: HubSpec = TINY) -> EdgespecError:
    with pytest.raises(EdgespecError) as error:
        download = plan(wanted)
        check_space([download])
        fetch(download, lambda _: None, CancelFlag())
    assert error.value.exit_code == 3
    return error.value


def blobs(home: Path) -> dict[str, int]:
    """Return the sizes of the blobs of the repository; `...` is a partial file."""
    folder = home / "hf" / "hub" / "models--owner--tiny-GGUF" / "blobs"
    found = sorted(folder.iterdir()) if folder.exists() else []
    return {"..." if path.suffix == ".incomplete" else path.name[:8]: path.stat().st_size for path in found}


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_tells_sizes_and_touches_nothing(hub: FakeHub, tmp_path: Path) -> None:
    download = plan(TINY)
    assert [(file.name, file.size_bytes) for file in download.files] == [("tiny-Q4_K_M.gguf", SIZE)]
    assert (download.here_bytes, download.missing_bytes, download.is_here) == ((0,), SIZE, False)
    assert download.commit == hub.repositories[NAME].commit
    assert list(tmp_path.iterdir()) == []
    assert hub.file_requests == []


def test_all_parts_of_a_split_model_belong_to_it(hub: FakeHub) -> None:
    hub.add("owner/split-GGUF", {name: name.encode() * 9000 for name in PARTS})
    for wanted in (HubSpec("owner/split-GGUF", quant="Q8_0"), HubSpec("owner/split-GGUF", file=PARTS[2])):
        assert [file.name for file in plan(wanted).files] == PARTS
    pull(HubSpec("owner/split-GGUF", quant="Q8_0"))
    found = resolve("hf:owner/split-GGUF:Q8_0").path
    assert [found.with_name(name).read_bytes() for name in PARTS] == [name.encode() * 9000 for name in PARTS]
    assert hub.sent_bytes == sum(len(name) * 9000 for name in PARTS)


def test_a_split_model_of_which_the_hub_has_some_parts_only_is_refused(hub: FakeHub) -> None:
    hub.add(NAME, {PARTS[0]: b"1", PARTS[1]: b"2"})
    assert f"{PARTS[2]} is missing" in str(failed(HubSpec(NAME, quant="Q8_0")))


# --- fetching ---------------------------------------------------------------------------------------------------------


def test_a_fetched_file_is_where_huggingface_hub_looks_for_it(hub: FakeHub, tmp_path: Path) -> None:
    assert pull() == hub.sent_bytes == SIZE
    found = try_to_load_from_cache(NAME, "tiny-Q4_K_M.gguf", cache_dir=tmp_path / "hf" / "hub")
    assert isinstance(found, str)
    assert Path(found).read_bytes() == DATA
    assert resolve(f"hf:{NAME}").path == Path(found)
    assert list(blobs(tmp_path).values()) == [SIZE]


def test_what_is_here_is_not_fetched_again(hub: FakeHub) -> None:
    pull()
    assert pull() == 0
    assert len(hub.file_requests) == 1


@pytest.mark.parametrize("position", [0, 1, 4095, 4096, 65536, 100_001, SIZE - 1])
def test_a_fetch_that_broke_goes_on_where_it_was(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, position: int
) -> None:
    monkeypatch.setattr(hub_requests, "FETCHING_S", 0)
    hub.faults.cut_after = position
    assert ("the part already downloaded is kept" in str(failed())) == (position > 0)
    assert blobs(tmp_path) == {"...": position}
    hub.faults.cut_after = None
    assert plan(TINY).here_bytes == (position,)
    assert pull() == SIZE - position
    assert hub.sent_bytes == SIZE


@pytest.mark.parametrize("resets", [False, True])
def test_a_connection_that_breaks_again_and_again_is_taken_up_as_long_as_something_comes(
    hub: FakeHub, resets: bool
) -> None:
    hub.faults.cut_after, hub.faults.cuts, hub.faults.resets = 40_000, 6, resets
    said: list[str] = []
    pull(said=said)
    assert len(hub.file_requests) == 7
    assert len(said) == 1
    assert "broke: retrying in" in said[0]
    assert not resets or hub.faults.cuts == 0


@pytest.mark.slow
def test_a_server_that_stalls_is_asked_again(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.faults.stall_after, hub.faults.stalls = 50_000, 2
    said: list[str] = []
    assert pull(said=said) == SIZE
    assert [line.partition(" from ")[0] for line in said] == ["no data"]
    assert [request.range for request in hub.file_requests] == ["", "bytes=50000-", "bytes=100000-"]


def test_a_server_that_never_goes_on_is_given_up_and_what_came_is_kept(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    monkeypatch.setattr(hub_requests, "FETCHING_S", 0)
    hub.faults.stall_after = 50_000
    assert "no data from 127.0.0.1" in str(failed())
    assert blobs(tmp_path) == {"...": 50_000}


def test_a_server_without_ranges_sends_all_again(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.faults.cut_after, hub.faults.cuts, hub.faults.no_ranges = 50_000, 1, True
    assert pull() == SIZE + 50_000


def test_what_is_not_the_file_is_removed(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.other_content = True
    error = failed()
    assert "its hash differs" in str(error)
    assert blobs(tmp_path) == {}
    assert cached(TINY) is None
    hub.faults.other_content = False
    pull()


def test_more_than_the_file_is_not_the_file(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.too_much = 5
    assert "does not send the file: received something else instead" in str(failed())
    assert blobs(tmp_path) == {}


def test_a_partial_file_longer_than_the_whole_is_begun_anew(hub: FakeHub) -> None:
    download = plan(TINY)
    partial = download.partial(download.files[0])
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"x" * (SIZE + 1))
    assert plan(TINY).here_bytes == (0,)
    assert pull() == SIZE


def test_a_complete_partial_file_is_only_checked(hub: FakeHub) -> None:
    download = plan(TINY)
    partial = download.partial(download.files[0])
    partial.parent.mkdir(parents=True)
    partial.write_bytes(DATA)
    assert pull() == 0
    assert hub.file_requests == []


def test_a_file_that_git_keeps_itself_is_checked_as_git_counts(hub: FakeHub) -> None:
    hub.faults.no_lfs = True
    assert pull() == SIZE
    hub.faults.other_content = True
    assert "was not downloaded correctly" in str(failed(HubSpec(NAME, quant="F16")))


@pytest.fixture
def begun(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Download the first 50,000 bytes of TINY."""
    with monkeypatch.context() as patch:
        patch.setattr(hub_requests, "FETCHING_S", 0)
        hub.faults.cut_after = 50_000
        failed()
    hub.faults.cut_after = None


@pytest.mark.parametrize("fault", ["login_page", "other_range"])
def test_an_answer_that_is_not_of_the_file_takes_nothing_away(
    hub: FakeHub, begun: None, tmp_path: Path, fault: str
) -> None:
    setattr(hub.faults, fault, True)
    error = failed()
    assert "does not send the file: " in str(error)
    assert "does this network require a login?" in str(error)
    assert blobs(tmp_path) == {"...": 50_000}
    assert len(hub.file_requests) == 2 + RETRIES
    setattr(hub.faults, fault, False)
    assert pull() == SIZE - 50_000


def test_an_answer_of_another_length_takes_nothing_away(hub: FakeHub, begun: None, tmp_path: Path) -> None:
    hub.faults.no_ranges, hub.faults.too_much = True, 5
    assert "does not send the file: received something else instead" in str(failed())
    assert blobs(tmp_path) == {"...": 50_000}


@pytest.mark.parametrize("left", [b"x" * 1000, b"x" * SIZE])
def test_what_was_left_of_something_else_is_fetched_anew_once(hub: FakeHub, left: bytes) -> None:
    download, said = plan(TINY), list[str]()
    partial = download.partial(download.files[0])
    partial.parent.mkdir(parents=True)
    partial.write_bytes(left)
    assert pull(said=said) == SIZE - len(left) + SIZE
    assert said == ["the partial download of tiny-Q4_K_M.gguf belongs to another file: starting from the beginning"]


def test_what_others_began_stays(hub: FakeHub, begun: None, tmp_path: Path) -> None:
    hub.add(NAME, {"tiny-Q4_K_M.gguf": NEWER})
    assert pull() == SIZE + 1
    assert sorted(blobs(tmp_path).values()) == [50_000, SIZE + 1]


def test_a_folder_that_is_deleted_during_a_wait_is_made_again(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def delete(self: Patience, error: Exception) -> float:
        shutil.rmtree(tmp_path / "hf" / "hub" / "models--owner--tiny-GGUF")
        return 0.0

    monkeypatch.setattr(Patience, "wait_s", delete)
    hub.faults.cut_after, hub.faults.cuts = 50_000, 1
    assert pull() == 50_000 + SIZE


def test_an_error_in_between_is_no_end(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(fetching, "is_whole", fail)
    with pytest.raises(IndexError):
        fetch(plan(TINY), lambda _: None, CancelFlag())


def test_only_what_is_here_is_remembered(hub: FakeHub, tmp_path: Path) -> None:
    download = plan(TINY)

    def delete(progress: Progress) -> None:
        if progress.files_done:
            download.path.unlink(missing_ok=True)

    with pytest.raises(DownloadError, match="was deleted"):
        fetch(download, delete, CancelFlag())
    assert not (tmp_path / "hf" / "hub" / "models--owner--tiny-GGUF" / "refs").exists()


def test_a_branch_that_cannot_be_read_is_written_anew(hub: FakeHub, tmp_path: Path) -> None:
    ref = tmp_path / "hf" / "hub" / "models--owner--tiny-GGUF" / "refs" / "main"
    ref.parent.mkdir(parents=True)
    ref.write_bytes(b"\xff\xfe")
    pull()
    assert ref.read_text(encoding="ascii") == hub.repositories[NAME].commit


def test_beside_a_branch_nothing_is_ever_written(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refs, seen = tmp_path / "hf" / "hub" / "models--owner--tiny-GGUF" / "refs", list[list[Path]]()
    replace_file = Path.replace

    def look_and_replace(self: Path, target: Path) -> Path:
        seen.append(sorted(refs.iterdir()) if refs.exists() else [])
        return replace_file(self, target)

    monkeypatch.setattr(Path, "replace", look_and_replace)
    pull()
    assert len(seen) >= 3
    assert [paths for paths in seen if paths] == []
    assert sorted(path.name for path in refs.parent.iterdir()) == ["blobs", "refs", "snapshots"]


def test_until_the_new_one_is_whole_the_old_one_is_used(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    pull()
    old = cached(TINY)
    monkeypatch.setattr(hub_requests, "FETCHING_S", 0)
    hub.add(NAME, {"tiny-Q4_K_M.gguf": NEWER})
    hub.faults.cut_after = 50_000
    failed()
    assert cached(TINY) == old
    hub.faults.cut_after = None
    pull()
    assert cached(TINY) != old


# --- revisions, links and tokens --------------------------------------------------------------------------------------


def test_a_new_commit_with_the_same_file_takes_no_transfer(hub: FakeHub) -> None:
    pull()
    hub.add(NAME, {"tiny-Q4_K_M.gguf": DATA, "README.md": b"# the same model"})
    assert pull() == 0


def test_a_revision_is_kept_apart(hub: FakeHub) -> None:
    hub.repositories[NAME].branches["v1"] = hub.repositories[NAME].commit
    pull(replace(TINY, revision="v1"))
    assert cached(TINY) is None
    pull(replace(TINY, revision=hub.repositories[NAME].commit))


def test_where_there_are_no_links_the_file_itself_is_in_the_snapshot(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(self: Path, target: object) -> None:
        raise OSError("a privilege is not held")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    pull()
    path = cached(TINY)
    assert path is not None
    assert (path.is_symlink(), path.read_bytes()) == (False, DATA)
    assert blobs(tmp_path) == {}
    assert pull() == 0


def test_where_there_are_no_links_any_more_other_snapshots_keep_the_file(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(self: Path, target: object) -> None:
        raise OSError("a privilege is not held")

    pull()
    old = cached(TINY)
    hub.add(NAME, {"tiny-Q4_K_M.gguf": DATA, "README.md": b"# the same model"})
    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert pull() == 0
    new = cached(TINY)
    assert old is not None and new is not None and new != old
    assert old.read_bytes() == new.read_bytes() == DATA


def test_the_token_goes_to_the_hub_and_to_no_other_host(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull()
    assert {request.token for request in hub.requests if request not in hub.file_requests} == {"Bearer hf_secret"}
    assert [request.token for request in hub.file_requests] == [""]


# --- several at once, and stopping ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_of_two_that_fetch_one_file_the_second_waits_and_finds_it_done(hub: FakeHub) -> None:
    hub.faults.stall_after, hub.faults.stalls = 100_000, 1
    said: list[str] = []
    first = threading.Thread(target=pull)
    first.start()
    while hub.sent_bytes < 100_000:
        first.join(0.01)
        assert first.is_alive()
    download = plan(TINY)

    def go_on(text: str) -> None:
        said.append(text)
        hub.released.set()

    fetch(download, lambda _: None, CancelFlag(), go_on)
    first.join()
    assert said == ["another program is downloading tiny-Q4_K_M.gguf: waiting for it"]
    assert hub.sent_bytes == SIZE


@pytest.mark.slow
def test_a_cancelled_fetch_stops_and_goes_on_later(hub: FakeHub) -> None:
    hub.faults.stall_after, hub.faults.stalls = 100_000, 1
    cancel = CancelFlag()

    def stop(progress: Progress) -> None:
        if progress.here_bytes == 100_000:
            cancel.set()

    with pytest.raises(DownloadCancelled, match=r"stopped: 100\.0 kB of 300\.0 kB downloaded"):
        fetch(plan(TINY), stop, cancel)
    hub.released.set()  # ends the thread that waits for the network
    assert pull() == SIZE - 100_000


def test_a_cancelled_wait_for_another_program_ends(hub: FakeHub, tmp_path: Path) -> None:
    download, cancel = plan(TINY), CancelFlag()
    lock = tmp_path / "hf" / "hub" / ".locks" / "models--owner--tiny-GGUF" / f"{download.files[0].etag}.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock), pytest.raises(DownloadCancelled):
        fetch(download, lambda _: None, cancel, lambda _: cancel.set())
    assert hub.file_requests == []


# --- the disk ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def leave_free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the free bytes of every disk."""
    return lambda free: monkeypatch.setattr(pulling, "free_in", lambda _: free)


def test_too_little_space_is_said_before_anything_is_fetched(hub: FakeHub, leave_free: Callable[[int], None]) -> None:
    leave_free(SIZE - 1)
    assert "300.0 kB needed, 300.0 kB free" in str(failed())
    assert hub.file_requests == []


def test_the_space_for_several_is_that_for_each_file_once(hub: FakeHub, leave_free: Callable[[int], None]) -> None:
    files = [plan(TINY), plan(replace(TINY, quant="Q4_K_M")), plan(replace(TINY, quant="F16"))]
    leave_free(2 * SIZE + 1)
    check_space(files)
    leave_free(2 * SIZE)
    with pytest.raises(DownloadError, match=r"for all of them: 600\.0 kB needed"):
        check_space(files)


def test_a_disk_that_becomes_full_keeps_what_is_on_it(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = tmp_path / "hf"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    if os.name != "posix" or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("no small file system can be made here")
    try:
        monkeypatch.setattr(pulling, "free_in", lambda _: 10**9)
        error = failed()
        assert "no space left" in str(error)
        assert "the same command resumes" in str(error)
        here = blobs(tmp_path)["..."]
        assert 0 < here <= 200 << 10
        subprocess.run(["mount", "-o", "remount,size=2m", str(disk)], check=True)
        assert pull() == SIZE - here
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_cache_that_cannot_be_written_is_named(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file"))
    assert f"{tmp_path / 'file'} is not writable" in str(failed())
    with pytest.raises(DownloadError, match="is not writable"):  # and nothing is requested
        check_space([plan(TINY)])
    assert hub.file_requests == []


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_an_unknown_repository_is_said_with_what_to_do(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    error = failed(HubSpec("ovner/tiny-GGUF"))
    assert isinstance(error, ModelNotFoundError)
    assert "there is no repository ovner/tiny-GGUF" in str(error)
    assert f"search: {hub.endpoint}/models?library=gguf&search=tiny-GGUF; log in: hf auth login" in error.hint
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    hub.faults.unauthorized = True
    assert "your token may not have access" in str(failed())


def test_a_gated_repository_tells_where_its_licence_is_and_how_to_log_in(hub: FakeHub) -> None:
    hub.faults.gated = True
    assert f"{NAME} is gated" in str(failed())
    assert f"accept the licence, on {hub.endpoint}/{NAME}; then log in: " in str(failed())


def test_a_gated_repository_tells_a_token_without_access_apart(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.faults.gated = True
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert "the account of your token has no access" in str(failed())
    monkeypatch.setenv("HF_TOKEN", "hf_granted")
    pull()


@pytest.mark.parametrize(
    ("address", "as_shown"),
    [
        ("https://mirror.example:8080/hub/", "https://mirror.example:8080/hub"),
        ("http://bob:s3cret@mirror.example/hub", "http://mirror.example/hub"),
        ("http://bob:s3@cret@[::1]:80", "http://[::1]:80"),
        ("http://bob:s3/cret@mirror.example", ""),
        ("http://bob:12/cret@mirror.example", ""),
        ("http://bob:s3?cret@mirror.example", ""),
        ("http://mirror.example/hub?token=s3cret", ""),
        ("bob:s3cret@mirror.example", ""),
        ("http://host:port", ""),
        ("nonsense", ""),
        (" ", ""),
    ],
)
def test_of_an_address_no_password_is_shown_and_of_none_nothing(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, address: str, as_shown: str
) -> None:
    assert shown(address) == as_shown
    monkeypatch.setenv("HF_ENDPOINT", address)
    if not as_shown:
        assert str(failed()) == "HF_ENDPOINT is not a web address\n  set it to https://host/path, or unset it"


@pytest.mark.slow
def test_no_refusal_shows_the_password_of_an_address(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint.replace("//", "//bob:s3cret@"))
    for status in (404, 429):
        hub.faults.busy, hub.faults.busy_status = 1000, status
        said = str(failed())
        assert "127.0.0.1" in said
        assert "bob" not in said
    hub.faults.busy, hub.faults.gated = 0, True
    said = str(failed())
    assert f"on {hub.endpoint}/{NAME}; " in said
    assert "bob" not in said


def test_a_token_that_cannot_be_sent_is_said(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_ä")
    error = failed()
    assert str(error).startswith("the token cannot be used: ")
    assert "hf_ä" not in str(error)


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_token_that_cannot_be_read_is_said(hub: FakeHub, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "hf" / "token"
    file.parent.mkdir()
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    assert str(failed()).startswith("the token cannot be used: ")


def test_the_settings_of_whoever_runs_the_tests_stay_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (mine := ("HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "TRANSFORMERS_OFFLINE", "all_proxy")):
        monkeypatch.setenv(name, "mine")
    with FakeHub():
        assert os.environ.keys().isdisjoint(mine)
    assert [os.environ[name] for name in mine] == ["mine"] * 4


def test_a_token_that_the_hub_does_not_know_is_said(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    hub.faults.bad_token = True
    assert "rejects the token" in str(failed())


def test_other_refusals_are_given_in_the_hubs_words(hub: FakeHub) -> None:
    hub.faults.forbidden = "Access to this resource is disabled."
    assert f"denies access to {NAME}: Access to this resource is disabled." in str(failed())


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (HubSpec(NAME, revision="v9"), "has no revision 'v9'"),
        (HubSpec(NAME, quant="Q2_K"), "has no Q2_K: available: F16, Q4_K_M"),
        (HubSpec(NAME, file="tiny-Q4_K_S.gguf"), "has no file tiny-Q4_K_S.gguf\n  did you mean tiny-Q4_K_M.gguf or"),
        (HubSpec("owner/plain"), "has no GGUF model\n  look for a repository with GGUF files: http://127.0.0.1:"),
        (HubSpec("owner/plain"), "/models?library=gguf&search=plain"),
        (HubSpec("owner/two--dashes"), "there is no repository owner/two--dashes"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(hub: FakeHub, wanted: HubSpec, said: str) -> None:
    hub.add("owner/plain", {"model.safetensors": b"weights"})
    error = failed(wanted)
    assert isinstance(error, ModelNotFoundError)
    assert said in str(error)


@pytest.mark.parametrize(
    "name", ["../x.gguf", "a/../../x.gguf", "/x.gguf", "a//x.gguf", "a\\x.gguf", "C:x.gguf", "\0.gguf"]
)
def test_a_listing_with_names_that_lead_elsewhere_is_refused(hub: FakeHub, name: str, tmp_path: Path) -> None:
    hub.add(NAME, {name: DATA, "tiny-Q4_K_M.gguf": DATA})
    assert f"{NAME} is refused: it lists a file called {name!r}" in str(failed())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"size": "12"}, "does not give its size and hash"),
        ({"size": -5}, "does not give its size and hash"),
        ({"size": None}, "does not give its size and hash"),
        ({"blobId": "../../x"}, "does not give its size and hash"),
        ({"size": 0}, "it is empty"),
    ],
)
def test_a_file_that_is_not_described_is_in_the_way_of_no_other(hub: FakeHub, told: dict[str, Any], why: str) -> None:
    hub.faults.no_lfs = True
    good = {"rfilename": "tiny-Q4_K_M.gguf", "size": SIZE, "blobId": plan(TINY).files[0].etag}
    hub.faults.siblings = [good, good | {"rfilename": "tiny-Q8_0.gguf"} | told, {"rfilename": 5, "size": 5}]
    pull()
    error = str(failed(replace(TINY, quant="Q8_0")))
    assert error.startswith(f"tiny-Q8_0.gguf of {NAME} cannot be downloaded: ")
    assert error.endswith(why)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_hub_is_asked_again(hub: FakeHub, status: int) -> None:
    hub.faults.busy, hub.faults.busy_status = 3, status
    said: list[str] = []
    pull(said=said)
    assert [f"responds with status {status}: retrying in" in line for line in said] == [True]


@pytest.mark.parametrize(("status", "said"), [(429, "limits the number of requests"), (502, "has a problem right now")])
@pytest.mark.slow
def test_a_hub_that_stays_busy_is_given_up(hub: FakeHub, status: int, said: str) -> None:
    hub.faults.busy, hub.faults.busy_status = 1000, status
    assert said in str(failed())
    assert len(hub.requests) == RETRIES + 1


def test_it_waits_as_long_as_the_hub_asks(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("edgespec.models.hub.repository.time.sleep", waits.append)
    hub.faults.busy, hub.faults.busy_status, hub.faults.retry_after = 1, 429, "7"
    plan(TINY)
    assert waits == [7.0]


def test_a_network_that_asks_for_a_login_is_no_hub(hub: FakeHub) -> None:
    hub.faults.not_json = True
    error = failed()
    assert error.what.endswith("does not respond like a model hub")
    assert error.why == "the response is not a list of files"
    assert "does this network require a login?" in error.hint
    assert "is HF_ENDPOINT right?" in error.hint


@pytest.mark.parametrize("endpoint", ["http", "https"])
def test_a_proxy_that_wants_a_password_is_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    hub.faults.busy, hub.faults.busy_status = 1000, 407
    monkeypatch.setenv(f"{endpoint}_proxy", hub.endpoint)
    monkeypatch.setattr(constants, "ENDPOINT", f"{endpoint}://hub.example")
    close_session()
    error = failed()
    assert error.why == "it requires a user name and password"
    assert error.hint == f"check {endpoint}_proxy, for example http://name:password@host:port"
    assert hub.requests[0].path.removesuffix(":443").startswith(("http://hub.example/api", "hub.example"))


def test_an_endpoint_that_is_empty_is_none(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "")
    pull()
    assert "HF_ENDPOINT" not in os.environ


def test_no_network_is_said_at_once(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    said: list[str] = []
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:9 cannot be reached"):
        plan(TINY, said.append)
    assert said == []


def test_a_network_that_is_gone_for_minutes_ends_no_fetch() -> None:
    patience, error = Patience(hub_requests.FETCHING_S, lambda _: None), ConnectionError("gone")
    waits = list(iter(lambda: patience.wait_s(error), None))
    assert waits[:7] == [1, 2, 4, 8, 16, 30, 30]
    assert 600 <= sum(waits) <= 630
    patience.renew()
    assert patience.wait_s(error) == 1
    assert patience.wait_s(ValueError("of another kind")) is None


def test_a_reason_is_reported_once() -> None:
    said = list[str]()
    patience = Patience(600, said.append)
    for _ in range(3):
        patience.wait_s(ConnectionError("cut"))
        patience.wait_s(hub_requests.OtherAnswerError("received text/html instead"))
    assert said[0].endswith(" broke: retrying in 1 s, giving up in 10 minutes if no data arrives")
    assert "does this network require a login?" in said[1]
    assert len(said) == 2


def test_who_is_given_up_says_that_nothing_came(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    download = plan(TINY)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    )
    said: list[str] = []
    with pytest.raises(DownloadError, match="cannot be reached") as error:
        fetch(download, lambda _: None, CancelFlag(), said.append)
    assert error.value.hint == "try again"
    assert "Errno" not in error.value.why
    assert len(said) == 1


def test_a_projector_is_downloaded_with_its_model(hub: FakeHub) -> None:
    hub.add(NAME, {"m-Q4_K_M.gguf": b"1234", "m-Q8_0.gguf": b"12345", "mmproj-F16.gguf": b"12"})
    names = [file.name for file in plan(HubSpec(NAME, quant="Q8_0")).files]
    assert names == ["m-Q8_0.gguf", "mmproj-F16.gguf"]


# --- what is offered --------------------------------------------------------------------------------------------------


def test_a_repository_is_listed_with_sizes_the_smallest_first(hub: FakeHub) -> None:
    files = dict.fromkeys(PARTS, b"12345") | {"a.gguf": b"1", "mmproj-F16.gguf": b"2", "b-Q4_0.gguf": b"12"}
    hub.add(NAME, files | {"c-Q4_0.gguf": b"123", "half-F32-00001-of-00002.gguf": b"1"})
    found = choices_in(look_up(TINY), str(TINY), TINY)
    assert [(each.file, each.quant, each.n_parts, each.size_bytes) for each in found] == [
        ("a.gguf", "", 1, 1), ("b-Q4_0.gguf", "", 1, 2), ("c-Q4_0.gguf", "", 1, 3), (PARTS[0], "Q8_0", 5, 25)
    ]  # fmt: skip
