"""The first start at a terminal: the offer of models for this machine, which comes once."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, lead_to
from fake_index import FakeIndex
from terminal import at_terminal, read_rest, read_until

from edgespec.cli.setup import model_offer
from edgespec.cli.terminal.output import Output
from edgespec.models.hub.pulling import PendingDownload, items_of
from edgespec.models.names.source import BUNDLED
from edgespec.models.recommend import Machine

QUESTION = "Which one? (1 to 3, Enter takes 1)"
RUN = ["run", "x", "--raw", "-n", "2", "--fast", "-t", "1", "--seed", "1"]
CHOSEN = 'model = "gemma4-26b-a4b"\n'
# Both fit into any machine's memory.
CATALOGUE = """
["gemma4-26b-a4b"]
repository = "owner/best-GGUF"
quant = "Q8_0"
size_bytes = 10_000_000
active_share = 0.01
drafts = []
heads = []
["qwen3.6-35b-a3b"]
repository = "owner/gone-GGUF"
size_bytes = 1_000_000_000_000

["granite4.2-3b"]
repository = "owner/quick-GGUF"
quant = "Q8_0"
size_bytes = 1_000_000
active_share = 0.01
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The user's folder, whose catalogue has small models under the names of those that are recommended. Its default
    model is in the package index, which is down unless a test starts it."""
    return tmp_path


@pytest.fixture
def index(home: Path) -> Iterator[FakeIndex]:
    with FakeIndex(home) as index:
        toml = home / "config" / "models.toml"
        toml.write_text(toml.read_text("utf-8").replace("[packed]", "[smollm2]") + CATALOGUE, "utf-8")
        yield index


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        hub.add("owner/best-GGUF", {"best-Q8_0.gguf": (BUNDLED / "target.gguf").read_bytes()})
        hub.add("owner/quick-GGUF", {"quick-Q8_0.gguf": (BUNDLED / "draft.gguf").read_bytes()})
        yield hub


@pytest.fixture
def variables(home: Path, index: FakeIndex, hub: FakeHub) -> dict[str, str]:
    return hub.environment(home, **index.environment()) | {"EDGESPEC_DEFAULT_MODEL": "", "COLUMNS": "100"}


def settings(home: Path) -> str:
    file = home / "config" / "config.toml"
    return file.read_text("utf-8") if file.exists() else ""


def test_enter_takes_the_best_model_which_becomes_the_default(
    home: Path, hub: FakeHub, variables: dict[str, str]
) -> None:
    with at_terminal(home, RUN, **variables) as (program, master):
        shown = read_until(master, QUESTION)
        assert re.search(r"This machine has [\d.]+ GB of free memory and \d+ cores?\.", shown)
        about = r"Gemma 4 26B .*, 10.9 MB to download,\s+Apache-2.0,\s+about\s+\d+\s+tokens\s+per\s+second"
        assert re.search(rf"1\. gemma4-26b-a4b, the best for this machine\r\n +{about}", shown)
        assert re.search(r"2\. granite4.2-3b, smaller and faster\r\n +Granite 4.2 3B, 1.3 MB to download,", shown)
        assert re.search(r"3\. smollm2, tiny and quick, but often wrong\r\n", shown)
        os.write(master, b"\n")
        shown = read_rest(master)
        assert program.wait(60) == 0, shown
    assert "gemma4-26b-a4b is your default model now" in shown
    assert settings(home) == CHOSEN
    n_requests = len(hub.requests)
    with at_terminal(home, RUN, **variables) as (program, master):
        shown = read_rest(master)
        assert program.wait(60) == 0, shown
    assert "Which one?" not in shown
    assert len(hub.requests) == n_requests


def test_another_one_is_chosen_by_its_number_or_name_and_nothing_else(home: Path, variables: dict[str, str]) -> None:
    with at_terminal(home, RUN, **variables) as (program, master):
        read_until(master, QUESTION)
        for typed in ("4", "0", "yes"):
            os.write(master, f"{typed}\n".encode())
            assert f"'{typed}' is none of them: enter a number from 1 to 3." in read_until(master, QUESTION)
        os.write(master, b"smollm2\n")
        shown = read_rest(master)
        assert program.wait(60) == 0, shown
    assert "no model given" not in shown
    assert settings(home) == 'model = "smollm2"\n'


@pytest.mark.parametrize(("keys", "code"), [(b"\x03", 130), (b"\x04", 130)], ids=["Ctrl-C", "Ctrl-D"])
def test_who_leaves_is_asked_again_at_the_next_start(
    home: Path, hub: FakeHub, variables: dict[str, str], keys: bytes, code: int
) -> None:
    with at_terminal(home, ["chat"], **variables) as (program, master):
        read_until(master, QUESTION)
        if keys == b"\x03":
            program.send_signal(signal.SIGINT)  # the test's terminal is not the program's controlling one
        else:
            os.write(master, keys)
        read_rest(master)
        assert program.wait(60) == code
    assert settings(home) == ""
    assert not hub.file_requests


def test_a_download_that_breaks_is_an_error_and_nothing_is_remembered(
    home: Path, hub: FakeHub, variables: dict[str, str]
) -> None:
    hub.faults.forbidden = "not today"
    with at_terminal(home, RUN, **variables) as (program, master):
        read_until(master, QUESTION)
        os.write(master, b"\n")
        shown = read_rest(master)
        assert program.wait(60) == 3
    assert "denies access to owner/best-GGUF: not today" in shown
    assert "-m smollm2 uses the small model" in shown
    assert settings(home) == ""


def test_a_stopped_download_continues_after_the_next_offer(home: Path, hub: FakeHub, variables: dict[str, str]) -> None:
    hub.faults.stall_after = 3_000_000
    with at_terminal(home, RUN, **variables) as (program, master):
        read_until(master, QUESTION)
        os.write(master, b"\n")
        read_until(master, "3.0 MB of 10.9 MB")
        program.send_signal(signal.SIGINT)
        read_until(master, "the part already downloaded is kept")
        read_rest(master)
        assert program.wait(60) == 130
    assert settings(home) == ""
    hub.faults.stall_after = None
    with at_terminal(home, RUN, **variables) as (program, master):
        assert "MB to download" in read_until(master, QUESTION)
        os.write(master, b"\n")
        read_rest(master)
        assert program.wait(60) == 0
    assert settings(home) == CHOSEN
    assert hub.file_requests[-1].range


@pytest.mark.long(but=2)
@pytest.mark.parametrize("options", [["-y"], ["-q"], ["--offline"], ["-m", "demo"]])
def test_nothing_is_offered_if_nobody_wants_a_question(
    home: Path, hub: FakeHub, variables: dict[str, str], options: list[str]
) -> None:
    with at_terminal(home, [*RUN, *options], **variables) as (program, master):
        shown = read_rest(master)
        assert program.wait(60) == 0, shown
    assert "Which one?" not in shown
    assert not hub.requests
    assert settings(home) == ""


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    "what", [{"streams": ("stdin", "stdout")}, {"TERM": "dumb"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}]
)
def test_without_a_terminal_or_a_hub_the_small_model_answers(
    home: Path, hub: FakeHub, variables: dict[str, str], what: dict[str, str]
) -> None:
    with at_terminal(home, RUN, **(variables | what)) as (program, master):
        shown = read_rest(master)
        assert program.wait(60) == 0, shown
    assert "Which one?" not in shown
    assert settings(home) == ""
    assert (home / "data" / "models").is_dir()  # it was downloaded


# --- in this process --------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine for which models are chosen."""
    machine = Machine(16_000_000_000, 4, 60e9)
    monkeypatch.setattr(model_offer, "this_machine", lambda: machine)
    return machine


def downloads(name: str) -> list[PendingDownload]:
    return items_of([name], drafts_of=[], assistants_of=[])


def chosen(typed: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the model that is chosen with these lines of input."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    return model_offer.choose_model(Output(quiet=False), "smollm2", downloads)


@pytest.mark.usefixtures("machine")
def test_without_room_on_the_disk_the_better_model_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model_offer, "free_in", lambda folder: 1_000_000)
    assert chosen("\n", monkeypatch) == ""
    said = "gemma4-e4b would suit this machine, but it needs ~5.0 GB on the disk, and 1.0 MB are free"
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("machine")
def test_a_model_that_the_hub_does_not_have_is_left_out(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lead_to(hub, tmp_path, monkeypatch)
    hub.add("ibm-granite/granite-4.2-3b-GGUF", {"granite-Q4_K_M.gguf": b"a model"})
    monkeypatch.setattr(model_offer, "free_in", lambda folder: 1 << 40)
    assert chosen("\n", monkeypatch) == "granite4.2-3b"
    shown = capsys.readouterr().err
    assert (
        "1. granite4.2-3b, the best for this machine\n    Granite 4.2 3B, 7 B to download, Apache-2.0, about" in shown
    )
    assert "2. smollm2, tiny" in shown
    assert "gemma4" not in shown


@pytest.mark.usefixtures("machine")
def test_on_a_small_terminal_all_choices_are_seen_at_once(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lead_to(hub, tmp_path, monkeypatch)
    hub.add("ibm-granite/granite-4.2-3b-GGUF", {"granite-Q4_K_M.gguf": b"a model"})
    monkeypatch.setattr(model_offer, "free_in", lambda folder: 1 << 40)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "8")
    assert chosen("2\n", monkeypatch) == "smollm2"
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [" 1. granite4.2-3b: 7 B to download,", "    Apache-2.0, about 20 tokens per"]
    assert len(lines) <= 8


@pytest.mark.usefixtures("machine")
def test_a_hub_that_does_not_answer_in_time_ends_the_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(model_offer, "LOOK_S", 0.01)
    monkeypatch.setattr(model_offer, "plan_item", lambda item, display: never.wait(60))
    monkeypatch.setattr(model_offer, "free_in", lambda folder: 1 << 40)
    assert chosen("\n", monkeypatch) == ""
    never.set()
