"""The figures of an answer while it is written, and how they look in a column and in a line."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tui_harness import Harness

from edgespec.core.stats import SourceStats, Stats
from edgespec.events import TokenEvent
from edgespec.tui.statistics import LiveStatistics, StatisticsLine, StatisticsPanel, bars


def round_of(number: int, *, proposed: int, accepted: int) -> list[TokenEvent]:
    """The tokens of one step: accepted draft tokens, and one token of the target."""
    drafted = [TokenEvent(1, "a", True, "draft", number, proposed) for _ in range(accepted)]
    return [*drafted, TokenEvent(2, "b", round=number, proposed=proposed)]


END = TokenEvent(-1, "", finish_reason="stop", stats=Stats())


def test_tokens_steps_and_drafts_are_counted() -> None:
    figures = LiveStatistics(started_s=10.0, context_used=100, context_size=400)
    figures.add(round_of(0, proposed=0, accepted=0), 10.5, 101)
    figures.add([*round_of(1, proposed=4, accepted=3), *round_of(2, proposed=2, accepted=0)[:1]], 11.0, 106)
    figures.add([END], 11.5, 106)
    stats = figures.stats
    assert (stats.generated_tokens, stats.rounds, stats.proposed, stats.accepted) == (6, 3, 6, 3)
    assert figures.draft_lengths == [0, 4, 2]
    assert stats.tokens_per_round == 2.0
    assert stats.acceptance_rate == 0.5
    assert figures.context_used == 106
    assert figures.context_fill == pytest.approx(0.265)
    assert figures.elapsed_s == 1.5


def test_speed_is_counted_from_the_first_tokens_on_and_leaves_the_prompt_out() -> None:
    figures = LiveStatistics(started_s=0.0)
    figures.add([], 4.0, 0)
    figures.add(round_of(0, proposed=0, accepted=0), 5.0, 1)
    assert figures.tokens_per_s is None
    figures.add(round_of(1, proposed=3, accepted=3), 5.5, 5)
    assert figures.tokens_per_s == pytest.approx(8.0)
    figures.add([], 7.0, 5)  # a pass that takes long does not look like a slow one before it is over
    assert figures.tokens_per_s == pytest.approx(8.0)


def test_a_step_that_comes_in_two_parts_is_one() -> None:
    figures = LiveStatistics()
    events = round_of(0, proposed=3, accepted=3)
    figures.add(events[:2], 1.0, 0)
    figures.add(events[2:], 1.1, 0)
    assert (figures.stats.rounds, figures.stats.proposed, figures.stats.generated_tokens) == (1, 3, 4)


def test_without_anything_there_are_no_figures() -> None:
    figures = LiveStatistics()
    figures.add([END], 1.0, 0)
    assert figures.tokens_per_s is figures.context_fill is None
    assert figures.words() == []


def test_the_end_brings_the_exact_figures() -> None:
    figures = LiveStatistics(context_used=7, context_size=100)
    figures.add(round_of(0, proposed=3, accepted=1), 1.0, 9)
    figures.finish(Stats(prompt_tokens=10, generated_tokens=30, generation_s=2.0, rounds=20, proposed=40, accepted=10))
    assert figures.words() == ["15 tok/s", "25 % of drafts accepted", "1.5 tokens per step"]


def test_an_answer_that_the_prompts_pass_ended_has_no_speed() -> None:
    """As where a complete answer is continued: its end token comes at once, in no time that could be measured."""
    figures = LiveStatistics(context_used=7, context_size=100)
    figures.finish(Stats(prompt_tokens=10, generated_tokens=1, generation_s=0.0001, rounds=1))
    assert figures.tokens_per_s is None


@given(st.lists(st.integers(0, 32), max_size=60), st.integers(1, 30))
def test_bars_show_the_last_lengths_and_never_hide_the_longest(lengths: list[int], width: int) -> None:
    shown = lengths[-width:]
    drawn = bars(lengths, width)
    assert len(drawn) == len(shown)
    for length, bar in zip(shown, drawn, strict=True):
        assert (bar == "█") == (length == max(shown) and length > 0) or length > 0.9 * max(shown)
        assert (bar == "▁") or length > 0


def both(width: int) -> tuple[str, str]:
    """The panel and the line after some rounds, at a width."""
    panel, line = StatisticsPanel(), StatisticsLine()
    texts = []

    async def script() -> None:
        async with Harness(panel, line).run_test(size=(width, 24)) as pilot:
            figures = LiveStatistics(0.0, context_used=300, context_size=1024)
            figures.add(round_of(0, proposed=0, accepted=0), 1.0, 301)
            for number in range(1, 25):
                figures.add(round_of(number, proposed=4, accepted=1), 1.0 + number / 48, 301 + 2 * number)
            for widget in (panel, line):
                widget.show(figures)
            await pilot.pause()
            for widget in (panel, line):
                strips = widget.render_lines(widget.outer_size.region)
                texts.append("\n".join(strip.text.strip() for strip in strips))

    asyncio.run(script())
    return texts[0], texts[1]


def test_a_line_tells_how_full_the_context_is() -> None:
    assert both(60)[1] == "context ━━━─────── 34 % of 1,024 tokens"


def test_a_panel_fits_a_column_and_tells_more() -> None:
    lines = both(26)[0].splitlines()
    assert lines[:4] == ["96 tok/s", "2.0 tokens per step", "25 % of drafts accepted", "49 tokens, 1.5 s"]
    assert lines[6:8] == ["draft length, up to 4", "█" * 24]
    assert lines[9:] == ["context 34 %", "━" * 8 + "─" * 16, "349 of 1,024"]


def test_words_tell_the_speed_first_and_what_drafts_gained_once_that_is_known() -> None:
    figures = LiveStatistics(started_s=0.0)
    assert figures.words() == []
    figures.add(round_of(0, proposed=0, accepted=0), 1.0, 1)
    figures.add(round_of(1, proposed=4, accepted=3), 2.0, 5)
    assert figures.words() == ["4.0 tok/s", "75 % of drafts accepted", "2.5 tokens per step"]
    gained = SourceStats(10, 40, 30, 10, 0.0, cost=10.0)
    stats = Stats(generated_tokens=50, generation_s=1.0, rounds=20, proposed=40, accepted=30)
    stats.by_source["draft"] = gained
    assert figures.finish(stats).words()[1] == "1.7x faster with drafts"
    gained.cost = 36.0
    assert figures.finish(stats).words()[1] == "trying drafts took 11 % of the time"
    gained.cost = 31.0
    assert figures.finish(stats).words()[1] == "75 % of drafts accepted", "2 % may be chance"


def test_a_short_answer_does_not_tell_what_drafts_gain() -> None:
    """One rejected draft of five tokens takes a tenth of the time of such an answer."""
    tried = SourceStats(2, 5, 0, 2, 0.0, cost=2.5)
    stats = Stats(generated_tokens=10, generation_s=1.0, rounds=10, proposed=5, by_source={"draft": tried})
    assert stats.speedup == pytest.approx(0.8)
    assert LiveStatistics().finish(stats).words() == ["10 tok/s", "0 % of drafts accepted", "1.0 tokens per step"]


def test_before_the_first_token_the_clock_shows_that_the_prompt_is_read() -> None:
    panel, figures = StatisticsPanel(), LiveStatistics(100.0)

    async def script() -> None:
        async with Harness(panel).run_test(size=(60, 20)):
            figures.add([], 102.5, 0)
            panel.show(figures)
            assert "reading, 2.5 s" in str(panel.render())
            panel.show(figures.finish(None))
            assert "reading" not in str(panel.render())

    asyncio.run(script())
