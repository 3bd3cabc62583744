"""A program that writes to a store of chats until it is done or killed, and says after each step what it has done."""

from __future__ import annotations

import sys
from itertools import count, islice
from pathlib import Path

from edgespec.history import AnswerRecord, Store

STEPS = 4  # in which an answer grows


def answer_to(number: int) -> str:
    """Return the answer to message `number`."""
    return f"answer {number} " * 50


def main(file: Path, chat: str, name: str, most: int | None) -> None:
    with Store(file) as store:
        print("opened", flush=True)
        parent = store.find(chat).head
        for number in islice(count(), most):
            question = store.append(chat, parent, "user", f"{name} {number}")
            print("asked", question.key, flush=True)
            row = store.begin(chat, question.key, AnswerRecord(model=name))
            text = answer_to(number)
            for step in range(1, STEPS):
                part = text[: len(text) * step // STEPS]
                store.grow(row, part, ())
                print("grown", number, flush=True)
            parent = store.finish(row, chat, question.key, text, AnswerRecord(model=name, ids=(1, 2, 3))).key
            print("finished", parent, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else None)
