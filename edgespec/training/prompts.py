"""The prompts that the target answers: from the user's files, and bundled ones (`prompts.toml`)."""

from __future__ import annotations

import random
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from edgespec.bench.suites import read_items, shipped
from edgespec.errors import UsageError, told_as
from edgespec.text.encodings import decoded

HELD_OUT_EVERY = 25  # one in this number of the user's own prompts is kept to measure with
PASSAGE = (160, 700)  # characters
SELF_WRITTEN = (8, 600)  # characters of a prompt that the target has written
PASSAGE_KINDS = ("summary", "retrieval", "edit", "repeat")
KINDS = ("questions", "writing", "coding", "maths", "translation", *PASSAGE_KINDS)


@dataclass(frozen=True, slots=True)
class TrainingPrompt:
    """A message to answer; without a chat template, a text to continue. Held-out prompts are not learned from."""

    kind: str
    text: str
    is_held_out: bool = False


class Passages:
    """Texts that prompts can be about: the user's own or, if there are none, the target's latest answers."""

    def __init__(self, own: Iterable[str] = ()) -> None:
        texts = [passage for text in own if (passage := _passage(text))]
        self._texts, self._are_own = deque(texts, maxlen=None if texts else 64), bool(texts)

    def learn(self, answer: str) -> None:
        """Keep the beginning of an answer, unless there are the user's texts."""
        if not self._are_own and (passage := _passage(answer)):
            self._texts.append(passage)

    def take(self) -> str:
        """Return the next passage, "" if there is none."""
        self._texts.rotate(-1)
        return self._texts[-1] if self._texts else ""


def held_out(*, chat: bool) -> list[TrainingPrompt]:
    """The prompts of the benchmark, on which acceptance is measured: those for chat models or the others."""
    items = [item for item in shipped() if (item.category != "code_completion") == chat]
    items.sort(key=lambda item: item.id.rpartition("-")[2])  # alternate between the categories
    return [TrainingPrompt(item.category, item.prompt, is_held_out=True) for item in items]


def from_files(paths: Iterable[Path]) -> tuple[list[TrainingPrompt], list[str]]:
    """Read the user's prompts (.jsonl), and texts to ask about (.txt, .md), in files and folders.

    Raises UsageError for a file that cannot be read or used.
    """
    prompts, texts = list[TrainingPrompt](), list[str]()
    for path in paths:
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".md", ".jsonl"))
            if not files:
                raise UsageError(f"there are no prompts in {path}", hint="files of prompts are .jsonl, .txt or .md")
        for file in files:
            if file.suffix == ".jsonl":
                prompts += [TrainingPrompt("file", item.prompt) for item in read_items(file)[0]]
                continue
            with told_as(UsageError, f"cannot read the prompts in {file}"):
                texts += _pieces(decoded(file.read_bytes(), "replace"))
    held_out = [number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 for number in range(len(prompts))]
    return [replace(prompt, is_held_out=held) for prompt, held in zip(prompts, held_out, strict=True)], texts


def bundled(start: int, passages: Passages) -> Iterator[TrainingPrompt]:
    """Bundled prompts without end, from number `start` on."""
    while True:
        kind, text = bundled_prompt(start, passages.take())
        yield TrainingPrompt(kind, text)
        start += 1


def bundled_prompt(number: int, passage: str = "") -> tuple[str, str]:
    """Return the kind and the text of a bundled prompt. The same number gives the same prompt; without a passage, it is
    of a kind that needs none."""
    kind, lists, chance = KINDS[number % len(KINDS)], _lists(), random.Random(number)
    if kind in PASSAGE_KINDS and passage:
        return kind, f"{chance.choice(lists['passage'][kind])}\n\n{passage}"
    if kind in PASSAGE_KINDS:
        kind = KINDS[number % (len(KINDS) - len(PASSAGE_KINDS))]
    fillings: dict[str, Callable[[], Sequence[object]]] = {
        "coding": lambda: (_one(chance, "deeds").format(_one(chance, "things")), _one(chance, "languages")),
        "maths": lambda: (chance.randint(20, 400), chance.randint(3, 20), chance.randint(2, 12)),
        "translation": lambda: (_one(chance, "phrases"), _one(chance, "tongues")),
    }
    filling: Callable[[], Sequence[object]] = fillings.get(kind, lambda: chance.sample(lists["subjects"], 2))
    return kind, _one(chance, kind).format(*filling())


def is_usable(text: str, known: set[str]) -> bool:
    """Return whether a prompt that the target wrote is new and of a useful length; add it to `known`."""
    key = " ".join(text.lower().split())
    if not SELF_WRITTEN[0] <= len(key) <= SELF_WRITTEN[1] or key in known or "\ufffd" in text:
        return False
    known.add(key)
    return True


@cache
def _lists() -> Any:
    return tomllib.loads((resources.files("edgespec.training") / "prompts.toml").read_text(encoding="utf-8"))


def _one(chance: random.Random, name: str) -> str:
    found: str = chance.choice(_lists()[name])
    return found


def _passage(text: str) -> str:
    """The beginning of a text up to the end of a sentence, "" if that is too short."""
    start = text.strip()[: PASSAGE[1]]
    if len(start) == PASSAGE[1]:
        start = start[: max(start.rfind(mark) for mark in (". ", ".\n", "! ", "? ")) + 1]
    return start if len(start) >= PASSAGE[0] else ""


def _pieces(text: str) -> Iterator[str]:
    """Paragraphs, joined until they are long enough for a passage."""
    piece = ""
    for paragraph in text.split("\n\n"):
        piece = f"{piece}\n\n{paragraph}".strip()
        if len(piece) >= PASSAGE[1]:
            yield piece
            piece = ""
    yield piece
