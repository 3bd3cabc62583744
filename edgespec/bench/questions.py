"""Make requests from the prompts of a suite, in the form that the loaded model needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgespec.bench.suites import Item
from edgespec.errors import UsageError
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message, Request

SEED = 1
RAW_CATEGORIES = ("code_completion",)  # texts to complete, without a chat template


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as token ids, and its request; the answer has `max_tokens` tokens."""

    item: Item
    request: Request
    prompt: list[int]

    @property
    def length(self) -> int:
        """The number of tokens of prompt and answer."""
        return len(self.prompt) + self.request.max_tokens


def ask(
    llm: Runtime, items: Iterable[Item], tokens: int | None, *, reference: bool
) -> tuple[list[Question], list[str]]:
    """Return the prompts that can be asked, and messages about the others.

    Answers have `tokens` tokens. With `reference` they are the reference answers, up to that length. Raises UsageError
    if no prompt can be asked.
    """
    questions, messages = [], []
    for item in items:
        if len(item.turns) > 1:
            messages.append(f"{item.id}: only the first of {len(item.turns)} turns is used")
        try:
            questions.append(_question(llm, item, tokens, reference=reference))
        except UsageError as error:
            messages.append(f"skipped {item.id}: {error.what}")
    if not questions:
        raise UsageError("there is nothing to measure", why="; ".join(messages) or "there are no prompts")
    return questions, messages


def _question(llm: Runtime, item: Item, tokens: int | None, *, reference: bool) -> Question:
    answer: list[int] = []
    if reference:
        answer = llm.model.tokenize(item.reference, add_special=False, parse_special=False)[:tokens]
        if not answer:
            raise UsageError("it has no reference answer")
    chat = llm.has_chat_template and item.category not in RAW_CATEGORIES
    request = Request(
        prompt="" if chat else item.prompt,
        messages=(Message("user", item.prompt),) if chat else (),
        max_tokens=len(answer) or tokens or 1,
        seed=SEED,
        ignore_eos=True,
        reference=tuple(answer),
    )
    question = Question(item, request, llm.tokenize(request))
    if question.length > llm.context.n_ctx:
        raise UsageError(
            f"a prompt of {len(question.prompt)} tokens and an answer of {request.max_tokens} do not fit into a "
            f"context of {llm.context.n_ctx}"
        )
    return question
