"""The base class of the chat's app: what the parts of the screen need of it, and where typed text goes."""

from __future__ import annotations

import platform
import traceback
import unicodedata
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from textual.app import App
from textual.await_complete import AwaitComplete
from textual.events import Click, Event, Key, Paste
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widget import Widget
from textual.worker import WorkType

from edgespec.chat.attachments import without_files
from edgespec.chat.controls import Controls
from edgespec.chat.events import Level
from edgespec.chat.programs import copy_natively
from edgespec.chat.session import Session
from edgespec.chat.settings import in_chats
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.paths import state_dir
from edgespec.text.figures import counted
from edgespec.text.printable import printable
from edgespec.tui.about_chat import SystemPrompt, TitleBar, Welcome
from edgespec.tui.composer import Composer
from edgespec.tui.screens import BaseScreen
from edgespec.tui.sidebar import Sidebar
from edgespec.tui.statistics import Figures, LiveStatistics
from edgespec.tui.transcript import Transcript

TOAST_S, LONG_TOAST = 6.0, 100  # a text of more characters is shown twice as long
MOST_TOAST_LINES = 10
COPIED = "Copied"
CONTROL = ("Cc", "Cs")  # Unicode categories of characters that are not text


class BusyError(EdgespecError):
    """The running job must end first."""


class BaseApp(App[None]):
    """An app that shows a session. Parts of the screen import this class, and `ChatApp` imports the parts.

    Letters are text, except while the user has moved the focus to messages or chats with a key.
    """

    session: Session
    controls: Controls
    figures: LiveStatistics  # of the answer that is shown, or of the last one
    is_busy = False  # while a model is loading or answering
    is_answering = False
    _store_error = ""
    _measured = ""  # the message whose statistics are shown

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def title_bar(self) -> TitleBar:
        return self.query_one(TitleBar)

    @abstractmethod
    def show_files(self) -> None:
        """Show the attached files. The focus stays where it is."""

    @abstractmethod
    def run_command(self, line: str, *, is_typed: bool = False) -> None:
        """Run a line that begins with a slash. A line that `is_typed` returns to the field if it has to wait."""

    # --- the conversation -----------------------------------------------------------------------------------------

    async def redraw(self) -> None:
        """Show the conversation as the session has it."""
        session = self.session
        is_empty = not session.chat.turns and not self.is_answering
        self.query_one(Welcome).display = is_empty
        self.transcript.display = not is_empty
        await self.transcript.show(session.chat.turns)
        self.transcript.mark_context(session.chat.first_sent)
        head = session.chat.turns[-1].key if session.chat.turns else ""
        if not self.is_answering:
            figures = self.figures
            if head != self._measured:
                figures = LiveStatistics(None, session.chat.used).finish(
                    Stats.from_json(session.chat.last_answer.stats)
                )
            figures.context_size = session.chat.context_size
            self.show_figures(figures, head)
        sidebar = self.query_one(Sidebar)
        sidebar.open_chat = session.chat.saved_id
        sidebar.refresh_chats()
        self.show_state()
        self._take_unsent()
        self.show_files()

    def _take_unsent(self) -> None:
        """Put what was not sent when the chat was left back into the field."""
        if unsent := self.session.chat.take_unsent():
            files, text = without_files(unsent)
            self.session.chat.attached = [*files, *self.session.chat.attached]
            self.composer.put("\n\n".join(filter(None, (text, self.composer.text))))

    def show_figures(self, figures: LiveStatistics, key: str = "") -> None:
        """Show statistics; of the message `key` if its answer is complete."""
        self.figures, self._measured = figures, key
        for widget in self.query(Figures):  # the width of the screen decides which of them is visible
            widget.show(figures)

    def show_state(self) -> None:
        """Show the title, the system prompt, that something is not saved, and why once; and show the store's notes."""
        self.title_bar.show(self.session)
        self.query_one(SystemPrompt).show(self.session.chat.system, self.session.chat.persona)
        self.query_one(Welcome).show(self.session)
        error = str(self.session.chat.store_error or "")
        self.title_bar.unsaved(error)
        if error and error != self._store_error:
            self.say(f"not saved yet: {error}", "warning")
        self._store_error = error
        for notice in self.session.new_notes():
            self.say(notice.text, notice.level)

    def show_loading(self, progress: str) -> None:
        """Show what is done while a model is loaded; "" when that has ended."""
        self.title_bar.show_progress(progress)
        for welcome in self.query(Welcome):
            welcome.show_progress(progress)

    # --- an unexpected error --------------------------------------------------------------------------------------

    failure: BaseException | None = None  # the first error that nothing has handled, which ends the program

    @abstractmethod
    def keep_unsent(self) -> None:
        """Save what the field and the messages that wait hold, before the program ends."""

    def _handle_exception(self, error: Exception) -> None:
        """Keep the draft, and end. Textual would print the values of all variables, and so the conversation.

        While the program ends anyway, parts of the screen miss others that are gone already: that is no failure.
        """
        if self._exit and not self.is_headless:
            self._close_messages_no_wait()  # if the error came before the end, the screen would stay
            return
        if self.failure is None:
            self.failure = error
            with suppress(Exception):  # the error may be there, too
                self.keep_unsent()
        super()._handle_exception(error)

    def _print_error_renderables(self) -> None:
        """Print nothing: the command reports the error."""
        self._exit_renderables.clear()

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()

    # --- reports --------------------------------------------------------------------------------------------------

    def say(self, text: str, level: Level = "info") -> None:
        """Show a note after the messages, and above the screen where the end of the messages is out of sight."""
        self.query_one(Welcome).display = False
        self.transcript.display = True
        if self.has_screen_above or not self.transcript.shows_end:
            self.toast(text, level)
        note: WorkType[None] = partial(self.transcript.note, text, level)
        self.run_worker(note, group="notes")

    def report(self, error: EdgespecError) -> None:
        """Show an error: as a toast if it is over soon or the chat is empty, else as a note."""
        text = in_chats(str(error))
        if isinstance(error, BusyError) or (isinstance(error, UsageError) and self.query_one(Welcome).display):
            self.clear_notifications()
            self.toast(text, "warning")
        else:
            self.say(text, "error")

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Report an error of the block."""
        try:
            yield
        except EdgespecError as error:
            self.report(error)

    def toast(self, text: str, level: Level = "info") -> None:
        """Show a text in the corner for some seconds; of a long text only the first lines."""
        lines = printable(text).split("\n")
        text = "\n".join([*lines[:MOST_TOAST_LINES], *(["…"] if len(lines) > MOST_TOAST_LINES else [])])
        shown_s = TOAST_S * (2 if len(text) > LONG_TOAST else 1)
        self.notify(text, severity="information" if level == "info" else level, timeout=shown_s)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a toast. The message is text: Textual reads it as markup by default, also where a widget calls this."""
        super().notify(printable(message), title=title, severity=severity, timeout=timeout, markup=False)

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text, through the terminal (OSC 52) and the programs of the system, and say how much it is."""
        super().copy_to_clipboard(text)
        self.run_worker(lambda: copy_natively(text), thread=True, exit_on_error=False)
        for toast in [each for each in self._notifications if each.message.startswith(COPIED)]:
            self._unnotify(toast, refresh=False)  # of the word, when a triple click has selected its line
        self.toast(f"{COPIED} {counted(len(text.split()), 'word')}, {counted(len(text), 'character')}")

    def get_default_screen(self) -> Screen[object]:
        return BaseScreen(id="_default")

    def pop_screen(self) -> AwaitComplete:
        """Close the upper screen. A second click closes Textual's palette once more: then there is none."""
        return super().pop_screen() if self.has_screen_above else AwaitComplete()

    # --- typed text -----------------------------------------------------------------------------------------------

    @property
    def has_screen_above(self) -> bool:
        """True while another screen covers the chat."""
        return len(self.screen_stack) > 1

    async def on_event(self, event: Event) -> None:
        """Insert characters that Python does not call printable, too.

        Textual's fields drop the joiners of Persian, marks of direction, and spaces that are not ASCII. They accept the
        same characters from a paste.
        """
        if isinstance(event, Key) and not event.is_forwarded and _is_other_text(event):
            event = Paste(event.character or "")
        await super().on_event(event)

    def on_key(self, event: Key) -> None:
        """Move text to the field for messages if the focused widget does not take it."""
        binding = self.screen.active_bindings.get(event.key)
        is_bound = binding is not None and binding.enabled
        if self._takes_text() and event.is_printable and event.character and not is_bound:
            self.composer.input.focus()
            self.composer.input.insert(event.character)
            event.prevent_default()

    def on_paste(self, event: Paste) -> None:
        """Move a paste to the field for messages if the focused widget does not take it."""
        if self._takes_text() and self.focused is not self.composer.input:
            self.composer.input.focus()
            self.composer.input.take_paste(event.text)

    def on_click(self, event: Click) -> None:
        """Focus the field after a click on a message: a click must not turn letters into commands."""
        if not self.has_screen_above and event.widget is not None and _shows_messages(event.widget):
            self.composer.input.focus()

    def _takes_text(self) -> bool:
        """Return whether text that arrives here belongs into the field for messages."""
        focused = self.focused
        is_free = focused is None or focused is self.composer.input or _shows_messages(focused)
        return not self.has_screen_above and is_free


def _shows_messages(widget: Widget) -> bool:
    """Return whether this widget shows messages, or is a part of a widget that does."""
    return any(isinstance(each, Transcript) for each in widget.ancestors_with_self)


def _is_other_text(event: Key) -> bool:
    """Return whether a key's character is text but not printable in Python's sense."""
    character = event.character
    return character is not None and not event.is_printable and unicodedata.category(character) not in CONTROL


def log_failure(error: BaseException) -> Path:
    """Write the traceback of an error, without the values of variables, to a file that only the user can read. Return
    the file. Raises OSError."""
    folder = state_dir() / "logs"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / f"chat-{datetime.now():%Y%m%d-%H%M%S-%f}.log"
    versions = ", ".join(f"{name} {version(name)}" for name in ("edgespec", "textual", "rich"))
    file.touch(0o600)
    file.write_text(
        f"{versions}, Python {platform.python_version()}, {platform.platform()}\n\n"
        + "".join(traceback.format_exception(error)),
        encoding="utf-8",
        errors="backslashreplace",
    )
    return file


def failed(error: BaseException, hint: str) -> EdgespecError:
    """Log an error, and return the one that is reported instead, without its message, which may contain the chat."""
    try:
        where = f"the details are in {log_failure(error)}"
    except OSError as unwritable:
        where = f"the details could not be written: {unwritable.strerror or unwritable}"
    return EdgespecError(f"the chat ended with an unexpected {type(error).__name__}", why=where, hint=hint)
