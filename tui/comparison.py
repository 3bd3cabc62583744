"""The screen that shows two answers to one message side by side."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Footer
from textual.worker import Worker, WorkerState

from edgespec.cancel import CancelFlag
from edgespec.chat.comparing import AnswerComparison, Lane
from edgespec.chat.settings import in_chats
from edgespec.errors import EdgespecError
from edgespec.events import PROGRESS, TokenEvent
from edgespec.text.figures import counted, percent
from edgespec.text.printable import printable
from edgespec.tui.lines import Lines, Prose, WrappedText
from edgespec.tui.plain import Container, VerticalScroll
from edgespec.tui.screens import BaseScreen

FRAME_S = 0.15  # drawing costs the engine CPU time
LEAVING_S = 3.0  # for answers to be saved at exit
MOST_MESSAGE_LINES = 3


class ComparisonScreen(BaseScreen[None]):
    """Runs a comparison and shows both answers while they are generated.

    The user keeps one of them as the answer in the chat; the other one stays a branch.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-wide")]  # noqa: RUF012 - Textual declares it so
    BINDINGS = [  # noqa: RUF012
        Binding("escape", "stop", "Stop", id="comparison.stop"),
        Binding("escape", "dismiss", "Close", id="comparison.leave"),
        Binding("1", "keep(1)", "Keep left", id="comparison.keep_left"),
        Binding("2", "keep(2)", "Keep right", id="comparison.keep_right"),
    ]

    def __init__(self, comparison: AnswerComparison) -> None:
        super().__init__()
        self._comparison = comparison
        self._cancel, self._has_ended = CancelFlag(), threading.Event()
        self._loading = ""  # progress of loading another model; written by the thread that runs the comparison

    def compose(self) -> ComposeResult:
        message = printable(self._comparison.message).split("\n")
        cut = ["…"] if len(message) > MOST_MESSAGE_LINES else []
        yield Prose("\n".join([*message[: MOST_MESSAGE_LINES - len(cut)], *cut]), id="comparison-message")
        with Container(id="comparison-lanes"):
            for lane, side in zip(self._comparison.lanes, self._comparison.sides, strict=True):
                yield LaneView(lane, side.title)
        yield Prose(id="comparison-said")
        yield Footer(show_command_palette=False, compact=True)

    @property
    def uses_session(self) -> bool:
        """True until the comparison has ended and this screen is closed."""
        return not self._has_ended.is_set() or self in self.app.screen_stack

    def on_mount(self) -> None:
        self._frames = self.set_interval(FRAME_S, self._draw)
        self.query(LaneView).first().focus()
        self.run_worker(self._answer, thread=True, exit_on_error=False)

    def on_unmount(self) -> None:
        self._cancel.set()
        self._has_ended.wait(LEAVING_S)

    def _answer(self) -> None:
        """Run the comparison, in a thread."""
        try:
            self._comparison.run(self._cancel, self._hear, self._load)
        finally:
            self._has_ended.set()

    def _hear(self, _: int) -> None:
        self._loading = ""

    def _load(self, what: str, done: float) -> None:
        self._loading = "" if what == "prompt" else f"{PROGRESS[what].format('the model')} {percent(done)}"

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state not in (WorkerState.ERROR, WorkerState.SUCCESS):
            return
        self._frames.stop()
        comparison = self._comparison
        for view in self.query(LaneView):
            view.show(comparison.differs_at)
        if event.state is WorkerState.ERROR:
            self._say(str(event.worker.error), error=True)
        else:
            self._say(comparison.verdict(), _details(comparison))
        self.refresh_bindings()

    def _draw(self) -> None:
        """Show both answers so far, and what is being generated."""
        if self._has_ended.is_set():
            return
        for view in self.query(LaneView):
            view.show()
        running = self._comparison.running
        n_tokens = len(self._comparison.lanes[running].tokens)
        written = counted(n_tokens, "token") if n_tokens else PROGRESS["prompt"]
        doing = self._loading or f"{self._comparison.sides[running].title}, {written}"
        self._say(f"{doing} ...{' stopping' if self._cancel.is_set() else ''}")

    def action_keep(self, number: int) -> None:
        try:
            self._comparison.keep(number - 1)
        except EdgespecError as error:
            self._say(str(error), error=True)
            return
        self.dismiss()

    def action_stop(self) -> None:
        self._cancel.set()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "keep":
            lane = self._comparison.lanes[int(str(parameters[0])) - 1]
            return self._has_ended.is_set() and lane.key is not None
        return action not in ("stop", "dismiss") or self._has_ended.is_set() == (action == "dismiss")

    def _say(self, text: str, details: str = "", *, error: bool = False) -> None:
        line = self.query_one("#comparison-said", Prose)
        line.set_class(error, "-error")
        below = f"\n{details}" if details else ""
        said = printable(in_chats(text) if error else text)
        line.update(Content.assemble((said, "bold" if details else ""), (below, "dim")))


def _details(comparison: AnswerComparison) -> str:
    """Return the figures of both answers, and the notes of the model, as lines."""
    drafted = ", ".join(f"{count} by {name}" for name, count in comparison.drafted_by.items())
    first = " vs. ".join(f"{lane.stats.prompt_s:.2f} s" for lane in comparison.lanes)
    per_step = " vs. ".join(f"{lane.stats.tokens_per_round:.2f}" for lane in comparison.lanes)
    figures = f"first token after {first} · {per_step} tokens per step"
    figures += f" · accepted (underlined): {drafted}" if drafted else ""
    return "\n".join([figures, *comparison.notes])


class LaneView(VerticalScroll, can_focus=True):
    """One of the two answers, with its speed in the border."""

    def __init__(self, lane: Lane, title: str) -> None:
        super().__init__()
        self._lane = lane
        self.border_title = printable(title)

    def compose(self) -> ComposeResult:
        yield Lines()

    def on_mount(self) -> None:
        self.anchor()

    def show(self, differs_at: int | None = None) -> None:
        """Show the text so far; token `differs_at` is the first that differs from the other answer."""
        text = _marked(self._lane.events, differs_at)
        self.query_one(Lines).replace(0, [WrappedText(line) for line in text.split("\n", allow_blank=True)])
        if self._lane.is_over:
            n_tokens, tokens_per_s = len(self._lane.tokens), self._lane.stats.tokens_per_s
            self.border_subtitle = f"{n_tokens} tokens" + (f", {tokens_per_s:.0f} tok/s" if n_tokens > 1 else "")


def _marked(events: Sequence[TokenEvent], differs_at: int | None) -> Content:
    """Return the text: accepted draft tokens are underlined and coloured, the first token that differs is reversed."""
    drafted, differing = "underline $text-success", " reverse"
    return Content.assemble(
        *(
            (printable(event.text), drafted * event.from_draft + differing * (index == differs_at))
            for index, event in enumerate(events)
        )
    )
