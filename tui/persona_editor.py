"""The dialog to edit the file of a persona."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Static, TextArea

from edgespec.chat.personas import Persona, as_toml, save_text
from edgespec.errors import EdgespecError, told_as
from edgespec.text.printable import printable

FIELDS = "TOML: description, system, model, and the settings of /set, one per line, for example temp = 0.2"


class PersonaEditor(ModalScreen[Persona | None]):
    """Edits the file of `persona`; the result is the persona as saved, or None if the user cancels."""

    DEFAULT_CSS = """
    PersonaEditor {
        align: center middle;
        & > Vertical {
            width: 88;
            max-width: 100%;
            height: 28;
            max-height: 100%;
            border: round $border;
            border-title-color: $foreground;
            background: $background;
        }
        & Static { height: auto; max-height: 5; padding: 0 1; }
        & TextArea, & TextArea:focus { height: 1fr; border: none; padding: 0 1; }
    }
    """
    BINDINGS = [  # noqa: RUF012 - Textual declares it so
        Binding("escape", "cancel", "Cancel", id="persona.cancel"),
        Binding("ctrl+s", "save", "Save", id="persona.save", priority=True),
    ]

    def __init__(self, persona: Persona) -> None:
        super().__init__()
        self._persona = persona
        with told_as(EdgespecError, f"persona {persona.name} cannot be read"):
            self._text = persona.file.read_text(encoding="utf-8-sig") if persona.file else as_toml(persona)
        self._is_warned = False  # True if the next Esc drops the changes

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = f"persona {self._persona.name}"
            area = TextArea(self._text, highlight_cursor_line=False)
            area.cursor_blink = False
            yield area
            yield Static(FIELDS, markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def action_save(self) -> None:
        """Save and close, unless there is a mistake."""
        try:
            self.dismiss(save_text(self._persona.name, self.query_one(TextArea).text))
        except EdgespecError as error:
            self._say(str(error))

    def action_cancel(self) -> None:
        """Close; a second Esc confirms that changes are dropped."""
        if self._is_warned or self.query_one(TextArea).text == self._text:
            self.dismiss(None)
        else:
            self._is_warned = True
            self._say("not saved: Ctrl+S saves the changes, Esc again drops them")

    def on_text_area_changed(self) -> None:
        self._is_warned = False

    def _say(self, text: str) -> None:
        self.query_one(Static).update(printable(text))
