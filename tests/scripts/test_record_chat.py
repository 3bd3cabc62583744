"""Pictures of the chat: what they show at which time, and that they are recorded from its screen."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import record_chat
from fake_engine import FakeEngine
from record_chat import CHANGE, QUESTION, moving, record, stills
from rich.segment import Segment
from rich.style import Style
from screen_svg import Look, Row, Screen, picture, row_of

from edgespec.chat.session import Session
from edgespec.history import Store
from edgespec.settings import LoadSettings

BACKGROUND = "#101010"
SVG = "{http://www.w3.org/2000/svg}"


def row(text: str) -> Row:
    return row_of([Segment(text)], BACKGROUND)


def shown(svg: str, time_s: float | None) -> list[str]:
    """The lines that a picture shows at a time, from top to bottom; None: without animation."""
    css = ElementTree.fromstring(svg).findtext(f"{SVG}style") or ""
    found = re.search(r"animation:([0-9.]+)s", css)
    end_s = float(found[1]) if found else 1.0
    lines = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        name = group.attrib["class"].split()[1]
        is_shown = found is None or "last" in group.attrib["class"].split()
        if time_s is not None and found:
            steps = re.search(rf"@keyframes {name}{{(.*?}})}}", css)
            assert steps is not None
            states = re.findall(r"([0-9.]+)%{visibility:(\w+)}", steps[1])
            past = [state for at, state in states if float(at) / 100 * end_s <= time_s + 1e-3]
            is_shown = past[-1] == "visible"
        texts = list(group.iter(f"{SVG}text"))
        if is_shown and texts:
            lines.append((float(texts[0].attrib["y"]), "".join(text.text or "" for text in texts)))
    return [text.replace("\xa0", " ") for _, text in sorted(lines)]


def test_each_line_is_shown_from_its_first_screen_to_its_last() -> None:
    screens = [
        Screen(0.0, (row("title"), row(""))),
        Screen(1.0, (row("title"), row("typed"))),
        Screen(2.5, (row("title"), row("answer <b> & more"))),
    ]
    svg = picture(screens, 4.0, 20, BACKGROUND, "a <chat>")
    assert shown(svg, 0.5) == ["title"]
    assert shown(svg, 1.0) == ["title", "typed"]
    assert shown(svg, 3.9) == ["title", "answer <b> & more"]
    assert shown(svg, None) == shown(svg, 3.9)
    assert svg.count(">title<") == 1  # a line that stays is drawn once


def test_one_screen_does_not_move() -> None:
    svg = picture([Screen(0.0, (row("one"),))], 1.0, 20, BACKGROUND, "chat")
    assert shown(svg, None) == ["one"]
    assert "animation" not in svg


@pytest.mark.parametrize(
    ("style", "look"),
    [
        ("", Look("#d9d9d9", BACKGROUND)),
        ("bold italic #ffffff on #000080", Look("#ffffff", "#000080", "font-weight:bold;font-style:italic")),
        ("reverse #ffffff on #000080", Look("#000080", "#ffffff")),
        ("dim underline #ffffff on #000000", Look("#999999", "#000000", "text-decoration:underline")),
    ],
)
def test_a_style_is_drawn_as_a_terminal_draws_it(style: str, look: Look) -> None:
    assert Look.of(Style.parse(style), BACKGROUND) == look


def test_texts_with_the_same_look_are_one() -> None:
    bold = Style(bold=True)
    parts = row_of([Segment("a"), Segment("b"), Segment("c", bold), Segment("", bold)], BACKGROUND)
    assert [text for text, _ in parts] == ["ab", "c"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEY_S", "SCREEN_S"):
        monkeypatch.setattr(record_chat, name, 0.002)
    for name in ("READING_S", "END_S"):
        monkeypatch.setattr(record_chat, name, 0.3)


def session() -> Session:
    engine = FakeEngine("the first answer", "an answer that is generated twice", round_s=0.05)
    return Session(Store.in_memory(), lambda *_: engine, LoadSettings("demo"))


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_question_and_a_race_are_recorded(tmp_path: Path) -> None:
    asyncio.run(record(session(), (100, 28), moving, tmp_path))
    svg = (tmp_path / "race.svg").read_text(encoding="utf-8")
    text = "\n".join("".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{SVG}text"))
    for said in (QUESTION[:40], "the first answer", f"/race {CHANGE}", "· replay"):
        assert said.replace(" ", "\xa0") in text
    last = "\n".join(shown(svg, None))
    assert "the same 6 tokens" in last
    assert "replay" not in last
    assert shown((tmp_path / "compare.svg").read_text(encoding="utf-8"), None) == shown(svg, None)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_stills_are_a_chat_and_its_tokens(tmp_path: Path) -> None:
    asyncio.run(record(session(), (138, 32), stills, tmp_path))
    chat, tokens = (
        "\n".join(shown((tmp_path / f"{name}.svg").read_text(encoding="utf-8"), None)) for name in ("chat", "tokens")
    )
    assert "search chats" in chat
    assert "drafted by" in tokens
