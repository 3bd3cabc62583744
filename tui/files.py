"""The attached files of a screen: shown, pasted, removed, and counted in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.chat.attachments import Attachment
from edgespec.chat.file_commands import crowding, remove
from edgespec.errors import EdgespecError
from edgespec.text.figures import counted, size_of

if TYPE_CHECKING:
    from edgespec.tui.app import ChatApp
    from edgespec.tui.turn_view import TurnView


QUICK_BYTES = 32 << 10  # that are counted in a few hundredths of a second


class Files:
    """Shows the attachments of the session of `app`."""

    def __init__(self, app: ChatApp) -> None:
        self._app, self._session = app, app.session
        self._before: list[Attachment] | None = None  # what was attached before the last paste
        self._views: list[TurnView] = []  # with files that are not counted yet
        self._warning = ""

    def show(self) -> None:
        """Show what is attached now, and the rest when it is known."""
        self._draw()
        if self._session.engine is not None and (self._session.attached or self._views):
            self._app.run_worker(self._count, thread=True, exclusive=True, group="files", exit_on_error=False)

    def count_for(self, view: TurnView) -> None:
        """Show the numbers of tokens of its files when they are known."""
        if view not in self._views:
            self._views.append(view)
            self.show()

    def paste(self, text: str) -> None:
        """Attach the files that were pasted, or dragged onto the terminal; what cannot be attached becomes text."""
        before = self._session.attached
        try:
            self._app.commands.do_file(text)
        except EdgespecError as error:
            self._app.composer.input.insert(text)
            self._app.say(str(error), "warning")
            return
        self._before = before
        n_added = len(self._session.attached) - len(before)
        self._app.notify(f"{counted(n_added, 'file')} attached; Ctrl+Z pastes the text instead")

    def unpaste(self) -> None:
        """Take away what the last paste attached: its text is in the field now."""
        if self._before is not None:
            self._session.attached, self._before = self._before, None
            self.show()

    def remove(self, index: int) -> None:
        remove(self._session, str(index + 1))
        self.show()
        if not self._session.attached:
            self._app.composer.input.focus()

    def _draw(self) -> None:
        session = self._session
        files, counts = session.attached, session.counts
        self._warning = self._warning if files else ""
        total = counts.total(files)
        in_all = size_of(sum(file.n_bytes for file in files)) + ("" if total is None else f", {total:,} tokens")
        self._app.composer.files.show(
            [(file.name, file.described(counts.known(file))) for file in files],
            f"{len(files)} files, {in_all}" if len(files) > 1 else "",
            self._warning,
        )

    def _count(self) -> None:
        """In a thread."""
        session, views = self._session, list(self._views)
        for file in [*session.attached, *(file for view in views for file in view.files)]:
            if not self._app.jobs.is_answering or file.n_bytes <= QUICK_BYTES:  # it would hold up the answer
                session.counts.count(file)
        warning = "" if self._app.jobs.is_busy else crowding(session)
        self._app.call_from_thread(self._counted, views, warning)

    def _counted(self, views: list[TurnView], warning: str) -> None:
        self._warning = warning
        known = self._session.counts.known
        waiting = (view for view in self._views if view.is_attached)
        self._views = [view for view in waiting if any(known(file) is None for file in view.files)]
        for view in views:
            if view.is_attached:
                view.recount()
        self._draw()
