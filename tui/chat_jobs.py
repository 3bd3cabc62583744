"""The background jobs of the screen, one at a time: loading a model or generating an answer. Messages wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count, groupby
from pathlib import Path
from time import perf_counter

from edgespec.cancel import CancelFlag
from edgespec.chat.attachments import Attachment, with_files
from edgespec.chat.commands import is_command
from edgespec.chat.events import Added, ChatEvent, ChatEvents, Notice
from edgespec.chat.session import AGAINST_LOOPS
from edgespec.chat.settings import in_chats
from edgespec.errors import EdgespecError
from edgespec.events import PROGRESS, TokenEvent
from edgespec.settings import LoadSettings
from edgespec.text.figures import gauge
from edgespec.text.printable import one_line
from edgespec.tools.toolbox import Calling, Decision
from edgespec.tui.base_app import BaseApp, BusyError
from edgespec.tui.comparison import ComparisonScreen
from edgespec.tui.statistics import LiveStatistics
from edgespec.tui.tool_calls import CallLine, PermissionScreen

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAME_S = 0.15
COUNTED_EVERY_S = 0.5  # people cannot read numbers that change faster
LEAVING_S = 3.0  # how long the exit waits for an answer to end
BEGUN = Notice("")  # event: the question is saved, and its answer begins


@dataclass(frozen=True, slots=True)
class Unsent:
    """A message as it was typed, with its files."""

    text: str
    files: tuple[Attachment, ...] = ()
    key: int = field(default_factory=count().__next__, compare=False)


class WaitingMessages:
    """The messages of `app` that wait, in the order in which they will be sent.

    After an error, or when the user has stopped an answer, they are held until the user sends them with Enter: they may
    refer to an answer that does not exist. The texts in `for_files` are sent with files that are still being read.
    """

    def __init__(self, app: BaseApp) -> None:
        self._app = app
        self._messages: list[Unsent] = []
        self.for_files: list[str] = []
        self._held = ""  # why they are not sent by themselves; "" if they are

    def typed(self, text: str) -> Unsent:
        """Return a message with the attached files, which are attached no longer."""
        message = Unsent(text, tuple(self._app.session.chat.attached))
        self._attach([])
        return message

    def add(self, message: Unsent) -> None:
        self._messages.append(message)
        self.show()

    def next(self) -> Unsent | None:
        """Return the message to send now, which waits no longer; None if there is none, or they are held."""
        if self._held or not self._messages:
            return None
        return self._pop(0)

    def hold(self, why: str) -> None:
        """Send no message until `release` is called."""
        self._held = why if self._messages else ""
        self.show()

    def release(self) -> None:
        self._held = ""
        self.show()

    def remove(self, key: int) -> None:
        """Remove a message, unless it was sent in the meantime."""
        if (index := self._place(key)) is not None:
            self._pop(index)

    def _pop(self, index: int) -> Unsent:
        message = self._messages.pop(index)
        self._held = self._held if self._messages else ""
        self.show()
        return message

    def give_back(self, message: Unsent) -> None:
        """Put a message that was rejected into the field, or before the others if the user is writing another one."""
        if self._app.composer.text:
            self._messages.insert(0, message)
        else:
            self._edit(message)

    def edit(self, key: int) -> None:
        """Put a message into the field, unless it was sent in the meantime. The field's text waits in its place."""
        if (index := self._place(key)) is None:
            return
        if self._app.composer.text.strip():
            self._messages.insert(index + 1, self.typed(self._app.composer.text))
        self._edit(self._pop(index))

    def edit_last(self) -> bool:
        """Put the last message into the empty field. Returns False if there is none."""
        if self._messages:
            self.edit(self._messages[-1].key)
            return True
        return False

    def together(self) -> str:
        """Return these messages and the one in the field as one text, with their files.

        Without a text, only pasted files count: the user has the others, and may not want them in the next chat.
        """
        text, attached = self._app.composer.text, self._app.session.chat.attached
        typed = Unsent(text, tuple(file for file in attached if text.strip() or file.path is None))
        parts = [*self._messages, *map(Unsent, self.for_files), typed]
        files = [file for part in parts for file in part.files]
        return with_files(files, "\n\n".join(part.text for part in parts if part.text.strip()))

    def show(self) -> None:
        end = "when the model is loaded" if self._app.is_busy and not self._app.is_answering else "after this answer"
        sent = f"Enter sends · Up edits · held, because {self._held}" if self._held else f"Up edits · sent {end}"
        lines = [(message.key, message.text, len(message.files)) for message in self._messages]
        self._app.composer.waiting.show(lines, sent, is_held=bool(self._held))

    def _place(self, key: int) -> int | None:
        return next((place for place, message in enumerate(self._messages) if message.key == key), None)

    def _edit(self, message: Unsent) -> None:
        self._app.composer.put(message.text)
        if message.files:
            self._attach([*message.files, *self._app.session.chat.attached])

    def _attach(self, files: list[Attachment]) -> None:
        self._app.session.chat.attached = files
        self._app.controls.front.show_files()


class ChatJobs:
    """Starts jobs for `app`, and shows their results with each `fetch`. Messages sent meanwhile wait in `waiting`."""

    def __init__(self, app: BaseApp) -> None:
        self._app, self._session = app, app.session
        self._job: Future[None] | None = None  # work in a thread, which the screen never waits for
        self._cancel = CancelFlag()  # stops it
        self._events = deque[ChatEvent | tuple[str, float]]()  # of the job; a pair is progress
        # A process inherits the priority of the thread that starts it, and the screen lowers its own.
        self._pool = ThreadPoolExecutor(1, "chat")
        self._pool.submit(int).result()
        self.waiting = WaitingMessages(app)
        self._asked: tuple[Unsent, int] | None = None  # the message sent, and the length of the chat before it
        self._loop = ""  # the warning that the answer repeats itself, if it does
        self._last: TokenEvent | None = None
        self._comparison: ComparisonScreen | None = None
        self._question: PermissionScreen | None = None  # whether a call of a tool may run
        self._running_s: float | None = None  # when the tool that runs began
        self._loads = 0
        self._loading, self._load_began_s = "", 0.0  # what is done to load a model, and since when
        self._loaded: float | None = None  # how much of it is done, from 0 to 1
        self._uncounted: list[TokenEvent] = []  # tokens that are not in the statistics yet
        self._counted_s = self._began_s = 0.0
        self._read = 0.0  # the part of the prompt that the model has processed, from 0 to 1

    def check_free(self) -> None:
        """Raises BusyError while a job runs."""
        if self._app.is_busy:
            what = "an answer is being generated" if self._app.is_answering else "a model is loading"
            raise BusyError(what, hint="Esc stops it")

    def check_not_answering(self) -> None:
        """Raises BusyError from the beginning to the end of a job that answers."""
        if self._app.is_answering:
            self.check_free()

    def send(self, text: str) -> None:
        """Send a message with the attached files, or let it wait while a job runs."""
        message = self.waiting.typed(text)
        if self._app.is_busy:
            self.waiting.add(message)
        else:
            self._ask(message)

    def send_waiting(self) -> None:
        """Send the messages that wait, if they were held, too."""
        self.waiting.release()
        self._send_next()

    def _send_next(self) -> None:
        while not self._app.is_busy and (message := self.waiting.next()) is not None:
            if is_command(message.text):  # only the command line lets a command wait
                self._app.run_command(message.text, is_typed=True)
            else:
                self._ask(message)

    def _ask(self, message: Unsent) -> None:
        n_turns, text = len(self._session.chat.turns), message.text.removeprefix("/")
        self.answer(lambda cancel: self._session.ask(text, cancel, message.files))
        self._asked = message, n_turns

    def answer(self, start: Callable[[CancelFlag], ChatEvents]) -> None:
        """Start an answer and show it as it streams. Raises BusyError while a job runs."""
        self.check_free()

        def work(cancel: CancelFlag) -> None:
            events = start(cancel)
            self._events.append(BEGUN)
            for event in events:
                self._events.append(event)

        self._app.is_answering, self._last, self._asked, self._loop, self._uncounted = True, None, None, "", []
        self._start(work)

    def begin_comparison(self, screen: ComparisonScreen) -> None:
        """Let a screen use the session: commands and messages that were typed before it was shown have to wait."""
        self._comparison, self._app.is_busy, self._app.is_answering = screen, True, True

    def end_comparison(self) -> None:
        """Let jobs use the session again, if the comparison is over. Messages that wait are held: the user has to say
        which answer they refer to."""
        if self._comparison is not None and not self._comparison.uses_session:
            self._comparison, self._app.is_busy, self._app.is_answering = None, False, False
            self.waiting.hold("you compared answers")

    def load(self, settings: LoadSettings) -> None:
        """Load a model. Raises BusyError while a job runs."""
        self.check_free()
        self._loads += 1
        self._loading = f"starting {one_line(Path(settings.model).name.removesuffix('.gguf'))}"
        self._loaded, self._load_began_s = None, perf_counter()
        self._show_loading(self._load_began_s)
        self._start(lambda cancel: self._session.load(settings, self._progressed, cancel))

    def _progressed(self, what: str, done: float) -> None:
        """Show progress of loading, or later of processing a prompt, as an event of the current job."""
        if self._job is not None:
            self._events.append((what, done))

    def _start(self, work: Callable[[CancelFlag], None]) -> None:
        self._session.states.end_idle()
        self._events.clear()
        self._cancel = CancelFlag()
        self._job, self._app.is_busy = self._pool.submit(work, self._cancel), True
        self._app.composer.say("Esc stops · Enter queues")
        self.waiting.show()

    def stop(self) -> bool:
        """Stop the current job. Returns False if there is none."""
        if self._job is not None:
            self._cancel.set()
            self._app.composer.say("stopping ...")
        return self._job is not None

    def end_reasoning(self) -> None:
        """End the reasoning of the answer that is being generated."""
        self._cancel.end_reasoning()
        self._app.composer.say("ending the reasoning ...")

    def close(self) -> None:
        """Stop the current job and wait for its end, so that the whole answer is saved."""
        self._session.states.end_idle()
        if self._job is not None:
            self._cancel.set()
            wait([self._job], LEAVING_S)

    async def fetch(self) -> None:
        """Show the events that arrived since the last call."""
        app, job = self._app, self._job
        if job is None and self._comparison is None:
            return
        if not app.query("TitleBar #model"):  # the program closes: the timer ticks on without widgets
            return
        if job is None:
            self.end_comparison()
            return
        is_over = job.done()
        arrived = [self._events.popleft() for _ in range(len(self._events))]
        for kind, events in groupby(arrived, type):
            if kind is TokenEvent:
                tokens = [event for event in events if isinstance(event, TokenEvent)]
                self._last = tokens[-1]
                self._uncounted += tokens
                await app.transcript.feed(tokens)
            else:
                for event in events:
                    await self._show(event)
        now_s = perf_counter()
        if app.is_answering and (is_over or now_s - self._counted_s >= COUNTED_EVERY_S):
            app.figures.add(self._uncounted, now_s, self._session.chat.used)
            app.show_figures(app.figures)
            self._uncounted, self._counted_s = [], now_s
        if app.is_answering and not is_over:
            app.transcript.tell(_frame(now_s), self._doing(now_s), app.figures.words())
        if not app.is_answering and not is_over:
            self._show_loading(now_s)
        if is_over:
            self._job, app.is_busy = None, False
            app.composer.say("")
            await self._end(job.exception())
            if self._job is None:
                self._session.states.begin_idle(self._session.model)

    async def _show(self, event: ChatEvent | tuple[str, float]) -> None:
        """Show an event that is no token."""
        app = self._app
        if isinstance(event, tuple):
            self._show_progress(*event)
        elif isinstance(event, Calling | Added):
            await self._show_call(event)
        elif event is BEGUN:
            await self._begin_answer()
        elif isinstance(event, Notice) and event.about == "context":
            app.transcript.mark_context(self._session.chat.first_sent)
        elif isinstance(event, Notice) and event.about == "loop":
            self._loop = event.text
            app.composer.say("the answer repeats itself; Esc stops it", warns=True)
        elif isinstance(event, Notice):
            await app.transcript.note(event.text, event.level)

    async def _show_call(self, event: Calling | Added) -> None:
        """Show the state of a call, or a message that is complete; then the model answers, or runs another tool."""
        transcript, session = self._app.transcript, self._session
        if isinstance(event, Calling):
            self._running_s = perf_counter() if event.state == "running" else None
            if event.state == "asking":
                self._ask_permission(event)
            elif event.state == "running":
                await transcript.begin_call(CallLine(event))
        elif event.turn.role == "assistant":
            await transcript.end_answer(event.turn)
        else:
            await transcript.end_answer(None)
            await transcript.append(event.turn)
            await self._await_answer()
            self._app.show_figures(LiveStatistics(perf_counter(), session.chat.used, session.chat.context_size))

    def _ask_permission(self, calling: Calling) -> None:
        def decided(decision: Decision | None) -> None:
            self._question = None
            if decision is None:
                self.stop()
            else:
                calling.decide(decision)

        self._question = PermissionScreen(calling)
        self._app.push_screen(self._question, decided)

    async def _await_answer(self) -> None:
        """Show an empty answer, for which the model reads the prompt."""
        self._read, self._began_s, self._last, self._uncounted = 0.0, perf_counter(), None, []
        await self._app.transcript.begin_answer(one_line(self._session.model.name))

    def _show_progress(self, what: str, done: float) -> None:
        """Show the progress of a job, from 0 to 1."""
        if self._app.is_answering:
            self._read = done
        else:
            # The last steps, after the file is read, do not report.
            self._loading = PROGRESS[what].format("").strip() if done < 1 else "preparing"
            self._loaded = done if done < 1 else None

    def _show_loading(self, now_s: float) -> None:
        """Show what of loading is done now, how much of it, and since when: a sign moves although a step takes long."""
        since_s = now_s - self._load_began_s
        done = gauge(self._loaded) if self._loaded is not None else ""
        since = f"{since_s:.0f} s" if since_s >= 1 else ""
        self._app.show_loading(" ".join(filter(None, (_frame(now_s), self._loading, done, since))))

    def _doing(self, now_s: float) -> str:
        """Return what the model is doing, in words."""
        if self._running_s is not None:
            return f"running, {now_s - self._running_s:.0f} s"
        if self._last is not None:
            return "writing"
        waited_s = now_s - self._began_s
        since = f", {waited_s:.0f} s" if waited_s >= 1 else ""
        return f"{self._session.reading(self._read)}{since}"

    async def _begin_answer(self) -> None:
        app, session = self._app, self._session
        await app.redraw()
        await self._await_answer()
        if session.begun:
            await app.transcript.feed([TokenEvent(-1, session.begun)])
        app.show_figures(LiveStatistics(perf_counter(), session.chat.used, session.chat.context_size))

    async def _end(self, error: BaseException | None) -> None:
        app, session = self._app, self._session
        was_answering, app.is_answering = app.is_answering, False
        self._running_s = None
        if self._question is not None and self._question in app.screen_stack:  # the answer has ended
            self._question.dismiss(None)
        if was_answering:
            is_kept = bool(session.chat.turns) and session.chat.turns[-1].role == "assistant"
            await app.transcript.end_answer(session.chat.turns[-1] if is_kept else None)
            app.figures.context_used = session.chat.used
            app.figures.finish(self._last.stats if self._last else None)
            app.show_figures(app.figures, session.chat.turns[-1].key if session.chat.turns else "")
        else:
            app.show_loading("")
        await app.redraw()
        if self._loop:
            app.say(f"{self._loop}; {AGAINST_LOOPS}", "warning")
            self._loop = ""
        if error is not None:
            self._tell(error, was_answering)
            self.waiting.hold("the answer failed" if was_answering else "no model is loaded")
        elif self._cancel.is_set():
            self.waiting.hold("you stopped the answer" if was_answering else "you stopped the loading")
        elif not was_answering and self._loads > 1:
            info = session.model.info
            text = f"{info.description} is loaded, with a context of {info.ctx_size:,} tokens"
            app.notify(text if session.model.server else f"{text}; /model save keeps it for new chats")
        self._send_next()

    def _tell(self, error: BaseException, was_answering: bool) -> None:
        app, session = self._app, self._session
        if not isinstance(error, EdgespecError):
            app.log.error(repr(error))
            error = EdgespecError("unexpected error", why=f"{type(error).__name__}: {error}")
        app.say(in_chats(str(error)), "error")
        written = app.composer.text
        if was_answering and self._asked is not None and len(session.chat.turns) == self._asked[1]:
            self.waiting.give_back(self._asked[0])
        if session.model.failure and not session.model.was_cancelled:
            if written:  # while the user types, a dialog would take the keys
                app.say("/restart offers ways to load a model again")
            else:
                app.run_command("/restart")


def _frame(now_s: float) -> str:
    """Return the sign that moves, as it is at a time."""
    return SPINNER[int(now_s / FRAME_S) % len(SPINNER)]
