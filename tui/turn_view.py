"""One message of a chat: its text, also while it streams, its statistics and its actions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Key
from textual.message import Message
from textual.timer import Timer

from edgespec.chat.attachments import Attachment, described, digest_of, without_files
from edgespec.chat.commands import find
from edgespec.core.stats import Stats
from edgespec.events import TokenEvent
from edgespec.history import AnswerRecord, TokenRecord, Turn
from edgespec.history.search import found_in
from edgespec.text.code_blocks import CodeBlock
from edgespec.text.figures import clock, when
from edgespec.text.markdown import WEB_ADDRESS
from edgespec.text.printable import one_line
from edgespec.text.thinking import ThinkingStream, split
from edgespec.tui.lines import Block, Fitting, Lines, WrappedText, clickable, cut_off, quoted, shown
from edgespec.tui.markdown import Code, GrowingMarkdown, markdown
from edgespec.tui.pictures import Picture, Pictures
from edgespec.tui.statistics import LiveStatistics
from edgespec.tui.token_view import Palette, TokenColours, style_of
from edgespec.tui.tool_calls import result_blocks

LONG_TEXT, LONG_ANSWER = 8_000, 100_000  # characters shown at once of a user message, and of an answer
SLOW_S, PAUSE = 0.01, 4  # if drawing takes longer than SLOW_S, the next drawing waits PAUSE times as long
ROLES = ("user", "assistant", "system", "tool")
CODE_KEYS = "123456789"
ANSWERS_NOW = find("answer").key.capitalize()  # the key that ends the reasoning
LEFT, RIGHT = "\u2039", "\u203a"  # single angle quotes


class LiveAnswer:
    """Collects tokens and returns the blocks that have changed; the complete part of an answer stays as it is.

    Token number `marked` is reversed where the tokens are shown.
    """

    def __init__(self, palette: Palette = "tints", marked: int | None = None) -> None:
        self._palette, self._marked = palette, marked
        self._stream = ThinkingStream()
        self.is_thinking = False
        self._thought, self._n_thought = "", 0
        self._thinking_s: tuple[float, float] | None = None  # when the reasoning began, and when its last token arrived
        self._markdown, self._new_text = GrowingMarkdown(), ""
        self._answer: list[Block] = []
        self._tokens: list[tuple[str, str]] = []  # the texts of the tokens, and their drafters
        self._coloured, self._colours, self._n_taken = list[Block](), TokenColours(), 0
        self._shown_as: tuple[object, ...] = ()

    def add(self, events: Iterable[TokenEvent]) -> None:
        for event in events:
            self._tokens.append((event.text, event.source if event.from_draft else ""))
            parts = self._stream.push(event.text)
            for kind, text in parts:
                self.is_thinking = kind == "thinking"
                if self.is_thinking:
                    self._thought += text
                    now_s = perf_counter()
                    self._thinking_s = (self._thinking_s or (now_s, now_s))[0], now_s
                else:
                    self._new_text += shown(text)
            self._n_thought += _is_thought(parts)

    @property
    def sources(self) -> set[str]:
        """The drafters of the tokens that are coloured."""
        return {source for _, source in self._tokens[: self._n_taken]} - {""}

    def blocks(self, *, as_tokens: bool, opens_thought: bool) -> tuple[int, list[Block]]:
        """Return how many blocks of the last call stay, and the blocks after them."""
        keep = len(self._answer)
        if self._new_text:
            keep, blocks = self._markdown.append(self._new_text)
            self._answer[keep:] = blocks
            self._new_text = ""
        thought: list[Block] = []
        if self._thought:
            began_s, last_s = self._thinking_s or (0.0, 0.0)
            length = thought_length(last_s - began_s, self._n_thought)
            thought = thought_blocks(self._thought, length, is_open=opens_thought, goes_on=self.is_thinking)
        answer = self._answer
        if as_tokens:
            if not self._n_taken:
                self._colours, keep = TokenColours(), 0
            for number, (text, source) in enumerate(self._tokens[self._n_taken :], self._n_taken):
                style = style_of(source, self._palette)
                self._colours.add(text, f"{style} reverse" if number == self._marked else style)
            self._n_taken = len(self._tokens)
            self._coloured[keep:] = self._colours.coloured(keep, answer[keep:])
            answer, thought = self._coloured, self._colours.over_thought(thought)
        else:
            self._n_taken = 0
        shown_as = (as_tokens, opens_thought, self.is_thinking, len(thought))
        if self.is_thinking or shown_as != self._shown_as:
            self._shown_as = shown_as
            return 0, [*thought, *answer]
        return len(thought) + keep, answer[keep:]


def thought_length(seconds: float, n_tokens: int) -> str:
    """Return the duration and the number of tokens of reasoning, in words."""
    took = f"{seconds:.0f} s" if seconds < 60 else clock(seconds)
    return f"{took}, {n_tokens:,} tokens" if seconds >= 1 else f"{n_tokens:,} tokens"


def thought_blocks(thought: str, length: str, *, is_open: bool, goes_on: bool = False) -> list[Block]:
    """Return the line that unfolds the reasoning, and the reasoning if it is unfolded."""
    title = f"{'▾' if is_open else '▸'} {'thinking' if goes_on else 'thought for'} {length}{' …' if goes_on else ''}"
    blocks: list[Block] = [WrappedText(clickable(Content.styled(title, "italic dim"), "open"), is_text=False)]
    if is_open:
        blocks.append(quoted(shown(thought).strip("\n")))
    return blocks


def file_blocks(
    files: Sequence[Attachment], opened: Collection[int], limit: int, pictures: Pictures | None = None
) -> list[Block]:
    """Return a line for each file of a message, which unfolds it, and up to `limit` characters of the `opened` ones.
    Images are shown unless they are `opened`."""
    blocks: list[Block] = []
    for index, file in enumerate(files):
        digest = digest_of(file)
        is_open = (index in opened) != bool(digest)
        name = f"{'▾' if is_open else '▸'} {one_line(file.name)}"
        line = Content.assemble((name, "bold"), (f"  {described([file])}", "dim"))
        blocks.append(WrappedText(clickable(line, f"open_file({index})")))
        if is_open:
            blocks.append(Picture(digest, pictures) if digest else quoted(cut_off(shown(file.text), limit)))
    return blocks


def count_thought(pieces: Iterable[TokenRecord]) -> int:
    """Return how many tokens of an answer are reasoning."""
    stream = ThinkingStream()
    return sum(_is_thought(stream.push(piece.text)) for piece in pieces)


def _is_thought(parts: Sequence[tuple[str, str]]) -> bool:
    return any(kind == "thinking" for kind, _ in parts)


@dataclass
class TurnCommand(Message):
    """The user wants to run a command on the message: edit, copy or regen."""

    name: str
    key: str


@dataclass
class CopyText(Message):
    """The user wants to copy a part of the message."""

    text: str


@dataclass
class SaveCode(Message):
    """The user wants to save a code block to a file."""

    block: CodeBlock


@dataclass
class SwitchBranch(Message):
    """The user wants to see another version of the message: the next (1) or the previous one (-1)."""

    key: str
    step: int


@dataclass(slots=True)
class Shared:
    """The state that all messages of a chat share.

    `pieces` and `siblings` return the tokens and the versions of the message with a key.
    """

    pieces: Callable[[str], Sequence[TokenRecord]]
    siblings: Callable[[str], Sequence[str]]
    shows_tokens: bool = False
    palette: Palette = "tints"  #: of the tokens
    searched: str = ""  #: the search whose matches are marked
    pictures: Pictures | None = None  #: for terminals that draw pictures
    first_sent: tuple[str, int] = ("", 0)  #: the first message that is still sent, and how many before it are not


class TurnView(Lines, can_focus=True):
    """Shows a stored message, or without `turn` a streaming answer: call `feed`, then `finish`.

    While the message has the focus, letters are commands. Therefore only keys focus the message, and a click does not.
    """

    FOCUS_ON_CLICK = False

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "ask('edit')", "Edit", id="turn.edit"),
        Binding("c", "ask('copy')", "Copy", id="turn.copy"),
        Binding("r", "ask('regen')", "Again", id="turn.regenerate"),
        Binding("1", "copy_code(1)", "Copy code", key_display="1-9", id="turn.copy_code"),
        *(Binding(n, f"copy_code({n})", "Copy code", show=False) for n in CODE_KEYS[1:]),
        Binding("s", "save_code(0)", "Save code", id="turn.save_code"),
        Binding("left", "switch(-1)", "Other version", show=False, id="turn.previous_version"),
        Binding("right", "switch(1)", "Other version", show=False, id="turn.next_version"),
        Binding("enter", "open", "Show more", show=False, id="turn.open"),
    ]

    def __init__(self, turn: Turn | None, chat: Shared, name: str = "") -> None:
        role = turn.role if turn else "assistant"
        super().__init__(classes=f"-{role}" if role in ROLES else None)
        self.turn = turn
        self.sources: set[str] = set()  # drafters of the shown tokens
        self._files: Sequence[Attachment] = ()
        self._open_files = set[int]()  # indexes of the unfolded files
        self._chat, self._name, self._doing = chat, name, [""]
        self._siblings: Sequence[str] = chat.siblings(turn.key) if turn else ()
        self._live = None if turn else LiveAnswer(chat.palette)
        self._opens_thought = False
        self._limit = LONG_ANSWER if role == "assistant" else LONG_TEXT
        self._rest: Timer | None = None
        self.mark_found()
        self.build()

    # --- a streaming answer ---------------------------------------------------------------------------------------

    def feed(self, events: Sequence[TokenEvent]) -> None:
        """Add tokens to the answer. They are shown at once, or a little later if the last drawing took long."""
        assert self._live is not None
        self._live.add(events)
        if self._rest is None:
            self._draw_live()

    def tell(self, frame: str, doing: str, figures: Sequence[str]) -> None:
        """Show an animated sign, the state of the answer, and its statistics."""
        if self._live is not None and self._live.is_thinking:
            doing = f"thinking · {ANSWERS_NOW} answers now"
        self._doing = [f"{frame} {doing}", *figures]
        if self._live is not None and self._blocks:
            self.replace(len(self._blocks) - 1, self._foot())

    def finish(self, turn: Turn) -> None:
        """Show the complete answer as it is stored."""
        if self._rest is not None:
            self._rest.stop()
        self.turn, self._live, self._rest = turn, None, None
        self._siblings = self._chat.siblings(turn.key)
        self.build()

    def _draw_live(self) -> None:
        self._rest = None
        if self._live is None:
            return
        started_s = perf_counter()
        keep, blocks = self._live.blocks(as_tokens=self._chat.shows_tokens, opens_thought=self._opens_thought)
        self.sources = self._live.sources
        lead = [] if self._blocks else self._head()
        self.replace(len(self._blocks[:1]) + keep, [*lead, *blocks, *self._foot()])
        took_s = perf_counter() - started_s
        if took_s > SLOW_S:
            self._rest = self.set_timer(PAUSE * took_s, self._draw_live)

    # --- content --------------------------------------------------------------------------------------------------

    def replace(self, keep: int, blocks: Sequence[Block]) -> None:
        """Replace the blocks after the first `keep`, and number the code blocks among them."""
        number = sum(isinstance(block, Code) and not block.continues for block in self._blocks[:keep])
        placed: list[Block] = []
        for block in blocks:
            if isinstance(block, Code):
                number += not block.continues
                block = replace(block, number=number)
            placed.append(block)
        super().replace(keep, placed)

    def mark_found(self) -> None:
        """Mark the matches of the search in the message."""
        if self.turn is not None:
            self.mark(found_in(self._chat.searched))

    def build(self) -> None:
        """Show the message again: what it shares with the others has changed."""
        if self._live is not None:
            self._draw_live()
        elif self.turn is not None:
            self.replace(0, [*self._head(), *self._body(self.turn), *self._foot()])

    def _head(self) -> list[Block]:
        """Return the sender and the time; above them, how many messages were dropped from the context."""
        role = self.turn.role if self.turn else "assistant"
        if role == "tool":
            return []
        if role == "user":
            who, style = "You", "bold $text-primary"
        else:
            name = (self._name or name_of(self.turn.answer if self.turn else None)) if role == "assistant" else role
            who, style = shown(name), "bold $text-secondary"
        time = when(self.turn.created_s).removeprefix("today ") if self.turn else ""
        head: list[Block] = [WrappedText(Content.assemble((who, style), (f"  {time}" if time else "", "dim")))]
        key, n_left = self._chat.first_sent
        if not n_left or self.turn is None or self.turn.key != key:
            return head
        if n_left == 1:
            left = "1 older message no longer fits the context and was dropped"
        else:
            left = f"{n_left} older messages no longer fit the context and were dropped"
        return [
            WrappedText(Content(f"┄┄ {left} ┄┄"), style="$text-warning", is_text=False),
            WrappedText(Content("")),
            *head,
        ]

    def _body(self, turn: Turn) -> list[Block]:
        if turn.role == "tool":
            return result_blocks(turn.content, self._limit, is_open=self._opens_thought)
        if turn.role != "assistant":
            return self._plain(turn)
        pieces = self._chat.pieces(turn.key) if self._chat.shows_tokens else ()
        colours = TokenColours()
        for piece in pieces:
            colours.add(piece.text, style_of(piece.source, self._chat.palette))
        self.sources = {piece.source for piece in pieces} - {""}
        blocks: list[Block] = []
        for kind, text in split(turn.said):
            if kind == "thinking":
                n_tokens = count_thought(self._chat.pieces(turn.key))
                length = f"{len(text.split()):,} words"
                if n_tokens:
                    rate = Stats.from_json(turn.answer.stats).tokens_per_s if turn.answer else 0
                    length = thought_length(n_tokens / rate if rate else 0, n_tokens)
                blocks += colours.over_thought(thought_blocks(text, length, is_open=self._opens_thought))
            else:
                blocks += colours.coloured(0, markdown(shown(text[: self._limit])))
                blocks += self._more(len(text))
        return blocks

    def _plain(self, turn: Turn) -> list[Block]:
        """Return the files, and the literal text up to the limit."""
        self._files, content = without_files(turn.content) if turn.role == "user" else ((), turn.content)
        text = shown(content)
        blocks = file_blocks(self._files, self._open_files, self._limit, self._chat.pictures)
        return [*blocks, WrappedText(Content(text[: self._limit])), *self._more(len(text))]

    def _more(self, length: int) -> list[Block]:
        if length <= self._limit:
            return []
        more = Content.styled(f"… {length - self._limit:,} more characters", "underline")
        return [WrappedText(clickable(more, "open"), "dim", is_text=False)]

    def _foot(self) -> list[Block]:
        if self.turn is None:
            return [Fitting(tuple(self._doing))]
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
        return action not in ("copy_code", "save_code") or (int(str(parameters[0])) or 1) in self._code()

    def _takes(self, command: str) -> bool:
        """Return whether a command applies to this message."""
        role = self.turn.role if self.turn else None
        return role is not None and role == {"edit": "user", "regen": "assistant"}.get(command, role)

    def on_key(self, event: Key) -> None:
        """Show a warning for the number of a missing code block; otherwise the digit would be typed into the field."""
        if event.key in CODE_KEYS and int(event.key) not in self._code():
            self.notify(f"this message has no code block {event.key}", severity="warning")
            event.stop()

    def action_ask(self, command: str) -> None:
        if self.turn:
            self.post_message(TurnCommand(command, self.turn.key))

    def action_copy_code(self, number: int) -> None:
        if block := self._code().get(number):
            self.post_message(CopyText(block.code))

    def action_save_code(self, number: int) -> None:
        """Save a code block, or with 0 each code block to a separate file."""
        for each, block in self._code().items():
            if number in (0, each):
                self.post_message(SaveCode(block))

    def _code(self) -> dict[int, CodeBlock]:
        """Return the code blocks by their numbers, from 1; a long one is shown as several parts."""
        parts = [block for block in self._blocks if isinstance(block, Code)]
        code: dict[int, str] = {}
        for part in parts:
            code[part.number] = f"{code[part.number]}\n{part.code}" if part.continues else part.code
        return {part.number: CodeBlock(code[part.number], part.language) for part in parts}

    def action_switch(self, step: int) -> None:
        if self.turn and len(self._siblings) > 1:
            self.post_message(SwitchBranch(self.turn.key, step))

    def action_open(self) -> None:
        """Unfold or fold the reasoning, the files or a result; show more of a long text."""
        self._open_files = set() if self._open_files else set(range(len(self._files)))
        self._opens_thought = not self._opens_thought
        self._limit *= 4
        self.build()

    def action_open_file(self, index: int) -> None:
        """Unfold or fold a file."""
        self._open_files ^= {index}
        self.build()

    def action_link(self, href: str) -> None:
        """Open a clicked web link. Other links are refused: a model must not start programs."""
        if WEB_ADDRESS.fullmatch(href):
            self.app.open_url(href)
        else:
            self.notify(f"not opened: {shown(href)}", severity="warning")


def foot_of(answer: AnswerRecord | None) -> list[Block]:
    """Return the statistics of an answer, and how it ended if it was not complete."""
    if answer is None:
        return []
    lines: list[Block] = []
    if answer.end:
        hint = "; /continue resumes" if answer.finish_reason == "interrupted" else ""
        lines.append(WrappedText(Content(f"■ {answer.end}{hint}"), style="$text-warning", is_text=False))
    if figures := LiveStatistics().finish(Stats.from_json(answer.stats)).words():
        lines.append(Fitting(tuple(figures)))
    return lines


def tools(actions: Sequence[tuple[str, str]], position: int, n_siblings: int) -> WrappedText:
    """Return a line with the number of versions and clickable actions, given as (action, label)."""
    parts: list[Content] = []
    if n_siblings > 1:
        before, after = clickable(LEFT, "switch(-1)"), clickable(RIGHT, "switch(1)")
        parts.append(Content.assemble(before, f" {position + 1}/{n_siblings} ", after))
    parts += [clickable(label, action) for action, label in actions]
    return WrappedText(Content("  ").join(parts), style="dim", is_text=False)


def name_of(answer: AnswerRecord | None) -> str:
    """Return the name of the model that answered, with its draft model."""
    names = (answer.model, answer.draft_model) if answer is not None else ()
    return " + ".join(one_line(name.removesuffix(".gguf")) for name in names if name) or "assistant"
