"""Comparing: one message answered twice, with other settings or by another model, side by side."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Input, Static
from textual.worker import Worker, WorkerState

from edgespec.cancel import CancelFlag
from edgespec.chat.comparing import AS_SET, Comparison, Lane, side_of
from edgespec.chat.slash import is_command
from edgespec.errors import EdgespecError
from edgespec.events import PROGRESS, TokenEvent
from edgespec.text.figures import percent
from edgespec.text.printable import printable
from edgespec.tui.lines import Lines, Text
from edgespec.tui.prompt_input import EnterSubmits

FRAME_S, LIVE_S = 1 / 30, 0.15  # between frames of the replay, and while tokens come: each costs the engine something
LEAVING_S = 3.0  # for answers to be saved at exit
NO_END = float("inf")


class ComparisonScreen(Screen[Comparison]):
    """Two answers to one message side by side, and what makes them differ: initially those of `comparison`, which with
    `starts` begins at once. They are shown as they come, and replayed side by side as fast as they came. One of them is
    kept as the answer in the chat; the other stays a branch of it. It returns what was compared last; `is_done` once
    both answers are there."""

    DEFAULT_CSS = """
    ComparisonScreen {
        & > #comparison-lanes { height: 1fr; layout: vertical; }
        &.-wide > #comparison-lanes { layout: horizontal; }
        & > #comparison-said { height: auto; max-height: 6; padding: 0 1; }
        & > #comparison-said.-error { color: $text-error; }
        &.-short > ComparedText { border: none; max-height: 3; }
        &.-short > #comparison-said { max-height: 4; }
        & > #comparison-sides { height: 1; margin: 0 1; }
        & > #comparison-sides > Input { width: 1fr; }
        & > #comparison-sides > Static { width: auto; padding: 0 1; color: $text-muted; }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-wide")]  # noqa: RUF012 - Textual declares it so
    VERTICAL_BREAKPOINTS = [(0, "-short"), (24, "-tall")]  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        Binding("escape", "stop", "Stop", id="comparison.stop"),
        Binding("escape", "leave", "Close", id="comparison.leave"),
        Binding("1", "keep(1)", "Keep left", id="comparison.keep_left"),
        Binding("2", "keep(2)", "Keep right", id="comparison.keep_right"),
        Binding("space", "replay", "Replay", id="comparison.replay"),
        Binding("r", "again", "Again", id="comparison.again"),
        Binding("e", "edit", "Edit", show=False, id="comparison.edit"),
    ]

    def __init__(self, comparison: Comparison, *, starts: bool = False) -> None:
        super().__init__()
        self._comparison, self._starts = comparison, starts
        self._session = comparison.session
        self._cancel, self._is_over = CancelFlag(), threading.Event()
        self._is_over.set()
        self._side = 0  # that is being answered: written by its thread
        self._loading = ""  # likewise: another model
        self.is_done = False
        self._position_s, self._drawn_s = NO_END, 0.0

    def compose(self) -> ComposeResult:
        said = [turn.content for turn in self._session.turns if turn.role == "user"]
        yield ComparedText(self._comparison.text or (said[-1] if said else ""))
        with Horizontal(id="comparison-sides"):
            for number, side in enumerate(self._comparison.sides, 1):
                yield Static(f"{number}:")
                yield Input(side.changes, placeholder=f"{AS_SET}, or MODEL, temp=0, pace=off ...", compact=True)
        with Container(id="comparison-lanes"):
            yield LaneView(id="comparison-1")
            yield LaneView(id="comparison-2")
        yield Static(id="comparison-said", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._frames = self.set_interval(FRAME_S, self._next_frame, pause=True)
        self._say("Enter compares two answers. Both become branches of the chat.")
        if self._starts:
            self._run(self._comparison)

    def on_unmount(self) -> None:
        self._cancel.set()
        self._is_over.wait(LEAVING_S)

    # --- answering ------------------------------------------------------------------------------------------------

    def on_compared_text_submitted(self) -> None:
        self._start()

    @on(Input.Submitted)
    def _start_from_side(self) -> None:
        self._start()

    def _start(self) -> None:
        session, text = self._session, self.query_one(ComparedText).text
        said = [turn.content for turn in session.turns if turn.role == "user"]
        is_new = not said or text != said[-1]
        if not text.strip():
            self._say("Type a message first.")
            return
        if is_new and is_command(text):
            self._say("A command cannot be compared. Two slashes begin a message with a slash.", error=True)
            return
        try:
            first, second = (side_of(session, field.value) for field in self.query(Input))
        except EdgespecError as error:
            self._say(str(error), error=True)
            return
        self._run(Comparison(session, (first, second), text.removeprefix("/") if is_new else ""))

    def _run(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._cancel.clear()
        self._side, self._loading, self._position_s = 0, "", NO_END
        for view, lane, side in zip(self.query(LaneView), comparison.lanes, comparison.sides, strict=True):
            view.load(lane, side.title)
        self._set_answering(True)
        self.run_worker(self._answer, thread=True, exit_on_error=False)

    def _answer(self) -> None:
        try:
            self._comparison.run(self._cancel, self._hear, self._load)
        finally:
            self._is_over.set()

    def _hear(self, side: int) -> None:
        self._side, self._loading = side, ""

    def _load(self, what: str, done: float) -> None:
        self._loading = "" if what == "prompt" else f"{PROGRESS[what].format('the model')} {percent(done)}"

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state in (WorkerState.ERROR, WorkerState.SUCCESS):
            self._set_answering(False)
            self.is_done = event.state is WorkerState.SUCCESS
            self._draw()
            if not self.is_done:
                self._say(str(event.worker.error), error=True)
                return
            self.query(LaneView).first().focus()

    def _set_answering(self, is_answering: bool) -> None:
        self.is_done = False
        for field in (self.query_one(ComparedText), *self.query(Input)):
            field.disabled = is_answering
        if is_answering:
            self._is_over.clear()
            self._frames.resume()
        else:
            self._frames.pause()
            self.query_one(ComparedText).focus()
        self.refresh_bindings()

    @property
    def _is_answering(self) -> bool:
        return not self._is_over.is_set()

    # --- showing --------------------------------------------------------------------------------------------------

    def _next_frame(self) -> None:
        now_s = perf_counter()
        if not self._is_answering:
            self._position_s += now_s - self._drawn_s
        elif now_s - self._drawn_s < LIVE_S:
            return
        self._drawn_s = now_s
        self._draw()

    def _draw(self) -> None:
        """Both answers as far as they have come, or at a moment of the replay; at the end the verdict."""
        comparison = self._comparison
        took_s = max(lane.took_s for lane in comparison.lanes)
        differs_at = comparison.differs_at if self.is_done else None
        for view in self.query(LaneView):
            view.show_at(self._position_s, differs_at)
        if self._is_answering:
            stopping = ", stopping" if self._cancel.is_set() else ""
            count = len(comparison.lanes[self._side].tokens)
            doing = self._loading or f"{comparison.sides[self._side].title}, {count} tokens"
            self._say(f"{doing} ...{stopping}")
        elif self._position_s < took_s:
            self._say(f"{_seconds(self._position_s)} of {_seconds(took_s)}, at the original speed")
        else:
            self._position_s = NO_END
            self._frames.pause()
            self._say(comparison.verdict(), aside=_details(comparison))
        self.refresh_bindings()

    def action_replay(self) -> None:
        """Show both again from the beginning, as fast as they came."""
        self._position_s, self._drawn_s = 0.0, perf_counter()
        self._frames.resume()

    # --- keys -----------------------------------------------------------------------------------------------------

    def action_keep(self, number: int) -> None:
        try:
            self._comparison.keep(number - 1)
        except EdgespecError as error:
            self._say(str(error), error=True)
            return
        self.dismiss(self._comparison)

    def action_again(self) -> None:
        self._start()

    def action_edit(self) -> None:
        self.query_one(ComparedText).focus()

    def action_stop(self) -> None:
        self._cancel.set()

    def action_leave(self) -> None:
        self.dismiss(self._comparison)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "keep":
            lane = self._comparison.lanes[int(str(parameters[0])) - 1]
            return not self._is_answering and lane.key is not None
        if action == "replay":
            return self.is_done
        if action in ("again", "edit", "leave"):
            return not self._is_answering
        return action != "stop" or self._is_answering

    def _say(self, text: str, *, aside: str = "", error: bool = False) -> None:
        said = self.query_one("#comparison-said", Static)
        said.set_class(error, "-error")
        said.update(
            Content.assemble((printable(text), "bold" if aside else ""), ("\n" + aside if aside else "", "dim"))
        )


def _details(comparison: Comparison) -> str:
    drafted = ", ".join(f"{count} by {name}" for name, count in comparison.drafted_by.items())
    first = " vs. ".join(_seconds(lane.first_token_s) for lane in comparison.lanes)
    per_step = " vs. ".join(f"{lane.stats.tokens_per_round:.2f}" for lane in comparison.lanes)
    said = f"first token after {first} · {per_step} tokens per step"
    said += f" · accepted (underlined): {drafted}" if drafted else ""
    return "\n".join([said, *comparison.notes])


def _seconds(seconds: float) -> str:
    digits = 2 if seconds < 10 else 1 if seconds < 100 else 0
    return f"{seconds:.{digits}f} s"


class ComparedText(EnterSubmits):
    """A field of a few lines where Enter submits and Ctrl+J begins a new line."""

    DEFAULT_CSS = """
    ComparedText {
        height: auto;
        max-height: 6;
        padding: 0 1;
        border: round $foreground 30%;
        &:focus { border: round $border; }
    }
    """
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "submit", "Compare", id="comparison.start"),
        Binding("ctrl+j", "newline", "New line", id="comparison.newline"),
    ]

    class Submitted(Message):
        """Answer the message."""

    def __init__(self, text: str) -> None:
        super().__init__(text, highlight_cursor_line=False, placeholder="Message to compare answers to")
        self.cursor_blink = False
        self.border_title = "message"

    def on_mount(self) -> None:
        self.select_all()  # typing replaces it

    def action_submit(self) -> None:
        self.post_message(self.Submitted())

    def action_newline(self) -> None:
        self.insert("\n")


class LaneView(VerticalScroll, can_focus=True):
    """One answer, as far as it had come at a time, with its rate and clock in the border.

    A click does not take the focus from a field: letters would be commands then."""

    FOCUS_ON_CLICK = False
    DEFAULT_CSS = """
    LaneView {
        height: 1fr;
        width: 1fr;
        border: round $foreground 30%;
        border-title-color: $foreground;
        border-subtitle-color: $foreground;
        padding: 0 1;
        scrollbar-size-vertical: 1;
        &:focus { border: round $border; }
        & > Lines { min-height: 100%; }
    }
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._lane, self._title = Lane(), ""
        self._shown: tuple[int, int | None] = (0, None)  # events, and the token that differs
        self._n_lines = 0  # that they make

    def compose(self) -> ComposeResult:
        yield Lines()

    def load(self, lane: Lane, title: str) -> None:
        """Show another answer."""
        self._lane, self._title = lane, printable(title)
        self._shown, self._n_lines = (0, None), 0
        self.query_one(Lines).replace(0, [])
        self.border_title, self.border_subtitle = self._title, ""
        self.anchor()

    def show_at(self, elapsed_s: float, differs_at: int | None = None) -> None:
        """Show the text at `elapsed_s` after the request; the token `differs_at` differs from that of the other one."""
        lane = self._lane
        shown = lane.shown_at(elapsed_s)
        if (len(shown), differs_at) != self._shown:
            goes_on = len(shown) > self._shown[0] and differs_at == self._shown[1]
            settled = max(0, self._n_lines - 1) if goes_on else 0
            lines = _marked(shown, differs_at)
            self._shown, self._n_lines = (len(shown), differs_at), len(lines)
            self.query_one(Lines).replace(settled, [Text(Content.assemble(*line)) for line in lines[settled:]])
        rate, clock_s = lane.tokens_per_s(elapsed_s), min(elapsed_s, lane.took_s)
        self.border_title = f"{self._title}  {rate:.0f} tok/s  {_seconds(clock_s)}" if lane.events else self._title
        self.border_subtitle = f"{len(lane.tokens)} tokens" if lane.is_over and elapsed_s >= lane.took_s else ""


def _marked(events: Sequence[TokenEvent], differs_at: int | None) -> list[list[tuple[str, str]]]:
    """The lines of the text in parts of one style: accepted draft tokens are underlined and coloured, the first token
    that differs is reversed."""
    lines: list[list[tuple[str, str]]] = [[]]
    for index, event in enumerate(events):
        style = "underline $text-success" if event.from_draft else ""
        if index == differs_at:
            style += " reverse"
        first, *others = printable(event.text).split("\n")
        lines[-1].append((first, style))
        lines += [[(other, style)] for other in others]
    return lines
