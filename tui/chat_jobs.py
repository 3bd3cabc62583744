"""The background jobs of the screen: loading a model or generating an answer, one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from time import perf_counter

from edgespec.cancel import CancelFlag
from edgespec.chat.answerer import Added, Event, Events, Notice
from edgespec.chat.session import AGAINST_LOOPS
from edgespec.chat.slash import is_command
from edgespec.errors import EdgespecError
from edgespec.events import PROGRESS, TokenEvent
from edgespec.settings import LoadSettings
from edgespec.text.figures import gauge
from edgespec.text.printable import one_line
from edgespec.tools.toolbox import Calling
from edgespec.tui.base_app import BaseApp, BusyError
from edgespec.tui.comparison import ComparisonScreen
from edgespec.tui.statistics import LiveStatistics
from edgespec.tui.tool_calls import ToolCalls
from edgespec.tui.waiting import Unsent, WaitingMessages

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAME_S = 0.15
COUNTED_EVERY_S = 0.5  # people cannot read numbers that change faster
LEAVING_S = 3.0  # how long the exit waits for an answer to end
BEGUN = Notice("")  # event: the question is saved, and its answer begins


class ChatJobs:
    """Starts jobs for `app`, and shows their results with each `fetch`. Messages sent meanwhile wait in `waiting`."""

    def __init__(self, app: BaseApp) -> None:
        self._app, self._session = app, app.session
        self._job: Future[None] | None = None  # work in a thread, which the screen never waits for
        self._cancel = CancelFlag()  # stops it
        self._events = deque[Event | tuple[str, float]]()  # of the job; a pair is progress
        # A process inherits the priority of the thread that starts it, and the screen lowers its own.
        self._pool = ThreadPoolExecutor(1, "chat")
        self._pool.submit(int).result()
        self.waiting = WaitingMessages(app)
        self._asked: tuple[Unsent, int] | None = None  # the message sent, and the length of the chat before it
        self._loop = ""  # the warning that the answer repeats itself, if it does
        self._last: TokenEvent | None = None
        self._comparison: ComparisonScreen | None = None
        self._calls = ToolCalls(app, self.stop)
        self._running_s: float | None = None  # when the tool that runs began
        self._loads = 0
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
                self._app.submit(message.text)
            else:
                self._ask(message)

    def _ask(self, message: Unsent) -> None:
        n_turns, text = len(self._session.turns), message.text.removeprefix("/")
        self.answer(lambda cancel: self._session.ask(text, cancel, message.files))
        self._asked = message, n_turns

    def answer(self, start: Callable[[CancelFlag], Events]) -> None:
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
        self._app.title_bar.show_progress(f"loading {one_line(Path(settings.model).name.removesuffix('.gguf'))}")
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
        tokens: list[TokenEvent] = []
        for event in [self._events.popleft() for _ in range(len(self._events))]:
            if isinstance(event, TokenEvent):
                tokens.append(event)
                self._last = event
            elif isinstance(event, tuple):
                self._show_progress(*event)
            elif event is BEGUN:
                await self._begin_answer()
            elif isinstance(event, Calling | Added):
                await self._feed(tokens)
                tokens.clear()
                await self._show_call(event)
            elif event.about == "context":
                app.transcript.mark_context(self._session.first_sent)
            elif event.about == "loop":
                self._loop = event.text
                app.composer.say("the answer repeats itself; Esc stops it", warns=True)
            else:
                await app.transcript.note(event.text, event.level)
        await self._feed(tokens)
        now_s = perf_counter()
        if app.is_answering and (is_over or now_s - self._counted_s >= COUNTED_EVERY_S):
            app.figures.add(self._uncounted, now_s, self._session.used)
            app.show_figures(app.figures)
            self._uncounted, self._counted_s = [], now_s
        if app.is_answering and not is_over:
            frame = SPINNER[int(now_s / FRAME_S) % len(SPINNER)]
            app.transcript.tell(frame, self._doing(now_s), app.figures.words())
        if is_over:
            self._job, app.is_busy = None, False
            app.composer.say("")
            await self._end(job.exception())
            if self._job is None:
                self._session.states.begin_idle(self._session.model)

    async def _feed(self, tokens: list[TokenEvent]) -> None:
        """Show new tokens of the answer."""
        self._uncounted += tokens
        if tokens:
            await self._app.transcript.feed(tokens)

    async def _show_call(self, event: Calling | Added) -> None:
        """Show the state of a call, or a message that is complete; then the model answers, or runs another tool."""
        transcript, session = self._app.transcript, self._session
        if isinstance(event, Calling):
            self._running_s = perf_counter() if event.state == "running" else None
            await self._calls.show(event)
        elif event.turn.role == "assistant":
            await transcript.end_answer(event.turn)
        else:
            await transcript.end_answer(None)
            await transcript.append(event.turn)
            await self._await_answer()
            self._app.show_figures(LiveStatistics(perf_counter(), session.used, session.context_size))

    async def _await_answer(self) -> None:
        """Show an empty answer, for which the model reads the prompt."""
        self._read, self._began_s, self._last, self._uncounted = 0.0, perf_counter(), None, []
        await self._app.transcript.begin_answer(one_line(self._session.model.name))

    def _show_progress(self, what: str, done: float) -> None:
        """Show the progress of a job, from 0 to 1."""
        if self._app.is_answering:
            self._read = done
        else:
            self._app.title_bar.show_progress(f"{PROGRESS[what].format('').strip()} {gauge(done)}")

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
        app.show_figures(LiveStatistics(perf_counter(), session.used, session.context_size))

    async def _end(self, error: BaseException | None) -> None:
        app, session = self._app, self._session
        was_answering, app.is_answering = app.is_answering, False
        self._running_s = None
        self._calls.close()
        if was_answering:
            is_kept = bool(session.turns) and session.turns[-1].role == "assistant"
            await app.transcript.end_answer(session.turns[-1] if is_kept else None)
            app.figures.context_used = session.used
            app.figures.finish(self._last.stats if self._last else None)
            app.show_figures(app.figures, session.turns[-1].key if session.turns else "")
        else:
            app.title_bar.show_progress("")
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
            said = f"{info.description} is loaded, with a context of {info.ctx_size:,} tokens"
            app.notify(said if session.model.server else f"{said}; /model save keeps it for new chats")
        self._send_next()

    def _tell(self, error: BaseException, was_answering: bool) -> None:
        app, session = self._app, self._session
        if not isinstance(error, EdgespecError):
            app.log.error(repr(error))
            error = EdgespecError("unexpected error", why=f"{type(error).__name__}: {error}")
        app.say(str(error), "error")
        written = app.composer.text
        if was_answering and self._asked is not None and len(session.turns) == self._asked[1]:
            self.waiting.give_back(self._asked[0])
        if session.model.failure and not session.model.was_cancelled:
            if written:  # while the user types, a dialog would take the keys
                app.say("/restart offers ways to load a model again")
            else:
                app.run_command("/restart")
