"""Titles of chats, made by the model that answers there.

It is asked behind the last answer, so that hardly anything has to be read. A title is taken only if it says what the
chat is about: small models write poor ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgespec.core.sampling import SamplingSettings
from edgespec.settings import Message, Request

ASKED = "Give this conversation a short title of at most six words. Reply with the title only."
BEGUN = "Title:"
MOST_TOKENS = 24
ROOM = 96  # tokens that the question and the title need
MOST_WORDS, MOST_CHARACTERS = 6, 60
TELLING = 4  # letters of a word that has a meaning, and that it shares with other forms of it
EMPTY = {"title", "untitled", "conversation", "chat", "answer", "question"}


def title_request(messages: Sequence[Message]) -> Request:
    """The request for the title of a chat that ends with an answer. What it reads is the chat itself, so that the chat
    goes on in the KV cache as if nobody had asked."""
    return Request(
        messages=(*messages, Message("user", ASKED), Message("assistant", BEGUN)),
        max_tokens=MOST_TOKENS,
        sampling=SamplingSettings(temperature=0.0),
        stop=("\n",),
        pace="off",
        lenient=True,
        remembered=False,
    )


def cleaned(text: str, said: str) -> str:
    """The title in what a model wrote, or "" for none: too long, or not about what was `said`."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    line = re.sub(r"^\W*title\s*:", "", line, flags=re.IGNORECASE)
    line = re.sub(r"[*_`#\"<>\u00ab\u00bb\u201c-\u201f]+", "", line)  # Markdown, and quotes of all sorts
    line = " ".join(line.split()).strip(" '\u2018\u2019.,;:!-\u2013\u2014")
    before, colon, _ = line.partition(": ")
    if colon and len(before.split()) > 1:  # what follows is ornament
        line = before
    words = line.split()
    if not 1 <= len(words) <= MOST_WORDS or len(line) > MOST_CHARACTERS or line.casefold() in EMPTY:
        return ""
    return line if _is_about(line, said) else ""


def _is_about(title: str, said: str) -> bool:
    """Whether half of the words that have a meaning were said, in some form."""
    if any("\u0e00" <= character <= "\u9fff" for character in title):  # scripts without spaces, or nearly
        letters = [character for character in title if character.isalpha()]
        return 2 * sum(letter in said for letter in letters) >= len(letters) > 1
    telling = {word[:TELLING] for word in _words(title) if len(word) >= TELLING}
    heard = {word[:TELLING] for word in _words(said)}
    return bool(telling) and 2 * len(telling & heard) >= len(telling)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())
