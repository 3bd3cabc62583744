"""Models on the screen: one list, downloads during the conversation, and loading a downloaded model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from fake_hub import FakeHub, hub_with_demo_pair, lead_to
from textual.pilot import Pilot
from textual.widgets import Static
from tui_harness import click_on, text_of, wait_until

from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings
from edgespec.history import Store
from edgespec.models.names.source import BUNDLED
from edgespec.settings import LoadSettings
from edgespec.tui import picker as picker_module
from edgespec.tui.app import ChatApp
from edgespec.tui.download_line import DownloadLine
from edgespec.tui.lines import Prose
from edgespec.tui.picker import ModelPicker
from edgespec.tui.picker_rows import HUB, Picked

Steps = Callable[[ChatApp, Pilot[None]], Awaitable[None]]
TARGET = (BUNDLED / "target.gguf").stat().st_size


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    monkeypatch.setattr(picker_module, "SEARCH_S", 0.01)
    monkeypatch.setattr(picker_module, "LOOK_UP_S", 0.01)
    with hub_with_demo_pair(tmp_path) as hub:
        lead_to(hub, tmp_path, monkeypatch)
        yield hub


def on_screen(steps: Steps, size: tuple[int, int] = (84, 22)) -> list[LoadSettings]:
    """Drive the app; returns what was loaded."""
    loaded: list[LoadSettings] = []

    def open_engine(wanted: LoadSettings, progress: Any, cancel: Any) -> FakeEngine:
        loaded.append(wanted)
        return FakeEngine("one", "two", "three")

    async def drive() -> None:
        with Store.in_memory() as store:
            app = ChatApp(Session(store, open_engine, LoadSettings("demo"), ChatSettings(seed=3)))
            async with app.run_test(size=size) as pilot:
                await wait_until(pilot, lambda: not app.is_busy)
                await steps(app, pilot)

    asyncio.run(drive())
    return loaded


async def say(app: ChatApp, pilot: Pilot[None], text: str) -> None:
    app.jobs.send(text)
    await wait_until(pilot, lambda: not app.is_busy)


def line(app: ChatApp) -> str:
    return str(app.query_one("#download-said", Static).content) if app.query_one(DownloadLine).display else ""


def notes(app: ChatApp) -> str:
    return "\n".join(text_of(note) for note in app.transcript.query(Prose))


async def picker(app: ChatApp, pilot: Pilot[None], text: str = "") -> ModelPicker:
    """Open the list of models, filtered by a text."""
    await pilot.press("ctrl+l")
    await wait_until(pilot, lambda: isinstance(app.screen, ModelPicker) and app.screen._filter.has_focus)
    assert isinstance(app.screen, ModelPicker)
    app.screen._filter.value = text
    await pilot.pause()
    return app.screen


def listed(screen: ModelPicker) -> dict[str, str]:
    """The rows of the list of models, by their keys."""
    return {str(option.id): " ".join(str(option.prompt).split()) for option in screen._models.options}


def test_a_model_of_the_catalogue_is_chosen_downloaded_and_loaded(hub: FakeHub) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        screen = await picker(app, pilot, "demo-pair")
        await wait_until(pilot, lambda: "get:demo-pair" in listed(screen))
        await wait_until(pilot, lambda: [each.id for each in screen._options.options] == ["demo-pair:Q8_0"])
        assert str(screen.query_one("#picker-title", Static).content).endswith("with its draft demo-draft")
        await wait_until(pilot, lambda: "fits in memory" in str(screen._options.options[0].prompt))
        assert "10.9 MB to download" in str(screen.query_one("#picker-said", Static).content)
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.session.load_settings.model == "demo-pair:Q8_0" and not app.is_busy)
        assert not app.query_one(DownloadLine).display

    assert [each.model for each in on_screen(steps)] == ["demo", "demo-pair:Q8_0"]


@pytest.mark.long
def test_the_chat_goes_on_meanwhile_and_keeps_its_model(hub: FakeHub) -> None:
    hub.faults.stall_after, hub.faults.stalls = TARGET // 2, 1

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await say(app, pilot, "hello")
        app.run_command("/model demo-pair", is_typed=True)
        await wait_until(pilot, lambda: "5.4 MB of 10.9 MB" in line(app))
        assert line(app).startswith("↓ demo-pair")
        await say(app, pilot, "how are you?")
        assert app.session.chat.turns[-1].content == "two"
        screen = await picker(app, pilot, "demo-pair")
        await wait_until(pilot, lambda: "5.4 MB of 10.9 MB" in listed(screen).get("get:demo-pair", ""))
        await pilot.press("escape", "escape")
        hub.released.set()
        await wait_until(pilot, lambda: "is ready: /model demo-pair loads it" in line(app))
        assert app.session.load_settings.model == "demo"
        await click_on(pilot, app.query_one("#download-said"), "ready")
        await wait_until(pilot, lambda: app.session.load_settings.model == "demo-pair" and not app.is_busy)
        assert not app.query_one(DownloadLine).display

    on_screen(steps)


def test_x_stops_a_download_and_it_goes_on_later(hub: FakeHub) -> None:
    hub.faults.stall_after, hub.faults.stalls = TARGET // 2, 1

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.run_command("/model demo-pair", is_typed=True)
        await wait_until(pilot, lambda: "5.4 MB" in line(app))
        screen = await picker(app, pilot, "demo-pair")
        await wait_until(pilot, lambda: "5.4 MB" in listed(screen).get("get:demo-pair", ""))
        await pilot.press("right", "x")
        await wait_until(pilot, lambda: not app.query_one(DownloadLine).downloads.open)
        await wait_until(pilot, lambda: "here" in listed(screen)["get:demo-pair"])
        await pilot.press("escape", "escape")
        await wait_until(pilot, lambda: "stopped: 5.4 MB of 10.9 MB downloaded" in notes(app))
        hub.released.set()
        app.run_command("/model demo-pair", is_typed=True)
        await wait_until(pilot, lambda: app.session.load_settings.model == "demo-pair")

    on_screen(steps)
    assert any(request.range == f"bytes={TARGET // 2}-" for request in hub.file_requests)


def test_the_hub_is_searched_while_typing(hub: FakeHub) -> None:
    hub.add("other/pocket-GGUF", {"pocket-Q4_K_M.gguf": b"four", "pocket-F16.gguf": b"sixteen"})
    hub.about["other/pocket-GGUF"] = {"downloads": 3400, "likes": 5}

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        screen = await picker(app, pilot)
        await pilot.press(*"pocket")
        await wait_until(pilot, lambda: "get:hf:other/pocket-GGUF" in listed(screen))
        assert listed(screen)["get:hf:other/pocket-GGUF"] == "other/pocket-GGUF 3k downloads, 5 likes".replace(
            ",", " ·"
        )
        await wait_until(pilot, lambda: len(screen._options.options) == 2)
        assert screen._options.highlighted_option is not None
        assert screen._options.highlighted_option.id == "hf:other/pocket-GGUF:Q4_K_M"
        await pilot.press("escape", "escape")

    on_screen(steps)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("is_offline", [True, False])
def test_without_the_hub_one_line_says_so(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, is_offline: bool) -> None:
    if is_offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.faults.busy = 1000

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        screen = await picker(app, pilot, "demo")
        told = "offline: the hub is not searched" if is_offline else "responds with status 503"
        await wait_until(pilot, lambda: told in listed(screen).get(HUB, ""))
        await wait_until(pilot, lambda: {"get:demo-pair", "get:demo-draft"} <= listed(screen).keys())
        assert not screen.query_one("#picker-said").has_class("-error")
        await wait_until(pilot, lambda: screen._offer is not None and screen._offer.picked == Picked("demo", None))
        await pilot.press("enter")  # the model in use stays as it is
        await wait_until(pilot, lambda: not isinstance(app.screen, ModelPicker))

    assert [each.model for each in on_screen(steps, (60, 20))] == ["demo"]


def test_what_prevents_a_download_is_told_in_the_conversation(hub: FakeHub) -> None:
    hub.faults.gated = True

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.run_command("/model demo-pair", is_typed=True)
        await wait_until(pilot, lambda: "owner/demo-GGUF is gated" in notes(app))
        assert not app.query_one(DownloadLine).display
        await say(app, pilot, "hello")
        assert app.session.chat.turns[-1].content == "one"

    on_screen(steps)


def test_the_list_opens_while_an_answer_is_generated(hub: FakeHub) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.jobs.send("hello")
        assert app.is_busy
        await picker(app, pilot)
        await pilot.press("escape")
        app.run_command("/model demo:draft", is_typed=True)
        await wait_until(pilot, lambda: not app.is_busy)

    on_screen(steps)
