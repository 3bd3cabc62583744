"""The settings of a chat as a form; errors are shown beside the entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import DescendantFocus
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Select, Static

from edgespec.chat.settings import SETTINGS, ChatSettings, Setting, changed
from edgespec.errors import UsageError
from edgespec.text.printable import printable


class SettingsScreen(ModalScreen[dict[str, str] | None]):
    """A form over `SETTINGS`, filled in with `settings`.

    The result is what was changed, as texts by name, in an order in which `changed` accepts them; None to cancel.
    """

    DEFAULT_CSS = """
    SettingsScreen {
        align: center middle;
        & > Vertical {
            width: 68;
            max-width: 100%;
            height: 28;
            max-height: 100%;
            border: round $border;
            border-title-color: $foreground;
            border-subtitle-color: $foreground;
            background: $background;
        }
        #settings-rows { height: 1fr; scrollbar-size-vertical: 1; }
        .settings-group { color: $text-primary; text-style: bold; padding: 0 1; }
        #settings-help { height: 2; padding: 0 1; color: $foreground 70%; }
    }
    """
    BINDINGS = [  # noqa: RUF012 - Textual declares it so
        Binding("escape", "cancel", "Cancel", id="settings.cancel"),
        Binding("ctrl+s", "take", "Apply", id="settings.take"),
        Binding("ctrl+r", "defaults", "Defaults", id="settings.defaults"),
    ]

    def __init__(self, settings: ChatSettings) -> None:
        super().__init__()
        self._settings = settings

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "applies to the next message"
            box.border_subtitle = "• changed from the default"
            with VerticalScroll(id="settings-rows", can_focus=False):
                for group, settings in groupby(SETTINGS, key=lambda setting: setting.group):
                    yield Static(group, classes="settings-group")
                    for setting in settings:
                        yield SettingRow(setting, self._settings)
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

    def on_select_changed(self) -> None:
        self._check()

    def on_input_submitted(self) -> None:
        self.action_take()

    def _check(self) -> dict[str, str]:
        """Show each row's error; returns the changes."""
        taken, refused = apply(self._settings, {row.setting.name: row.text for row in self._rows()})
        for row in self._rows():
            row.mark(refused.get(row.setting.name, ""))
        return taken

    def _rows(self) -> Iterator[SettingRow]:
        yield from self.query(SettingRow)

    def action_take(self) -> None:
        """Close, unless there is an error: then go there."""
        taken = self._check()
        wrong = [row for row in self._rows() if row.error]
        if wrong:
            wrong[0].field.focus()
        else:
            self.dismiss(taken)

    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_defaults(self) -> None:
        for row in self._rows():
            row.text = as_typed(row.setting, ChatSettings())


class SettingRow(Vertical):
    """A setting's name, its field, and below it the error."""

    DEFAULT_CSS = """
    SettingRow {
        height: auto;
        & > Horizontal { height: 1; }
        & .setting-name { width: 21; padding: 0 1; }
        & Input, & Select { width: 1fr; margin-right: 1; }
        & .setting-error { display: none; padding: 0 1 0 3; color: $text-error; }
        &.-wrong .setting-error { display: block; }
        &.-wrong .setting-name { color: $text-error; text-style: bold; }
        &:focus-within .setting-name { text-style: bold; }
    }
    """

    # With priority, so that the next key goes to the next field, however fast it comes.
    BINDINGS = [  # noqa: RUF012
        Binding("down", "next", "Next", show=False, priority=True, id="settings.next"),
        Binding("up", "previous", "Previous", show=False, priority=True, id="settings.previous"),
    ]

    def __init__(self, setting: Setting, settings: ChatSettings) -> None:
        super().__init__()
        self.setting, self.error = setting, ""
        text = as_typed(setting, settings)
        self.field: Input | Choice
        if setting.kind == "choice":
            self.field = Choice([(name, name) for name in setting.choices], text, f"setting-{setting.name}")
        else:
            self.field = Input(
                text,
                placeholder="default" if setting.group == "drafting" else "none",
                compact=True,
                id=f"setting-{setting.name}",
            )
            self.field.cursor_blink = False

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static(classes="setting-name", markup=False)
            yield self.field
        yield Static(classes="setting-error", markup=False)

    @property
    def text(self) -> str:
        return str(self.field.value)

    @text.setter
    def text(self, text: str) -> None:
        self.field.value = text

    def action_next(self) -> None:
        self.screen.focus_next()

    def action_previous(self) -> None:
        self.screen.focus_previous()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The arrows belong to the open list of a select."""
        return not (isinstance(self.field, Choice) and self.field.expanded)

    def mark(self, error: str) -> None:
        """Show the error, empty for none, and whether the value differs from the default."""
        self.error = error
        self.set_class(bool(error), "-wrong")
        self.query_one(".setting-error", Static).update(printable(error))
        mark = "✗" if error else "•" if self.text.strip() != as_typed(self.setting, ChatSettings()) else " "
        self.query_one(".setting-name", Static).update(f"{mark} {self.setting.name}")


class Choice(Select[str], inherit_bindings=False):
    """A select that leaves the arrow keys to the form."""

    BINDINGS = [Binding("enter,space", "show_overlay", "Choose", show=False)]  # noqa: RUF012

    def __init__(self, options: list[tuple[str, str]], value: str, id: str) -> None:
        super().__init__(options, value=value, allow_blank=False, compact=True, id=id)


def as_typed(setting: Setting, settings: ChatSettings) -> str:
    """The text of a field: empty if the setting is as loaded, or has no value."""
    return "" if setting.value(settings) in (None, "", ()) else setting.show(settings)


def apply(settings: ChatSettings, texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The changes in `texts`, in an order in which they are possible, and why the others are not. One may be possible
    only after another: a longer draft after the larger maximum."""
    taken: dict[str, str] = {}
    while True:
        refused: dict[str, str] = {}
        before = len(taken)
        for setting in SETTINGS:
            name = setting.name
            if name in taken or name not in texts:
                continue
            try:
                value = setting.value(settings)
                settings = changed(settings, name, texts[name])
            except UsageError as error:
                refused[name] = f"{error.what}: {error.why}" if error.why else error.what
            else:
                if setting.value(settings) != value:
                    taken[name] = texts[name]
        if not refused or len(taken) == before:
            return taken, refused
