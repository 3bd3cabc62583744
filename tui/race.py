"""The race: one prompt answered with and without speculation, then replayed side by side in real time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Static, TextArea
from textual.worker import Worker, WorkerState

from edgespec.cancel import CancelFlag
from edgespec.chat.race import DRAFTED, Lane, Race, Racer, Timed, run_race
from edgespec.errors import EdgespecError
from edgespec.events import TokenEvent
from edgespec.settings import Request
from edgespec.text.printable import printable
from edgespec.tui.lines import Lines, Text
from edgespec.tui.prompt_input import EnterSubmits

FRAME_S, LOOK_S = 1 / 30, 0.1  # between frames of the replay, and progress updates of the race


class RaceScreen(Screen[None]):
    """Asks for a prompt, initially `prompt`, of which `request_of` makes a request; then races and replays."""

    DEFAULT_CSS = """
    RaceScreen {
        & > #race-lanes { height: 1fr; layout: vertical; }
        &.-wide > #race-lanes { layout: horizontal; }
        & > #race-said { height: auto; max-height: 6; padding: 0 1; }
        & > #race-said.-error { color: $text-error; }
        &.-short > RacePrompt { border: none; max-height: 3; }
        &.-short > #race-said { max-height: 4; }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-wide")]  # noqa: RUF012 - Textual declares it so
    VERTICAL_BREAKPOINTS = [(0, "-short"), (24, "-tall")]  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        Binding("escape", "stop", "Stop", id="race.stop"),
        Binding("escape", "leave", "Close", id="race.leave"),
        Binding("space", "pause", "Pause", id="race.pause"),
        Binding("r", "again", "Again", id="race.again"),
        Binding("1", "speed(1)", "Speed", key_display="1/2/4", id="race.x1"),
        Binding("2", "speed(2)", show=False, id="race.x2"),
        Binding("4", "speed(4)", show=False, id="race.x4"),
        Binding("end", "end", "To the end", show=False, id="race.end"),
        Binding("e", "edit", "Edit", show=False, id="race.edit"),
    ]

    def __init__(self, engine: Racer, request_of: Callable[[str], Request], prompt: str = "") -> None:
        super().__init__()
        self._engine, self._request_of, self._prompt = engine, request_of, prompt
        self._cancel = CancelFlag()
        self._is_racing = False
        self._heard = (DRAFTED, 0)  # the lane that is running, and its tokens: written by the race's thread
        self._race: Race | None = None
        self._position_s, self._speed, self._plays = 0.0, 1, False
        self._drawn_s = 0.0  # when, by the clock

    def compose(self) -> ComposeResult:
        yield RacePrompt(self._prompt)
        with Container(id="race-lanes"):
            yield LaneView("plain", "One token per forward pass.", id="race-plain")
            yield LaneView("drafted", "Several tokens per pass: accepted drafts.", id="race-drafted")
        yield Static(id="race-said", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._frames = self.set_interval(FRAME_S, self._next_frame, pause=True)
        self._looks = self.set_interval(LOOK_S, self._say_how_far, pause=True)
        self._say("Enter answers the prompt twice, one after the other.")

    def on_unmount(self) -> None:
        self._cancel.set()

    # --- the race -------------------------------------------------------------------------------------------------

    @on(TextArea.Changed)
    def _keep_prompt(self, event: TextArea.Changed) -> None:
        self._prompt = event.text_area.text

    def on_race_prompt_submitted(self) -> None:
        self._start()

    def _start(self) -> None:
        if not self._prompt.strip():
            self._say("Type a prompt first.")
            return
        try:
            request = self._request_of(self._prompt)
        except EdgespecError as error:
            self._say(str(error), error=True)
            return
        self._cancel.clear()
        self._race, self._heard = None, (DRAFTED, 0)
        self._frames.pause()
        for lane in self.query(LaneView):
            lane.load(Lane())
        self._set_racing(True)
        self.run_worker(
            lambda: run_race(self._engine, request, self._cancel, self._hear), thread=True, exit_on_error=False
        )

    def _hear(self, lane: int, timed: Timed) -> None:
        before, count = self._heard
        self._heard = (lane, (count if lane == before else 0) + (timed.event.id >= 0))

    def _say_how_far(self) -> None:
        lane, count = self._heard
        which = "1 of 2: with speculative decoding" if lane == DRAFTED else "2 of 2: plain decoding"
        stopping = ", stopping" if self._cancel.is_set() else ""
        self._say(f"{which} ... {count} tokens{stopping}" if count else f"{which} ...{stopping}")

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR:
            self._set_racing(False)
            self._say(str(event.worker.error), error=True)
        elif event.state is WorkerState.SUCCESS and isinstance(event.worker.result, Race):
            self._set_racing(False)
            self._replay(event.worker.result)

    def _set_racing(self, is_racing: bool) -> None:
        self._is_racing = is_racing
        prompt = self.query_one(RacePrompt)
        prompt.disabled = is_racing
        if is_racing:
            self._looks.resume()
        else:
            self._looks.pause()
            prompt.focus()
        self.refresh_bindings()

    # --- the replay -----------------------------------------------------------------------------------------------

    def _replay(self, race: Race) -> None:
        if race.speedup is None:
            self._say(race.verdict())
            return
        self._race, self._position_s = race, 0.0
        drafted = self.query_one("#race-drafted", LaneView)
        drafted.load(race.drafted, race.differs_at)
        self.query_one("#race-plain", LaneView).load(race.plain, race.differs_at)
        drafted.focus()
        self._play()

    def _play(self) -> None:
        self._plays, self._drawn_s = True, perf_counter()
        self._frames.resume()
        self.refresh_bindings()

    @property
    def _duration_s(self) -> float:
        return max(self._race.plain.took_s, self._race.drafted.took_s) if self._race else 0.0

    def _next_frame(self) -> None:
        now_s = perf_counter()
        self._position_s += (now_s - self._drawn_s) * self._speed
        self._drawn_s = now_s
        self._draw()

    def _draw(self) -> None:
        """Both lanes at this time of the race; the verdict once both are done."""
        if self._race is None:
            return
        for lane in self.query(LaneView):
            lane.show_at(self._position_s)
        if self._position_s >= self._duration_s:
            self._plays = False
            self._say(self._race.verdict(), aside=_details(self._race))
        else:
            state = f"x{self._speed}" if self._plays else "paused"
            self._say(f"{_seconds(self._position_s)} of {_seconds(self._duration_s)}, {state}")
        if not self._plays:
            self._frames.pause()

    def action_pause(self) -> None:
        if self._plays:
            self._plays = False
            self._draw()
        else:
            self.action_speed(self._speed)

    def action_speed(self, speed: int) -> None:
        """Replay at this speed, from the beginning if it is over."""
        self._speed = speed
        if self._position_s >= self._duration_s:
            self._position_s = 0.0
        self._play()

    def action_end(self) -> None:
        self._position_s = self._duration_s
        self._draw()

    # --- keys -----------------------------------------------------------------------------------------------------

    def action_again(self) -> None:
        self._start()

    def action_edit(self) -> None:
        self.query_one(RacePrompt).focus()

    def action_stop(self) -> None:
        self._cancel.set()

    def action_leave(self) -> None:
        self.dismiss()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("pause", "speed", "end"):
            return self._race is not None
        if action in ("again", "edit", "leave"):
            return not self._is_racing
        return action != "stop" or self._is_racing

    def _say(self, text: str, *, aside: str = "", error: bool = False) -> None:
        said = self.query_one("#race-said", Static)
        said.set_class(error, "-error")
        said.update(
            Content.assemble((printable(text), "bold" if aside else ""), ("\n" + aside if aside else "", "dim"))
        )


def _details(race: Race) -> str:
    drafted = ", ".join(f"{count} by {name}" for name, count in race.guessed_by.items())
    first = f"first token after {_seconds(race.drafted.first_token_s)}, plain {_seconds(race.plain.first_token_s)}"
    per_pass = f"{race.drafted.stats.tokens_per_round:.2f} tokens per step"
    return f"{first} · {per_pass}" + (f" · accepted (underlined): {drafted}" if drafted else "")


def _seconds(seconds: float) -> str:
    digits = 2 if seconds < 10 else 1 if seconds < 100 else 0
    return f"{seconds:.{digits}f} s"


class RacePrompt(EnterSubmits):
    """A field of a few lines where Enter submits and Ctrl+J begins a new line."""

    DEFAULT_CSS = """
    RacePrompt {
        height: auto;
        max-height: 6;
        padding: 0 1;
        border: round $foreground 30%;
        &:focus { border: round $border; }
    }
    """
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "submit", "Race", id="race.start"),
        Binding("ctrl+j", "newline", "New line", id="race.newline"),
    ]

    class Submitted(Message):
        """The prompt for the race."""

    def __init__(self, text: str) -> None:
        super().__init__(text, highlight_cursor_line=False, placeholder="Prompt for the race")
        self.cursor_blink = False
        self.border_title = "prompt"

    def on_mount(self) -> None:
        self.select_all()  # typing replaces it

    def action_submit(self) -> None:
        self.post_message(self.Submitted())

    def action_newline(self) -> None:
        self.insert("\n")


class LaneView(VerticalScroll, can_focus=True):
    """One answer at a time of the race, with its rate and clock in the border. `what` is shown until one is loaded."""

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

    def __init__(self, title: str, what: str, *, id: str) -> None:
        super().__init__(id=id)
        self._title, self._what = title, what
        self.border_title = title
        self._lane = Lane()
        self._n_shown = self._n_lines = 0  # events, and lines they make
        self._differs_at: int | None = None

    def compose(self) -> ComposeResult:
        yield Lines([Text(Content(self._what), style="dim")])

    def load(self, lane: Lane, differs_at: int | None = None) -> None:
        """Show another answer, whose token `differs_at` differs from that of the other lane."""
        self._lane, self._differs_at = lane, differs_at
        self._n_shown = self._n_lines = 0
        self.query_one(Lines).replace(0, [])
        self.border_title, self.border_subtitle = self._title, ""
        self.anchor()

    def show_at(self, elapsed_s: float) -> None:
        """Show the text at `elapsed_s` after the request."""
        lane = self._lane
        shown = lane.shown_at(elapsed_s)
        if len(shown) != self._n_shown:
            settled = max(0, self._n_lines - 1) if len(shown) > self._n_shown else 0
            lines = _marked(shown, self._differs_at)
            self._n_shown, self._n_lines = len(shown), len(lines)
            self.query_one(Lines).replace(settled, [Text(Content.assemble(*line)) for line in lines[settled:]])
        rate, clock_s = lane.tokens_per_s(elapsed_s), min(elapsed_s, lane.took_s)
        self.border_title = f"{self._title} {rate:.0f} tok/s {_seconds(clock_s)}"
        self.border_subtitle = f"done, {len(lane.tokens)} tokens" if elapsed_s >= lane.took_s else ""


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
