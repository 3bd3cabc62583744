"""The full-screen chat: its layout, and the actions of keys, commands and the mouse."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import ClassVar

from rich.console import RenderableType
from textual import on
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from edgespec.chat.attachments import without_files
from edgespec.chat.commands import COMMANDS, find, is_command, leaves, name_and_argument
from edgespec.chat.controls import Controls
from edgespec.chat.drafts import KeptDraft, recover
from edgespec.chat.paths import pasted_files
from edgespec.chat.session import Session
from edgespec.errors import EdgespecError
from edgespec.history import StoreError, TokenRecord
from edgespec.tui.about_chat import TitleBar, Welcome
from edgespec.tui.base_app import BaseApp, BusyError
from edgespec.tui.chat_jobs import ChatJobs
from edgespec.tui.composer import Composer, Pasted, PasteUndone, Submitted, SubmittedNothing
from edgespec.tui.dialogs import ChoiceScreen, ListEntry, Palette
from edgespec.tui.download_line import DownloadLine
from edgespec.tui.files import Files
from edgespec.tui.front import ScreenFront
from edgespec.tui.pictures import Pictures
from edgespec.tui.plain import Horizontal, Static, TextArea, Vertical
from edgespec.tui.sidebar import ChangeChat, ChatChosen, ChatList, Searched, Sidebar
from edgespec.tui.statistics import LiveStatistics, StatisticsLine, StatisticsPanel
from edgespec.tui.terminal import can_be_continued, handle_signals, know_alt_enter
from edgespec.tui.transcript import Transcript
from edgespec.tui.turn_view import CopyText, SaveCode, SwitchBranch, TurnCommand

FETCHED_EVERY_S = 0.15  # each frame costs the engine a few milliseconds of a core
AGAIN_S = 3.0  # after a Ctrl+C, in which another one quits
DRAFT_S = 1.0  # the longest time until a changed draft is written
NICE = 10  # the engine has priority
THEME, AS_TERMINAL = "theme", "terminal"
PANEL, LEAST_TEXT = 28, 76  # columns of the statistics, which app.tcss sets too, and least columns of the messages
LEAST_LINES = 28  # of the screen, for the statistics below the chats
VAST = 170  # columns from which on all parts are wider
SHOWN = {"help": "Help", "list": "Chats", "clear": "New", "tokens": "Tokens", "bye": "Quit"}  # at the foot
MODES: tuple[tuple[type[Widget], str], ...] = (
    (TextArea, "Writing"),
    (Transcript, "Messages"),
    (Sidebar, "Chats"),
)
NOT_OF_CHATS = {"call('tokens')", "call('clear')", "call('list')", "command_palette"}
"""Actions for which the line has no room while the chats have the focus. Their keys work."""


class ModeFooter(Footer):
    """Shows which part of the chat has the focus: letters are text in one part and commands in another."""

    def compose(self) -> ComposeResult:
        mode = mode_of(self.screen.focused)
        if mode:
            yield Static(mode, classes="mode" if mode == MODES[0][1] else "mode -commands")
        for key in super().compose():
            if not (mode == MODES[-1][1] and isinstance(key, FooterKey) and key.action in NOT_OF_CHATS):
                yield key


def mode_of(focused: Widget | None) -> str:
    """Return the name of the part of the chat that this widget belongs to."""
    parts = focused.ancestors_with_self if focused is not None else ()
    return next((name for kind, name in MODES if any(isinstance(part, kind) for part in parts)), "")


class Middle(Vertical):
    """The messages and the field. The statistics are shown next to it if enough columns remain for the messages, and
    otherwise below the list of chats, if that is shown next to it with enough lines."""

    def on_resize(self) -> None:
        body, left = self.parent, self.region.x
        assert isinstance(body, Widget)
        is_roomy = body.region.right - left - PANEL >= LEAST_TEXT
        body.set_class(is_roomy, "-roomy")
        body.set_class(not is_roomy and left > 0 and body.region.height >= LEAST_LINES, "-tall")
        body.set_class(body.region.width >= VAST, "-vast")


class ChatApp(BaseApp):
    """Shows a session. `message` is sent as soon as the model is loaded; `theme` is used unless the user chose one.
    `draws_pictures`: the terminal draws attached images."""

    TITLE = "edgespec"
    ENABLE_COMMAND_PALETTE = True
    CSS_PATH = "app.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (58, "-normal"), (104, "-wide")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(
                command.key,
                f"call('{command.name}')",
                SHOWN.get(command.name, command.name),
                show=command.name in SHOWN,
                id=command.name,
            )
            for command in COMMANDS
            if command.key
        ),
        Binding("ctrl+p", "command_palette", "Palette", id="palette"),
        Binding("escape", "stop", "Stop", show=False, id="stop"),
        Binding("ctrl+z", "suspend_process", "Suspend", show=False, id="suspend"),
    ]

    def __init__(
        self,
        session: Session,
        *,
        message: str | None = None,
        theme: str = "textual-dark",
        draws_pictures: bool = False,
    ) -> None:
        super().__init__()
        self.theme = self._own_theme = theme
        self._is_as_terminal = True  # the theme follows the terminal
        self.session, self.figures = session, LiveStatistics()
        self.jobs, self._message = ChatJobs(self), message
        self._draft = KeptDraft() if session.store.file else None
        self._kept: tuple[str | None, str] = (None, "")
        self._pictures = Pictures(self._to_terminal) if draws_pictures else None
        self._quits_until_s = 0.0  # until then, Ctrl+C quits
        self._files = Files(self, self.jobs)
        self._front = ScreenFront(self, self.jobs, self._files)
        self.controls = Controls(session, self._front)

    def compose(self) -> ComposeResult:
        yield TitleBar()
        with Horizontal(id="body"):
            yield Sidebar(self.session.store, self.session.chat.saved_id, id="sidebar")
            with Middle(id="middle"):
                yield Welcome()
                yield Transcript(pieces=self._pieces, siblings=self._siblings, pictures=self._pictures)
                yield StatisticsLine(id="line")
                yield DownloadLine(self.jobs.load)
                history = [without_files(turn.content)[1] for turn in self.session.chat.turns if turn.role == "user"]
                commands = [(f"/{command.name}", command.help) for command in COMMANDS]
                yield Composer(commands, history, self.jobs.waiting.edit_last)
            yield StatisticsPanel(id="figures")
        yield ModeFooter(show_command_palette=False, compact=True)

    def _to_terminal(self, sequence: str) -> None:
        """Send a control sequence to the terminal."""
        if self._driver is not None:
            self._driver.write(sequence)

    async def on_mount(self) -> None:
        with suppress(StoreError):
            theme = self.session.store.preference(THEME)
            if theme in self.available_themes:
                self._is_as_terminal, self.theme = False, str(theme)
            self.query_one("#sidebar").set_class(bool(self.session.store.chats(limit=1)), "-usual")
        self.theme_changed_signal.subscribe(self, lambda theme: self._keep_theme(theme.name))
        if sys.platform == "linux" and not self.is_headless:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)  # of this thread alone, on Linux
        if os.name == "posix" and not self.is_headless:
            from textual.drivers.linux_driver import LinuxDriver

            if isinstance(self._driver, LinuxDriver):
                handle_signals(self._driver, self.keep_unsent)
        know_alt_enter()
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self.set_interval(FETCHED_EVERY_S, self.jobs.fetch)
        self.set_interval(DRAFT_S, self._keep_draft)
        self.composer.input.focus()
        if self._message is not None:
            self.jobs.waiting.add(self.jobs.waiting.typed(self._message))
        if self._draft is not None:
            recover(self.session.chat)
        await self.redraw()
        self.jobs.load(self.session.load_settings)

    def exit(self, result: None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        self.keep_unsent()
        super().exit(result, return_code, message)

    def keep_unsent(self) -> None:
        if self.screen_stack and self.screen_stack[0].query(Composer):
            unsent = self.jobs.waiting.together()
            is_saved = not unsent or self.session.chat.keep_unsent(unsent)
            if self._draft is not None:
                if not is_saved:
                    self._draft.write(self.session.chat.saved_id, unsent)
                self._draft.close(is_saved=is_saved)

    def _keep_draft(self) -> None:
        """Keep what `keep_unsent` would save, in case that the process is killed."""
        if self._draft is not None and self.screen_stack[0].query(Composer):
            kept = self.session.chat.saved_id, self.jobs.waiting.together()
            if kept != self._kept:
                self._kept = kept
                self._draft.write(*kept)

    def on_unmount(self) -> None:
        self._files.close()
        self.jobs.close()

    # --- commands -------------------------------------------------------------------------------------------------

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette: above the chat only its commands, and the theme."""
        for command in COMMANDS if screen is self.screen_stack[0] else ():
            yield SystemCommand(f"/{command.name}", command.help, lambda name=command.name: self.action_call(name))
        yield SystemCommand("Theme", "Change the colours.", self.action_change_theme)

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    def action_change_theme(self) -> None:
        """Let the user choose a theme, or the one that suits the terminal."""

        def take(name: str | None) -> None:
            if name is not None:
                self._is_as_terminal = name == AS_TERMINAL
                self.theme = self._own_theme if self._is_as_terminal else name
                self._keep_theme(self.theme)

        choices = [ListEntry(AS_TERMINAL, f"as the terminal ({self._own_theme})")]
        choices += [ListEntry(name, name) for name in sorted(self.available_themes)]
        self.push_screen(ChoiceScreen("theme", "", choices, AS_TERMINAL if self._is_as_terminal else self.theme), take)

    def action_suspend_process(self) -> None:
        """Ctrl+Z: stop the program, until the shell continues it."""
        if can_be_continued() and self._driver is not None and self._driver.can_suspend:
            self._suspend_signal()
            os.killpg(os.getpgrp(), signal.SIGTSTP)  # and those that started it: the shell waits for them
        else:
            self.toast("no shell could continue this program", "warning")

    @on(Submitted)
    def _send(self, event: Submitted) -> None:
        if leaves(event.text):
            self.exit()
        elif is_command(event.text):
            self.run_command(event.text, is_typed=True)
        elif not self._files.keeps(event.text):
            self.jobs.send(event.text)

    @on(SubmittedNothing)
    def _send_waiting(self) -> None:
        self.jobs.send_waiting()

    def action_call(self, name: str) -> None:
        """Run a command without arguments."""
        self.run_command(f"/{name}")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """On a screen above the chat, keys belong to that screen."""
        if action == "find":
            return not self.has_screen_above and self.transcript.is_searched
        return action != "call" or len(self.screen_stack) == 1 or parameters == ("bye",)

    def run_command(self, line: str, *, is_typed: bool = False) -> None:
        name, argument = name_and_argument(f"/file {line}" if is_typed and pasted_files(line) else line)
        try:
            command = find(name)
        except EdgespecError as error:
            self.composer.put(line)
            self.report(error)
            return
        try:
            if command.waits:
                self.jobs.check_free()
            if not self._front.show(command.name, argument):
                command.run(self.controls, argument)
        except EdgespecError as error:
            if is_typed and isinstance(error, BusyError):
                self.composer.put(line)
            self.report(error)
        self.show_state()

    def action_stop(self) -> None:
        """Stop the reading of a file, the answer or the loading; else hide the list of chats."""
        self.clear_selection()
        if self._files.stop() or self.jobs.stop():
            return
        if self.query_one("#sidebar").has_class("-asked"):
            self._front.hide_chats()
        self.composer.input.focus()

    def action_help_quit(self) -> None:
        """Ctrl-C: stop the current job; otherwise clear the field, and the second press quits."""
        if self._files.stop() or self.jobs.stop():
            return
        if monotonic() < self._quits_until_s:
            self.composer.input.undo_clearing()  # the text is saved, to be in the field again
            self.exit()
            return
        self._quits_until_s = monotonic() + AGAIN_S
        kept = "the chat is saved" if self.session.store.file else "this chat is not saved"
        cleared = (
            "Up brings the text back; " if self.composer.input.has_focus and self.composer.input.clear_text() else ""
        )
        self.notify(f"{cleared}Ctrl+C again quits; {kept}", timeout=AGAIN_S)

    def show_files(self) -> None:
        self._files.show()

    def leave_soon(self) -> None:
        """Quit, requested by another thread: the terminal is gone, or the system ends the program."""
        with suppress(RuntimeError):
            self.call_later(self.exit)

    def _pieces(self, key: str) -> list[TokenRecord]:
        with suppress(StoreError):
            return self.session.store.pieces(key)
        return []

    def _siblings(self, key: str) -> list[str]:
        with suppress(StoreError):
            if self.session.chat.saved_id is not None:
                return self.session.store.siblings(self.session.chat.saved_id, key)
        return []

    def _index(self, key: str) -> int | None:
        """Return the place of a turn; None if it has gone since it was clicked."""
        return next((index for index, turn in enumerate(self.session.chat.turns) if turn.key == key), None)

    @on(TurnCommand)
    def _run_for_turn(self, event: TurnCommand) -> None:
        if (index := self._index(event.key)) is not None:
            self.run_command(f"/{event.name} {index + 1}")

    @on(CopyText)
    def _copy_text(self, event: CopyText) -> None:
        self._front.copy(event.text)

    @on(SaveCode)
    def _save_code(self, event: SaveCode) -> None:
        with self.reporting():
            self.controls.save_code(event.block)

    @on(SwitchBranch)
    async def _switch_branch(self, event: SwitchBranch) -> None:
        if (index := self._index(event.key)) is None:
            return
        is_by_key = self.focused is not None and self.transcript in self.focused.ancestors
        with self.reporting():
            self.jobs.check_not_answering()
            self.session.chat.step(event.key, event.step)
        await self.redraw()
        await self.transcript.reveal(self.session.chat.turns[index].key, focuses=is_by_key)

    @on(Pasted)
    def _paste(self, event: Pasted) -> None:
        self._files.paste(event.text, is_paths=event.is_paths)

    @on(PasteUndone)
    def _undo_paste(self) -> None:
        self._files.undo_paste()

    def action_remove_file(self, index: int, name: str) -> None:
        self._files.remove(index, name)

    def action_remove_waiting(self, key: int) -> None:
        self.jobs.waiting.remove(key)

    def action_edit_waiting(self, key: int) -> None:
        self.jobs.waiting.edit(key)

    def action_page(self, step: int) -> None:
        """Scroll the messages by a page."""
        self.transcript.scroll_relative(y=step * max(1, self.transcript.size.height - 2), animate=False)

    async def action_find(self, step: int) -> None:
        """Go to the next or the previous match of the search."""
        where = await self.transcript.find(step)
        if where is None:
            self.toast("no message of this chat has what you searched for", "warning")
        elif not self.is_busy:
            self.composer.say(f"match in message {where[0]} of {where[1]} · N next · Shift+N previous")

    async def action_newest(self) -> None:
        """Scroll to the end of the messages."""
        await self.transcript.show_end()

    # --- the sidebar ----------------------------------------------------------------------------------------------

    @on(Searched)
    def _mark_found(self, event: Searched) -> None:
        self.transcript.mark_found(event.query)
        if not self.is_busy:
            self.composer.say("")
        self.refresh_bindings()

    @on(ChatChosen)
    async def _open_chat(self, event: ChatChosen) -> None:
        try:
            self.jobs.check_not_answering()
            self.session.chat.open(event.chat, event.key)
        except EdgespecError as error:
            self.report(error)
            return
        is_by_key = self.query_one(ChatList).has_focus
        if not self.screen.has_class("-wide"):
            self.query_one("#sidebar").remove_class("-asked")
        await self.redraw()
        self.composer.input.focus()
        if event.key is not None:
            await self.transcript.reveal_match(event.key, focuses=is_by_key)

    @on(ChangeChat)
    async def _change_chat(self, event: ChangeChat) -> None:
        with self.reporting():
            if self.session.chat.saved_id in event.deletes:
                self.jobs.check_not_answering()
            event.change(self.session)
        await self.redraw()

    def _keep_theme(self, name: str) -> None:
        if name != self._own_theme:
            self._is_as_terminal = False
        with suppress(StoreError):
            self.session.store.set_preference(THEME, "" if self._is_as_terminal else name)
        if self.transcript.show_tokens:
            self.transcript.colour_tokens()
