"""The messages of a chat on the screen: what they show, what can be done with them, and what stays where it is."""

from __future__ import annotations

import asyncio
import random
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.content import Content
from textual.events import MouseScrollUp
from textual.pilot import Pilot
from textual.style import Style
from textual.widgets import Static
from tiny_projector import picture
from tui_harness import Harness, chat, click_on, text_of, tokens, wait_until

from edgespec.chat.attachments import SCHEME, keep_image, kept_file
from edgespec.core.stats import Stats
from edgespec.drafters.registry import REGISTRY
from edgespec.history import AnswerRecord, TokenRecord, Turn
from edgespec.tui.lines import Block, Brush, Prose, WrappedText
from edgespec.tui.markdown import Code, GrowingMarkdown, Table, markdown
from edgespec.tui.pictures import Pictures
from edgespec.tui.token_view import TokenColours, style_of
from edgespec.tui.transcript import Transcript
from edgespec.tui.turn_view import SwitchBranch, TurnCommand, TurnView
from edgespec.tui.turn_window import MOST, MOUNTED, Edge, News

Script = Callable[[Pilot[Any], Transcript], Awaitable[None]]
MESSAGES = (TurnCommand, SwitchBranch)

MARKDOWN = """# A title

Some **bold** text, `code` and a [link](https://example.org/a)
on two lines.

- one
- two that is long enough to be wrapped in a narrow window, and then goes on below itself
  1. inner

> quoted

| name | value |
|------|------:|
| a    | 1     |

```python
def f(x):
    return x  # the same
```

<div>html</div> and [bold]brackets[/bold]
"""


def run(script: Script, transcript: Transcript | None = None, size: tuple[int, int] = (80, 24)) -> Harness:
    shown = transcript or Transcript()
    app = Harness(shown, keeps=MESSAGES)

    async def go() -> None:
        async with app.run_test(size=size) as pilot:
            await script(pilot, shown)

    asyncio.run(go())
    return app


def said(role: str, content: str, answer: AnswerRecord | None = None) -> Turn:
    return Turn("key", None, role, content, 0.0, answer)


def show(turn: Turn, size: tuple[int, int] = (80, 24)) -> str:
    """The lines of one message."""
    lines = []

    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show([turn])
        await pilot.pause()
        lines.append(view(transcript).plain)

    run(script, size=size)
    return lines[0]


def view(transcript: Transcript, index: int = -1) -> TurnView:
    shown = [widget for widget in transcript.views if isinstance(widget, TurnView)][index]
    assert isinstance(shown, TurnView)
    return shown


def said_in(shown: TurnView) -> str:
    """The lines of a message below its sender."""
    return shown.plain.partition("\n")[2]


def notes(transcript: Transcript) -> list[str]:
    return [text_of(note) for note in transcript.query(".note").results(Prose)]


# --- what a message shows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["user", "assistant", "system", "\u00e9 [b]"])
def test_what_was_written_is_text_and_no_markup_and_no_escape(role: str) -> None:
    shown = show(said(role, "[bold]x[/bold] [@click=app.quit]y[/] \x1b[31mred\x1b[0m \x9b0m"))
    assert "[bold]x[/bold] [@click=app.quit]y[/] \ufffd[31mred\ufffd[0m \ufffd0m" in shown


def test_a_users_text_is_shown_as_it_was_typed() -> None:
    assert show(said("user", "# no title\n  - indented\n\n**stars**\r\nlast")).splitlines()[1:6] == [
        "# no title",
        "  - indented",
        "",
        "**stars**",
        "last",
    ]


def test_an_answer_is_markdown_in_which_nothing_gets_lost() -> None:
    shown = show(said("assistant", MARKDOWN))
    lines = [line.strip() for line in shown.splitlines()]
    for line in [
        "A title",
        "Some bold text, code and a link (https://example.org/a)",
        "on two lines.",
        "• one",
        "1. inner",
        "▌ quoted",
        "name │ value",
        "a    │     1",
        "def f(x):",
        "<div>html</div> and [bold]brackets[/bold]",
    ]:
        assert line in lines


def test_a_table_without_room_becomes_a_field_a_line() -> None:
    titles = [f"a title {n}" for n in range(4)]
    rows = "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * 4, ["some value"] * 4))
    shown = show(said("assistant", rows), size=(30, 24))
    assert "a title 3: some value" in shown


@pytest.mark.parametrize(
    ("role", "hidden", "hidden_then"), [("user", "992,000", "968,000"), ("assistant", "900,000", "600,000")]
)
def test_a_very_long_message_is_shown_in_part_and_more_of_it_on_demand(
    role: str, hidden: str, hidden_then: str
) -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show([said(role, "0123456789" * 100_000)])
        await wait_until(pilot, lambda: f"{hidden} more characters" in view(transcript).plain)
        view(transcript).focus()
        await pilot.press("enter")
        await wait_until(pilot, lambda: f"{hidden_then} more characters" in view(transcript).plain)

    run(script)


@pytest.mark.parametrize(
    ("reason", "mark"),
    [
        ("interrupted", "interrupted; /continue resumes"),
        ("cancelled", "stopped by you"),
        ("length", "cut off at the token limit"),
        ("error", "stopped by an error"),
    ],
)
def test_an_answer_that_did_not_come_to_its_end_says_why(reason: str, mark: str) -> None:
    assert mark in show(said("assistant", "text", AnswerRecord(finish_reason=reason)))
    assert mark not in show(said("assistant", "text", AnswerRecord()))


@pytest.mark.parametrize(("used", "mark"), [(256, "the context is full"), (255, "the token limit")])
def test_an_answer_that_filled_the_context_says_so(used: int, mark: str) -> None:
    answer = AnswerRecord(finish_reason="length", settings={"ctx_size": 256}, stats={"context_used": used})
    assert mark in show(said("assistant", "text", answer))


def test_an_answer_tells_its_model_and_figures() -> None:
    stats = Stats(generated_tokens=90, generation_s=2.0, rounds=50, proposed=60, accepted=40)
    shown = show(said("assistant", "text", AnswerRecord("big.gguf", "small.gguf", stats=stats.as_json())))
    assert shown.startswith("big + small")
    assert "45 tok/s · 1.8x faster with drafts · 67 % of drafts accepted" in shown


def test_a_link_is_opened_by_a_click_and_only_if_it_leads_to_the_web() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show([said("assistant", "[good](https://example.org/?a='x') [bad](ssh://host)")])
        await pilot.pause()
        await click_on(pilot, view(transcript), "good")
        await click_on(pilot, view(transcript), "bad")
        await pilot.pause()

    assert run(script).opened == ["https://example.org/?a='x'"]


def test_selected_text_is_what_is_on_the_screen() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show([said("assistant", "first **line**\nsecond line")])
        await pilot.pause()
        shown = view(transcript)
        await pilot.mouse_down(shown, offset=(2, 1))
        await pilot.hover(shown, offset=(8, 2))
        await pilot.mouse_up(shown, offset=(8, 2))
        await wait_until(pilot, lambda: (transcript.screen.get_selected_text() or "").startswith("first line\nsecond"))

    run(script)


# --- thinking -----------------------------------------------------------------------------------------------------


def test_thinking_is_folded_to_a_line_that_a_click_opens() -> None:
    pieces = [TokenRecord(n, text) for n, text in enumerate(["<think>", "it ", "is ", "hard", "</think>", "Yes."])]

    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show([said("assistant", "<think>it is hard</think>Yes.")])
        await pilot.pause()
        assert view(transcript).plain.splitlines()[1:3] == ["▸ thought for 3 tokens", "Yes."]
        await click_on(pilot, view(transcript), "thought")
        await wait_until(pilot, lambda: "│ it is hard" in view(transcript).plain)
        view(transcript).focus()
        await pilot.press("enter")
        await wait_until(pilot, lambda: "hard" not in view(transcript).plain)

    run(script, Transcript(pieces=lambda key: pieces))


def test_thinking_is_seen_to_go_on_while_an_answer_comes() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.begin_answer()
        answer = transcript.live
        assert isinstance(answer, TurnView)
        await transcript.feed(list(tokens("<think>hm, let me see")))
        await wait_until(pilot, lambda: "thinking 5 tokens …" in answer.plain)
        assert "let me see" not in answer.plain
        await transcript.feed(list(tokens("</think>Yes")))
        await wait_until(pilot, lambda: "Yes" in answer.plain)
        assert "thought for" in answer.plain

    run(script)


# --- answers that are being written -------------------------------------------------------------------------------


def test_an_answer_that_came_in_pieces_looks_as_if_it_had_come_at_once() -> None:
    turn = said("assistant", MARKDOWN)

    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.begin_answer()
        for event in tokens(MARKDOWN, size=3):
            await transcript.feed([event])
        live = transcript.live
        await transcript.end_answer(turn)
        await pilot.pause()
        assert view(transcript) is live
        await transcript.append(turn)
        await pilot.pause()
        assert view(transcript, 0).plain == view(transcript, 1).plain

    run(script)


PARTS = [
    "# title",
    "a line",
    "- item\n- item",
    "1. one\n2. two",
    "```python\n" + "x = 1\n" * 90 + "```",
    "> quoted",
    "a | b\n--|--\n1 | 2",
]


@settings(max_examples=25, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=6), size=st.integers(1, 40))
def test_markdown_grows_into_what_it_is_as_a_whole(parts: list[str], size: int) -> None:
    text = "\n\n".join(parts)
    growing, shown = GrowingMarkdown(), list[Block]()
    for start in range(0, len(text), size):
        keep, blocks = growing.append(text[start : start + size])
        shown[keep:] = blocks
    assert without_gaps(rendered(shown)) == without_gaps(rendered(markdown(text)))


def rendered(blocks: Sequence[Block]) -> str:
    """The text of blocks, without an app, which takes half a second to start."""
    brush = Brush(Style(), lambda style: style if isinstance(style, Style) else Style(), is_ansi=False, is_dark=True)
    return "\n".join(line.strip.text.rstrip() for block in blocks for line in block.draw(brush, 48))


def without_gaps(text: str) -> list[str]:
    """Lists that follow each other are one list, loose or tight, which shows at their end only."""
    return [line for line in text.splitlines() if line.strip()]


def test_what_is_final_of_a_growing_answer_is_not_drawn_again() -> None:
    growing = GrowingMarkdown()
    for part in ("one\n\ntwo\n\n", "```\n" + "code\n" * 60, "```\n\n- a\n- b\n- c\n- d"):
        keep, blocks = growing.append(part)
    keep, blocks = growing.append("!")
    assert (keep, len(blocks)) == (5, 2)


def test_nothing_of_an_answer_that_was_not_kept_remains() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show(chat(1))
        await transcript.begin_answer()
        await transcript.feed(list(tokens("half")))
        await transcript.end_answer(None)
        await pilot.pause()
        assert [shown.turn for shown in transcript.query(TurnView)] == chat(1)

    run(script)


# --- tokens -------------------------------------------------------------------------------------------------------


def tinted(content: Content, source: str) -> list[str]:
    """The parts of a text that have the style of a drafter."""
    return [content.plain[start:end] for start, end, style in content.spans if style == style_of(source)]


def coloured(text: str, *pieces: tuple[str, str]) -> list[Block]:
    """The blocks of a text, whose tokens and drafters are given."""
    colours = TokenColours()
    for piece, source in pieces:
        colours.add(piece, style_of(source))
    return colours.coloured(0, markdown(text))


def test_tokens_have_the_colour_of_their_drafter_and_the_text_its_markdown() -> None:
    (title, line) = coloured(
        "# The end\nof **all** days", ("# The", ""), (" end\nof", "suffix"), (" **all", ""), ("** days", "draft")
    )
    assert isinstance(title, WrappedText)
    assert isinstance(line, WrappedText)
    assert (title.content.plain, line.content.plain) == ("The end", "of all days")
    assert [tinted(block.content, "suffix") for block in (title, line)] == [[" end"], ["of"]]
    assert tinted(line.content, "draft") == [" days"]
    assert [line.content.plain[start:end] for start, end, style in line.content.spans if style == "bold"] == ["all"]


def test_tokens_are_found_in_code_tables_and_links() -> None:
    code, table, link = coloured(
        "```py\nprint(1)\n```\n\n| a | b |\n|---|---|\n| one | two |\n\n[the page](https://x.org/the/page) it is",
        ("```py\n", ""), ("print", "draft"), ("(1)\n```\n\n| a | b |\n|---|---|\n| one", ""), (" | two", "suffix"),
        (" |\n\n[the page](https://x.org/the/page)", ""), (" it", "draft"), (" is", ""),
    )  # fmt: skip
    assert isinstance(code, Code)
    assert [code.shown[span.start : span.end] for span in code.marks] == ["print"]
    assert isinstance(table, Table)
    assert [tinted(cell, "suffix") for cell in table.rows[1]] == [[], ["two"]]
    assert isinstance(link, WrappedText)
    assert tinted(link.content, "draft") == [" it"]


def test_what_markdown_shows_in_another_way_does_not_move_the_colours_of_later_words() -> None:
    text = "&eacute;t&eacute; " + "&amp; _x_ " * 50 + "and so on"
    (block,) = coloured(text, (text.removesuffix("so on"), ""), ("so", "draft"), (" on", ""))
    assert isinstance(block, WrappedText)
    assert tinted(block.content, "draft") == ["so"]


WRAPS = ("{}", "**{}**", "_{}_", "`{}`", "[{}](https://example.org/{})", "&amp; {}", "\\* {}", "\n\n# {}\n\n", "\n- {}")


@given(
    st.lists(st.sampled_from(WRAPS), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["", "draft", "suffix"])), min_size=1, max_size=40),
)
@settings(max_examples=150, deadline=None)
def test_each_word_has_the_colour_of_its_token_whatever_the_markdown(
    wraps: list[str], pieces: list[tuple[int, str]]
) -> None:
    words = [f"w{number}x" for number in range(len(wraps))]
    text = " ".join(wrap.format(word, word) for wrap, word in zip(wraps, words, strict=True))
    sources = [source for _ in range(len(text)) for length, source in pieces for _ in range(length)][: len(text)]
    tokens = [
        ("".join(text[n] for n in group), source) for source, group in groupby(range(len(text)), sources.__getitem__)
    ]
    blocks = [block.content for block in coloured(text, *tokens) if isinstance(block, WrappedText)]
    for word in words:
        content = next(content for content in blocks if word in content.plain)
        start, place = content.plain.index(word), text.index(word)
        for offset in range(len(word)):
            at = start + offset
            styles = {str(span.style) for span in content.spans if span.start <= at < span.end}
            source = sources[place + offset]
            assert {style_of(each) for each in ("draft", "suffix")} & styles == {style_of(source)} - {""}


def test_every_drafter_has_its_own_colour_and_is_known_by_more_than_that() -> None:
    colours = [entry.colour for entry in REGISTRY.own.values()]
    assert len(set(colours)) == len(colours)
    faces = [entry.face for entry in REGISTRY.own.values() if entry.in_auto and entry.needs != "head"]
    assert all(faces)
    assert len({face for face in faces if face != "italic"}) == len([face for face in faces if face != "italic"])
    assert {style_of(name, "ansi").split()[-1] for name in REGISTRY} >= {"ansi_green", "ansi_yellow", "ansi_cyan"}


def drafted(view: TurnView) -> list[str]:
    """What a message shows in the colour of a drafter."""
    own = view.visual_style.background
    assert own is not None
    parts = [part for y in range(view.region.height) for part in view.render_line(y)]
    return [text for text, style, _ in parts if style is not None and style.bgcolor not in (None, own.rich_color)]


def test_tokens_can_be_coloured_in_the_text_and_say_what_the_colours_mean() -> None:
    pieces = [TokenRecord(1, "**x", "", 0), TokenRecord(2, "y**", "draft", 1)]

    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show([said("user", "hello"), said("assistant", "**xy**")])
        await pilot.pause()
        legend = transcript.query_one("#legend", Static)
        assert not legend.display
        transcript.show_tokens = True
        await wait_until(pilot, lambda: "drafted by  draft" in str(legend.render()))
        assert said_in(view(transcript)).startswith("xy\n")
        assert said_in(view(transcript, 0)).startswith("hello")
        assert legend.display
        assert drafted(view(transcript)) == ["y"]
        transcript.show_tokens = False
        await wait_until(pilot, lambda: drafted(view(transcript)) == [])
        assert said_in(view(transcript)).startswith("xy\n")
        assert not legend.display

    run(script, Transcript(pieces=lambda key: pieces))


def test_tokens_are_shown_while_they_come_and_the_view_can_change_meanwhile() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        transcript.show_tokens = True
        await transcript.begin_answer()
        answer = transcript.live
        assert isinstance(answer, TurnView)
        events = list(tokens("**ab** and"))
        await transcript.feed(events[:2])
        await wait_until(pilot, lambda: said_in(answer).startswith("ab a\n"))
        assert drafted(answer) == [" a"]
        transcript.show_tokens = False
        await wait_until(pilot, lambda: said_in(answer).startswith("ab a\n"))
        await transcript.feed(events[2:])
        await wait_until(pilot, lambda: said_in(answer).startswith("ab and\n"))
        transcript.show_tokens = True
        await wait_until(pilot, lambda: drafted(answer) == [" a"])
        assert said_in(answer).startswith("ab and\n")

    run(script)


# --- what can be done ---------------------------------------------------------------------------------------------


def test_keys_on_a_message_ask_for_what_can_be_done_with_it() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show(chat(2))
        await pilot.pause()
        view(transcript).focus()
        await pilot.press("c", "r", "e", "left", "up", "e", "c", "r")

    assert run(script, Transcript(siblings=lambda key: [key, "other"])).messages == [
        TurnCommand("copy", "k1"),
        TurnCommand("regen", "k1"),
        SwitchBranch("k1", -1),
        TurnCommand("edit", "k0"),
        TurnCommand("copy", "k0"),
    ]


def test_what_can_be_done_is_offered_to_the_mouse_where_it_points() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show(chat(2))
        await pilot.pause()
        shown = view(transcript)
        assert "copy" not in shown.plain
        await pilot.hover(shown, offset=(5, 0))
        await wait_until(pilot, lambda: "copy" in shown.plain)
        await click_on(pilot, shown, "copy")
        await click_on(pilot, shown, "again")
        await pilot.pause()

    assert run(script).messages == [TurnCommand("copy", "k1"), TurnCommand("regen", "k1")]


def test_other_versions_of_a_message_are_counted_and_a_click_goes_to_the_next() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show(chat(1))
        await pilot.pause()
        assert "\u2039 2/3 \u203a" in view(transcript).plain
        await click_on(pilot, view(transcript), "\u203a")
        await pilot.pause()

    assert run(script, Transcript(siblings=lambda key: ["a", key, "b"])).messages == [SwitchBranch("k0", 1)]


def test_up_and_down_go_from_message_to_message() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show(chat(30))
        await wait_until(pilot, lambda: len(transcript.views) == 30)
        view(transcript).focus()
        await pilot.press(*["up"] * 29)
        await wait_until(pilot, lambda: view(transcript, 0).has_focus)
        assert transcript.region.contains_region(view(transcript, 0).region)
        await pilot.press("down")
        await wait_until(pilot, lambda: view(transcript, 1).has_focus)

    run(script)


# --- long chats ---------------------------------------------------------------------------------------------------


def first_line(transcript: Transcript) -> str:
    """The topmost line of the window."""
    top = transcript.region.y
    shown = next(shown for shown in transcript.query(TurnView) if shown.region.bottom > top)
    return shown.plain.splitlines()[top - shown.region.y]


def test_of_a_long_chat_the_newest_messages_are_mounted_and_earlier_ones_come_when_one_goes_there() -> None:
    turns = chat(400)

    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show(turns)
        await wait_until(pilot, lambda: len(transcript.views) == MOUNTED)
        assert view(transcript).turn == turns[-1]
        assert transcript.is_vertical_scroll_end
        assert "360 earlier" in str(transcript.query(Edge).first().render())
        transcript.scroll_to(y=1, animate=False)
        await pilot.pause()
        transcript.scroll_to(y=0, animate=False)
        await wait_until(pilot, lambda: len(transcript.views) > MOUNTED)
        await wait_until(pilot, lambda: first_line(transcript) == "message 359")  # where the edge was

        def first() -> int:
            turn = view(transcript, 0).turn
            return int(turn.key[1:]) if turn is not None else -1

        for _ in range(40):
            if first() < 260:
                break
            transcript.scroll_home(animate=False)
            await pilot.pause(0.02)
        assert first() < 260
        assert len(transcript.views) <= 2 * MOST
        for _ in range(40):
            if view(transcript).turn == turns[-1]:
                break
            transcript.scroll_to(y=transcript.max_scroll_y, animate=False)
            await pilot.pause(0.02)
        assert view(transcript).turn == turns[-1]

    run(script)


def test_a_click_on_the_edge_of_what_is_mounted_brings_more() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show(chat(100))
        await wait_until(pilot, lambda: len(transcript.views) == MOUNTED)
        await pilot.click(transcript.query(Edge).first())
        await wait_until(pilot, lambda: len(transcript.views) > MOUNTED)

    run(script, size=(80, 200))


def test_the_screen_holds_no_more_widgets_however_long_a_chat_grows() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        turns = chat(MOST + 20)
        await transcript.show(turns[: MOST - 5])
        await wait_until(pilot, lambda: len(transcript.views) == MOUNTED)
        for turn in turns[MOST - 5 :]:
            await transcript.append(turn)
        await pilot.pause()
        assert len(transcript.views) == MOST
        assert view(transcript).turn == turns[-1]
        assert transcript.is_vertical_scroll_end

    run(script)


def test_a_message_far_away_can_be_gone_to() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show(chat(500))
        await transcript.reveal("k77", focuses=True)
        await wait_until(pilot, lambda: isinstance(transcript.screen.focused, TurnView))
        await pilot.pause()
        focused = transcript.screen.focused
        assert isinstance(focused, TurnView)
        assert focused.turn == chat(500)[77]
        assert transcript.region.contains_region(focused.region)
        await transcript.begin_answer()
        await pilot.pause()
        assert view(transcript).turn == chat(500)[-1]

    run(script)


def test_turns_that_stay_keep_their_places_and_those_that_went_are_gone() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        turns = chat(6)
        await transcript.show(turns)
        await transcript.note("a note")
        stays = view(transcript, 3)
        await transcript.show(turns)
        assert notes(transcript) == ["a note"]
        other = [*turns[:4], Turn("new", "k3", "user", "another way", 0.0)]
        await transcript.show(other)
        await pilot.pause()
        assert view(transcript, 3) is stays
        assert [shown.turn for shown in transcript.query(TurnView)] == other
        assert notes(transcript) == []
        await transcript.show([])
        assert not transcript.query(TurnView)

    run(script)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_mounted_is_a_part_of_the_chat(seed: int) -> None:
    """Chats of all lengths that share a beginning with the last one, while the view moves."""
    chance = random.Random(seed)

    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        turns = chat(40)
        await transcript.show(turns)
        for step in range(60):
            match chance.randrange(4):
                case 0:
                    n_kept = chance.randint(0, len(turns))
                    others = [Turn(f"{step}.{n}", None, "user", "x", 0.0) for n in range(chance.randint(0, 150))]
                    turns = [*turns[:n_kept], *others]
                    await transcript.show(turns)
                    assert not turns or view(transcript).turn == turns[-1]
                case 1:
                    await transcript.slide(chance.choice((-1, 1)))
                case 2 if transcript.entries:
                    await transcript.show_around(chance.randrange(len(transcript.entries)))
                case 3:
                    await transcript.show_end()
            async with transcript._moving:  # more are mounted in the background
                shown = [shown.turn for shown in transcript.query(TurnView)]
            first = turns.index(shown[0]) if shown and shown[0] else 0
            assert shown == turns[first : first + len(shown)]
            assert shown or not turns

    run(script)


def test_notes_and_the_mark_of_what_left_the_context_stand_between_the_messages() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show([Turn("s", None, "system", "be brief", 0.0), *chat(6)])
        transcript.mark_context(4)
        await transcript.note("[b]loaded[/b]", "warning")
        await pilot.pause()
        assert "3 older messages no longer fit the context" in view(transcript, 4).plain
        assert "no longer fit" not in view(transcript, 3).plain
        assert notes(transcript) == ["! [b]loaded[/b]"]
        transcript.mark_context(6)
        await pilot.pause()
        assert "no longer fit" not in view(transcript, 4).plain
        assert "5 older messages no longer fit the context" in view(transcript, 6).plain

    run(script)


# --- what one reads -----------------------------------------------------------------------------------------------


def test_the_view_follows_an_answer_until_one_scrolls_up_and_again_from_the_end() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show(chat(30))
        await wait_until(pilot, lambda: len(transcript.views) == 30)
        await transcript.begin_answer()
        await transcript.feed(list(tokens("line\n\n" * 30)))
        await wait_until(pilot, lambda: transcript.is_vertical_scroll_end and transcript.max_scroll_y > 60)
        x, y = transcript.region.center
        for _ in range(3):
            transcript.post_message(MouseScrollUp(transcript, x, y, 0, -1, 0, False, False, False))
            await pilot.pause()
        place, line = transcript.scroll_y, first_line(transcript)
        assert place < transcript.max_scroll_y
        news = transcript.query_one(News)
        assert not news.display
        await transcript.feed(list(tokens("line\n\n" * 30)))
        await pilot.pause()
        assert (transcript.scroll_y, first_line(transcript)) == (place, line)
        assert news.display
        await pilot.click(news)
        await wait_until(pilot, lambda: transcript.is_vertical_scroll_end and not news.display)
        await transcript.feed(list(tokens("line\n\n" * 30)))
        await wait_until(pilot, lambda: transcript.max_scroll_y > place + 40)
        assert transcript.is_vertical_scroll_end

    run(script)


def test_what_one_reads_stays_while_the_window_changes_its_width() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        turns = [Turn(turn.key, turn.parent, turn.role, f"{turn.key} " + "word " * 60, 0.0) for turn in chat(30)]
        await transcript.show(turns)
        await wait_until(pilot, lambda: len(transcript.views) == 30)
        target = view(transcript, 9)
        transcript.scroll_to(y=target.virtual_region.y + 1, animate=False)  # below its name
        await wait_until(pilot, lambda: first_line(transcript).startswith("k9 "))
        await pilot.resize_terminal(40, 20)
        await wait_until(pilot, lambda: transcript.size.width < 50 and first_line(transcript).startswith("k9 "))

    run(script)


def test_every_theme_can_draw_it() -> None:
    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show([said("user", "hello"), said("assistant", MARKDOWN)])
        await pilot.pause()
        before = view(transcript).plain
        for theme in ("textual-light", "textual-dark", "ansi-light", "ansi-dark"):
            pilot.app.theme = theme
            await pilot.pause()
            assert view(transcript).plain == before
            drawn = view(transcript).render_lines(view(transcript).outer_size.region)
            styles = {segment.style for strip in drawn for segment in strip}
            assert len({style.color for style in styles if style}) > 2, theme

    run(script)


def test_content_of_blocks_is_compared_with_its_styles() -> None:
    bold, plain = markdown("**x**")[0], markdown("x")[0]
    assert bold != plain  # although `Content` compares text
    assert bold == markdown("**x**")[0]


# --- formulas, links and pictures ---------------------------------------------------------------------------------


def test_a_formula_is_drawn_once_it_is_complete() -> None:
    growing, shown = GrowingMarkdown(), list[Block]()
    seen = list[str]()
    for piece in ("Then\n\n", "\\[ x = ", "\\frac{a}{b}", " \\]\n\nso $y_1$."):
        keep, blocks = growing.append(piece)
        shown[keep:] = blocks
        seen.append(rendered(shown))
    assert "\\frac{a}{b}" in seen[2]
    assert [line.rstrip() for line in seen[3].split("\n")] == [
        "Then",
        "",
        "      a",
        "  x = ─",
        "      b",
        "",
        "so y₁.",
    ]


def test_a_link_is_one_for_the_terminal_too_if_it_leads_to_the_web() -> None:
    text = "[good](https://example.org/a) [bad](ssh://host) [odd](https://e.org/&#27;]8;;x)"
    spans = [span for block in markdown(text) if isinstance(block, WrappedText) for span in block.content.spans]
    links = [span.style.link for span in spans if isinstance(span.style, Style)]
    assert links == ["https://example.org/a"] * 2 + [None] * 2 + [links[4]] * 2
    assert links[4] is None or links[4].isprintable()


def test_a_long_address_is_shown_in_part_but_opened_as_a_whole() -> None:
    address = f"https://example.org/{'x' * 100}"

    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show([said("assistant", f"[here]({address})")])
        await pilot.pause()
        assert "xxx…)" in view(transcript).plain and address not in view(transcript).plain
        await click_on(pilot, view(transcript), "xxx…)")
        await pilot.pause()

    assert run(script).opened == [address]


def test_lines_of_a_diff_have_their_colours() -> None:
    (block,) = markdown("```diff\n-old\n+new\n same\n```")
    asked = list[str]()

    def style_of(style: str | Style) -> Style:
        asked.append(str(style))
        return style if isinstance(style, Style) else Style()

    block.draw(Brush(Style(), style_of, is_ansi=False, is_dark=True), 40)
    assert {"$text-error", "$text-success"} <= set(asked)


def test_an_attached_image_is_a_picture_that_a_click_on_its_name_hides() -> None:
    mark = keep_image("cat.png", picture(1, 40, 20))

    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show([said("user", f"{mark}\n\nA cat?")])
        await pilot.pause()
        lines = said_in(view(transcript)).splitlines()
        assert [lines[0], lines[-1]] == ["▾ cat.png  40x20", "A cat?"]
        assert lines[1:-1] == ["▀" * 40] * 10
        await click_on(pilot, view(transcript), "cat.png")
        await wait_until(pilot, lambda: said_in(view(transcript)).splitlines() == ["▸ cat.png  40x20", "A cat?"])

    run(script)


def test_an_image_that_was_deleted_is_its_name() -> None:
    mark = keep_image("gone.png", picture(2, 30, 30))
    kept_file(mark.partition(SCHEME)[2].rstrip(")")).unlink()
    assert said_line("user", f"{mark}\n\nGone?") == ["▾ gone.png  30x30", "Gone?"]


def said_line(role: str, content: str) -> list[str]:
    """The lines of a message below its sender."""
    return [line for line in show(said(role, content)).splitlines()[1:] if line.strip()]


def test_a_terminal_that_draws_pictures_gets_each_once() -> None:
    mark = keep_image("dog.png", picture(3, 80, 40))
    sent = list[str]()

    async def script(pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.show([said("user", f"{mark}\n\nA dog?"), said("user", f"{mark}\n\nAgain?")])
        await pilot.pause()
        assert said_in(view(transcript)).count("\U0010eeee") == 40 * 10

    run(script, Transcript(pictures=Pictures(sent.append)))
    assert len(sent) == 1
    chunks = re.findall(r"\x1b_G([^;]*);([A-Za-z0-9+/=]*)\x1b\\", sent[0])
    assert "".join(f"\x1b_G{keys};{data}\x1b\\" for keys, data in chunks) == sent[0]
    assert chunks[0][0].startswith("a=T,U=1,q=2,f=100,i=") and "c=40,r=10" in chunks[0][0]
    assert b64decode("".join(data for _, data in chunks)).startswith(b"\x89PNG")
