"""The screen to choose a persona."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from edgespec.chat.personas import Persona
from edgespec.text.printable import one_line, printable
from edgespec.tui.choices import Choices

NONE = "none"


@dataclass(frozen=True, slots=True)
class PersonaChoice:
    """What is to be done, and with which persona."""

    action: Literal["take", "edit", "none", "new"]
    name: str = ""


class PersonaPicker(ModalScreen[PersonaChoice | None]):
    """Lists personas, `current` marked, and the problems of files that are none. Returns None if it is closed."""

    DEFAULT_CSS = """
    PersonaPicker {
        align: center middle;
        & > Vertical {
            width: 76;
            max-width: 100%;
            height: auto;
            max-height: 100%;
            border: round $border;
            border-title-color: $foreground;
            background: $background;
        }
        & Choices { height: auto; max-height: 20; background: $background; }
        & #persona-problems { height: auto; max-height: 8; padding: 0 1; color: $text-warning; }
    }
    """
    BINDINGS = [  # noqa: RUF012 - Textual declares it so
        Binding("escape", "dismiss", "Close", id="personas.close"),
        Binding("e", "edit", "Edit", id="personas.edit"),
    ]

    def __init__(self, personas: Sequence[Persona], current: str, problems: Sequence[str] = ()) -> None:
        super().__init__()
        self._personas, self._current, self._problems = personas, current, problems

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "personas"
            yield Choices()
            if self._problems:
                yield Static("\n".join(["cannot be used:", *map(printable, self._problems)]), id="persona-problems")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        options = [self._option("", NONE, "No persona: your own system prompt and settings.")]
        options += [self._option(each.name, each.name, each.description or each.system) for each in self._personas]
        if self._current and all(each.name != self._current for each in self._personas):
            options.append(self._option(self._current, self._current, "its file is gone or cannot be used"))
        options.append(Option(_two_lines("  ", "New from this chat …", "Save its system prompt and settings."), id="+"))
        choices = self.query_one(Choices)
        choices.show(options, f"={self._current}")
        choices.focus()

    def _option(self, key: str, name: str, about: str) -> Option:
        return Option(_two_lines("• " if key == self._current else "  ", name, about), id=f"={key}")

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        key = str(event.option.id)
        name = key.removeprefix("=")
        if key == "+":
            self.dismiss(PersonaChoice("new"))
        else:
            self.dismiss(PersonaChoice("take", name) if name else PersonaChoice("none"))

    def action_edit(self) -> None:
        option = self.query_one(Choices).highlighted_option
        key = str(option.id) if option is not None else "+"
        if len(key) > 1:
            self.dismiss(PersonaChoice("edit", key[1:]))


def _two_lines(mark: str, name: str, about: str) -> Content:
    return Content.assemble((f"{mark}{name}", "bold"), (f"\n  {one_line(about)}", "dim"))
