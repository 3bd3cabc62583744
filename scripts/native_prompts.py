"""What is asked when edgespec is measured beside llama.cpp: nine kinds of everyday questions to a chat model."""

from __future__ import annotations

from collections.abc import Iterator

from edgespec.bench.suites import Item, shipped

SUITES = {
    "writing": "writing",
    "translation": "translation",
    "questions": "chat",
    "maths": "maths",
    "edit": "code_editing",
}
FROM_PASSAGES = ("summary-02", "summary-06", "summary-09")  # of the suite of summaries, these are answers from passages
CODING = (
    "Write a Python function that reads a CSV file with the columns date, product and amount, and returns the total "
    "amount of each product in each month. Add a docstring and an example of its use.",
    "Write a C function that removes all duplicate elements from a sorted array of integers in place and returns the "
    "new length. Then explain how it works and what its time complexity is.",
    "I need an HTML page with a form for a name, an e-mail address and a message, and some CSS that centres the form "
    "and makes it look good on a phone. Give me the whole file.",
    "Write a Python class for a bank account with deposit, withdraw and transfer, which raises an error if there is "
    "not enough money. Then write unit tests for it with pytest.",
)
KINDS = ("writing", "coding", "translation", "summary", "questions", "maths", "retrieval", "edit", "repeat")


def prompts(per_kind: int) -> list[Item]:
    """The first `per_kind` of each kind, in turns, so that a run that is broken off has seen all kinds."""
    kinds = {kind: list(_kind(kind)) for kind in KINDS}
    rounds = min(per_kind, max(map(len, kinds.values())))
    return [items[place] for place in range(rounds) for items in kinds.values() if place < len(items)]


def _kind(kind: str) -> Iterator[Item]:
    if kind == "coding":
        yield from (Item(f"coding-{n:02}", kind, (text,)) for n, text in enumerate(CODING, start=1))
    elif kind == "repeat":  # the answers of the suites are texts of a few paragraphs, without marks of a chat
        for n, item in enumerate(shipped(["chat"]), start=1):
            question = f"Repeat the following text word for word, without any change:\n\n{item.reference}"
            yield Item(f"repeat-{n:02}", kind, (question,))
    elif kind in ("summary", "retrieval"):
        for item in shipped(["summary"]):
            if (item.id in FROM_PASSAGES) == (kind == "retrieval"):
                yield Item(item.id, kind, item.turns)
    else:
        yield from (Item(item.id, kind, item.turns) for item in shipped([SUITES[kind]]))
