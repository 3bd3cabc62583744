"""Results of tools in the transcript, folded, and the line of a call that runs."""

from __future__ import annotations

import json

from textual.content import Content

from edgespec.text.printable import one_line
from edgespec.tools.results import ToolResult
from edgespec.tools.toolbox import Calling
from edgespec.tui.lines import Block, Lines, Text, clickable, quoted
from edgespec.tui.live_answer import shown

SHOWN = 48  # characters of the arguments in the line of a call


class CallLine(Lines):
    """A call that runs, after the last message."""

    def __init__(self, calling: Calling) -> None:
        super().__init__(classes="call")
        self._calling = calling
        self.tell("▸", "")

    def tell(self, frame: str, doing: str) -> None:
        said = Content.assemble(
            (f"{frame} ", ""), called(self._calling.tool.label, self._calling.arguments), f"  {doing}"
        )
        self.replace(0, [Text(said), Text(Content(""))])


def called(label: str, arguments: str) -> Content:
    """Return a call on one line."""
    parts = (f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in json.loads(arguments).items())
    short = one_line(", ".join(parts))
    short = short if len(short) <= SHOWN else f"{short[: SHOWN - 1]}…"
    return Content.assemble((one_line(label) or "tool", "bold"), f"({short})")


def result_blocks(content: str, limit: int, *, is_open: bool) -> list[Block]:
    """Return the line that unfolds a stored result, and if it is unfolded its arguments and its text up to `limit`."""
    result = ToolResult.of(content)
    style = "$text-warning" if result.outcome in ("error", "not run") else "dim"
    sign = "▾" if is_open else "▸"
    line = Content.assemble(f"{sign} ", called(result.label, result.arguments), (f"  {result.summary}", style))
    blocks: list[Block] = [Text(clickable(line, "open"))]
    if is_open:
        arguments = shown(result.shown_arguments)
        blocks += [quoted(arguments), quoted("")] if arguments else []
        text = shown(result.text)
        more = f"\n… {len(text) - limit:,} more characters" if len(text) > limit else ""
        blocks.append(quoted(text[:limit] + more))
    return blocks
