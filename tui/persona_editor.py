"""The screen to edit a persona."""

from __future__ import annotations

from dataclasses import replace

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static, TextArea

from edgespec.chat.personas import Persona, parsed, save, settings_as_toml
from edgespec.chat.settings import SETTINGS
from edgespec.errors import EdgespecError, UsageError
from edgespec.text.printable import printable

HELP = 'One setting per line, as temp = 0.2; also model = "NAME". Names: ' + ", ".join(item.name for item in SETTINGS)


class PersonaEditor(ModalScreen[Persona | None]):
    """Edits `persona` and saves it as the user's; returns it as saved, None if it is closed without."""

    DEFAULT_CSS = """
    PersonaEditor {
        align: center middle;
        & > Vertical {
            width: 88;
            max-width: 100%;
            height: 32;
            max-height: 100%;
            border: round $border;
            border-title-color: $foreground;
            background: $background;
        }
        & Static { padding: 0 1; height: auto; color: $text-muted; }
        & Input { border: none; height: 1; margin: 0 1; padding: 0; }
        & TextArea { border: none; margin: 0 1; padding: 0; scrollbar-size-vertical: 1; }
        & Input:focus, & TextArea:focus { border: none; background: $primary 15%; }
        & #persona-system { height: 2fr; min-height: 3; }
        & #persona-settings { height: 1fr; min-height: 2; }
        & #persona-said { max-height: 5; }
        & #persona-said.-error { color: $text-error; }
    }
    """
    BINDINGS = [  # noqa: RUF012 - Textual declares it so
        Binding("escape", "cancel", "Cancel", id="persona.cancel"),
        Binding("ctrl+s", "save", "Save", id="persona.save", priority=True),
    ]

    def __init__(self, persona: Persona) -> None:
        super().__init__()
        self._persona = persona
        self._is_warned = False  # that changes would be lost
        model = [f'model = "{persona.model}"'] if persona.model else []
        self._settings = "\n".join([*model, *settings_as_toml(persona.settings)])

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = f"persona {self._persona.name}"
            yield Static("Description")
            description = Input(self._persona.description, id="persona-description", compact=True)
            description.cursor_blink = False
            yield description
            yield Static("System prompt")
            yield TextArea(self._persona.system, id="persona-system", highlight_cursor_line=False)
            yield Static("Settings")
            yield TextArea(self._settings, id="persona-settings", highlight_cursor_line=False)
            yield Static(HELP, id="persona-said", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        for area in self.query(TextArea):
            area.cursor_blink = False
        self.query_one("#persona-system").focus()

    def _edited(self) -> Persona:
        """Raises UsageError."""
        description = self.query_one("#persona-description", Input).value.strip()
        system = self.query_one("#persona-system", TextArea).text.strip()
        read = parsed("settings", self.query_one("#persona-settings", TextArea).text)
        if read.system or read.description:
            raise UsageError("the description and the system prompt have fields of their own")
        before = self._persona
        return replace(before, description=description, system=system, settings=read.settings, model=read.model)

    def action_save(self) -> None:
        """Save and close, unless something is wrong."""
        try:
            edited = self._edited()
            self.dismiss(replace(edited, file=save(edited)))
        except EdgespecError as error:
            self._say(str(error))

    def action_cancel(self) -> None:
        """Close; changes are lost only if it is asked for twice."""
        try:
            is_changed = self._edited() != self._persona
        except UsageError:
            is_changed = True
        if is_changed and not self._is_warned:
            self._is_warned = True
            self._say("not saved: Ctrl+S saves the changes, Esc again drops them")
        else:
            self.dismiss(None)

    def on_text_area_changed(self) -> None:
        self._is_warned = False

    def _say(self, text: str) -> None:
        said = self.query_one("#persona-said", Static)
        said.update(printable(text))
        said.add_class("-error")
