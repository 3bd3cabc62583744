"""Random input of a terminal, and texts that programs read as more than text."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

# Markup of Textual and Rich, Markdown, escapes, wide and joined characters, and characters without a width.
HOSTILE = (
    "[/b]",
    "[bold]x[/bold] [@click=app.quit]y[/]",
    "[link='",
    "[/]",
    "]]][[[",
    "\\[x\\]",
    "[red",
    "$primary [$nope]",
    "{x!r} %s %(y)d",
    "\x1b[31mred\x1b[0m \x9b0m \x00",
    "a\tb\r\nc\rd",
    "\n\n\n",
    "\n first\n\n\nlast ",
    "\u4f60\u597d\uff0c\u4e16\u754c " * 9,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u200b\u202e",
    "x" * 300,
    "'\"`",
    "",
)

MARKDOWN = """# A title [/b]

Some **bold** text, `code[/]` and a [link](https://example.org/[b])
on two lines.

- one
- two that is long enough to be wrapped in a narrow window, and then goes on below itself

  another paragraph
  1. inner

> quoted WIDE

| name | value |
|------|------:|
| a    | [/b]  |

```[/b]
def f(x):

    return [x]  # [/red]
```

<div>html</div> and [bold]brackets[/bold]
""".replace("WIDE", "\u4f60\u597d\uff0c\u4e16\u754c" * 5)

KEYS = (
    *("\r\t\x1b\x7f\n",),
    *(chr(code) for code in range(1, 27) if chr(code) not in "\x03\x04\x11"),  # Ctrl+C twice, Ctrl+D and Ctrl+Q quit
    *("\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b[H", "\x1b[F", "\x1b[Z"),
    *("\x1b[3~", "\x1b[5~", "\x1b[6~"),
    *("\x1b[1;2A", "\x1b[1;2B", "\x1b[1;2C", "\x1b[1;2D", "\x1b[1;5C", "\x1b[1;5D", "\x1b[1;5A", "\x1b[1;5B"),
    *("\x1bOP", "\x1bOQ", "\x1bOR", "\x1bOS", "\x1b[15~", "\x1b[17~", "\x1b[18~", "\x1b[19~", "\x1b[20~", "\x1b[24~"),
)
COMMANDS = (
    *("help", "models", "system", "persona", "set", "stats", "tokens", "result", "thought", "compare", "keep", "regen"),
    *("continue", "edit", "editor", "undo", "fork", "branches", "clear", "list", "load", "search", "rename", "pin"),
    *("folder", "restart", "delete", "copy", "file", "export"),
)
SETTINGS = (
    "stop=[/b] | temp=1 -- hi",
    "temp=[/b] -- x",
    "stop [/b]",
    "temp 2",
    "system [/b]",
    "1",
    "2",
    "code",
    "none",
    "save [/b]",
    "md",
)
WORDS = ("hello", "exit", " ", "/", "?", "n", "y", "1", "e", "c", "r", "p", "f", "\u4f60", "\u0301", "\u200d")


@dataclass(frozen=True, slots=True)
class Size:
    """The terminal has another size."""

    columns: int
    lines: int


Action = str | Size


class RandomInput:
    """Returns what a terminal sends while a user does random things: the same for the same seed.

    Keys that quit, and commands that do, are left out.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._size = Size(80, 24)

    def next(self) -> Action:
        """Return the bytes of the next action, or another size."""
        kinds: dict[Callable[[], Action], int] = {
            self._keys: 6,
            self._words: 4,
            self._command: 3,
            self._paste: 3,
            self._click: 6,
            self._drag: 6,
            self._scroll: 3,
            self._resize: 1,
            self._send: 2,
        }
        return self._random.choices([*kinds], [*kinds.values()])[0]()

    def _keys(self) -> str:
        return "".join(self._random.choices(KEYS, k=self._random.randint(1, 4)))

    def _words(self) -> str:
        return "".join(self._random.choices(WORDS, k=self._random.randint(1, 6)))

    def _send(self) -> str:
        return f"\x1b\x1b{self._random.choice(('hi', 'list', 'more'))}\r"

    def _command(self) -> str:
        argument = self._random.choice([*SETTINGS, *HOSTILE[:9], "", "", ""])
        return f"\x1b[200~/{self._random.choice(COMMANDS)} {argument}\x1b[201~\r"

    def _paste(self) -> str:
        text = self._random.choice([*HOSTILE, "line\n" * self._random.choice((3, 11, 40, 3000)), "/etc/hostname"])
        undo = "\x1a" * self._random.randint(0, 3)
        return f"\x1b[200~{text}\x1b[201~{undo}{self._random.choice(('', chr(0x19)))}"

    def _place(self) -> str:
        return f"{self._random.randint(1, self._size.columns)};{self._random.randint(1, self._size.lines)}"

    def _click(self) -> str:
        place, button = self._place(), self._random.choice((0, 0, 0, 0, 1, 2))
        return f"\x1b[<{button};{place}M\x1b[<{button};{place}m" * self._random.choice((1, 1, 2, 3, 4))

    def _drag(self) -> str:
        moves = "".join(f"\x1b[<32;{self._place()}M" for _ in range(self._random.randint(1, 4)))
        release = f"\x1b[<0;{self._place()}m" if self._random.random() < 0.9 else ""
        return f"\x1b[<0;{self._place()}M{moves}{release}{self._random.choice(('', '', chr(27)))}"

    def _scroll(self) -> str:
        return f"\x1b[<{self._random.choice((64, 65))};{self._place()}M" * self._random.randint(1, 9)

    def _resize(self) -> Size:
        sizes = ((80, 24), (106, 24), (120, 40), (30, 10), (57, 20), (200, 50), (self._random.randint(2, 160), 12))
        self._size = Size(*self._random.choice(sizes))
        return self._size
