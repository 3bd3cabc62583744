"""What the hub is asked, how a fetch goes on after whatever stopped it, and what its refusals say."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_hub import FakeHub
from filelock import FileLock
from huggingface_hub import constants, try_to_load_from_cache

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, ModelNotFoundError
from edgespec.models import fetch as fetching
from edgespec.models import hub_requests
from edgespec.models.fetch import DownloadCancelled, Progress, check_space, fetch
from edgespec.models.hub import check_access, plan
from edgespec.models.hub_requests import DownloadError
from edgespec.models.spec import HubSpec, cached, resolve

SIZE = 300_000
DATA = random.Random(0).randbytes(SIZE)
NEWER = random.Random(1).randbytes(SIZE + 1)
NAME = "owner/tiny-GGUF"
TINY = HubSpec(NAME)
PARTS = [f"split-Q8_0-{part:05}-of-00005.gguf" for part in range(1, 6)]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as hub:
        for name, value in hub.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        # what huggingface_hub has read already, when it was imported
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 30)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
        monkeypatch.setattr(hub_requests, "FIRST_WAIT_S", 0.01)
        hub.add(NAME, {"tiny-Q4_K_M.gguf": DATA, "tiny-F16.gguf": NEWER, "README.md": b"# a model"})
        yield hub


def pull(wanted: HubSpec = TINY, said: list[str] | None = None) -> int:
    """Fetch a model and check it: bytes that came over the network."""
    seen: list[Progress] = []
    tell = (lambda _: None) if said is None else said.append
    download = plan(wanted, tell)
    path = fetch(download, seen.append, CancelFlag(), tell)
    assert (path, download.is_here) == (cached(wanted), True)
    assert (seen[-1].here_bytes, seen[-1].files_done) == (download.size_bytes, len(download.files))
    return seen[-1].transferred_bytes


def failed(wanted: HubSpec = TINY) -> EdgespecError:
    with pytest.raises(EdgespecError) as error:
        fetch(plan(wanted), lambda _: None, CancelFlag())
    assert error.value.exit_code == 3
    return error.value


def blobs(home: Path) -> dict[str, int]:
    """The sizes of what is kept of the repository, `...` for a partial file."""
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
    monkeypatch.setattr(hub_requests, "RETRIES", 0)
    hub.faults.cut_after = position
    assert "the same command goes on" in str(failed())
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
    assert "broke: trying again in" in said[0]
    assert not resets or hub.faults.cuts == 0


def test_a_server_that_stalls_is_asked_again(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    hub.faults.stall_after, hub.faults.stalls = 50_000, 2
    said: list[str] = []
    assert pull(said=said) == SIZE
    assert [line.partition(" from ")[0] for line in said] == ["nothing came"] * 2
    assert [request.range for request in hub.file_requests] == ["", "bytes=50000-", "bytes=100000-"]


def test_a_server_that_never_goes_on_is_given_up_and_what_came_is_kept(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    monkeypatch.setattr(hub_requests, "RETRIES", 0)
    hub.faults.stall_after = 50_000
    assert "does not answer: nothing came for 0.5 s" in str(failed())
    assert blobs(tmp_path) == {"...": 50_000}


def test_a_server_without_ranges_sends_all_again(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.faults.cut_after, hub.faults.cuts, hub.faults.no_ranges = 50_000, 1, True
    assert pull() == SIZE + 50_000


def test_what_is_not_the_file_is_removed(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.other_content = True
    error = failed()
    assert "its hash is not the one" in str(error)
    assert blobs(tmp_path) == {}
    assert cached(TINY) is None
    hub.faults.other_content = False
    pull()


def test_more_than_the_file_is_not_the_file(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.too_much = 5
    assert "not that file" in str(failed())
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
    assert "not that file" in str(failed(HubSpec(NAME, quant="F16")))


@pytest.fixture
def begun(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of TINY 50,000 bytes are here."""
    with monkeypatch.context() as patch:
        patch.setattr(hub_requests, "RETRIES", 0)
        hub.faults.cut_after = 50_000
        failed()
    hub.faults.cut_after = None


def test_a_file_that_changed_is_fetched_anew_and_its_old_beginning_goes(
    hub: FakeHub, begun: None, tmp_path: Path
) -> None:
    hub.add(NAME, {"tiny-Q4_K_M.gguf": NEWER})
    assert pull() == SIZE + 1
    assert list(blobs(tmp_path).values()) == [SIZE + 1]


def test_an_old_beginning_that_another_program_works_on_stays(hub: FakeHub, begun: None, tmp_path: Path) -> None:
    old = plan(TINY).files[0].etag
    hub.add(NAME, {"tiny-Q4_K_M.gguf": NEWER})
    with FileLock(tmp_path / "hf" / "hub" / ".locks" / "models--owner--tiny-GGUF" / f"{old}.lock"):
        pull()
    assert sorted(blobs(tmp_path).values()) == [50_000, SIZE + 1]


def test_until_the_new_one_is_whole_the_old_one_is_used(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    pull()
    old = cached(TINY)
    monkeypatch.setattr(hub_requests, "RETRIES", 0)
    hub.add(NAME, {"tiny-Q4_K_M.gguf": NEWER})
    hub.faults.cut_after = 50_000
    failed()
    assert cached(TINY) == old
    hub.faults.cut_after = None
    pull()
    assert cached(TINY) != old


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


def test_the_token_goes_to_the_hub_and_to_no_other_host(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull()
    check_access(plan(replace(TINY, quant="F16")))
    assert {request.token for request in hub.requests if request not in hub.file_requests} == {"Bearer hf_secret"}
    assert [request.token for request in hub.file_requests] == [""]


# --- several at once, and stopping ------------------------------------------------------------------------------------


def test_of_two_that_fetch_one_file_the_second_waits_and_finds_it_done(hub: FakeHub) -> None:
    hub.faults.stall_after, hub.faults.stalls = 100_000, 1
    said: list[str] = []
    first = threading.Thread(target=pull)
    first.start()
    while hub.sent_bytes < 100_000:
        first.join(0.01)
    download = plan(TINY)

    def go_on(text: str) -> None:
        said.append(text)
        hub.released.set()

    fetch(download, lambda _: None, CancelFlag(), go_on)
    first.join()
    assert said == ["another program fetches tiny-Q4_K_M.gguf: waiting for it"]
    assert hub.sent_bytes == SIZE


def test_a_cancelled_fetch_stops_and_goes_on_later(hub: FakeHub) -> None:
    hub.faults.stall_after, hub.faults.stalls = 100_000, 1
    cancel = CancelFlag()

    def stop(progress: Progress) -> None:
        if progress.here_bytes == 100_000:
            cancel.set()

    with pytest.raises(DownloadCancelled, match=r"stopped: 100\.0 kB of 300\.0 kB are here"):
        fetch(plan(TINY), stop, cancel)
    hub.released.set()  # the thread that waited for the network hears of it, and lets the file go
    assert pull() == SIZE - 100_000


def test_a_cancelled_wait_for_another_program_ends(hub: FakeHub, tmp_path: Path) -> None:
    download, cancel = plan(TINY), CancelFlag()
    lock = tmp_path / "hf" / "hub" / ".locks" / "models--owner--tiny-GGUF" / f"{download.files[0].etag}.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock), pytest.raises(DownloadCancelled):
        fetch(download, lambda _: None, cancel, lambda _: cancel.set())
    assert hub.file_requests == []


# --- the disk ---------------------------------------------------------------------------------------------------------


def test_too_little_space_is_said_before_anything_is_fetched(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "free_bytes", lambda: SIZE - 1)
    hub.add(NAME, {"tiny-Q4_K_M.gguf": b"x" * SIZE})
    assert "300.0 kB are needed, and 300.0 kB are free" in str(failed())
    assert hub.file_requests == []


def test_the_space_for_several_is_that_for_each_file_once(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = [plan(TINY), plan(replace(TINY, quant="Q4_K_M")), plan(replace(TINY, quant="F16"))]
    monkeypatch.setattr(fetching, "free_bytes", lambda: 2 * SIZE + 1)
    check_space(downloads)
    monkeypatch.setattr(fetching, "free_bytes", lambda: 2 * SIZE)
    with pytest.raises(DownloadError, match=r"for all of them: 600\.0 kB are needed"):
        check_space(downloads)


def test_a_disk_that_becomes_full_keeps_what_is_on_it(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = tmp_path / "hf"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    if os.name != "posix" or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("no small file system can be made here")
    try:
        monkeypatch.setattr(fetching, "free_bytes", lambda: 10**9)
        error = failed()
        assert "no space left" in str(error)
        assert "the same command goes on" in str(error)
        here = blobs(tmp_path)["..."]
        assert 0 < here <= 200 << 10
        subprocess.run(["mount", "-o", "remount,size=2m", str(disk)], check=True)
        assert pull() == SIZE - here
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_cache_that_cannot_be_written_is_named(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file"))
    assert f"{tmp_path / 'file'} cannot be written" in str(failed())
    with pytest.raises(DownloadError, match="cannot be written"):  # and nothing was asked for
        check_space([plan(TINY)])
    assert hub.file_requests == []


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_an_unknown_repository_is_said_with_similar_names(hub: FakeHub) -> None:
    error = failed(HubSpec("ovner/tiny-GGUF"))
    assert isinstance(error, ModelNotFoundError)
    assert "there is no repository ovner/tiny-GGUF" in str(error)
    assert "hf auth login" in str(error)
    assert error.hint == f"did you mean {NAME}?"


def test_with_a_token_a_private_repository_asks_for_none(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    hub.faults.unauthorized = True
    assert "your token may not see it" in str(failed())


def test_a_gated_repository_tells_where_its_licence_is_and_how_to_log_in(hub: FakeHub) -> None:
    hub.faults.gated = True
    assert f"{NAME} is gated" in str(failed())
    assert f"{hub.endpoint}/{NAME}, then log in: hf auth login (or set HF_TOKEN)" in str(failed())


def test_a_gated_repository_tells_a_token_without_access_apart(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.faults.gated = True
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert "not given access to the account of your token" in str(failed())
    monkeypatch.setenv("HF_TOKEN", "hf_granted")
    pull()


def test_an_endpoint_that_is_none_is_said(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "nonsense")
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", "nonsense")
    assert str(failed()).startswith("nonsense is no address: ")
    assert failed().hint == "is HF_ENDPOINT right?"


def test_a_token_that_cannot_be_sent_is_said(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_ä")
    error = failed()
    assert str(error).startswith("the token cannot be sent: it is not ASCII")
    assert "hf_ä" not in str(error)


def test_whether_a_file_may_be_fetched_is_asked_without_fetching_it(hub: FakeHub) -> None:
    download = plan(TINY)
    check_access(download)
    hub.faults.gated, hub.faults.busy = True, 1
    said: list[str] = []
    with pytest.raises(DownloadError, match="is gated"):
        check_access(download, said.append)
    assert ("answers 503: trying again" in said[0], hub.file_requests) == (True, [])
    hub.faults.gated = False
    pull()
    hub.faults.gated = True
    check_access(plan(TINY))  # what is here needs no access


def test_a_token_that_the_hub_does_not_know_is_said(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    hub.faults.bad_token = True
    assert "does not know the token" in str(failed())


def test_other_refusals_are_given_in_the_hubs_words(hub: FakeHub) -> None:
    hub.faults.forbidden = "Access to this resource is disabled."
    assert f"gives no access to {NAME}: Access to this resource is disabled." in str(failed())


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (HubSpec(NAME, revision="v9"), "has no revision 'v9'"),
        (HubSpec(NAME, quant="Q2_K"), "holds nothing in Q2_K: there are F16, Q4_K_M"),
        (HubSpec(NAME, file="tiny-Q4_K_S.gguf"), "holds no file tiny-Q4_K_S.gguf\n  did you mean tiny-Q4_K_M.gguf or"),
        (HubSpec("owner/plain"), "holds no GGUF model"),
        (HubSpec("owner/two--dashes"), "no repository is called owner/two--dashes"),
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


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_hub_is_asked_again(hub: FakeHub, status: int) -> None:
    hub.faults.busy, hub.faults.busy_status = 3, status
    said: list[str] = []
    pull(said=said)
    assert [f"answers {status}: trying again in" in line for line in said] == [True] * 3


@pytest.mark.parametrize(("status", "said"), [(429, "allows no more requests"), (502, "does not work right now")])
def test_a_hub_that_stays_busy_is_given_up(hub: FakeHub, status: int, said: str) -> None:
    hub.faults.busy, hub.faults.busy_status = 1000, status
    assert said in str(failed())
    assert len(hub.requests) == hub_requests.RETRIES + 1


def test_it_waits_as_long_as_the_hub_asks(hub: FakeHub) -> None:
    hub.faults.busy, hub.faults.busy_status, hub.faults.retry_after = 1, 429, "1"
    said: list[str] = []
    pull(said=said)
    assert said[0].endswith("answers 429: trying again in 1 s")


def test_a_network_that_asks_for_a_login_is_no_hub(hub: FakeHub) -> None:
    hub.faults.not_json = True
    assert "does not answer as a hub does" in str(failed())


def test_no_network_is_said_at_once(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    said: list[str] = []
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:9 cannot be reached"):
        plan(TINY, said.append)
    assert said == []


# --- offline ----------------------------------------------------------------------------------------------------------


def test_offline_nothing_is_asked_and_the_missing_file_is_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    error = failed(HubSpec(NAME, file="tiny-Q4_K_M.gguf"))
    assert "tiny-Q4_K_M.gguf of owner/tiny-GGUF is not on this machine" in str(error)
    assert f"edgespec pull hf:{NAME}/tiny-Q4_K_M.gguf" in error.hint
    assert hub.requests == []


def test_offline_a_model_that_is_here_is_here(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    pull()
    asked = len(hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert pull() == 0
    assert len(hub.requests) == asked


def test_offline_the_missing_part_of_a_split_model_is_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("owner/split-GGUF", {name: name.encode() * 9000 for name in PARTS})
    wanted = HubSpec("owner/split-GGUF", quant="Q8_0")
    pull(wanted)
    download = plan(wanted)
    download.place(download.files[3]).unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert f"{PARTS[3]} of owner/split-GGUF is not on this machine" in str(failed(wanted))
