"""The input field with the attached files and the list of matching commands above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets.option_list import Option

from edgespec.chat.slash import is_command
from edgespec.text.figures import counted
from edgespec.text.printable import one_line
from edgespec.tui.lines import clickable
from edgespec.tui.plain import OptionList, Static, TextArea, Vertical
from edgespec.tui.prompt_input import PromptInput

CROSS = "\N{MULTIPLICATION SIGN}"
MOST_LINES = 4  # files, and messages, that are listed
LONGEST = 40  # characters of a name; of a longer one the end is shown


class Composer(Vertical):
    """The input field for messages and commands. `commands` are pairs of a name with its slash and a help text.

    `edit_waiting` puts the last message that waits into the empty field, or returns False. Posts the messages of
    `PromptInput`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "Complete", show=False, id="composer.complete"),
        Binding("escape", "stop", "Stop", show=False, id="composer.stop"),
    ]

    def __init__(
        self,
        commands: Sequence[tuple[str, str]] = (),
        history: Sequence[str] = (),
        edit_waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._commands, self._history, self._edit_waiting = commands, history, edit_waiting
        self._offered_for = ""  # the text that the listed commands match
        self._is_chosen = False  # the arrow keys have selected a command

    def compose(self) -> ComposeResult:
        yield WaitingBar()
        yield CommandChoices(compact=True)
        yield AttachmentBar()
        yield PromptInput(self._history, self._choose)

    @property
    def input(self) -> PromptInput:
        return self.query_one(PromptInput)

    @property
    def files(self) -> AttachmentBar:
        return self.query_one(AttachmentBar)

    @property
    def waiting(self) -> WaitingBar:
        return self.query_one(WaitingBar)

    @property
    def text(self) -> str:
        return self.input.text

    def put(self, text: str) -> None:
        """Replace the text, and focus the field."""
        self.input.put(text)
        self.input.focus()

    def say(self, hint: str, *, warns: bool = False) -> None:
        """Show a hint at the edge of the field; "" removes it."""
        self.input.set_class(warns, "-warning")
        self.input.border_subtitle = hint

    def _choose(self, step: int) -> bool:
        """Move up or down in the list of commands, or with 0 insert the command that the arrow keys have selected:
        without that, Enter sends the typed text. Up in the empty field edits a message that waits. Returns False if
        nothing is selected, no command listed, and no message waits."""
        self._offer_commands()
        if not step:
            return self._is_chosen and self.complete()
        if step < 0 and not self.text and self._edit_waiting():
            return True
        if self._list.display:
            (self._list.action_cursor_up if step < 0 else self._list.action_cursor_down)()
            self._is_chosen = True
        return self._list.display

    def complete(self) -> bool:
        """Insert the highlighted command, unless a whole command is typed already."""
        self._offer_commands()
        option = self._list.highlighted_option
        if not self._list.display or option is None or self.input.text in dict(self._commands):
            return False
        self.input.put(f"{option.id} ")
        return True

    def action_complete(self) -> None:
        if not self.complete():
            raise SkipAction

    def action_stop(self) -> None:
        """Close the list of commands, else remove the typed command, else leave the key to the app."""
        if self._list.display:
            self._list.display = False
        elif is_command(self.text):
            self.input.put("")
        else:
            raise SkipAction

    @property
    def _list(self) -> CommandChoices:
        return self.query_one(CommandChoices)

    @on(TextArea.Changed)
    def _offer_commands(self) -> None:
        """List the commands that match the text. Keys call this too: they may arrive before the message on a change."""
        text = self.input.text
        if text == self._offered_for:
            return
        self._offered_for, self._is_chosen = text, False
        fitting = []
        if text.startswith("/") and not self.input.is_recalled:
            fitting = [command for command in self._commands if command[0].startswith(text)]
        self._list.offer(fitting)

    @on(OptionList.OptionSelected)
    def _take(self) -> None:
        self.complete()


class CommandChoices(OptionList, can_focus=False):
    """The list of matching commands. With the name of Textual's CommandList it would get its style."""

    def offer(self, commands: Sequence[tuple[str, str]]) -> None:
        """List these commands and highlight the first; without commands the list is hidden."""
        self.display = bool(commands)
        width = max((len(name) for name, _ in commands), default=0)
        self.set_options(
            Option(Content.assemble((name.ljust(width), "bold"), "  ", (help, "dim")), id=name)
            for name, help in commands
        )
        self.highlighted = 0 if commands else None


class AttachmentBar(Static):
    """The attached files, each with a cross that removes it. Hidden if it is empty."""

    def show(self, files: Sequence[tuple[str, str]], in_all: str = "") -> None:
        """Show the name of each file and its size, and a line about all of them."""
        self.display = bool(files or in_all)
        lines = [_line(index, *file) for index, file in enumerate(files[:MOST_LINES])]
        if in_all:
            more = "… " if len(files) > MOST_LINES else ""
            lines.append(Content.styled(f"{more}{in_all}", "dim"))
        self.update(Content("\n").join(lines))


class WaitingBar(Static):
    """The messages that wait, each with a cross that removes it, and how they are sent. Hidden without messages."""

    def show(self, messages: Sequence[tuple[int, str, int]], sent: str, *, is_held: bool) -> None:
        """Show the messages, each with its key, its text and its number of files."""
        self.display = bool(messages)
        lines = [_waiting_line(*message) for message in messages[:MOST_LINES]]
        if len(messages) > MOST_LINES:
            lines.append(Content.styled(f"   … {len(messages) - MOST_LINES} more", "dim"))
        lines.append(Content.styled(f" {sent}", "$text-warning" if is_held else "dim"))
        self.update(Content("\n").join(lines))


def _waiting_line(key: int, text: str, n_files: int) -> Content:
    cross = clickable(CROSS, f"app.remove_waiting({key})")
    files = f" ({counted(n_files, 'file')})" if n_files else ""
    return Content.assemble(" ", cross, " ", clickable(one_line(text), f"app.edit_waiting({key})"), (files, "dim"))


def _line(index: int, name: str, about: str) -> Content:
    cross = clickable(CROSS, ("app.remove_file", (index, name)))
    name = one_line(name)
    name = name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"
    return Content.assemble(" ", (name, "bold"), f" {about} ", cross, " ").stylize_before("on $primary 20%")
