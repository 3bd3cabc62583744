"""Calls of tools on the screen while an answer is generated: the user is asked, and sees which one runs."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import shorten

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Footer

from edgespec.text.printable import one_line
from edgespec.tools.results import shown_arguments
from edgespec.tools.toolbox import Calling, Decision
from edgespec.tui.base_app import BaseApp
from edgespec.tui.dialogs import Dialog
from edgespec.tui.live_answer import shown
from edgespec.tui.plain import OptionList, Prose, Vertical, VerticalScroll
from edgespec.tui.tool_results import CallLine

CHOICES: tuple[tuple[Decision, str], ...] = (
    ("once", "Allow once"),
    ("chat", "Allow in this chat"),
    ("always", "Always allow this tool"),
    ("deny", "Do not allow; the model is told"),
)


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
                yield Prose(Content(shown(arguments) or "no arguments"))
            options = OptionList(*(Content(text) for _, text in CHOICES), compact=True)
            options.highlighted = None
            yield options
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(CHOICES[event.option_index][0])


class ToolCalls:
    """Asks the user of `app` about calls. `stop` stops the answer."""

    def __init__(self, app: BaseApp, stop: Callable[[], object]) -> None:
        self._app, self._stop = app, stop
        self._asked: PermissionScreen | None = None

    async def show(self, calling: Calling) -> None:
        """Show the state of a call."""
        if calling.state == "asking":
            self._ask(calling)
        elif calling.state == "running":
            await self._app.transcript.begin_call(CallLine(calling))

    def close(self) -> None:
        """Close the question: the answer has ended."""
        if self._asked is not None and self._asked in self._app.screen_stack:
            self._asked.dismiss(None)

    def _ask(self, calling: Calling) -> None:
        self._asked = PermissionScreen(calling)

        def decided(decision: Decision | None) -> None:
            self._asked = None
            if decision is None:
                self._stop()
            else:
                calling.decide(decision)

        self._app.push_screen(self._asked, decided)
