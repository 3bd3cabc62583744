"""Where the prompts come from that the target answers: files, the user's chats, the target itself, bundled seeds."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.bench.suites import shipped
from edgespec.errors import UsageError
from edgespec.history import Store
from edgespec.settings import Message
from edgespec.training.seeds import seed_prompt

HELD_OUT_EVERY = 25  # of the user's own prompts one in so many is kept to measure with
PASSAGE = (160, 700)  # characters
SUFFIXES = (".txt", ".md", ".jsonl")
SELF_WRITTEN = (8, 600)  # characters of a prompt that the target has written


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to answer, or without a chat template a text to continue. Those held out are not learned from."""

    kind: str
    messages: tuple[Message, ...]
    is_held_out: bool = False

    @property
    def text(self) -> str:
        return self.messages[-1].content


@dataclass(slots=True)
class Passages:
    """Texts that prompts can be about: the user's own, or what the target wrote before."""

    texts: deque[str] = field(default_factory=lambda: deque(maxlen=64))

    def add(self, text: str) -> None:
        """Keep the beginning of a text, if it is long enough, up to the end of a sentence."""
        start = text.strip()[: PASSAGE[1]]
        end = (
            max(start.rfind(mark) for mark in (". ", ".\n", "! ", "? ")) + 1 if len(start) == PASSAGE[1] else len(start)
        )
        if end >= PASSAGE[0]:
            self.texts.append(start[:end])

    def take(self) -> str:
        """The next passage, in turns; "" if there is none."""
        if not self.texts:
            return ""
        self.texts.rotate(-1)
        return self.texts[-1]


def held_out(*, chat: bool) -> list[Prompt]:
    """The benchmark's own prompts, in turns of their categories: they are what acceptance is measured on."""
    items = [item for item in shipped() if (item.category == "code_completion") != chat]
    items.sort(key=lambda item: item.id.rpartition("-")[2])
    return [Prompt(item.category, (Message("user", item.prompt),), is_held_out=True) for item in items]


def seeds(start: int, passages: Passages) -> Iterator[Prompt]:
    """Bundled prompts without end, from number `start` on."""
    index = start
    while True:
        kind, text = seed_prompt(index, passages.take())
        yield Prompt(kind, (Message("user", text),))
        index += 1


def from_path(path: Path, passages: Passages) -> list[Prompt]:
    """The prompts of a JSONL file or of a folder of them; texts (.txt, .md) become passages that prompts are about.

    Raises UsageError where there is nothing that can be used.
    """
    files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES) if path.is_dir() else [path]
    prompts: list[Prompt] = []
    n_passages = 0
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UsageError(f"cannot read the prompts in {file}", why=error.strerror or str(error)) from error
        if file.suffix == ".jsonl":
            prompts += _marked(_from_lines(file, text))
            continue
        passages.texts = deque(passages.texts, maxlen=None)
        for piece in _pieces(text):
            passages.add(piece)
            n_passages += 1
    if not prompts and not passages.texts:
        raise UsageError(
            f"there are no prompts in {path}",
            hint='use JSON lines such as {"prompt": "..."}, or texts (.txt, .md) to ask questions about',
        )
    return prompts


def from_chats(store: Store) -> list[Prompt]:
    """What the user has asked in their own chats, each question with what went before it."""
    prompts = []
    for chat in store.chats():
        turns = store.path(chat.head)
        messages = tuple(Message(turn.role, turn.content) for turn in turns)
        prompts += [
            Prompt("own chat", messages[: end + 1]) for end, message in enumerate(messages) if message.role == "user"
        ]
    return _marked(prompts)


def is_usable(text: str, known: set[str]) -> bool:
    """Whether a prompt that the target wrote is one, and a new one; `known` learns it."""
    key = " ".join(text.lower().split())
    if not SELF_WRITTEN[0] <= len(key) <= SELF_WRITTEN[1] or key in known or "\ufffd" in text:
        return False
    known.add(key)
    return True


def _marked(prompts: Iterable[Prompt]) -> list[Prompt]:
    return [
        Prompt(prompt.kind, prompt.messages, is_held_out=number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)
        for number, prompt in enumerate(prompts)
    ]


def _from_lines(file: Path, text: str) -> Iterator[Prompt]:
    """Rows with `prompt`, `turns` or `messages`; of those the last answer is left out."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if "messages" in row:
                messages = tuple(Message(str(m["role"]), str(m["content"])) for m in row["messages"])
                messages = messages[:-1] if messages[-1].role == "assistant" else messages
            else:
                messages = (Message("user", str(row["prompt"] if "prompt" in row else row["turns"][0])),)
            if messages[-1].content.strip():
                yield Prompt("file", messages)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UsageError(f"{file} has a line that is no prompt", why=f"line {number}") from error


def _pieces(text: str) -> Iterator[str]:
    """Paragraphs, joined until they are long enough."""
    piece = ""
    for paragraph in text.split("\n\n"):
        piece = f"{piece}\n\n{paragraph}".strip()
        if len(piece) >= PASSAGE[1]:
            yield piece
            piece = ""
    yield piece
