"""One message of a chat: its text, its statistics and its actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Key, MouseEvent, MouseScrollDown, MouseScrollLeft, MouseScrollRight, MouseScrollUp
from textual.message import Message
from textual.style import Style
from textual.timer import Timer

from edgespec.chat.attachments import Attachment, without_files
from edgespec.core.stats import Stats
from edgespec.events import TokenEvent
from edgespec.history import Piece, Turn
from edgespec.history.search import found_in
from edgespec.text.code_blocks import CodeBlock
from edgespec.text.figures import when
from edgespec.text.thinking import split
from edgespec.tui.attachments import Counts, file_blocks
from edgespec.tui.code import Code
from edgespec.tui.lines import Block, Lines, Text
from edgespec.tui.live_answer import LiveAnswer, count_thought, shown, thought_blocks, thought_length
from edgespec.tui.markdown import markdown
from edgespec.tui.token_view import TokenText
from edgespec.tui.turn_foot import foot_of, in_one_line, name_of, tools

LONG_TEXT, LONG_ANSWER = 8_000, 100_000  # characters that are shown at once, of a user message and of an answer
WHEEL = 6  # cells that code scrolls per notch of the wheel
SLOW_S, PAUSE = 0.01, 4  # if drawing takes longer, it pauses so many times as long
ROLES = ("user", "assistant", "system")
CODE_KEYS = "123456789"
SAFE_LINKS = ("http://", "https://", "mailto:")


@dataclass
class TurnCommand(Message):
    """A command of the chat is wanted for the message: edit, copy or regen."""

    name: str
    key: str


@dataclass
class CopyText(Message):
    """Copy a part of the message."""

    text: str


@dataclass
class SaveCode(Message):
    """Write a code block to a file."""

    block: CodeBlock


@dataclass
class SwitchBranch(Message):
    """Show the version of the message `step` further on."""

    key: str
    step: int


@dataclass
class Uncounted(Message):
    """The numbers of tokens of its files are wanted."""

    view: TurnView


class TurnView(Lines, can_focus=True):
    """Shows a stored message, or without `turn` a streaming answer: `feed`, then `finish`.

    Letters are commands while the message has the focus, so only keys move the focus there, never a click."""

    FOCUS_ON_CLICK = False

    DEFAULT_CSS = """
    TurnView {
        padding: 0 1;
        border-left: blank;
        link-style: underline;
        link-style-hover: bold underline;
        &.-user { border-left: outer $primary; }
        &.-system { color: $text-muted; }
        &:focus { border-left: thick $accent; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "ask('edit')", "Edit", id="turn.edit"),
        Binding("c", "ask('copy')", "Copy", id="turn.copy"),
        Binding("r", "ask('regen')", "Again", id="turn.regenerate"),
        Binding("1", "copy_code(1)", "Copy code", key_display="1-9", id="turn.copy_code"),
        *(Binding(n, f"copy_code({n})", "Copy code", show=False) for n in CODE_KEYS[1:]),
        Binding("s", "save_code(0)", "Save code", id="turn.save_code"),
        Binding("shift+left", "scroll_code(0, -1)", "Code to the left", show=False, id="turn.code_left"),
        Binding("shift+right", "scroll_code(0, 1)", "Code to the right", show=False, id="turn.code_right"),
        Binding("left", "switch(-1)", "Other version", show=False, id="turn.previous_version"),
        Binding("right", "switch(1)", "Other version", show=False, id="turn.next_version"),
        Binding("enter", "open", "Show more", show=False, id="turn.open"),
    ]

    def __init__(
        self,
        turn: Turn | None = None,
        *,
        pieces: Callable[[str], Sequence[Piece]] = lambda key: (),
        siblings: Callable[[str], Sequence[str]] = lambda key: (),
        counts: Counts = lambda file: None,
        shows_tokens: bool = False,
        n_left: int = 0,
        name: str = "",
    ) -> None:
        role = turn.role if turn else "assistant"
        super().__init__(classes=f"-{role}" if role in ROLES else None)
        self.turn = turn
        self.sources: set[str] = set()  # drafters of the shown tokens
        self.files: Sequence[Attachment] = ()  # that are in the message
        self._counts, self._open_files = counts, set[int]()
        self._pieces, self._siblings_of = pieces, siblings
        self._shows_tokens, self._n_left = shows_tokens, n_left
        self._name, self._doing = name, [""]
        self._siblings: Sequence[str] = siblings(turn.key) if turn else ()
        self._live = None if turn else LiveAnswer()
        self._opens_thought = False
        self._limit = LONG_ANSWER if role == "assistant" else LONG_TEXT
        self._rest: Timer | None = None
        self._offsets: dict[int, int] = {}  # of code blocks that are scrolled
        self._build()

    # --- a streaming answer ---------------------------------------------------------------------------------------

    def feed(self, events: Sequence[TokenEvent]) -> None:
        """Show more tokens of the answer, at once or, if drawing takes long, a moment later with others."""
        assert self._live is not None
        self._live.add(events)
        if self._rest is None:
            self._draw_live()

    def tell(self, frame: str, doing: str, figures: Sequence[str]) -> None:
        """Show what is being done, behind a sign that moves, and its figures; with the next tokens or now."""
        if self._live is not None and self._live.is_thinking:
            doing = "thinking"
        self._doing = [f"{frame} {doing}", *figures]
        if self._live is not None and self._blocks:
            self.replace(len(self._blocks) - 1, self._foot())

    def finish(self, turn: Turn) -> None:
        """The answer is complete: show it as it is stored."""
        if self._rest is not None:
            self._rest.stop()
        self.turn, self._live, self._rest = turn, None, None
        self._siblings = self._siblings_of(turn.key)
        self._build()

    def _draw_live(self) -> None:
        self._rest = None
        if self._live is None:
            return
        started_s = perf_counter()
        keep, blocks = self._live.blocks(as_tokens=self._shows_tokens, opens_thought=self._opens_thought)
        self.sources = self._live.sources
        lead = [] if self._blocks else self._head()
        self.replace(len(self._blocks[:1]) + keep, [*lead, *blocks, *self._foot()])
        took_s = perf_counter() - started_s
        if took_s > SLOW_S:
            self._rest = self.set_timer(PAUSE * took_s, self._draw_live)

    # --- content --------------------------------------------------------------------------------------------------

    def replace(self, keep: int, blocks: Sequence[Block]) -> None:
        """As for all lines; code blocks get their numbers and their scroll positions."""
        number = sum(isinstance(block, Code) and not block.continues for block in self._blocks[:keep])
        placed: list[Block] = []
        for block in blocks:
            if isinstance(block, Code):
                number += not block.continues
                block = replace(block, number=number, offset=self._offsets.get(number, 0))
            placed.append(block)
        super().replace(keep, placed)

    def show_tokens(self, shows: bool) -> None:
        """Show an answer's tokens and their drafters, or its text."""
        if shows != self._shows_tokens:
            self._shows_tokens = shows
            self._build()

    def mark_left(self, n_left: int) -> None:
        """Show above the message that `n_left` earlier ones are not sent any more; 0 shows nothing."""
        if n_left != self._n_left and self.turn is not None:
            self._n_left = n_left
            self._build()

    def mark_found(self, query: str) -> None:
        """Mark what a search for these words finds in the message."""
        if self.turn is not None:
            self.mark(found_in(query, self.turn.content))

    def _build(self) -> None:
        if self._live is not None:
            self._draw_live()
        elif self.turn is not None:
            self.replace(0, [*self._head(), *self._body(self.turn), *self._foot()])

    def _head(self) -> list[Block]:
        """Who says it, and when; above that, which messages the model does not see any more."""
        role = self.turn.role if self.turn else "assistant"
        if role == "user":
            who, style = "You", "bold $text-primary"
        else:
            name = (self._name or name_of(self.turn.answer if self.turn else None)) if role == "assistant" else role
            who, style = shown(name), "bold $text-secondary"
        said = when(self.turn.created_s).removeprefix("today ") if self.turn else ""
        head: list[Block] = [Text(Content.assemble((who, style), (f"  {said}" if said else "", "dim")))]
        if not self._n_left:
            return head
        if self._n_left == 1:
            left = "1 older message no longer fits the context and was dropped"
        else:
            left = f"{self._n_left} older messages no longer fit the context and were dropped"
        return [Text(Content(f"┄┄ {left} ┄┄"), style="$text-warning"), Text(Content("")), *head]

    def _body(self, turn: Turn) -> list[Block]:
        if turn.role != "assistant":
            return self._plain(turn)
        if self._shows_tokens and (pieces := self._pieces(turn.key)):
            tokens = TokenText()
            _, lines = tokens.add(pieces)
            self.sources = tokens.sources
            return list(lines)
        blocks: list[Block] = []
        for kind, text in split(turn.content):
            if kind == "thinking":
                n_tokens = count_thought(self._pieces(turn.key))
                length = f"{len(text.split()):,} words"
                if n_tokens:
                    rate = Stats.from_json(turn.answer.stats).tokens_per_s if turn.answer else 0
                    length = thought_length(n_tokens / rate if rate else 0, n_tokens)
                blocks += thought_blocks(text, length, is_open=self._opens_thought)
            else:
                blocks += markdown(shown(text[: self._limit]))
                blocks += self._more(len(text))
        return blocks

    def _plain(self, turn: Turn) -> list[Block]:
        """The literal text, below its files; a very long one in parts."""
        self.files, content = without_files(turn.content) if turn.role == "user" else ((), turn.content)
        text = shown(content)
        blocks = file_blocks(self.files, self._counts, self._open_files, self._limit)
        blocks += [Text(Content(line)) for line in text[: self._limit].split("\n")]
        return [*blocks, *self._more(len(text))]

    def on_mount(self) -> None:
        if any(self._counts(file) is None for file in self.files):
            self.post_message(Uncounted(self))

    def recount(self) -> None:
        """The numbers of tokens of its files are known."""
        self._build()

    def _more(self, length: int) -> list[Block]:
        if length <= self._limit:
            return []
        click = Style(underline=True) + Style.from_meta({"@click": "open"})
        return [Text(Content(f"… {length - self._limit:,} more characters").stylize(click), style="dim")]

    def _foot(self) -> list[Block]:
        if self.turn is None:
            return [in_one_line(self._doing)]
        actions: list[tuple[str, str]] = []
        if self.has_focus or self.mouse_hover:
            labels = {"edit": "edit", "copy": "copy", "regen": "again"}
            actions = [(f"ask('{name}')", label) for name, label in labels.items() if self._takes(name)]
        n_siblings = len(self._siblings)
        position = self._siblings.index(self.turn.key) if self.turn.key in self._siblings else 0
        return [*foot_of(self.turn.answer), tools(actions, position, n_siblings)]

    def _refresh_tools(self) -> None:
        if self.turn is not None and self._blocks:
            self.replace(len(self._blocks) - 1, self._foot()[-1:])

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self._refresh_tools()

    def watch_mouse_hover(self) -> None:
        self._refresh_tools()

    # --- actions --------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("ask", "switch"):
            return self._takes(str(parameters[0]))
        return action not in ("copy_code", "save_code") or any(self._code(int(str(parameters[0]))))

    def _takes(self, command: str) -> bool:
        """Whether a command is for this message."""
        role = self.turn.role if self.turn else None
        return role is not None and role == {"edit": "user", "regen": "assistant"}.get(command, role)

    def on_key(self, event: Key) -> None:
        """The number of a missing code block is not text for the composer."""
        if event.key in CODE_KEYS and not any(self._code(int(event.key))):
            self.notify(f"this message has no code block {event.key}", severity="warning")
            event.stop()

    def action_ask(self, command: str) -> None:
        if self.turn:
            self.post_message(TurnCommand(command, self.turn.key))

    def action_copy_code(self, number: int) -> None:
        if text := "\n".join(part.code for part in self._code(number)):
            self.post_message(CopyText(text))

    def action_save_code(self, number: int) -> None:
        """Save a code block, or with 0 all of them, each in a file of its own."""
        numbers = sorted({part.number for part in self._code(number)})
        for each in numbers:
            parts = list(self._code(each))
            self.post_message(SaveCode(CodeBlock("\n".join(part.code for part in parts), parts[0].language)))

    def action_scroll_code(self, number: int, step: int) -> None:
        """Scroll a code block, or with 0 all of them, by half of the view."""
        self._scroll_code(number, step * max(1, self.content_size.width // 2))

    def _scroll_code(self, number: int, cells: int) -> bool:
        """Returns whether anything moved."""
        parts = list(self._code(number))
        furthest: dict[int, int] = {}
        for part in parts:
            furthest[part.number] = max(furthest.get(part.number, 0), part.furthest(self.content_size.width))
        for moved, most in furthest.items():
            self._offsets[moved] = min(most, max(0, self._offsets.get(moved, 0) + cells))
        self.replace(0, list(self._blocks))
        return any(furthest.values())

    def _code(self, number: int) -> Iterator[Code]:
        """The parts of a code block, or with 0 of all of them."""
        for block in self._blocks:
            if isinstance(block, Code) and number in (0, block.number):
                yield block

    def on_mouse_scroll_left(self, event: MouseScrollLeft) -> None:
        self._wheel(event, -WHEEL)

    def on_mouse_scroll_right(self, event: MouseScrollRight) -> None:
        self._wheel(event, WHEEL)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        if event.shift:
            self._wheel(event, -WHEEL)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        if event.shift:
            self._wheel(event, WHEEL)

    def _wheel(self, event: MouseEvent, cells: int) -> None:
        """Scroll the code block below the mouse."""
        block = self.block_at(event.y)
        if isinstance(block, Code) and self._scroll_code(block.number, cells):
            event.stop()
            event.prevent_default()

    def action_switch(self, step: int) -> None:
        if self.turn and len(self._siblings) > 1:
            self.post_message(SwitchBranch(self.turn.key, step))

    def action_open(self) -> None:
        """Unfold or fold the reasoning, or the files; of a long text show more."""
        self._open_files = set() if self._open_files else set(range(len(self.files)))
        self._opens_thought = not self._opens_thought
        self._limit *= 4
        self._build()

    def action_open_file(self, index: int) -> None:
        """Unfold or fold a file."""
        self._open_files ^= {index}
        self._build()

    def action_link(self, href: str) -> None:
        """Open a clicked link, if it is on the web; a model must not start other programs."""
        if href.startswith(SAFE_LINKS):
            self.app.open_url(href)
        else:
            self.notify(f"not opened: {shown(href)}", markup=False, severity="warning")
