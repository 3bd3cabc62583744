"""The screen to choose a model and a compatible draft."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker, WorkerState, get_current_worker

from edgespec.errors import EdgespecError, ModelNotFoundError
from edgespec.gguf_file.header import Header
from edgespec.models.names.known import name_of
from edgespec.models.names.local import LocalModel, local_model
from edgespec.models.names.spec import NotFetchedError, is_path
from edgespec.models.packages.wheels import packaged_at
from edgespec.models.pair.suggest import Suggestion, assessed, catalogue_drafts, to_fetch
from edgespec.models.pair.vocabulary import Vocabulary
from edgespec.text.printable import one_line
from edgespec.tui.choices import Choices
from edgespec.tui.picker_offers import LEFT_OUT, NO_DRAFT, OWN_DRAFT, Offers

REDRAW_S = 0.05  # after a result, so that many are drawn at once


@dataclass(frozen=True, slots=True)
class Picked:
    """The choice, as in `LoadSettings`; `draft` is None for the model's default draft, or "none"."""

    model: str
    draft: str | None


class ModelPicker(ModalScreen[Picked | None]):
    """Lists `models` while they are read, and for the highlighted one the compatible drafts. Returns None if it is
    closed without a choice."""

    DEFAULT_CSS = """
    ModelPicker {
        align: center middle;
        & > #picker { background: $surface; max-width: 120; max-height: 40; }
        & #picker-lists { height: 1fr; layout: vertical; }
        & Vertical { height: 1fr; }
        & #picker-title { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
        & Input { height: 1; border: none; padding: 0 1; background: $surface; }
        & Input:focus { border: none; background: $primary 35%; }
        & #picker-told { height: auto; min-height: 3; max-height: 5; scrollbar-size-vertical: 1; }
        & #picker-said { padding: 0 1; color: $text-muted; }
        & #picker-said.-error { color: $text-error; background: $error 20%; text-style: bold; }
        &.-wide > #picker { border: round $primary; width: 94%; height: 90%; }
        &.-wide #picker-lists { layout: horizontal; }
        &.-wide #picker-told { margin-top: 1; }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-wide")]  # noqa: RUF012 - Textual declares it so
    BINDINGS = [  # noqa: RUF012
        Binding("escape", "leave", "Close", id="picker.leave"),
        Binding("slash", "go_to('filter')", "Filter", id="picker.filter"),
        Binding("p", "go_to('path')", "Path", id="picker.path"),
        Binding("left", "go_to('models')", show=False, id="picker.models"),
        Binding("right", "go_to('drafts')", show=False, id="picker.drafts"),
    ]

    def __init__(
        self, current_model: str, current_draft: str | None, models: Callable[[], Iterator[LocalModel]]
    ) -> None:
        super().__init__()
        self._offers = Offers(current_model, current_draft)
        self._read_models = models
        self._target = ""  # what is highlighted
        self._draft = ""  # the draft that the user has highlighted for it, "" for none
        self._refusal = ""  # the message about the user's last action
        self._is_about_draft = False  # the details shown otherwise
        self._is_reading, self._is_redraw_due = True, False
        self._vocabulary: tuple[str, Vocabulary] | None = None  # of the last target whose drafts were checked
        self._judging: tuple[str, Worker[None]] | None = None  # whose drafts are being checked
        self._judges = threading.Lock()  # one pair at a time

    def compose(self) -> ComposeResult:
        with Vertical(id="picker"):
            with Container(id="picker-lists"):
                with Vertical():
                    yield Input(id="picker-filter")
                    yield Choices(id="picker-models")
                with Vertical():
                    yield Static(id="picker-title", markup=False)
                    yield Choices(id="picker-drafts")
            with VerticalScroll(id="picker-told"):
                yield Static(id="picker-said", markup=False)
            yield Input(placeholder="Path or name of another model", id="picker-path")
            yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._filter, self._path = self.query_one("#picker-filter", Input), self.query_one("#picker-path", Input)
        self._models, self._drafts = (self.query_one(f"#picker-{name}", Choices) for name in ("models", "drafts"))
        self._models.focus()
        self._redraw()
        self.run_worker(self._read, thread=True, group="models", exit_on_error=False)

    # --- what the threads do --------------------------------------------------------------------------------------

    class Found(Message):
        """A model was read; `is_typed` if the user asked for it by its path."""

        def __init__(self, model: LocalModel, is_typed: bool = False) -> None:
            super().__init__()
            self.model, self.is_typed = model, is_typed

    class Judged(Message):
        """A draft was checked for a target, both by their keys."""

        def __init__(self, target: str, draft: str, found: Suggestion) -> None:
            super().__init__()
            self.target, self.draft, self.found = target, draft, found

    def _read(self) -> None:
        worker = get_current_worker()
        for spec in (self._offers.model, self._offers.draft):
            if spec not in (None, NO_DRAFT):
                with suppress(EdgespecError):
                    self.post_message(self.Found(local_model(spec)))
        for model in self._read_models():
            if worker.is_cancelled:
                return
            self.post_message(self.Found(model))

    def _read_typed(self, spec: str) -> None:
        try:
            model = local_model(spec)
        except NotFetchedError as error:
            hint = f"download it with edgespec pull {spec} in another terminal; then press Enter again"
            raise ModelNotFoundError("not downloaded", hint=hint) from error
        if is_path(spec):
            model = replace(model, spec=os.path.abspath(model.path))  # noqa: PTH100 - Path.absolute keeps ".."
        self.post_message(self.Found(model, is_typed=True))

    def _judge(self, key: str, target: LocalModel, header: Header, drafts: dict[str, LocalModel]) -> None:
        worker = get_current_worker()
        for draft, model in drafts.items():
            with self._judges:  # scrolling through the list leaves many cancelled ones
                if worker.is_cancelled:
                    return
                if self._vocabulary is None or self._vocabulary[0] != key:
                    self._vocabulary = key, Vocabulary.of(header)
                found = assessed(header, self._vocabulary[1], model)
            self.post_message(self.Judged(key, draft, found))
        if key not in self._offers.looked_up:
            self._offers.looked_up.add(key)
            for found in to_fetch(catalogue_drafts(target.spec, target.path)):
                self.post_message(self.Judged(key, f"fetch {found.spec}", found))

    # --- the results ------ -----------------------------------------------------------------------------------------

    def on_model_picker_found(self, event: Found) -> None:
        key = self._offers.add(event.model)
        if event.is_typed:
            if self._offers.models[key].spec != self._offers.model:
                self._offers.models[key] = event.model  # by the name that was typed
            self._filter.value = self._path.value = ""
            if key in self._offers.passing(""):
                self._models.focus()
                self._aim_at(key)
            else:
                self._drafts.focus()
        self._redraw_soon()

    def on_model_picker_judged(self, event: Judged) -> None:
        self._offers.judged.setdefault(event.target, {})[event.draft] = event.found
        self._redraw_soon()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.worker.group == "models" and event.worker.is_finished:
            self._is_reading = False
        if event.state is WorkerState.ERROR:
            self._refuse(str(event.worker.error).replace("\n", ";"))
        elif event.state is WorkerState.SUCCESS:
            self._redraw_soon()

    def _redraw_soon(self) -> None:
        if not self._is_redraw_due:
            self._is_redraw_due = True
            self.set_timer(REDRAW_S, self._redraw)

    def _redraw(self) -> None:
        self._is_redraw_due = False
        if moved_to := self._models.moved_to:
            self._aim_at(moved_to)
        listed = self._offers.passing(self._filter.value)
        if self._target not in listed:
            self._aim_at(listed[0] if listed else "")
        n = len(self._offers.passing(""))
        self._filter.placeholder = f"Filter {n} model{'s' if n != 1 else ''}{' ...' if self._is_reading else ''}"
        options = [Option(self._offers.model_lines(key), id=key) for key in listed]
        if not listed and (words := one_line(self._filter.value)):
            said = Content.assemble(f"nothing matches '{words}'\n  ", ("esc clears the filter", "dim"))
            options = [Option(said, disabled=True)]
        self._models.show(options, self._target)
        self._redraw_drafts()

    def _redraw_drafts(self) -> None:
        self._draft = self._drafts.moved_to or self._draft
        self.query_one("#picker-title", Static).update(self._offers.title(self._target))
        drafts = self._offers.drafts(self._target)
        lines = ((self._offers.draft_lines(self._target, draft), draft) for draft in drafts)
        options = [Option(shown, id=draft, disabled=draft == LEFT_OUT) for shown, draft in lines]
        self._drafts.show(options, self._draft or self._offers.preferred(self._target))
        self._tell()
        self._judge_what_is_unknown()

    def _judge_what_is_unknown(self) -> None:
        if self._judging and self._judging[0] == self._target and not self._judging[1].is_finished:
            return
        target, unknown = self._offers.models.get(self._target), self._offers.unknown(self._target)
        if target and target.header and (unknown or self._target not in self._offers.looked_up):
            work = partial(self._judge, self._target, target, target.header, unknown)
            worker = self.run_worker(work, thread=True, group="verdicts", exclusive=True, exit_on_error=False)
            self._judging = (self._target, worker)

    def _aim_at(self, target: str) -> None:
        if target != self._target:
            self._target, self._draft = target, ""
            self._drafts.clear_options()

    # --- the details below -----------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Show why something was refused, or the details of the highlighted item in the list that was used last."""
        draft = self._drafts.highlighted_option if self._is_about_draft else None
        if draft is None:
            known = self._offers.model_details(self._target)
        else:
            known = self._offers.draft_details(self._target, str(draft.id))
        said = self.query_one("#picker-said", Static)
        said.update(one_line(self._refusal or known))
        said.set_class(bool(self._refusal), "-error")

    def _refuse(self, why: str) -> None:
        """Show why something is impossible, until the user does something else."""
        self._refusal = why
        self._tell()
        self.app.bell()

    @on(events.DescendantFocus)
    def _turn_to(self, event: events.DescendantFocus) -> None:
        if isinstance(event.widget, Choices):
            self._refusal, self._is_about_draft = "", event.widget is self._drafts
            self._tell()

    # --- keys and clicks ------------------------------------------------------------------------------------------

    @on(OptionList.OptionHighlighted)
    def _follow(self, event: OptionList.OptionHighlighted) -> None:
        self._refusal = ""
        if event.option_list is self._models:
            self._aim_at(str(event.option_id))
            self._redraw_drafts()
        else:
            self._draft = str(event.option_id)
            self._tell()

    @on(OptionList.OptionSelected, "#picker-models")
    def _choose_model(self) -> None:
        problem = self._offers.models[self._target].problem
        if problem:
            self._refuse(problem)
        else:
            self._drafts.focus()

    @on(OptionList.OptionSelected, "#picker-drafts")
    def _choose_draft(self, event: OptionList.OptionSelected) -> None:
        target, draft = self._offers.models[self._target], str(event.option_id)
        if not self._offers.can_be_chosen(self._target, draft):
            name, why = self._offers.draft_name(self._target, draft), self._offers.draft_details(self._target, draft)
            self._refuse(f"{name} cannot be chosen. {why[:1].upper()}{why[1:]}")
        elif draft in (OWN_DRAFT, NO_DRAFT):
            self.dismiss(Picked(_spec_of(target), None if draft == OWN_DRAFT else NO_DRAFT))
        else:
            self.dismiss(Picked(_spec_of(target), self._offers.models[draft].spec))

    @on(Input.Changed)
    def _forget_refusal(self) -> None:
        self._refusal = ""
        self._tell()

    @on(Input.Changed, "#picker-filter")
    def _narrow(self) -> None:
        self._redraw()

    @on(Input.Submitted, "#picker-filter")
    def _leave_filter(self) -> None:
        self._models.focus()

    @on(Input.Submitted, "#picker-path")
    def _open_path(self, event: Input.Submitted) -> None:
        if spec := event.value.strip():
            work = partial(self._read_typed, spec)
            self.run_worker(work, thread=True, group="typed", exclusive=True, exit_on_error=False)

    def action_go_to(self, name: str) -> None:
        self.query_one(f"#picker-{name}").focus()

    def action_leave(self) -> None:
        """First leave a filter, if one is being typed or has no match."""
        if self._filter.value and (self._filter.has_focus or not self._target):
            self._filter.value = ""
            self._models.focus()
        else:
            self.dismiss(None)


def _spec_of(model: LocalModel) -> str:
    """By its name a packaged model gets the catalogue's settings."""
    return name_of(model.path) if packaged_at(model.path) else model.spec
