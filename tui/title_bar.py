"""The line at the top, with the chat and the model."""

from __future__ import annotations

from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from edgespec.chat.session import Session
from edgespec.models.names.known import short_name
from edgespec.text.figures import gauge
from edgespec.text.printable import one_line


class TitleBar(Horizontal):
    """Shows the title of the chat, the model or its loading progress, and a mark while something is not saved."""

    DEFAULT_CSS = """
    TitleBar {
        height: 1;
        background: $panel;
        & > #title { width: 1fr; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; text-style: bold; }
        & > #model { width: auto; max-width: 60%; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
        & > #unsaved { width: auto; padding: 0 1; color: $text-error; display: none; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._model, self._loading = "", ""

    def compose(self) -> ComposeResult:
        yield Static("edgespec", id="title", markup=False)
        yield Static("! not saved", id="unsaved", markup=False)
        yield Static("", id="model", markup=False)

    def show(self, session: Session) -> None:
        """Show the open chat and the model."""
        kept = "" if session.store.file else " (not saved)"
        self.query_one("#title", Static).update(Content((one_line(session.title) or "new chat") + kept))
        about, model = session.about, Path(session.load_settings.model).name.removesuffix(".gguf")
        if session.engine is None:
            self._model = f"{model} (not loaded)"
        else:
            names = [about["model"], *([about["draft_model"]] if about.get("draft_model") else [])]
            self._model = one_line(" + ".join(short_name(Path(name)) for name in names))
        self._refresh_model()

    def loading_of(self, model: str) -> None:
        """Show that this model is loading."""
        self._loading = f"loading {one_line(Path(model).name.removesuffix('.gguf'))}"
        self._refresh_model()

    def progress(self, what: str, done: float) -> None:
        """Show the progress of loading, from 0 to 1."""
        if self._loading:
            self._loading = f"{what.strip()} {gauge(done)}"
            self._refresh_model()

    def loaded(self) -> None:
        """Show the model again: loading has ended or failed."""
        self._loading = ""
        self._refresh_model()

    def unsaved(self, why: str) -> None:
        """Show that something could not be saved, and why; "" removes the mark."""
        mark = self.query_one("#unsaved", Static)
        mark.display = bool(why)
        mark.tooltip = why or None

    def _refresh_model(self) -> None:
        self.query_one("#model", Static).update(Content(self._loading or self._model))
