"""The input field, with the attached files, the messages that wait and the list of matching commands above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Key, Paste, Resize
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widgets.option_list import Option
from textual.widgets.text_area import EditResult, Location, Selection

from edgespec.chat.commands import is_command
from edgespec.chat.paths import pasted_files
from edgespec.text.clusters import cluster_end, cluster_start
from edgespec.text.figures import counted
from edgespec.text.printable import one_line, printable, with_unix_line_ends
from edgespec.tui.lines import clickable, ends_of_character, with_whole_characters
from edgespec.tui.plain import OptionList, Static, TextArea, Vertical

LONG = 10_000  # characters from which on a paste becomes an attachment: each key redraws the whole field
HINTS = (
    "Write a message · Enter sends · Ctrl+J new line · / commands",
    "Enter sends · Ctrl+J new line · / commands",
    "Enter sends · / commands",
)
CROSS = "\N{MULTIPLICATION SIGN}"
MOST_LINES = 4  # files, and messages, that are listed
LONGEST = 40  # characters of a name; of a longer one the end is shown


@dataclass
class Submitted(Message):
    """A message or command was sent."""

    text: str


@dataclass
class SubmittedNothing(Message):
    """Enter was pressed in the empty field."""


@dataclass
class Pasted(Message):
    """A long text was pasted, or `is_paths` paths of files, as terminals do when a file is dragged onto them."""

    text: str
    is_paths: bool


@dataclass
class PasteUndone(Message):
    """The last such paste was inserted as text instead."""


class PromptInput(TextArea):
    """Enter sends. Up on the first line and down on the last line go through `history`, the oldest text first.

    `choose` gets these keys first, as 0, -1 and 1, and returns True if it has handled the key.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Send", id="composer.send"),
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "New line", show=False, id="composer.newline"),
        Binding("pageup", "app.page(-1)", show=False),
        Binding("pagedown", "app.page(1)", show=False),
        Binding("end", "end", show=False),
        # In the base class these keys select a line, and everything.
        Binding("f6", "app.call('persona')", show=False),
        Binding("f7", "app.call('answer')", show=False),
    ]

    def __init__(self, history: Sequence[str], choose: Callable[[int], bool]) -> None:
        super().__init__(highlight_cursor_line=False, placeholder=HINTS[0])
        self.cursor_blink = False
        self._choose = choose
        self._last_copied: Selection | None = None  # the last selection that was copied
        self._pasted = "", ""  # the last paste that became an attachment, and the field's text at that time
        self.is_recalled = False  # the text is an unchanged one of the history
        self._known_size = Size()
        self._begins_chord = False  # Ctrl+X was pressed
        self._history = list(history)
        self._position = len(self._history)
        self._draft = self._cleared = ""

    def put(self, text: str) -> None:
        """Replace the text; undo restores the old one."""
        self.replace(text, (0, 0), self.document.end)
        self.move_cursor(self.document.end)

    def clear_text(self) -> bool:
        """Remove the text. Undo, and Up in the empty field, bring it back. Returns False if there is none."""
        if not (text := self.text).strip():
            return False
        self._remember(text)
        self.put("")
        self._cleared = text
        return True

    def undo_clearing(self) -> None:
        """Put the text back, if it was removed and nothing was written since."""
        if self._cleared and not self.text:
            self.put(self._cleared)

    def _remember(self, text: str) -> None:
        """Add a text to the history."""
        if self._history[-1:] != [text]:
            self._history.append(text)
        self._position = len(self._history)

    # --- keys -----------------------------------------------------------------------------------------------------

    async def _on_key(self, event: Key) -> None:
        """Handle keys in the order in which they were typed.

        Textual looks up a binding only when its key has reached the app: letters that were typed later would be handled
        first. A priority binding would be handled before letters that were typed earlier.
        """
        is_done = event.key == "enter" or (self._begins_chord and event.key == "ctrl+e")
        self._begin_chord(False)
        if event.key == "enter":
            self.action_submit()
        elif is_done:
            await self.app.run_action("app.call('editor')")
        elif not event.is_printable and (bound := self.screen.active_bindings.get(event.key)) is not None:
            is_own = bound.node in (self, self.parent)
            is_done = is_own and await self.app.run_action(bound.binding.action, bound.node)
        if is_done:
            event.stop()
            event.prevent_default()
        else:
            await super()._on_key(event)

    def action_submit(self) -> None:
        text = self.text
        if self._choose(0):
            return
        if not text.strip():
            self.post_message(SubmittedNothing())
            return
        self._remember(text)
        self.put("")
        self.history.clear()
        self.post_message(Submitted(text))

    def action_cut(self) -> None:
        """Cut the selection; without a selection, the key is the first one of Ctrl+X Ctrl+E."""
        if self.selection.is_empty:
            self._begin_chord(True)
        else:
            super().action_cut()

    def _begin_chord(self, begins: bool) -> None:
        self._begins_chord = begins
        self.border_title = "Ctrl+E opens your editor" if begins else ""

    async def _on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
        self.take_paste(event.text)

    def take_paste(self, text: str) -> None:
        """Post paths of files and long texts as attachments, which undo inserts as text, and insert any other text."""
        is_paths = bool(pasted_files(text))
        if not self.text.startswith("/") and (is_paths or len(text) > LONG):
            self._pasted = text, self.text
            self.post_message(Pasted(text, is_paths))
        else:
            self._replace_via_keyboard(text, *self.selection)

    def action_undo(self) -> None:
        pasted, text = self._pasted
        self._pasted = "", ""
        if pasted and text == self.text:
            self.insert(pasted)
            self.post_message(PasteUndone())
            return
        was_empty = not self.text
        super().action_undo()
        if was_empty and not self.text:
            raise SkipAction  # the app suspends the program then, as other programs do

    def action_newline(self) -> None:
        self._replace_via_keyboard("\n", *self.selection)

    def action_cursor_up(self, select: bool = False) -> None:
        if self._choose(-1):
            return
        if select or self._line_of_cursor() > 0 or not self._recall(-1):
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if self._choose(1):
            return
        if select or self._line_of_cursor() < self.wrapped_document.height - 1 or not self._recall(1):
            super().action_cursor_down(select)

    async def action_end(self) -> None:
        """Move the cursor to the end of the line; from the end of the text, scroll to the newest message."""
        if self.cursor_location != self.document.end:
            self.action_cursor_line_end()
        else:
            await self.app.run_action("app.newest")

    def action_copy(self) -> None:
        """Copy the selection, once; without a selection another widget handles the key."""
        if self.selection is self._last_copied:
            self.move_cursor(self.cursor_location)
        if self.selection.is_empty:
            raise SkipAction
        self._last_copied = self.selection
        super().action_copy()

    def get_cursor_left_location(self) -> Location:
        """Return the place before the visible character on the left, so that no key splits an emoji."""
        row, column = self.cursor_location
        return (
            (row, cluster_start(self.document.get_line(row), column)) if column else super().get_cursor_left_location()
        )

    def get_cursor_right_location(self) -> Location:
        """Return the place after the visible character on the right."""
        row, column = self.cursor_location
        line = self.document.get_line(row)
        return (row, cluster_end(line, column)) if column < len(line) else super().get_cursor_right_location()

    def _line_of_cursor(self) -> int:
        return self.wrapped_document.location_to_offset(self.cursor_location).y

    def _recall(self, step: int) -> bool:
        """Show another text of the history; after the last one the unsent text. Returns False at either end."""
        position = self._position + step
        if not 0 <= position <= len(self._history):
            return False
        if self._position == len(self._history):
            self._draft = self.text
        self._position = position
        self.put(self._draft if position == len(self._history) else self._history[position])
        self.is_recalled = True
        return True

    # --- drawing --------------------------------------------------------------------------------------------------

    def replace(
        self, insert: str, start: Location, end: Location, *, maintain_selection_offset: bool = True
    ) -> EditResult:
        self.is_recalled, self._cleared = False, ""
        text = with_unix_line_ends(insert)
        return super().replace(text, start, end, maintain_selection_offset=maintain_selection_offset)

    def delete(self, start: Location, end: Location, *, maintain_selection_offset: bool = True) -> EditResult:
        self.is_recalled = False
        return super().delete(start, end, maintain_selection_offset=maintain_selection_offset)

    def _refresh_size(self) -> None:
        """Move the cursor into the text first.

        After an undo, Textual 8.2.8 does so only after this call. If the scrollbar comes or goes, this call looks up
        the line of the cursor: a line that is gone would end the program.
        """
        self.selection = self.selection  # the setter finds the nearest place in the text
        super()._refresh_size()

    def get_line(self, line_index: int) -> Text:
        """Return a line without control characters."""
        return Text(printable(self.document.get_line(line_index)), end="", no_wrap=True)

    def render_line(self, y: int) -> Strip:
        """Draw a line. If something scrolls during a layout change, Textual resizes a widget without notifying it."""
        if self.size != self._known_size:
            self._known_size = self.size
            self.post_message(Resize(self.size, self.virtual_size, self.container_size))
        return with_whole_characters(super().render_line(y))

    def clamp_visitable(self, location: Location) -> Location:
        """Return the nearest place in the text that is not inside a visible character, such as an emoji of several."""
        row, column = super().clamp_visitable(location)
        return row, ends_of_character(self.document.get_line(row), column)[0]

    def on_resize(self, event: Resize) -> None:
        self._known_size = event.size
        hint = next((hint for hint in HINTS if len(hint) < self.content_size.width), HINTS[-1])
        if hint != self.placeholder:
            self.placeholder = hint
            self.refresh(layout=True)


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
