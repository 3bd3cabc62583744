"""Downloads during a conversation: in order, stopped and taken up again, and what prevents them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
from fake_hub import FakeHub, hub_with_demo_pair, lead_to
from published_heads import config, eagle3, write_head
from tiny_gguf import write_model

from edgespec.chat.downloads import Downloads, Fetching
from edgespec.gguf_file.head_check import check_draft_file, kind_of_head
from edgespec.models.names.source import BUNDLED
from edgespec.models.names.spec import resolve
from edgespec.settings import LoadSettings

TARGET = (BUNDLED / "target.gguf").stat().st_size


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    with hub_with_demo_pair(tmp_path) as hub:
        lead_to(hub, tmp_path, monkeypatch)
        yield hub


def until(holds: Callable[[], bool]) -> None:
    deadline_s = monotonic() + 20
    while not holds():
        assert monotonic() < deadline_s, "it never came to hold"
        sleep(0.01)


def over(fetching: Fetching) -> Fetching:
    until(lambda: fetching.is_over)
    return fetching


@pytest.mark.slow
def test_a_model_comes_with_its_draft(hub: FakeHub) -> None:
    done = over(Downloads().add(LoadSettings("demo-pair")))
    assert (done.state, done.spec, done.settings) == ("ready", "demo-pair", LoadSettings("demo-pair"))
    found = resolve("demo-pair")
    assert found.default_draft == resolve("demo-draft").path
    assert "demo-Q8_0.gguf" in done.notes[0]


@pytest.mark.slow
def test_a_draft_that_cannot_come_is_left_out(hub: FakeHub) -> None:
    del hub.repositories["owner/draft-GGUF"]
    done = over(Downloads().add(LoadSettings("demo-pair")))
    assert done.state == "ready"
    assert "draft" not in done.settings.drafters
    assert any("running without its draft" in note for note in done.notes)


def test_only_the_draft_comes_for_a_model_that_is_here(hub: FakeHub) -> None:
    done = over(Downloads().add(LoadSettings("demo", draft_model="demo-draft")))
    assert (done.state, done.spec) == ("ready", "demo-draft")
    assert len(hub.file_requests) == 1


@pytest.mark.slow
def test_one_that_was_stopped_goes_on_where_it_was(hub: FakeHub) -> None:
    hub.faults.stall_after = TARGET // 2
    downloads = Downloads()
    first = downloads.add(LoadSettings("demo-pair"))
    second = downloads.add(LoadSettings("demo-draft"))
    assert downloads.add(LoadSettings("demo-pair")) is first  # and not a third one
    until(lambda: (first.done or 0) > 0.4)
    assert (first.state, second.state) == ("active", "waiting")
    downloads.stop(second)
    downloads.stop(first)
    assert (over(first).state, over(second).state) == ("stopped", "stopped")
    assert "downloaded" in first.said
    hub.faults.stall_after = None
    hub.released.set()
    again = over(downloads.add(LoadSettings("demo-pair")))
    assert again.state == "ready"
    assert any("already downloaded" in note for note in again.notes)
    goes_on = [request for request in hub.file_requests if request.range]
    assert goes_on[0].range == f"bytes={TARGET // 2}-"


@pytest.mark.slow
def test_what_breaks_off_is_told_and_can_be_asked_for_again(hub: FakeHub) -> None:
    hub.faults.cut_after = 0
    downloads = Downloads()
    failed = over(downloads.add(LoadSettings("demo-pair")))
    assert failed.state == "failed"
    assert "try again" in failed.said
    hub.faults.cut_after = None
    assert over(downloads.add(LoadSettings("demo-pair"))).state == "ready"


@pytest.mark.parametrize("fault", ["gated", "unauthorized", "login_page"])
@pytest.mark.slow
def test_what_the_hub_refuses_is_told_as_pull_tells_it(hub: FakeHub, fault: str) -> None:
    setattr(hub.faults, fault, True)
    words = {"gated": "is gated", "unauthorized": "there is no repository", "login_page": "does not send the file"}
    failed = over(Downloads().add(LoadSettings("demo-pair")))
    assert failed.state == "failed"
    assert words[fault] in failed.said


def test_offline_nothing_is_asked(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    failed = over(Downloads().add(LoadSettings("demo-pair")))
    assert "--offline" in failed.said
    assert hub.requests == []


@pytest.mark.slow
def test_closing_stops_all(hub: FakeHub) -> None:
    hub.faults.stall_after = 5000
    downloads = Downloads()
    waiting = [downloads.add(LoadSettings(name)) for name in ("demo-pair", "demo-draft")]
    until(lambda: (waiting[0].done or 0) > 0)
    downloads.close()
    assert [over(each).state for each in waiting] == ["stopped", "stopped"]


def test_the_published_head_of_a_model_is_converted_for_it(hub: FakeHub, tmp_path: Path) -> None:
    target = write_model(tmp_path / "tiny-Q8_0.gguf", "llama", n_layers=4)
    folder = write_head(tmp_path / "published", config(), eagle3([3, 9, 60, 97]))
    names = ("config.json", "model.safetensors")
    hub.add("owner/head", {name: (folder / name).read_bytes() for name in names})
    file = tmp_path / "config" / "models.toml"
    file.write_text('[tiny]\nrepository = "owner/tiny-GGUF"\nheads = ["eagle3 owner/head"]')
    settings = LoadSettings(str(target), draft_model="owner/head")
    done = over(Downloads().add(settings))
    assert (done.state, done.spec) == ("ready", "owner/head")
    assert done.settings.draft_model is not None
    assert kind_of_head(check_draft_file(done.settings.draft_model)) == "eagle3"
    del hub.repositories["owner/head"]
    done = over(Downloads().add(settings))
    assert done.state == "failed" and "owner/head" in done.said
