"""Results of tool calls: how they are stored with a chat, and what the model reads of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast, get_args

from edgespec.text.figures import counted
from edgespec.text.printable import printable, with_unix_line_ends

Outcome = Literal["ok", "error", "denied", "stopped", "not run"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
DENIED = "The user does not allow this call."
STOPPED = "The user stopped this call before it had a result."
CHARACTERS = 8  # of a token at most, on average: a longer result is cut before its tokens are counted
LEAST = 32  # characters of a result that are kept in any case


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call; `label` is "SERVER/TOOL", and `arguments` the text of a JSON object on one line."""

    label: str
    arguments: str
    outcome: Outcome
    text: str

    @property
    def content(self) -> str:
        """The result as a stored message: the call, its outcome and the text, each from a new line on."""
        return f"{self.label} {self.arguments}\n{self.outcome}\n{self.text}"

    @classmethod
    def of(cls, content: str) -> ToolResult:
        """Return the result that a stored message has; messages of other programs have only a text."""
        called, _, rest = content.partition("\n")
        outcome, _, text = rest.partition("\n")
        label, _, arguments = called.partition(" ")
        if outcome not in OUTCOMES or not _is_object(arguments):
            return cls("", "{}", "ok", content)
        return cls(label, arguments, cast(Outcome, outcome), text)

    @property
    def function(self) -> dict[str, object]:
        """The call as templates expect it: the name of the tool and its arguments."""
        return {"name": self.label.partition("/")[2], "arguments": json.loads(self.arguments)}

    @property
    def summary(self) -> str:
        """The outcome in a few words."""
        if self.outcome in ("ok", "error"):
            n_lines = counted(len(self.text.splitlines()), "line")
            return f"{n_lines}, {len(self.text):,} characters" + (", an error" if self.outcome == "error" else "")
        return {"denied": "not allowed by you", "stopped": "stopped by you"}.get(self.outcome, self.outcome)

    @property
    def shown_arguments(self) -> str:
        return shown_arguments(self.arguments)

    @property
    def told(self) -> str:
        """The text for the model."""
        return f"Error: {self.text}" if self.outcome == "error" else self.text


def shown_arguments(arguments: str) -> str:
    """Return the text of a JSON object for people: an argument a line, longer texts as they are below their name.
    Characters that cannot be printed, and could hide or move others, are escaped."""
    lines: list[str] = []
    for name, value in json.loads(arguments).items():
        if isinstance(value, str) and "\n" in value:
            lines += [f"{name}:", *(f"  {line}" for line in value.split("\n"))]
        else:
            lines.append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(map(_visible, lines))


def _visible(line: str) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def readable(text: str) -> str:
    """Return a text of a server without characters that control a terminal."""
    return printable(with_unix_line_ends(text))


def cut(text: str, left_out: int, most_tokens: int, count: Callable[[str], int]) -> str:
    """Return the beginning of a result that has at most `most_tokens`, with a note about what was cut off.

    `count` returns the number of tokens of a text, and `left_out` characters were cut off before.
    """
    length = len(text)
    kept = text[: max(LEAST, CHARACTERS * most_tokens)]
    while len(kept) > LEAST and (n_tokens := count(kept)) > most_tokens:
        kept = kept[: max(LEAST, min(len(kept) - 1, int(len(kept) * most_tokens / n_tokens)))]
    left_out += length - len(kept)
    return f"{kept}\n[{left_out:,} more characters were cut off]" if left_out else kept
