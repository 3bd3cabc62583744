"""Names, keys and help of the chat commands, and what they need of a front end; `Commands` runs them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edgespec.cancel import CancelFlag
from edgespec.chat.answerer import Events, Level
from edgespec.chat.attachments import Read
from edgespec.chat.comparing import Comparison
from edgespec.documents.reader import Said
from edgespec.errors import UsageError
from edgespec.settings import LoadSettings


@dataclass(frozen=True, slots=True)
class Command:
    """A chat command. On the screen, `key` runs it without arguments. If it `waits`, an answer must end first."""

    name: str
    usage: str
    help: str
    key: str = ""
    aliases: tuple[str, ...] = ()
    waits: bool = False

    @property
    def title(self) -> str:
        return f"/{self.name} {self.usage}".rstrip()


COMMANDS = (
    Command("help", "[COMMAND]", "List the commands, or explain one.", "f1"),
    Command(
        "model",
        "[MODEL|save]",
        "Load another model, downloading it if necessary, or show the current one; /model save keeps it for new chats.",
        "ctrl+l",
    ),
    Command("models", "[WORDS]", "List models here and in the catalogue, and compatible draft models."),
    Command("draft", "[MODEL|auto|none]", "Load another draft model, or none."),
    Command("system", "[TEXT|none]", "Show or set the system prompt of this chat."),
    Command("persona", "[NAME|none]", "Choose a persona; /persona save NAME saves one.", "f6", waits=True),
    Command(
        "set",
        "[NAME [VALUE]|save]",
        "Show or change settings for the next message; /set save keeps them for new chats.",
        "ctrl+s",
    ),
    Command("stats", "", "Show speed and acceptance rate of the last answer.", "ctrl+t"),
    Command("tokens", "", "Show or hide which drafter proposed each token.", "ctrl+o"),
    Command("tools", "[ask NAME|on|off|restart]", "List MCP servers and tools, or ask again before a tool runs."),
    Command("result", "[N]", "Show the last call of a tool, or call N, with its whole result."),
    Command("thought", "", "Show the reasoning of the last answer."),
    Command("answer", "", "End the reasoning, and let the model answer now.", "f7"),
    Command(
        "compare",
        "[[A |] B --] [PROMPT]",
        "Compare two answers: A (by default current settings) and B (temp=0, MODEL; by default without drafting).",
        "f4",
        waits=True,
    ),
    Command("keep", "1|2", "Keep one of two compared answers and continue.", waits=True),
    Command("regen", "[N]", "Regenerate the last answer, or answer N.", "ctrl+r", waits=True),
    Command("continue", "", "Resume an answer that was stopped.", "", waits=True),
    Command("edit", "[N] [TEXT]", "Edit a message, and get a new answer.", "f3", waits=True),
    Command("editor", "", "Write the message in your text editor ($VISUAL or $EDITOR)."),
    Command("undo", "", "Remove the last message and its answer.", "f9", waits=True),
    Command("fork", "", "Copy this conversation into a new chat.", "f5", waits=True),
    Command("branches", "[N]", "List the branches of this chat, or switch to one.", waits=True),
    Command("clear", "", "Start a new chat; this one is saved.", "ctrl+n", ("new",), waits=True),
    Command("list", "[WORDS]", "List recent chats, or chats that contain these words.", "ctrl+b"),
    Command("load", "N|ID|last", "Open a chat.", waits=True),
    Command("search", "WORDS", "Search all chats.", "ctrl+g"),
    Command("rename", "TITLE", "Rename this chat.", "f2"),
    Command("pin", "", "Pin this chat above the others, or unpin it."),
    Command("folder", "[NAME|none]", "Move this chat into a folder, or list the folders."),
    Command("restart", "[N]", "Reload the model, or after a failure reload it with other settings (N).", waits=True),
    Command("delete", "ID...", "Delete chats permanently.", waits=True),
    Command("export", "[md|jsonl|FILE]", "Export this chat to a file, by default in the current folder.", "f8"),
    Command("copy", "[N|code [N]]", "Copy the last answer, message N, or a code block.", "f12"),
    Command("save", "[N] [FILE]", "Save a code block of the last answer to a file, by default in the current folder."),
    Command("file", "[PATH... [1-20]|none]", "Attach documents, text or images to a message, or list or remove them."),
    Command("bye", "", "Quit.", "ctrl+q", ("exit", "quit")),
)


def is_command(text: str) -> bool:
    """Return whether a line is a command. Two slashes begin a message that begins with a slash."""
    return text.startswith("/") and not text.startswith("//")


def name_and_argument(line: str) -> tuple[str, str]:
    """Split a line that begins with a slash; the name ends with a space or a newline."""
    name, *argument = re.split(r"\s+", line.strip().removeprefix("/"), maxsplit=1)
    return name, "".join(argument)


def find(name: str) -> Command:
    """Return the command with this name, or the only one that begins with it. Raises UsageError."""
    name = name.lower()
    for command in COMMANDS:
        if name in (command.name, *command.aliases):
            return command
    begun = [command for command in COMMANDS if name and command.name.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    near = [c.name for c in begun] or difflib.get_close_matches(name, [c.name for c in COMMANDS], n=1)
    hint = "did you mean " + " or ".join(f"/{other}" for other in near) + "?" if near else "/help lists the commands"
    raise UsageError(f"there is no command /{name}", hint=hint)


class Front(Protocol):
    """The interface that commands need of a plain terminal or the screen. `say` takes one or several lines of text."""

    def say(self, text: str, level: Level = "info") -> None: ...
    def copy(self, text: str) -> None: ...
    def load(self, settings: LoadSettings) -> None: ...
    def leave(self) -> None: ...
    def answer(self, start: Callable[[CancelFlag], Events]) -> None:
        """Start an answer and show it."""

    def redraw(self) -> None:
        """Show the conversation again: it has changed."""

    def put(self, text: str) -> None:
        """Put a text into the input field, to be edited and sent."""

    def open_editor(self) -> None:
        """Let the user write the message in a text editor."""

    def compare(self, comparison: Comparison) -> None:
        """Run a comparison, and show both answers."""

    def read(self, read: Callable[[Said, CancelFlag], Read], take: Callable[[Read], None]) -> None:
        """Call `read`, which takes long, where the user sees what it says and can cancel it, then `take`."""

    def show_files(self) -> None:
        """Show the files attached to the next message."""

    def show_tokens(self) -> None:
        """Show which drafter proposed each token, or hide it."""
