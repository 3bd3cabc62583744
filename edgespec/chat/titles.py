"""Titles of chats, written by the model.

Small models write poor titles, so a title is used only if it is short and shares its words with the chat.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgespec.core.sampling import SamplingSettings
from edgespec.settings import Message, Request

QUESTION = "Give this conversation a short title of at most six words. Reply with the title only."
MOST_TOKENS = 24
ROOM = 96  # tokens that the question and the title need
MOST_WORDS, MOST_CHARACTERS = 6, 60
STEM = 4  # the first letters of a word, which its other forms have too; shorter words say little
ORNAMENTS = re.compile(r"^\W*title\s*:|[*_`#\"<>\u00ab\u00bb\u201c-\u201f]+", re.IGNORECASE)  # Markdown and quotes


def title_request(messages: Sequence[Message]) -> Request:
    """Return the request for the title of a chat that ends with an answer.

    The question follows the chat, so only the question is processed, and the KV cache of the chat stays valid.
    """
    return Request(
        messages=(*messages, Message("user", QUESTION), Message("assistant", "Title:")),
        max_tokens=MOST_TOKENS,
        sampling=SamplingSettings(temperature=0.0),
        stop=("\n",),
        pace="off",
        lenient=True,
        remembered=False,
    )


def cleaned(text: str, chat: str) -> str:
    """Return the title in the text that a model wrote; "" if it is too long, or not about the text of the chat."""
    line = ORNAMENTS.sub("", text.strip().partition("\n")[0])
    line = " ".join(line.split()).strip(" '\u2018\u2019.,;:!-\u2013\u2014")
    before, colon, _ = line.partition(": ")
    if colon and " " in before:  # a subtitle follows
        line = before
    is_short = len(line.split()) <= MOST_WORDS and len(line) <= MOST_CHARACTERS
    return line if is_short and _is_about(line, chat) else ""


def _is_about(title: str, chat: str) -> bool:
    """Return whether at least half of the title's words are in the chat, in some form."""
    if any("\u0e00" <= character <= "\u9fff" for character in title):  # scripts without spaces: compare characters
        letters = [character for character in title if character.isalpha()]
        return 2 * sum(letter in chat for letter in letters) >= len(letters) > 1
    stems = {word[:STEM] for word in _words(title) if len(word) >= STEM}
    known = {word[:STEM] for word in _words(chat)}
    return bool(stems) and 2 * len(stems & known) >= len(stems)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())
