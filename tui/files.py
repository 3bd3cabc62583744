"""The attached files on the screen: reading them in a thread, and showing and counting them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import monotonic

from edgespec.cancel import CancelFlag
from edgespec.chat.attachments import Attachment, Read, described, read_named
from edgespec.documents.reader import Said
from edgespec.errors import EdgespecError, for_users
from edgespec.text.figures import counted
from edgespec.tui.base_app import BaseApp
from edgespec.tui.chat_jobs import ChatJobs

QUICK_BYTES = 32 << 10  # a file of this size is counted in a few hundredths of a second
SHOWN_EVERY_S = 0.15


class Files:
    """Reads and shows the attachments of the session of `app`. Files are read one after the other.

    Messages that are sent meanwhile wait for the files, and are then sent by `jobs`.
    """

    def __init__(self, app: BaseApp, jobs: ChatJobs) -> None:
        self._app, self._session, self._jobs = app, app.session, jobs
        self._before: list[Attachment] | None = None  # the attachments before the last paste
        self._threads = ThreadPoolExecutor(1, "files")
        self._cancel = CancelFlag()  # stops the reading
        self._n_reading = 0
        self._reading = ""  # the file that is read, and its page
        self._shown_s = 0.0
        self._warned = ""  # the last warning that the files are too long

    # --- reading --------------------------------------------------------------------------------------------------

    def read(self, read: Callable[[Said, CancelFlag], Read], take: Callable[[Read], None], pasted: str = "") -> None:
        """Call `read` in a thread, then `take`. If it fails, the text `pasted` is inserted into the field."""
        if not self._n_reading:
            self._cancel = CancelFlag()
        self._n_reading += 1
        self._threads.submit(self._read, partial(read, self._show_page, self._cancel), take, pasted)

    def paste(self, text: str, *, is_paths: bool) -> None:
        """Attach the files with these paths, or a long text; paths of files that cannot be attached are inserted."""
        if is_paths:
            self.read(partial(read_named, text), self._app.controls.attach, text)
            return
        with self._app.reporting():
            self._take_pasted(lambda: self._app.controls.attach_text(text))

    def undo_paste(self) -> None:
        """Remove what the last paste attached: the field inserts its text instead."""
        if self._n_reading:
            self._cancel.set()
        elif self._before is not None:
            self._session.chat.attached, self._before = self._before, None
            self.show()

    def stop(self) -> bool:
        """Stop the reading. Returns False if nothing is read."""
        self._cancel.set()
        return self._n_reading > 0

    def keeps(self, text: str) -> bool:
        """Return whether files are read, and a message has to wait for them. It is sent afterwards."""
        if self._n_reading:
            self._jobs.waiting.for_files.append(text)
            self._draw()
        return self._n_reading > 0

    def close(self) -> None:
        self.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, read: Callable[[], Read], take: Callable[[Read], None], pasted: str) -> None:
        """Read files, in the thread."""
        try:
            end = partial(self._take, take, read(), pasted)
        except Exception as error:
            end = partial(self._fail, for_users(error), pasted)
        with suppress(RuntimeError):  # the program has ended meanwhile
            self._app.call_from_thread(end)

    def _show_page(self, reading: str) -> None:
        """Show which page is read, in the thread; often enough is not for every page."""
        self._reading = reading
        if monotonic() - self._shown_s >= SHOWN_EVERY_S:
            self._shown_s = monotonic()
            with suppress(RuntimeError):
                self._app.call_from_thread(self._draw)

    def _take(self, take: Callable[[Read], None], read: Read, pasted: str) -> None:
        try:
            if pasted:
                self._take_pasted(lambda: take(read))
            else:
                take(read)
        except EdgespecError as error:
            self._fail(error, pasted)
            return
        self._end()
        if not self._n_reading:
            for text in self._take_waiting():
                self._jobs.send(text)

    def _fail(self, error: EdgespecError, pasted: str) -> None:
        self._end()
        field = self._app.composer
        if pasted and pasted not in field.text:
            field.input.insert(pasted)
        if waiting := self._take_waiting():
            field.put("\n".join(filter(None, [*waiting, field.text])))
        if pasted:
            self._app.say(str(error), "warning")
        else:
            self._app.report(error)

    def _take_waiting(self) -> list[str]:
        """Return the messages that wait for files, which they do no longer."""
        waiting, self._jobs.waiting.for_files = self._jobs.waiting.for_files, []
        return waiting

    def _end(self) -> None:
        self._n_reading -= 1
        self._reading = ""
        self._draw()

    def _take_pasted(self, take: Callable[[], None]) -> None:
        before = self._session.chat.attached
        take()
        self._before = before
        n_added = len(self._session.chat.attached) - len(before)
        self._app.notify(f"{counted(n_added, 'file')} attached; Ctrl+Z pastes the text instead")

    # --- showing --------------------------------------------------------------------------------------------------

    def show(self) -> None:
        """Show the attachments, and their tokens as soon as they are counted."""
        self._draw()
        if self._session.model.engine is not None and self._session.chat.attached:
            self._app.run_worker(self._count, thread=True, exclusive=True, group="files", exit_on_error=False)

    def remove(self, index: int, name: str) -> None:
        """Detach a file, unless it was detached in the meantime."""
        if [file.name for file in self._session.chat.attached[index : index + 1]] == [name]:
            self._session.chat.detach(str(index + 1))
            self.show()

    def _draw(self) -> None:
        session = self._session
        files, counts = session.chat.attached, session.chat.counts
        last = f"{len(files)} files, {described(files, counts.total(files))}" if len(files) > 1 else ""
        if self._n_reading:
            sent = ", then your message is sent" if self._jobs.waiting.for_files else ""
            last = f"reading {self._reading}{sent} · Esc stops"
        self._app.composer.files.show([(file.name, described([file], counts.total([file]))) for file in files], last)

    def _count(self) -> None:
        """Count tokens, in a thread."""
        for file in self._session.chat.attached:
            if not self._app.is_answering or file.n_bytes <= QUICK_BYTES:  # counting delays the answer
                self._session.chat.counts.count(file)
        self._app.call_from_thread(self._show_counts)

    def _show_counts(self) -> None:
        self._draw()
        warning = self._session.chat.trouble()
        if warning and warning != self._warned:
            self._app.say(warning, "warning")
        self._warned = warning
