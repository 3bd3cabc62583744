"""The widgets that describe the open chat: the line at the top, the text before it begins, its system prompt."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget

from edgespec.chat.session import Session
from edgespec.text.printable import one_line, printable
from edgespec.tui.lines import Prose, cut_off
from edgespec.tui.plain import Horizontal, Static

HINTS = (
    ("Enter", "send a message"),
    ("/", "list the commands"),
    ("F1", "list commands and keys"),
    ("Ctrl+B", "show your chats"),
    ("Ctrl+L", "choose a model"),
    ("F6", "choose a persona"),
    ("F4", "compare two answers"),
)
LONG = 8_000  # characters that are shown


class TitleBar(Horizontal):
    """Shows the title of the chat, a mark while something is not saved, the persona and the temperature, and the model
    or its loading progress."""

    def __init__(self) -> None:
        super().__init__()
        self._model, self._loading = "", ""

    def compose(self) -> ComposeResult:
        yield Static("edgespec", id="title")
        yield Static("! not saved", id="unsaved")
        yield Static("", id="answering")
        yield Static("", id="model")

    def show(self, session: Session) -> None:
        """Show the open chat, how it is answered, and the model."""
        kept = "" if session.store.file else " (not saved)"
        self.query_one("#title", Static).update(Content((one_line(session.chat.title) or "new chat") + kept))
        temperature = f"temp {session.chat.settings.sampling.temperature:g}"
        self.query_one("#answering", Static).update(
            Content(" · ".join(filter(None, (session.chat.persona, temperature))))
        )
        if session.model.engine is None:
            self._model = f"{Path(session.load_settings.model).name.removesuffix('.gguf')} (not loaded)"
        else:
            self._model = one_line(session.model.name)
        self._refresh_model()

    def show_progress(self, progress: str) -> None:
        """Show the progress of loading a model; with "" the model again: loading has ended or failed."""
        self._loading = progress
        self._refresh_model()

    def unsaved(self, why: str) -> None:
        """Show that something could not be saved, and why; "" removes the mark."""
        mark = self.query_one("#unsaved", Static)
        mark.display = bool(why)
        mark.tooltip = why or None

    def _refresh_model(self) -> None:
        for line in self.query("#model").results(Static):  # there is none while the program closes
            line.update(Content(self._loading or self._model))


class Welcome(Static):
    """Shows the loaded model, or the progress of loading it, and the most important keys."""

    def __init__(self) -> None:
        super().__init__()
        self._state, self._about, self._loading = "", list[Content](), ""

    def show(self, session: Session) -> None:
        """Show the loaded model."""
        info = session.model.info
        if session.model.engine is None:
            self._state = "The model is not loaded."
        else:
            self._state = one_line(f"{info.description}, context of {info.ctx_size:,} tokens")
        self._about = []
        if (system := one_line(session.chat.system)) or session.chat.persona:
            of = f" · {session.chat.persona}" if session.chat.persona else ""
            self._about.append(Content.styled(f"System prompt{of}: {system or 'none'}", "dim"))
        self._draw()

    def show_progress(self, progress: str) -> None:
        """Show the progress of loading a model; with "" the model again."""
        self._loading = progress
        self._draw()

    def _draw(self) -> None:
        width = max(len(key) for key, _ in HINTS)
        text = max(len(text) for _, text in HINTS)
        lines = [
            Content.assemble((key.rjust(width), "bold $text-primary"), "  ", (text_of.ljust(text), "dim"))
            for key, text_of in HINTS
        ]
        state = (self._loading, "$text-primary") if self._loading else (self._state, "dim")
        title = [Content.styled("edgespec", "bold"), Content.assemble(state), *self._about]
        self.update(Content("\n").join([*title, Content(""), *lines]))


class SystemPrompt(Prose, can_focus=True):
    """Shows the system prompt. A click does not focus it: with the focus, E would become a command."""

    FOCUS_ON_CLICK = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "app.call('system')", "Edit", id="system.edit"),
        Binding("enter", "open", "Show all", id="system.open"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._text = self._persona = ""

    def show(self, text: str, persona: str = "") -> None:
        """Show a system prompt and the name of its persona; without both the widget is hidden."""
        self._text, self._persona = text, persona
        self.display = bool(text or persona)
        self._draw()

    def _draw(self) -> None:
        name = f"System prompt · {self._persona}" if self._persona else "System prompt"
        if self.has_class("-open"):
            self.update(Content(f"▾ {name} (E edits it)\n{cut_off(printable(self._text), LONG)}"))
        else:
            self.update(Content(f"▸ {name}: {one_line(self._text[:LONG]) or 'none'}"))

    def on_click(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """Unfold or fold it."""
        self.toggle_class("-open")
        self._draw()
        if isinstance(self.parent, Widget):  # the parent would keep the messages in place, and this widget out of view
            self.call_after_refresh(self.parent.scroll_home, animate=False)
