"""How to continue after the model has died or could not be loaded."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, OptionList, Static

from edgespec.runtime.worker import Remedy
from edgespec.settings import LoadSettings
from edgespec.text.printable import printable


class RemedyScreen(ModalScreen[LoadSettings | None]):
    """Shows the error and offers ways to continue; the result is what to load, or None."""

    DEFAULT_CSS = """
    RemedyScreen {
        align: center middle;
        & > Vertical {
            width: 64;
            max-width: 100%;
            height: auto;
            max-height: 100%;
            border: round $error;
            background: $background;
            padding: 0 1;
        }
        & #remedy-said { height: auto; padding: 0 0 1 0; }
        & OptionList { height: auto; max-height: 12; }
    }
    """
    BINDINGS = [Binding("escape", "dismiss(None)", "Not now", id="remedy.close")]  # noqa: RUF012

    def __init__(self, heading: str, what: str, remedies: Sequence[Remedy]) -> None:
        super().__init__()
        self._heading, self._what, self._remedies = heading, what, remedies

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._heading
            yield Static(Content(printable(self._what).strip()), id="remedy-said")
            yield OptionList(*(Content(remedy.label) for remedy in self._remedies), compact=True)
        yield Footer(show_command_palette=False, compact=True)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._remedies[event.option_index].settings)
