"""Downloads that a chat has asked for: one after another in a thread, while the conversation goes on."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Literal

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError
from edgespec.models.hub.pulling import Item, fetch_all, free_bytes, items_of, missing_bytes, plan_all
from edgespec.models.names.spec import NotFetchedError, resolve, sources
from edgespec.models.pair.suggest import catalogue_drafts
from edgespec.settings import AUTO_DRAFT, LoadSettings
from edgespec.text.figures import size_of

HUGE_BYTES = 20_000_000_000  # from here on a download is confirmed, and if it takes half of the free space
LEAVING_S = 2.0  # for a download to stop at exit

State = Literal["waiting", "active", "asking", "ready", "stopped", "failed"]


@dataclass(slots=True, eq=False)
class Fetching:
    """A download: what is missing of the models that `settings` name, and the draft that goes with the model.

    `spec` is the model, or the draft if only that is missing. `what` and `done` are the progress, `notes` what the user
    should hear of it, `said` why it asks, stopped or failed.
    """

    settings: LoadSettings
    spec: str
    is_confirmed: bool = False
    state: State = "waiting"
    what: str = ""
    done: float | None = None
    said: str = ""
    notes: deque[str] = field(default_factory=deque)
    cancel: CancelFlag = field(default_factory=CancelFlag)

    @property
    def is_over(self) -> bool:
        return self.state in ("ready", "stopped", "failed")

    def run(self) -> None:
        """Plan it and download it; the outcome is in `state`."""
        try:
            self.state = self._fetched()
        except EdgespecError as error:
            self.state, self.said = "failed", str(error)
        except Exception as error:
            self.state, self.said = "failed", f"the download failed: {type(error).__name__}: {error}"

    def _fetched(self) -> State:
        items, others = _items_for(self.settings)
        possible = plan_all(items, self)
        if self.cancel.is_set():
            self.said = "stopped before anything was downloaded"
            return "stopped"
        coming = [item for item in possible if not item.was_here]
        if coming and not self.is_confirmed and is_huge(missing_bytes(coming), free_bytes(coming)):
            self.said = f"{size_of(missing_bytes(coming))} to download, {size_of(free_bytes(coming))} free"
            return "asking"
        fetch_all(possible, self, self.cancel)
        if failed := next((item.error for item in possible if item.error and not item.is_draft), None):
            raise failed
        if self.cancel.is_set() and not all(item.is_done or item.was_here for item in possible):
            self.said = next((item.stopped for item in possible if item.stopped), "stopped")
            return "stopped"
        here = [item for item in possible if item.error is None]
        self._draft_with(here == items, others if others in [item.spec for item in here] else "")
        return "ready"

    def _draft_with(self, has_all: bool, draft: str) -> None:
        """Load it with a draft that its own name does not imply, or without the one that did not come."""
        settings = self.settings
        if draft:
            self.settings = replace(settings, draft_model=draft)
        elif not has_all and settings.without_draft != "none":
            self.settings = replace(settings, spec_type=settings.without_draft)

    # --- what downloading shows (`Display`) ------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, what: str, done: float | None) -> None:
        self.what, self.done = what, done

    def end_progress(self) -> None:
        self.what, self.done = "", None


class Downloads:
    """A queue of downloads, worked off by a thread that ends with the last one."""

    def __init__(self) -> None:
        self.all: list[Fetching] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def open(self) -> list[Fetching]:
        """Those that run, wait or ask."""
        return [each for each in self.all if not each.is_over]

    def of(self, spec: str) -> Fetching | None:
        """The open download of a model or draft."""
        return next((each for each in self.open if spec in (each.settings.model, each.spec)), None)

    def add(self, settings: LoadSettings, *, is_confirmed: bool = False) -> Fetching:
        """Download what is missing of these models. One that asks is thereby confirmed, and what is in the queue is
        not queued again. Raises ModelNotFoundError."""
        spec = next(iter(missing_of(settings)), settings.model)
        with self._lock:
            before = next((each for each in self.open if _same(each.settings, settings)), None)
            if before is not None and before.state != "asking":
                return before
            if before is not None:
                self.all.remove(before)
            fetching = Fetching(settings, spec, is_confirmed or before is not None)
            self.all = [each for each in self.all if not (each.is_over and _same(each.settings, settings))]
            self.all.append(fetching)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="downloads", daemon=True)
                self._thread.start()
        return fetching

    def stop(self, fetching: Fetching) -> None:
        """Stop one; what has come of it stays on the disk."""
        fetching.cancel.set()
        with self._lock:
            if fetching.state in ("waiting", "asking"):
                fetching.state, fetching.said = "stopped", "stopped before anything was downloaded"

    def forget(self, fetching: Fetching) -> None:
        """Leave one out that is over."""
        with self._lock:
            if fetching in self.all:
                self.all.remove(fetching)

    def close(self) -> None:
        """Stop all, and wait a moment."""
        for each in self.open:
            self.stop(each)
        thread = self._thread
        if thread is not None:
            thread.join(LEAVING_S)

    def _work(self) -> None:
        while (fetching := self._next()) is not None:
            fetching.run()

    def _next(self) -> Fetching | None:
        with self._lock:
            fetching = next((each for each in self.all if each.state == "waiting"), None)
            if fetching is None:
                self._thread = None
            else:
                fetching.state = "active"
            return fetching


def missing_of(settings: LoadSettings) -> list[str]:
    """The models of these settings that must be downloaded first. Raises ModelNotFoundError."""
    named = [settings.model, *([settings.draft_model] if _names_draft(settings) else [])]
    missing = []
    for spec in filter(None, named):
        try:
            resolve(spec)
        except NotFetchedError:
            missing.append(spec)
    return missing


def is_huge(n_bytes: int, free: int) -> bool:
    """Whether to ask before so much is downloaded."""
    return n_bytes >= HUGE_BYTES or 2 * n_bytes > free


def _items_for(settings: LoadSettings) -> tuple[list[Item], str]:
    """What to download, and of these a draft that the model's name does not imply: that of the catalogue for another
    conversion of the same model."""
    missing = missing_of(settings)
    with_draft = settings.model in missing and not _names_draft(settings)
    with_draft = with_draft and settings.uses_draft and "draft" in settings.drafters
    items = items_of(missing, None, drafts_of=[settings.model] if with_draft else [])
    if with_draft and len(items) == 1 and items[0].error is None:
        for entry in catalogue_drafts(settings.model, None)[:1]:
            if entry.name != settings.model:
                items.append(Item(entry.name, sources(entry.name)[0], [items[0]]))
                return items, entry.name
    return items, ""


def _names_draft(settings: LoadSettings) -> bool:
    return settings.draft_model not in (None, AUTO_DRAFT)


def _same(one: LoadSettings, other: LoadSettings) -> bool:
    return (one.model, one.draft_model) == (other.model, other.draft_model)
