"""The screen to choose a model and a compatible draft."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from textual import events, on
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker, WorkerState, get_current_worker

from edgespec.errors import EdgespecError
from edgespec.gguf_file.header import Header
from edgespec.models.names.known import name_of
from edgespec.models.names.local import LocalModel, local_model
from edgespec.models.names.packaged import packaged_at
from edgespec.models.names.source import is_path
from edgespec.models.names.spec import NotFetchedError
from edgespec.models.pair.suggest import Suggestion, assessed, catalogue_drafts, to_fetch
from edgespec.models.pair.vocabulary import Vocabulary
from edgespec.text.printable import one_line
from edgespec.tui.picker_absent import LEAST_SEARCHED, STOP, Elsewhere
from edgespec.tui.picker_layout import Picked, PickerLayout
from edgespec.tui.picker_offers import FETCH, LEFT_OUT, NO_DRAFT, OWN_DRAFT, Offers

REDRAW_S = 0.05  # after a result, so that many are drawn at once
SEARCH_S, LOOK_UP_S = 0.6, 0.3  # pauses before the hub is asked: of typing, of moving through the list
FOLLOW_S = 1.0  # between two looks at the downloads


class ModelPicker(PickerLayout):
    """Lists `models` while they are read, then those `elsewhere`; for the highlighted one the compatible drafts, or the
    sizes it can be downloaded in. Typing filters the list, which starts with `text`, and searches the hub. Returns None
    if it is closed without a choice."""

    def __init__(
        self,
        current_model: str,
        current_draft: str | None,
        models: Callable[[], Iterator[LocalModel]],
        elsewhere: Elsewhere,
        text: str = "",
    ) -> None:
        super().__init__(text)
        self._elsewhere = elsewhere
        self._looked_up: set[str] = set()  # the models elsewhere whose sizes were asked for
        self._asked = ""  # the question that Enter answers
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

    def on_mount(self) -> None:
        self._search_timer = self.set_timer(SEARCH_S, self._search)
        self._look_up_timer = self.set_timer(LOOK_UP_S, self._look_up)
        self._n_open = len(self._elsewhere.downloads.open)
        self.set_interval(FOLLOW_S, self._follow_downloads)
        self._redraw()
        self.run_worker(self._read, thread=True, group="models", exit_on_error=False)

    # --- what the threads do --------------------------------------------------------------------------------------

    class Found(Message):
        """A model was read; `is_typed` if the user asked for it by its path."""

        def __init__(self, model: LocalModel, is_typed: bool = False) -> None:
            super().__init__()
            self.model, self.is_typed = model, is_typed

    class Absent(Message):
        """The user asked for a model by a name that must be downloaded first."""

        def __init__(self, spec: str) -> None:
            super().__init__()
            self.spec = spec

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
        except NotFetchedError:
            self.post_message(self.Absent(spec))
            return
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
                self.post_message(self.Judged(key, f"{FETCH}{found.spec}", found))

    # --- models elsewhere -------------------------------------------------------------------------------------------

    def _work_elsewhere(self, work: Callable[[], None], group: str) -> None:
        self.run_worker(work, thread=True, group=group, exit_on_error=False)

    def _read_elsewhere(self) -> None:
        """Read what can be downloaded, once it is known what is here."""
        current = self._offers.in_use
        self._work_elsewhere(partial(self._elsewhere.read, current.size_bytes if current else 0), "elsewhere")

    def _search(self) -> None:
        """Search the hub, after a pause of typing."""
        words = self.filter.value.strip()
        if len(words) >= LEAST_SEARCHED and words != self._elsewhere.searched:
            self._elsewhere.wanted = words
            self._work_elsewhere(partial(self._elsewhere.search, words), "search")

    def _look_up(self) -> None:
        """Ask for the sizes of the highlighted model, after a pause of moving."""
        key = self._target
        if self._elsewhere.model(key) and key not in self._looked_up:
            self._looked_up.add(key)
            self._work_elsewhere(partial(self._elsewhere.look_up, key), "sizes")

    def _follow_downloads(self) -> None:
        before, self._n_open = self._n_open, len(self._elsewhere.downloads.open)
        if self._n_open < before:  # what has come is here now, or a part of it
            self.run_worker(self._read, thread=True, group="models", exclusive=True, exit_on_error=False)
        elif self._n_open:
            self._redraw_soon()

    # --- the results ------------------------------------------------------------------------------------------------

    def on_model_picker_absent(self, event: Absent) -> None:
        self.dismiss(Picked(event.spec, None))

    def on_model_picker_found(self, event: Found) -> None:
        key = self._offers.add(event.model)
        if event.is_typed:
            if self._offers.models[key].spec != self._offers.model:
                self._offers.models[key] = event.model  # by the name that was typed
            self.filter.value = self.path.value = ""
            if key in self._offers.passing(""):
                self.models.focus()
                self._aim_at(key)
            else:
                self.drafts.focus()
        self._redraw_soon()

    def on_model_picker_judged(self, event: Judged) -> None:
        self._offers.judged.setdefault(event.target, {})[event.draft] = event.found
        self._redraw_soon()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.worker.group == "models" and event.worker.is_finished:
            self._is_reading = False
            self._read_elsewhere()
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
        if moved_to := self.models.moved_to:
            self._aim_at(moved_to)
        elsewhere, text = self._elsewhere, self.filter.value
        self.refresh_bindings()
        self._offers.room_bytes = elsewhere.room_bytes
        here, absent = self._offers.passing(text), elsewhere.listed(text)
        listed = here + [key for key in absent if elsewhere.model(key)]
        if self._target not in listed:
            self._aim_at(listed[0] if listed else "")
        n = len(self._offers.passing(""))
        found = f"{n} model{'s' if n != 1 else ''} here{' ...' if self._is_reading else ''}"
        self.filter.placeholder = f"Type to filter {found}, or to find others"
        options = [Option(self._offers.model_lines(key), id=key) for key in here]
        options += [
            Option(elsewhere.model_lines(key), id=key)
            if elsewhere.model(key)
            else Option(elsewhere.heading(key, text), id=key, disabled=True)
            for key in absent
        ]
        self.models.show(options, self._target)
        self._redraw_drafts()

    def _redraw_drafts(self) -> None:
        self._draft = self.drafts.moved_to or self._draft
        if self._elsewhere.model(self._target):
            self._redraw_sizes()
            return
        self.query_one("#picker-title", Static).update(self._offers.title(self._target))
        drafts = self._offers.drafts(self._target)
        lines = ((self._offers.draft_lines(self._target, draft), draft) for draft in drafts)
        options = [Option(shown, id=draft, disabled=draft == LEFT_OUT) for shown, draft in lines]
        self.drafts.show(options, self._draft or self._offers.preferred(self._target))
        self._tell()
        self._judge_what_is_unknown()

    def _redraw_sizes(self) -> None:
        """The right list for a model that is not here."""
        key, elsewhere = self._target, self._elsewhere
        self.query_one("#picker-title", Static).update(elsewhere.title(key))
        specs = [STOP] if elsewhere.fetching(key) else [choice.spec for choice in elsewhere.choices_of(key)]
        self._draft = self._draft if self._draft in specs else ""
        options = [Option(elsewhere.choice_lines(key, spec), id=spec) for spec in specs]
        self.drafts.show(options, self._draft or (STOP if STOP in specs else elsewhere.preferred(key)))
        self._tell()
        self._look_up_timer.stop()
        self._look_up_timer = self.set_timer(LOOK_UP_S, self._look_up)

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
            self.drafts.clear_options()

    # --- the details below -----------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Show why something was refused, or the details of the highlighted item in the list that was used last."""
        draft = self.drafts.highlighted_option if self._is_about_draft else None
        if self._elsewhere.model(self._target):
            known = self._elsewhere.details(self._target, str(draft.id) if draft else "")
        elif draft is None:
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
        if event.widget in (self.models, self.drafts, self.filter):
            self._refusal, self._is_about_draft = "", event.widget is self.drafts
            self._tell()

    # --- keys and clicks ------------------------------------------------------------------------------------------

    @on(OptionList.OptionHighlighted)
    def _follow(self, event: OptionList.OptionHighlighted) -> None:
        self._refusal = ""
        if event.option_list is self.models:
            self._aim_at(str(event.option_id))
            self._redraw_drafts()
        else:
            self._draft, self._asked = str(event.option_id), ""
            self._tell()

    def action_take(self) -> None:
        """Choose the highlighted model, with what is highlighted for it on the right."""
        highlighted = self.drafts.highlighted_option
        model = self._offers.models.get(self._target)
        if model is not None and model.problem:
            self._refuse(model.problem)
        elif highlighted is None:  # its sizes are not known yet
            self.drafts.focus()
        elif highlighted.id == STOP:
            self._refuse("this model is being downloaded already")
        else:
            self._choose(str(highlighted.id))

    @on(OptionList.OptionSelected, "#picker-drafts")
    def _choose_on_the_right(self, event: OptionList.OptionSelected) -> None:
        self._choose(str(event.option_id))

    def _choose(self, draft: str) -> None:
        if self._elsewhere.model(self._target):
            self._choose_size(draft)
            return
        target = self._offers.models[self._target]
        if not self._offers.can_be_chosen(self._target, draft):
            name, why = self._offers.draft_name(self._target, draft), self._offers.draft_details(self._target, draft)
            self._refuse(f"{name} cannot be chosen. {why[:1].upper()}{why[1:]}")
        elif draft in (OWN_DRAFT, NO_DRAFT):
            self.dismiss(Picked(_spec_of(target), None if draft == OWN_DRAFT else NO_DRAFT))
        else:
            found = self._offers.models.get(draft)
            self.dismiss(Picked(_spec_of(target), found.spec if found else draft.removeprefix(FETCH)))

    def _choose_size(self, spec: str) -> None:
        """Download a model, after a question if it is large."""
        question = self._elsewhere.question(self._target, spec)
        if spec == STOP:
            self.action_stop()
        elif question and self._asked != spec:
            self._asked = spec
            self._refuse(question)
        else:
            self.dismiss(Picked(spec, None, bool(question)))

    @on(Input.Changed)
    def _forget_refusal(self) -> None:
        self._refusal = ""
        self._tell()

    @on(Input.Changed, "#picker-filter")
    def _narrow(self) -> None:
        self._redraw()
        self._search_timer.stop()
        self._search_timer = self.set_timer(SEARCH_S, self._search)

    @on(Input.Submitted, "#picker-filter")
    def _leave_filter(self, event: Input.Submitted) -> None:
        if self._target:
            self.action_take()
        elif is_path(event.value.strip()):
            self._open_path(event)

    @on(Input.Submitted, "#picker-path")
    def _open_path(self, event: Input.Submitted) -> None:
        if spec := event.value.strip():
            work = partial(self._read_typed, spec)
            self.run_worker(work, thread=True, group="typed", exclusive=True, exit_on_error=False)

    def action_stop(self) -> None:
        """Stop the download of the highlighted model."""
        if fetching := self._elsewhere.fetching(self._target):
            self._elsewhere.downloads.stop(fetching)
            self._redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The key that stops a download is a letter of the filter where there is none; and in the filter none leads
        there."""
        if action == "stop":
            return self._elsewhere.fetching(self._target) is not None
        return (action, parameters) != ("go_to", ("filter",)) or not self.filter.has_focus

    def action_leave(self) -> None:
        """First leave a filter, if one is being typed or has no match."""
        if self.filter.value and (self.filter.has_focus or not self._target):
            self.filter.value = ""
            self.filter.focus()
        else:
            self.dismiss(None)


def _spec_of(model: LocalModel) -> str:
    """By its name a packaged model gets the catalogue's settings."""
    return name_of(model.path) if packaged_at(model.path) else model.spec
