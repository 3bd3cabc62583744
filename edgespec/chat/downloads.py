"""Downloads for a chat: one after another in a thread, while the conversation continues."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Literal

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError
from edgespec.models.hub.pulling import PendingDownload, fetch_items, items_of, plan_all
from edgespec.models.names.heads import PublishedHead
from edgespec.models.names.spec import NotFetchedError, resolve
from edgespec.models.pair.pull_heads import fetch_published, head_called
from edgespec.settings import AUTO_DRAFT, LoadSettings

LEAVING_S = 2.0  # how long the exit waits for a download to stop

State = Literal["waiting", "active", "ready", "stopped", "failed"]


@dataclass(slots=True, eq=False)
class Fetching:
    """A download of the missing models of `settings`, and of the draft model that belongs to them."""

    settings: LoadSettings
    spec: str  #: the model, or the draft model if only that is missing
    state: State = "waiting"
    what: str = ""  #: the progress in words
    done: float | None = None  #: the progress from 0 to 1
    said: str = ""  #: why it stopped or failed
    notes: deque[str] = field(default_factory=deque)
    cancel: CancelFlag = field(default_factory=CancelFlag)

    @property
    def is_over(self) -> bool:
        return self.state in ("ready", "stopped", "failed")

    def run(self) -> None:
        """Plan and download; the outcome is in `state`."""
        try:
            self.state = self._fetched()
        except EdgespecError as error:
            self.state, self.said = "failed", str(error)
        except Exception as error:
            self.state, self.said = "failed", f"the download failed: {type(error).__name__}: {error}"

    def _fetched(self) -> State:
        settings, missing = self.settings, missing_of(self.settings)
        if missing == [settings.draft_model] and (head := head_called(missing[0], resolve(settings.model).path)):
            return self._fetched_head(head)
        target = [] if _names_draft(settings) or not settings.uses_draft else [settings.model]
        drafts = {kind: target if kind in settings.drafters else [] for kind in ("draft", "assistant")}
        items = items_of(missing, drafts_of=drafts["draft"], assistants_of=drafts["assistant"])
        possible = plan_all(items, self)
        if self.cancel.is_set():
            self.said = "stopped before anything was downloaded"
            return "stopped"
        fetch_items(possible, self, self.cancel)
        if failed := next((item.error for item in possible if item.error and not item.is_draft), None):
            raise failed
        if self.cancel.is_set() and not all(item.is_done or item.was_here for item in possible):
            self.said = next((item.stopped for item in possible if item.stopped), "stopped")
            return "stopped"
        here = [item for item in possible if item.error is None]
        if here != items and settings.without_draft != "none":
            self.settings = replace(settings, spec_type=settings.without_draft)
        return "ready"

    def _fetched_head(self, head: PublishedHead) -> State:
        """Download the published head of a model that is here; its file then is the draft model."""
        model = self.settings.model
        target = PendingDownload(model, path=resolve(model).path, was_here=True, is_done=True)
        draft = fetch_published(head, target, self, self.cancel)
        if not draft.is_done or draft.path is None:
            self.said = draft.stopped or "stopped"
            return "stopped"
        self.settings = replace(self.settings, draft_model=str(draft.path))
        return "ready"

    # --- `Display` of the download -------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, what: str, done: float | None) -> None:
        self.what, self.done = what, done

    def end_progress(self) -> None:
        self.what, self.done = "", None


class Downloads:
    """A queue of downloads, and a thread that runs while there are any."""

    def __init__(self) -> None:
        self.all: list[Fetching] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def open(self) -> list[Fetching]:
        """The downloads that run or wait."""
        return [each for each in self.all if not each.is_over]

    def of(self, spec: str) -> Fetching | None:
        """Return the open download of a model or draft model."""
        return next((each for each in self.open if spec in (each.settings.model, each.spec)), None)

    def add(self, settings: LoadSettings) -> Fetching:
        """Download the missing models of these settings, unless the queue has this download. Raises
        ModelNotFoundError."""
        spec = next(iter(missing_of(settings)), settings.model)
        with self._lock:
            before = next((each for each in self.open if _same(each.settings, settings)), None)
            if before is not None:
                return before
            fetching = Fetching(settings, spec)
            self.all = [each for each in self.all if not (each.is_over and _same(each.settings, settings))]
            self.all.append(fetching)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="downloads", daemon=True)
                self._thread.start()
        return fetching

    def stop(self, fetching: Fetching) -> None:
        """Stop a download; the downloaded part stays on the disk."""
        fetching.cancel.set()
        with self._lock:
            if fetching.state == "waiting":
                fetching.state, fetching.said = "stopped", "stopped before anything was downloaded"

    def forget(self, fetching: Fetching) -> None:
        """Remove a download that is over."""
        with self._lock:
            if fetching in self.all:
                self.all.remove(fetching)

    def close(self) -> None:
        """Stop all downloads, and wait a moment for them."""
        for each in self.open:
            self.stop(each)
        if (thread := self._thread) is not None:
            thread.join(LEAVING_S)

    def _work(self) -> None:
        while True:
            with self._lock:
                fetching = next((each for each in self.all if each.state == "waiting"), None)
                if fetching is None:
                    self._thread = None
                    return
                fetching.state = "active"
            fetching.run()


def missing_of(settings: LoadSettings) -> list[str]:
    """Return the models of these settings that must be downloaded first. Raises ModelNotFoundError."""
    missing = []
    for spec in filter(None, [settings.model, settings.draft_model if _names_draft(settings) else None]):
        try:
            resolve(spec)
        except NotFetchedError:
            missing.append(spec)
    return missing


def _names_draft(settings: LoadSettings) -> bool:
    return settings.draft_model not in (None, AUTO_DRAFT)


def _same(one: LoadSettings, other: LoadSettings) -> bool:
    return (one.model, one.draft_model) == (other.model, other.draft_model)
