"""The screen to choose a model and a compatible draft, also among models that must be downloaded first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Footer
from textual.widgets.option_list import Option
from textual.worker import Worker, WorkerState, get_current_worker

from edgespec.errors import EdgespecError
from edgespec.gguf_file.header import Header
from edgespec.models.names.local import LocalModel, local_model
from edgespec.models.names.source import is_path
from edgespec.models.pair.known_heads import KnownHeads
from edgespec.models.pair.suggest import assessed, catalogue_drafts, to_fetch
from edgespec.models.pair.vocabulary import Vocabulary
from edgespec.text.figures import counted
from edgespec.text.printable import one_line
from edgespec.tui.dialogs import Dialog
from edgespec.tui.picker_rows import FETCH, LEAST_SEARCHED, NO_DRAFT, About, Elsewhere, Here, ModelOption, Picked
from edgespec.tui.plain import Container, Input, OptionList, Static, Vertical, VerticalScroll

REDRAW_S = 0.05  # delay after a result, so that many results are shown together
SEARCH_S, LOOK_UP_S = 0.6, 0.3  # pauses of typing, and of moving, before the hub is asked
FOLLOW_S = 1.0  # time between two looks at the downloads


class Choices(OptionList):
    """A list of options with two lines each. The highlighted one stays in place while others are added or removed.

    A click does not focus the list: with the focus, letters would become commands.
    """

    FOCUS_ON_CLICK = False
    BINDINGS = [Binding("enter", "select", "Choose")]  # noqa: RUF012
    shown = ""  # the id that `show` has highlighted

    @property
    def moved_to(self) -> str | None:
        """The id that the user has highlighted since `show`, even if its message has not arrived yet; else None."""
        option = self.highlighted_option
        return option.id if option is not None and option.id != self.shown else None

    def show(self, options: list[Option], highlighted: str) -> None:
        """List these options, and highlight one of them without a message."""
        self.shown = highlighted
        before, top = self.highlighted, self.scroll_y
        ids = [option.id for option in options]
        after = ids.index(highlighted) if highlighted in ids else None
        with self.prevent(OptionList.OptionHighlighted):
            self.clear_options()
            self.add_options(options)
            self.highlighted = after
        if before is not None and after is not None:
            self.scroll_to(y=top + 2 * (after - before), animate=False, force=True)

    def on_resize(self) -> None:
        self.call_after_refresh(self.scroll_to_highlight)


class Filter(Input):
    """A field that the right arrow key leaves at its end."""

    BINDINGS = [Binding("enter", "submit", "Choose")]  # noqa: RUF012 - Textual declares it so

    def action_cursor_right(self, select: bool = False) -> None:
        if self.cursor_position == len(self.value) and not select:
            self.screen.query_one("#picker-options").focus()
        else:
            super().action_cursor_right(select)


class Models(Choices):
    """The list of models. Enter takes the highlighted one, a click only highlights it."""

    BINDINGS = [Binding("enter", "screen.take", "Choose")]  # noqa: RUF012


class ModelPicker(Dialog[Picked]):
    """Lists the models here, then those `elsewhere`; next to them the drafts, or the sizes to download, of the
    highlighted model.

    Typing filters the list, which starts with the filter `text`, and searches the hub. Returns None if it is closed.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-wide")]  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        Binding("escape", "leave", "Close", id="picker.leave"),
        Binding("slash", "go_to('filter')", "Filter", id="picker.filter"),
        Binding("x", "stop", "Stop download", id="picker.stop"),
        Binding("left", "go_to('filter')", show=False, id="picker.models"),
        Binding("right", "go_to('options')", show=False, id="picker.options"),
        Binding("up", "move('cursor_up')", show=False),
        Binding("down", "move('cursor_down')", show=False),
        Binding("pageup", "move('page_up')", show=False),
        Binding("pagedown", "move('page_down')", show=False),
    ]
    AUTO_FOCUS = "#picker-filter"

    def __init__(
        self,
        current_model: str,
        current_draft: str | None,
        models: Callable[[], Iterator[LocalModel]],
        elsewhere: Elsewhere,
        text: str = "",
    ) -> None:
        super().__init__()
        self._here, self._elsewhere = Here(current_model, current_draft), elsewhere
        self._read_models, self._text = models, text
        self._looked_up: set[str] = set()  # the models elsewhere whose sizes were requested
        self._target, self._about = "", About()  # the highlighted model
        self._option = ""  # the option of it that the user has highlighted, "" for none
        self._refusal = ""  # why the user's last action was refused
        self._is_about_option = False  # whether the details are about the option or the model
        self._is_reading, self._is_redraw_due = True, False
        self._vocabulary: tuple[str, Vocabulary] | None = None  # of the last target whose drafts were checked
        self._judging: tuple[str, Worker[None]] | None = None  # the target whose drafts are being checked

    def compose(self) -> ComposeResult:
        with Vertical(id="picker"):
            with Container(id="picker-lists"):
                with Vertical(classes="-side"):
                    yield Filter(self._text, id="picker-filter")
                    yield Models(id="picker-models")
                with Vertical():
                    yield Static(id="picker-title")
                    yield Choices(id="picker-options")
            with VerticalScroll(id="picker-details"):
                yield Static(id="picker-said")
            yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._search_timer = self.set_timer(SEARCH_S, self._search)
        self._look_up_timer = self.set_timer(LOOK_UP_S, self._look_up)
        self._n_open = len(self._elsewhere.downloads.open)
        self.set_interval(FOLLOW_S, self._follow_downloads)
        self._redraw()
        self._work(self._read, "models")

    @property
    def _filter(self) -> Filter:
        return self.query_one(Filter)

    @property
    def _models(self) -> Choices:
        return self.query_one(Models)

    @property
    def _options(self) -> Choices:
        return self.query_one("#picker-options", Choices)

    @property
    def _in_use_bytes(self) -> int:
        """The size of the loaded model."""
        current = self._here.in_use
        return current.size_bytes if current else 0

    # --- in threads -----------------------------------------------------------------------------------------------

    def _work(self, work: Callable[[], None], group: str, *, exclusive: bool = False) -> Worker[None]:
        return self.run_worker(work, thread=True, group=group, exclusive=exclusive, exit_on_error=False)

    def _read(self) -> None:
        """Read the models here, those in use first."""
        worker = get_current_worker()
        for spec in (self._here.model, self._here.draft):
            if spec not in (None, NO_DRAFT):
                with suppress(EdgespecError):
                    self.call_later(self._take, self._here.add, local_model(spec))
        models = []
        for model in self._read_models():
            if worker.is_cancelled:
                return
            models.append(model)
            self.call_later(self._take, self._here.add, model)
        heads = KnownHeads(models)
        pairs = [(os.path.realpath(model.path), heads.of(model)) for model in models]
        self.call_later(self._take, self._here.add_heads, pairs)

    def _judge(self, key: str, target: LocalModel, header: Header, drafts: dict[str, LocalModel]) -> None:
        """Check which models can draft for a target, then which drafts the catalogue has."""
        worker, known = get_current_worker(), self._vocabulary
        if drafts and (known is None or known[0] != key):
            self._vocabulary = known = key, Vocabulary.of(header)
        for draft, model in drafts.items():
            if worker.is_cancelled or known is None:
                return
            self.call_later(self._take, self._here.judge, key, draft, assessed(header, known[1], model))
        if key not in self._here.looked_up:
            self._here.looked_up.add(key)
            for found in to_fetch(catalogue_drafts(target.spec, target.path)):
                self.call_later(self._take, self._here.judge, key, f"{FETCH}{found.spec}", found)

    # --- results --------------------------------------------------------------------------------------------------

    def _take(self, change: Callable[..., None], *values: object) -> None:
        """Take a result of a thread."""
        change(*values)
        self._redraw_soon()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.worker.group == "models" and event.worker.is_finished:
            self._is_reading = False
            self._work(partial(self._elsewhere.read, self._in_use_bytes), "elsewhere")
        elif event.worker.group == "elsewhere" and event.worker.is_finished:
            self._work(partial(self._elsewhere.recommend, self._in_use_bytes), "best")
        if event.state is WorkerState.ERROR:
            self._refuse(str(event.worker.error).replace("\n", ";"))
        elif event.state is WorkerState.SUCCESS:
            self._redraw_soon()

    def _search(self) -> None:
        """Search the hub, after a pause of typing."""
        words = self._filter.value.strip()
        if len(words) >= LEAST_SEARCHED and words != self._elsewhere.searched:
            self._elsewhere.wanted = words
            self._work(partial(self._elsewhere.search, words), "search")

    def _look_up(self) -> None:
        """Ask the hub for the sizes of the highlighted model, after a pause of moving."""
        if self._elsewhere.has(self._target) and self._target not in self._looked_up:
            self._looked_up.add(self._target)
            self._work(partial(self._elsewhere.look_up, self._target), "sizes")

    def _follow_downloads(self) -> None:
        before, self._n_open = self._n_open, len(self._elsewhere.downloads.open)
        if self._n_open < before:  # a downloaded model is here now
            self._work(self._read, "models", exclusive=True)
        elif self._n_open:
            self._redraw_soon()

    # --- drawing --------------------------------------------------------------------------------------------------

    def _redraw_soon(self) -> None:
        if not self._is_redraw_due:
            self._is_redraw_due = True
            self.set_timer(REDRAW_S, self._redraw)

    def _redraw(self) -> None:
        self._is_redraw_due = False
        here, elsewhere, text = self._here, self._elsewhere, self._filter.value
        if moved_to := self._models.moved_to:
            self._aim_at(moved_to)
        self.refresh_bindings()
        here.room_bytes = elsewhere.room_bytes
        rows = [*here.options(text), *elsewhere.options(text)]
        choosable = [str(row.id) for row in rows if not row.disabled]
        if self._target not in choosable:
            self._aim_at(choosable[0] if choosable else "")
        found, more = counted(len(here.listed), "model"), " ..." if self._is_reading else ""
        looks = self._is_reading and not here.models
        self._filter.placeholder = "Looking for models ..." if looks else f"Filter {found}{more}, or find others"
        self._models.show(rows, self._target)
        self._redraw_options()

    def _redraw_options(self) -> None:
        """Draw the right list: the drafts, or the sizes, of the highlighted model."""
        is_elsewhere = self._elsewhere.has(self._target)
        self._about = (self._elsewhere if is_elsewhere else self._here).about(self._target)
        chosen = self._options.moved_to or self._option
        self._option = chosen if any(offer.key == chosen for offer in self._about.offers) else ""
        self.query_one("#picker-title", Static).update(self._about.title)
        options = [Option(offer.lines, offer.key) for offer in self._about.offers]
        self._options.show(options, self._option or self._about.preferred)
        self._show_details()
        if is_elsewhere:
            self._look_up_timer.stop()
            self._look_up_timer = self.set_timer(LOOK_UP_S, self._look_up)
        else:
            self._judge_unknown_drafts()

    def _judge_unknown_drafts(self) -> None:
        if self._judging and self._judging[0] == self._target and not self._judging[1].is_finished:
            return
        target, unknown = self._here.models.get(self._target), self._here.unknown(self._target)
        if target is None or target.header is None or target.problem:
            return
        if unknown or self._target not in self._here.looked_up:
            work = partial(self._judge, self._target, target, target.header, unknown)
            self._judging = self._target, self._work(work, "verdicts", exclusive=True)

    def _aim_at(self, target: str) -> None:
        if target != self._target:
            self._target, self._option = target, ""
            self._options.clear_options()

    @property
    def _offer(self) -> ModelOption | None:
        """The highlighted draft or size."""
        option = self._options.highlighted_option
        return next((offer for offer in self._about.offers if option and offer.key == option.id), None)

    def _show_details(self) -> None:
        """Show why an action was refused, or the details of what is highlighted in the list that was used last."""
        known = self._offer.details if self._is_about_option and self._offer else self._about.details
        said = self.query_one("#picker-said", Static)
        said.update(one_line(self._refusal or known))
        said.set_class(bool(self._refusal), "-error")

    def _refuse(self, why: str) -> None:
        """Show why something is impossible, until the user does something else."""
        self._refusal = why
        self._show_details()
        self.app.bell()

    # --- keys and clicks ------------------------------------------------------------------------------------------

    @on(events.DescendantFocus)
    def _turn_to(self, event: events.DescendantFocus) -> None:
        if event.widget in (self._models, self._options, self._filter):
            self._refusal, self._is_about_option = "", event.widget is self._options
            self._show_details()

    @on(OptionList.OptionHighlighted)
    def _follow(self, event: OptionList.OptionHighlighted) -> None:
        self._refusal = ""
        if event.option_list is self._models:
            self._aim_at(str(event.option_id))
            self._redraw_options()
        else:
            self._option = str(event.option_id)
            self._show_details()

    def action_take(self) -> None:
        """Choose the highlighted model with its highlighted option."""
        if self._about.problem:
            self._refuse(self._about.problem)
        elif self._offer is None:  # its sizes are not known yet
            self._options.focus()
        else:
            self.dismiss(self._offer.picked)

    @on(OptionList.OptionSelected, "#picker-options")
    def _choose(self) -> None:
        if self._offer:
            self.dismiss(self._offer.picked)

    @on(Input.Changed)
    def _narrow(self) -> None:
        self._refusal = ""
        self._redraw()
        self._search_timer.stop()
        self._search_timer = self.set_timer(SEARCH_S, self._search)

    @on(Input.Submitted)
    def _leave_filter(self, event: Input.Submitted) -> None:
        if self._target:
            self.action_take()
        elif is_path(event.value.strip()):
            self.dismiss(Picked(event.value.strip(), None))

    def action_go_to(self, name: str) -> None:
        self.query_one(f"#picker-{name}").focus()

    def action_move(self, how: str) -> None:
        """Move through the models while the filter has the focus."""
        if self._filter.has_focus:
            getattr(self._models, f"action_{how}")()

    def on_key(self, event: events.Key) -> None:
        """Move text that is typed in a list to the filter."""
        bound = self.active_bindings.get(event.key)
        if isinstance(self.focused, Choices) and event.is_printable and event.character and bound is None:
            self._filter.focus()
            self._filter.insert_text_at_cursor(event.character)
            event.stop()

    def action_stop(self) -> None:
        """Stop the download of the highlighted model."""
        if fetching := self._elsewhere.fetching(self._target):
            self._elsewhere.downloads.stop(fetching)
            self._redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave X and the keys to the filter as text where they have no effect."""
        if action == "stop":
            return self._elsewhere.fetching(self._target) is not None
        return (action, parameters) != ("go_to", ("filter",)) or not self._filter.has_focus

    def action_leave(self) -> None:
        """Close; a filter that is being typed, or matches nothing, is removed first."""
        if self._filter.value and (self._filter.has_focus or not self._target):
            self._filter.value = ""
            self._filter.focus()
        else:
            self.dismiss(None)
