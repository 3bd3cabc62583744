"""The attached files of the screen: shown, pasted, removed, and their tokens counted in the background."""

from __future__ import annotations

from edgespec.chat.attachments import Attachment, described
from edgespec.errors import EdgespecError
from edgespec.text.figures import counted
from edgespec.tui.base_app import BaseApp

QUICK_BYTES = 32 << 10  # a file of this size is counted in a few hundredths of a second


class Files:
    """Shows the attachments of the session of `app`."""

    def __init__(self, app: BaseApp) -> None:
        self._app, self._session = app, app.session
        self._before: list[Attachment] | None = None  # the attachments before the last paste
        self._warning = ""

    def show(self) -> None:
        """Show the attachments, and their tokens as soon as they are counted."""
        self._draw()
        if self._session.engine is not None and self._session.attached:
            self._app.run_worker(self._count, thread=True, exclusive=True, group="files", exit_on_error=False)

    def paste(self, text: str, *, is_paths: bool) -> None:
        """Attach the files with these paths, or a long text; paths of files that cannot be attached are inserted."""
        before, commands = self._session.attached, self._app.commands
        try:
            (commands.do_file if is_paths else commands.attach_text)(text)
        except EdgespecError as error:
            if is_paths:
                self._app.composer.input.insert(text)
            self._app.say(str(error), "warning")
            return
        self._before = before
        n_added = len(self._session.attached) - len(before)
        self._app.notify(f"{counted(n_added, 'file')} attached; Ctrl+Z pastes the text instead")

    def undo_paste(self) -> None:
        """Remove what the last paste attached: the field inserts its text instead."""
        if self._before is not None:
            self._session.attached, self._before = self._before, None
            self.show()

    def remove(self, index: int) -> None:
        self._session.detach(str(index + 1))
        self.show()

    def _draw(self) -> None:
        session = self._session
        files, counts = session.attached, session.counts
        self._warning = self._warning if files else ""
        self._app.composer.files.show(
            [(file.name, described([file], counts.total([file]))) for file in files],
            f"{len(files)} files, {described(files, counts.total(files))}" if len(files) > 1 else "",
            self._warning,
        )

    def _count(self) -> None:
        """Count tokens, in a thread."""
        for file in self._session.attached:
            if not self._app.is_answering or file.n_bytes <= QUICK_BYTES:  # counting delays the answer
                self._session.counts.count(file)
        warning = "" if self._app.is_busy else self._session.crowding()
        self._app.call_from_thread(self._show_counts, warning)

    def _show_counts(self, warning: str) -> None:
        self._warning = warning
        self._draw()
