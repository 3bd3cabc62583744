"""The lines below a message: how it ended, its statistics, and its actions."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.style import Style

from edgespec.history import Answer
from edgespec.text.figures import percent, rate
from edgespec.text.printable import one_line
from edgespec.tui.lines import Block, Text

PREVIOUS, NEXT = "\u2039", "\u203a"  # single angle quotes
ENDS = {
    "interrupted": "interrupted: the program ended here",
    "cancelled": "stopped by you",
    "length": "cut off at the token limit",
    "error": "stopped by an error",
}


def foot_of(answer: Answer | None) -> list[Block]:
    """How an answer ended, unless normally, and its statistics."""
    if answer is None:
        return []
    lines: list[Block] = []
    if end := ENDS.get(answer.finish_reason):
        lines.append(Text(Content(f"■ {end}"), style="$text-warning"))
    if figures := _figures(answer):
        lines.append(Text(Content(figures), style="dim"))
    return lines


def tools(actions: Sequence[tuple[str, str]], position: int, n_siblings: int) -> Text:
    """The other versions of a message and clickable (action, label) pairs."""
    parts: list[Content] = []
    if n_siblings > 1:
        before, after = _button("switch(-1)", PREVIOUS), _button("switch(1)", NEXT)
        parts.append(Content.assemble(before, f" {position + 1}/{n_siblings} ", after))
    parts += [_button(action, label) for action, label in actions]
    return Text(Content("  ").join(parts), style="dim")


def _button(action: str, label: str) -> Content:
    return Content(label).stylize(Style.from_meta({"@click": action}))


def _figures(answer: Answer) -> str:
    """Model, speed and what drafting did, as far as known."""
    models = [one_line(name.removesuffix(".gguf")) for name in (answer.model, answer.draft_model) if name]
    parts = [" + ".join(models)] if models else []
    timings = answer.stats.get("timings", {})
    if timings.get("predicted_n", 0) > 1:
        parts.append(f"{rate(timings.get('predicted_per_second', 0.0))} tok/s")
    if timings.get("draft_n"):
        parts.append(f"{answer.stats.get('tokens_per_round', 0.0):.1f} per step")
        parts.append(f"{percent(answer.stats.get('acceptance', 0.0))} accepted")
    return " · ".join(parts)
