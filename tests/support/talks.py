"""Messages and answers for the tests of chats on disk."""

from __future__ import annotations

from edgespec.history import AnswerRecord, Store, TokenRecord, Turn, new_id

ANSWER = AnswerRecord(
    model="target.gguf",
    draft_model="draft.gguf",
    finish_reason="length",
    seed=2**64 - 1,
    settings={"temp": 0.5, "spec_type": "auto"},
    stats={"accepted": [3, 2, 1]},
    vocabulary="abc",
    ids=(0, 7, 2**32 - 1),
)
PIECES = (TokenRecord(7, "Hé"), TokenRecord(8, "", "draft", 1), TokenRecord(-1, "llo\0 \ud83d", "suffix", 1))


def talk(store: Store, *texts: str, chat: str = "", parent: str | None = None) -> tuple[str, list[Turn]]:
    """Users and assistants say `texts` in turn, in a new chat if none is named."""
    if not chat:
        chat = new_id()
        store.create(chat)
    turns = []
    for number, text in enumerate(texts):
        turns.append(store.append(chat, parent, "assistant" if number % 2 else "user", text))
        parent = turns[-1].key
    return chat, turns


def contents(turns: list[Turn]) -> list[str]:
    return [turn.content for turn in turns]
