"""The lines below a message: how it ended, its statistics, and its actions."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from edgespec.core.stats import Stats
from edgespec.history import Answer
from edgespec.text.printable import one_line
from edgespec.tui.code import LEFT, RIGHT
from edgespec.tui.lines import Block, Fitting, Text, clickable
from edgespec.tui.live_statistics import LiveStatistics


def foot_of(answer: Answer | None) -> list[Block]:
    """Return the statistics of an answer, and how it ended if it was not complete."""
    if answer is None:
        return []
    lines: list[Block] = []
    if answer.end:
        hint = "; /continue resumes" if answer.finish_reason == "interrupted" else ""
        lines.append(Text(Content(f"■ {answer.end}{hint}"), style="$text-warning"))
    if said := LiveStatistics().finish(Stats.from_json(answer.stats)).words():
        lines.append(Fitting(tuple(said)))
    return lines


def tools(actions: Sequence[tuple[str, str]], position: int, n_siblings: int) -> Text:
    """Return a line with the number of versions and clickable actions, given as (action, label)."""
    parts: list[Content] = []
    if n_siblings > 1:
        before, after = clickable(LEFT, "switch(-1)"), clickable(RIGHT, "switch(1)")
        parts.append(Content.assemble(before, f" {position + 1}/{n_siblings} ", after))
    parts += [clickable(label, action) for action, label in actions]
    return Text(Content("  ").join(parts), style="dim")


def name_of(answer: Answer | None) -> str:
    """Return the name of the model that answered, with its draft model."""
    names = (answer.model, answer.draft_model) if answer is not None else ()
    return " + ".join(one_line(name.removesuffix(".gguf")) for name in names if name) or "assistant"
