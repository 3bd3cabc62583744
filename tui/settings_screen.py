"""The screen that shows the settings of a chat as a form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import DescendantFocus
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static

from edgespec.chat.settings import SETTINGS, ChatSettings, Setting, all_changed, setting
from edgespec.text.printable import printable


class SettingsScreen(ModalScreen[dict[str, str] | None]):
    """A form with a field for each setting, filled in from `settings`.

    The result is the changed texts by the names of settings; None if the user cancels.
    """

    # With priority: the next key goes to the next field, however fast it is typed.
    BINDINGS = [  # noqa: RUF012 - Textual declares it so
        Binding("escape", "dismiss(None)", "Cancel", id="settings.cancel"),
        Binding("ctrl+s", "apply", "Apply", id="settings.apply"),
        Binding("ctrl+r", "defaults", "Defaults", id="settings.defaults"),
        Binding("down", "app.focus_next", "Next", show=False, priority=True, id="settings.next"),
        Binding("up", "app.focus_previous", "Previous", show=False, priority=True, id="settings.previous"),
    ]

    def __init__(self, settings: ChatSettings) -> None:
        super().__init__()
        self._settings = settings

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = "settings of the next message"
            box.border_subtitle = "• changed from the default"
            with VerticalScroll(id="settings-rows", can_focus=False):
                for group, settings in groupby(SETTINGS, key=lambda item: item.group):
                    yield Static(group, classes="settings-group")
                    for item in settings:
                        yield SettingRow(item, self._settings)
            yield Static(id="settings-help", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._check()
        self.query(Input).first().focus()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        for row in event.widget.ancestors_with_self:
            if isinstance(row, SettingRow):
                self.query_one("#settings-help", Static).update(row.setting.help)

    def on_input_changed(self) -> None:
        self._check()

    def on_input_submitted(self) -> None:
        self.action_apply()

    def _check(self) -> dict[str, str]:
        """Show the error of each row; return the changes that are possible."""
        wanted, refused = changes(self._settings, {row.setting.name: row.field.value for row in self._rows()})
        for row in self._rows():
            row.show_error(refused.get(row.setting.name, ""))
        return wanted

    def _rows(self) -> Iterator[SettingRow]:
        yield from self.query(SettingRow)

    def action_apply(self) -> None:
        """Close and return the changes; if there is an error, focus its field instead."""
        wanted = self._check()
        wrong = [row for row in self._rows() if row.error]
        if wrong:
            wrong[0].field.focus()
        else:
            self.dismiss(wanted)

    def action_defaults(self) -> None:
        for row in self._rows():
            row.field.value = as_typed(row.setting, ChatSettings())


class SettingRow(Vertical):
    """The name of a setting, its field, and an error below it."""

    def __init__(self, item: Setting, settings: ChatSettings) -> None:
        super().__init__()
        self.setting, self.error, self._mark = item, "", ""
        placeholder = "default" if item.group == "drafting" else "none"
        self.field = Input(as_typed(item, settings), placeholder=placeholder, compact=True, id=f"setting-{item.name}")
        self.field.cursor_blink = False

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static(classes="setting-name", markup=False)
            yield self.field
        yield Static(classes="setting-error", markup=False)

    def show_error(self, error: str) -> None:
        """Show an error, or with "" none, and whether the value differs from the default."""
        is_default = self.field.value.strip() == as_typed(self.setting, ChatSettings())
        mark = "✗" if error else " " if is_default else "•"
        if (error, mark) != (self.error, self._mark):  # drawing all rows at each key would be slow
            self.error, self._mark = error, mark
            self.set_class(bool(error), "-wrong")
            self.query_one(".setting-error", Static).update(printable(error))
            self.query_one(".setting-name", Static).update(f"{mark} {self.setting.name}")


def as_typed(item: Setting, settings: ChatSettings) -> str:
    """Return the text of a field: empty if the setting has no value, or the one the model was loaded with."""
    return "" if item.value(settings) in (None, "", ()) else item.show(settings)


def changes(settings: ChatSettings, texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the texts that differ from `settings` and are valid, and the errors of the others."""
    edited = {item.name: texts[item.name] for item in SETTINGS if texts[item.name] != as_typed(item, settings)}
    after, refused = all_changed(settings, edited)
    errors = {name: error.line for name, error in refused.items()}
    valid = (setting(name) for name in edited if name not in errors)
    return {item.name: texts[item.name] for item in valid if item.value(after) != item.value(settings)}, errors
