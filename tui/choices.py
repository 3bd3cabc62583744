"""A list of choices that may change while it is used."""

from __future__ import annotations

from textual.binding import Binding
from textual.widgets import OptionList
from textual.widgets.option_list import Option


class Choices(OptionList):
    """A list of options with two lines each. The highlighted one stays in place while others are added or removed.

    A click does not focus the list: with the focus, letters would become commands.
    """

    FOCUS_ON_CLICK = False
    BINDINGS = [Binding("enter", "select", "Choose")]  # noqa: RUF012
    DEFAULT_CSS = """
    Choices {
        height: 1fr;
        border: none;
        padding: 0;
        background: $surface;
        background-tint: transparent;
        scrollbar-size-vertical: 1;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        &:focus { border: none; background-tint: transparent; }
        & > .option-list--option { padding: 0 1; }
        & > .option-list--option-highlighted { background: $primary 15%; color: $foreground; text-style: none; }
        &:focus > .option-list--option-highlighted { background: $primary 35%; color: $foreground; text-style: bold; }
    }
    """

    shown = ""  # the id that `show` has highlighted

    @property
    def moved_to(self) -> str | None:
        """The id that the user has highlighted since `show`, even if its message has not arrived yet; else None."""
        option = self.highlighted_option
        return option.id if option is not None and option.id != self.shown else None

    def show(self, options: list[Option], highlighted: str) -> None:
        """List these options, and highlight one of them without a message."""
        self.shown = highlighted
        before, top = self.highlighted, self.scroll_y
        ids = [option.id for option in options]
        after = ids.index(highlighted) if highlighted in ids else None
        with self.prevent(OptionList.OptionHighlighted):
            self.clear_options()
            self.add_options(options)
            self.highlighted = after
        if before is not None and after is not None:
            self.scroll_to(y=top + 2 * (after - before), animate=False, force=True)

    def on_resize(self) -> None:
        self.call_after_refresh(self.scroll_to_highlight)
