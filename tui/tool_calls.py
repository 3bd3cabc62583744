"""Calls of tools on the screen: the user is asked, sees which one runs, and unfolds its result."""

from __future__ import annotations

import json
from textwrap import shorten

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Footer

from edgespec.text.printable import one_line
from edgespec.tools.results import ToolResult, shown_arguments
from edgespec.tools.toolbox import Calling, Decision
from edgespec.tui.dialogs import Dialog
from edgespec.tui.lines import Block, Lines, Prose, WrappedText, clickable, cut_off, quoted, shown
from edgespec.tui.plain import OptionList, Vertical, VerticalScroll

CHOICES: tuple[tuple[Decision, str], ...] = (
    ("once", "Allow once"),
    ("chat", "Allow in this chat"),
    ("always", "Always allow this tool"),
    ("deny", "Do not allow; the model is told"),
)
SHOWN = 48  # characters of the arguments in the line of a call


class PermissionScreen(Dialog[Decision]):
    """Shows a call with all its arguments, and asks whether it may run; None stops the answer.

    No choice is highlighted at first: the user may be typing, and Enter must not allow anything.
    """

    BINDINGS = [  # noqa: RUF012 - Textual declares it so
        Binding("escape", "dismiss(None)", "Stop the answer", id="permission.stop"),
        Binding("tab", "app.focus_next", "Arguments", id="permission.next"),
    ]

    def __init__(self, calling: Calling) -> None:
        super().__init__()
        self._calling = calling

    def compose(self) -> ComposeResult:
        tool, arguments = self._calling.tool, shown_arguments(self._calling.arguments)
        with Vertical(classes="dialog") as box:
            box.border_title = "the model wants to call a tool"
            about = shorten(one_line(tool.description), 200, placeholder=" …")
            yield Prose(Content.assemble((one_line(tool.label), "bold"), f"\n{about}" if about else ""))
            with VerticalScroll(id="arguments"):
                yield Prose(arguments or "no arguments")
            options = OptionList(*(Content(text) for _, text in CHOICES), compact=True)
            options.highlighted = None
            yield options
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(CHOICES[event.option_index][0])


class CallLine(Lines):
    """A call that runs, after the last message."""

    def __init__(self, calling: Calling) -> None:
        super().__init__(classes="call")
        self._calling = calling
        self.tell("▸", "")

    def tell(self, frame: str, doing: str) -> None:
        line = Content.assemble(
            (f"{frame} ", ""), called(self._calling.tool.label, self._calling.arguments), f"  {doing}"
        )
        self.replace(0, [WrappedText(line), WrappedText(Content(""))])


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
    blocks: list[Block] = [WrappedText(clickable(line, "open"))]
    if is_open:
        arguments = shown(result.shown_arguments)
        blocks += [quoted(arguments), quoted("")] if arguments else []
        blocks.append(quoted(cut_off(shown(result.text), limit)))
    return blocks
