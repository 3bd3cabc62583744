"""The screen that shows two answers to one message side by side."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Footer
from textual.worker import Worker, WorkerState

from edgespec.cancel import CancelFlag
from edgespec.chat.comparing import AnswerComparison, Lane
from edgespec.chat.settings import in_chats
from edgespec.errors import EdgespecError
from edgespec.events import PROGRESS
from edgespec.text.figures import counted, percent, rate
from edgespec.text.printable import printable
from edgespec.tui.lines import Lines, Prose
from edgespec.tui.plain import Container, Static, VerticalScroll
from edgespec.tui.screens import BaseScreen
from edgespec.tui.token_view import Palette, named, palette_of
from edgespec.tui.turn_view import LiveAnswer

FRAME_S = 0.15  # drawing costs the engine CPU time
LEAVING_S = 3.0  # for answers to be saved at exit
MOST_MESSAGE_LINES = 3
LINE_STYLES = ("$text-success", "$text-primary")  # of the two speeds


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
        self.is_over = False  # the verdict is shown
        self._loading = ""  # progress of loading another model; written by the thread that runs the comparison

    def compose(self) -> ComposeResult:
        message = printable(self._comparison.message).split("\n")
        cut = ["…"] if len(message) > MOST_MESSAGE_LINES else []
        yield Prose("\n".join([*message[: MOST_MESSAGE_LINES - len(cut)], *cut]), id="comparison-message")
        with Container(id="comparison-lanes"):
            for lane, side in zip(self._comparison.lanes, self._comparison.sides, strict=True):
                yield LaneView(lane, side.title)
        if self._comparison.is_race:
            yield Speeds(id="comparison-speeds")
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
        self.is_over, comparison = True, self._comparison
        for view in self.query(LaneView):
            view.show(differs_at=comparison.differs_at)
        self._show_speeds([len(lane.events) for lane in comparison.lanes])
        if event.state is WorkerState.ERROR:
            self._say(str(event.worker.error), error=True)
        else:
            self._say(comparison.verdict(), _details(comparison, palette_of(self.app)))
        self.refresh_bindings()

    def _draw(self) -> None:
        """Show both answers so far, and what is being generated. The first answer of a race is shown again from its
        beginning while the other one is generated."""
        if self._has_ended.is_set():
            return
        comparison, running = self._comparison, self._comparison.running
        replayed, elapsed_s = comparison.replayed(perf_counter())
        n_events = [len(lane.events) for lane in comparison.lanes]
        for number, view in enumerate(self.query(LaneView)):
            if number == replayed:
                n_events[number] = comparison.lanes[number].n_until(elapsed_s)
            view.show(n_events[number] if number == replayed else None)
        self._show_speeds(n_events)
        n_tokens = len(comparison.lanes[running].tokens)
        written = counted(n_tokens, "token") if n_tokens else PROGRESS["prompt"]
        doing = self._loading or f"{comparison.sides[running].title}, {written}"
        self._say(f"{doing} ...{' stopping' if self._cancel.is_set() else ''}")

    def _show_speeds(self, n_events: Sequence[int]) -> None:
        for speeds in self.query(Speeds):
            speeds.show(self._comparison, n_events)

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

    def _say(self, text: str, details: Content | None = None, *, error: bool = False) -> None:
        line = self.query_one("#comparison-said", Prose)
        line.set_class(error, "-error")
        said = Content.styled(printable(in_chats(text) if error else text), "bold" if details else "")
        line.update(Content("\n").join([said, details]) if details else said)


def _details(comparison: AnswerComparison, palette: Palette) -> Content:
    """Return the figures of both answers, and the notes of the model, as lines."""
    first = " vs. ".join(f"{lane.stats.prompt_s:.2f} s" for lane in comparison.lanes)
    per_step = " vs. ".join(f"{lane.stats.tokens_per_round:.2f}" for lane in comparison.lanes)
    lines = [Content(f"first token after {first} · {per_step} tokens per step")]
    if drafted := comparison.drafted_by:
        counts = [Content.assemble(f"{count} by", named([name], palette)) for name, count in drafted.items()]
        lines.append(Content.assemble("accepted: ", Content("  ").join(counts)))
    lines += [Content(printable(note)) for note in comparison.notes]
    return Content("\n").join(lines).stylize_before("dim")


class LaneView(VerticalScroll, can_focus=True):
    """One of the two answers, with its speed in the border."""

    def __init__(self, lane: Lane, title: str) -> None:
        super().__init__()
        self._lane, self._title = lane, printable(title)
        self.border_title = self._title
        self._answer, self._n_shown = LiveAnswer(palette_of(self.app)), 0

    def compose(self) -> ComposeResult:
        yield Lines()

    def on_mount(self) -> None:
        self.anchor()

    def show(self, n_events: int | None = None, differs_at: int | None = None) -> None:
        """Show the text so far, or that of the first `n_events` while the answer is replayed; token `differs_at` is the
        first that differs from the other answer."""
        events, lines = self._lane.events[:n_events], self.query_one(Lines)
        self.border_title = self._title if n_events is None else f"{self._title} · replay"
        places = [place for place, event in enumerate(events) if event.id >= 0]
        if differs_at is not None or len(events) < self._n_shown:
            marked = places[differs_at] if differs_at is not None and differs_at < len(places) else None
            self._answer, self._n_shown = LiveAnswer(palette_of(self.app), marked), 0
            lines.replace(0, [])
            lines.refresh()  # the height may stay
        self._answer.add(events[self._n_shown :])
        self._n_shown = len(events)
        lines.replace(*self._answer.blocks(as_tokens=True, opens_thought=True))
        speed = self._lane.speed_of(len(events))
        figures = [counted(len(places), "token"), f"{rate(speed)} tok/s" if speed is not None else ""]
        self.border_subtitle = ", ".join(filter(None, figures)) if places else ""


class Speeds(Static):
    """The speeds of the two answers of a race as numbers, and how far each has come as a line.

    In the end, the lengths of the lines are those of the speeds.
    """

    def show(self, comparison: AnswerComparison, n_events: Sequence[int]) -> None:
        """Show the answers when they have so many events."""
        lanes, titles = comparison.lanes, [printable(side.title) for side in comparison.sides]
        speeds = [lane.speed_of(n) for lane, n in zip(lanes, n_events, strict=True)]
        if all(lane.is_over and n == len(lane.events) for lane, n in zip(lanes, n_events, strict=True)):
            fastest = max(speed or 0.0 for speed in speeds)
            lengths = [(speed or 0.0) / fastest if fastest else 0.0 for speed in speeds]
        else:
            most = max(len(lane.events) if lane.is_over else 0 for lane in lanes)
            lengths = [n / most if most else 0.0 for n in n_events]
        width = max(map(len, titles))
        room = max(0, self.content_size.width - width - len(" 1000 tok/s") - 1)
        lines = []
        for title, length, speed, style in zip(titles, lengths, speeds, LINE_STYLES, strict=True):
            n = round(min(1.0, length) * room)
            said = f"{rate(speed):>5} tok/s" if speed is not None else ""
            lines.append(Content.assemble(title.ljust(width), " ", ("━" * n, style), ("─" * (room - n), "dim"), said))
        self.update(Content("\n").join(lines))
