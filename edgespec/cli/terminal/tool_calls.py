"""Calls of tools in the plain chat: the user is asked in a line, and results are noted."""

from __future__ import annotations

from textwrap import indent

import click

from edgespec.cancel import CancelFlag
from edgespec.cli.options.command import Call
from edgespec.tools.results import shown_arguments
from edgespec.tools.toolbox import Calling, Decision

QUESTION = "Allow it once (y), in this chat (c), always (a) or not (n)?"
DECISIONS: dict[str, Decision] = {"y": "once", "c": "chat", "a": "always", "n": "deny"}


class ToolCalls:
    """Shows calls while they proceed. Without a user who can be asked, calls are denied."""

    def __init__(self, call: Call, *, asks: bool) -> None:
        self._output, self._interrupts, self._asks = call.output, call.interrupts, asks

    def show(self, calling: Calling, cancel: CancelFlag) -> None:
        """Show the state of a call, and ask whether it may run; Ctrl-C then stops the answer."""
        output, label = self._output, calling.tool.label
        if calling.result is not None:
            output.end_progress()
            output.aside(f"{label}: {calling.result.summary}; /result shows it")
        elif calling.state == "running":
            output.progress(f"{label} is running", None)
        else:
            output.aside(f"the model calls {label} with")
            output.aside(indent(shown_arguments(calling.arguments), "  ") or "  no arguments")
            self._ask(calling, cancel)

    def _ask(self, calling: Calling, cancel: CancelFlag) -> None:
        if not self._asks:
            self._output.note(
                "denied: without a terminal no one can be asked; a chat on a terminal can allow it always"
            )
            calling.decide("deny")
            return
        try:
            with self._interrupts.prompting():
                given = click.prompt(QUESTION, type=click.Choice([*DECISIONS]), show_choices=False, err=True)
            calling.decide(DECISIONS[given])
        except click.Abort:
            cancel.set()
