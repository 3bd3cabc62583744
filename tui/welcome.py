"""The text shown before a conversation has begun."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from edgespec.chat.session import Session
from edgespec.text.printable import one_line

HINTS = (
    ("Enter", "send a message"),
    ("/", "list the commands"),
    ("F1", "list the keys"),
    ("Ctrl+B", "show your chats"),
    ("Ctrl+L", "choose a model"),
    ("F6", "choose a persona"),
    ("F4", "compare two answers"),
)


class Welcome(Static):
    """Shows the loaded model, and the most important keys."""

    DEFAULT_CSS = """
    Welcome {
        height: 1fr;
        width: 1fr;
        padding: 0 2;
        content-align: center middle;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """

    def show(self, session: Session) -> None:
        """Show the loaded model."""
        about = session.about
        if session.engine is None:
            state = "The model is not loaded yet."
        else:
            state = one_line(f"{about['description']}, context of {about['ctx_size']:,} tokens")
        width = max(len(key) for key, _ in HINTS)
        text = max(len(text) for _, text in HINTS)
        lines = [
            Content.assemble((key.rjust(width), "bold $text-primary"), "  ", (text_of.ljust(text), "dim"))
            for key, text_of in HINTS
        ]
        title = [Content.styled("edgespec", "bold"), Content.styled(state, "dim")]
        if (system := one_line(session.system)) or session.persona:
            of = f" · {session.persona}" if session.persona else ""
            title.append(Content.styled(f"System prompt{of}: {system or 'none'}", "dim"))
        self.update(Content("\n").join([*title, Content(""), *lines]))
