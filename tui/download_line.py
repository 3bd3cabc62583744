"""The line above the field for messages that shows downloads, and models that are ready to be loaded."""

from __future__ import annotations

from collections.abc import Callable

from textual import events, on
from textual.app import ComposeResult
from textual.content import Content

from edgespec.chat.downloads import Downloads, Fetching, missing_of
from edgespec.settings import LoadSettings
from edgespec.text.figures import gauge, percent
from edgespec.text.printable import one_line
from edgespec.tui.base_app import BaseApp
from edgespec.tui.plain import Horizontal, Static

LOOK_S = 0.5  # time between two frames of the line
BAR = 10  # cells


class DownloadLine(Horizontal):
    """Loads models, and downloads missing ones first, while the conversation continues.

    A downloaded model is loaded at once if the user is not busy; otherwise the line offers it. `load_here` loads models
    that are on this machine.
    """

    def __init__(self, load_here: Callable[[LoadSettings], None]) -> None:
        super().__init__()
        self._load_here = load_here
        self.downloads = Downloads()
        self._reported: set[Fetching] = set()  # downloads whose end was reported
        self._shown: Fetching | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="download-said")
        yield Static("✕", id="download-close")

    def on_mount(self) -> None:
        self.set_interval(LOOK_S, self.look)

    def on_unmount(self) -> None:
        self.downloads.close()

    @property
    def _chat(self) -> BaseApp:
        assert isinstance(self.app, BaseApp)
        return self.app

    def load(self, settings: LoadSettings) -> None:
        """Load these models, as soon as all of them are downloaded.

        Raises EdgespecError for unknown names, and if nothing must be downloaded but a job is running.
        """
        chat = self._chat
        ready = next((each for each in self.downloads.all if each.state == "ready" and _asks_for(settings, each)), None)
        if ready is not None:
            settings = ready.settings
        if chat.session.model.server or not missing_of(settings):
            self._load_here(settings)
            if ready is not None:
                self.downloads.forget(ready)
            self.show()
            return
        self.downloads.add(settings)
        self.look()

    def look(self) -> None:
        """Report what has happened since the last call."""
        chat = self._chat
        for each in [*self.downloads.all]:
            while each.notes:
                chat.say(each.notes.popleft())
            if each.is_over and each not in self._reported:
                self._reported.add(each)
                self._report(each)
        self.show()

    def _report(self, fetching: Fetching) -> None:
        chat = self._chat
        if fetching.state == "ready":
            if self._may_load():
                self.load(fetching.settings)
        else:
            self.downloads.forget(fetching)
            chat.say(fetching.said, "error" if fetching.state == "failed" else "info")

    def _may_load(self) -> bool:
        """Return whether a model can be loaded now: there is no answer, conversation, typed text or open screen."""
        chat = self._chat
        is_free = not chat.is_busy and not chat.has_screen_above and not chat.composer.text
        return is_free and (chat.session.model.engine is None or not chat.session.chat.turns)

    def show(self) -> None:
        """Show the running download, else one that waits or is ready."""
        order = {"active": 0, "waiting": 1, "ready": 2}
        shown = sorted((each for each in self.downloads.all if each.state in order), key=lambda each: order[each.state])
        self._shown = shown[0] if shown else None
        self.display = bool(shown)
        if shown:
            self.query_one("#download-said", Static).update(_line(shown[0], len(shown) - 1))

    def stop(self, fetching: Fetching) -> None:
        """Stop a download, or forget one that is ready."""
        if fetching.state == "ready":
            self.downloads.forget(fetching)
        else:
            self.downloads.stop(fetching)
        self.look()

    @on(events.Click, "#download-close")
    def _close(self, event: events.Click) -> None:
        event.stop()
        if self._shown is not None:
            self.stop(self._shown)

    @on(events.Click, "#download-said")
    def _open(self) -> None:
        """Load the model that is ready, or open the list of models."""
        if self._shown is not None and self._shown.state == "ready":
            self._chat.run_command(_again(self._shown), is_typed=True)
        else:
            self._chat.run_command("/model")


def state_of(fetching: Fetching) -> str:
    """Return the state of a download, in a few words."""
    if fetching.state == "active":
        done = f" {percent(fetching.done)}" if fetching.done is not None else ""
        return f"{fetching.what or 'downloading'}{done}"
    return {"waiting": "waiting for another download", "ready": "ready"}.get(fetching.state, fetching.said)


def _again(fetching: Fetching) -> str:
    """Return the command that loads or downloads it."""
    is_draft = fetching.spec == fetching.settings.draft_model
    return f"/draft {fetching.spec}" if is_draft else f"/model {fetching.settings.model}"


def _line(fetching: Fetching, others: int) -> Content:
    name = one_line(fetching.spec)
    more = f" · {others} more" if others else ""
    if fetching.state == "ready":
        return Content.assemble((f"✓ {name} is ready", "$text-success"), f": {_again(fetching)} loads it{more}")
    bar = f"{gauge(fetching.done, BAR)}  " if fetching.done is not None else ""
    what = fetching.what or ("waiting" if fetching.state == "waiting" else "starting")
    return Content.assemble("↓ ", (name, "bold"), f"  {bar}", (f"{one_line(what)}{more}", "$foreground 70%"))


def _asks_for(settings: LoadSettings, fetching: Fetching) -> bool:
    """Return whether these settings ask for a downloaded model; a draft may have been downloaded with it."""
    return settings.model == fetching.settings.model and settings.draft_model in (None, fetching.settings.draft_model)
