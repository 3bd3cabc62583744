"""How the models of chat templates write answers, for prompts and for the answers to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from edgespec.dialects.dialect import Dialect
from edgespec.dialects.history import as_sent
from edgespec.dialects.templates import dialect_with, mark_texts, special_texts
from edgespec.llama.model import LlamaModel
from edgespec.llama.template import AnswerStyle
from edgespec.settings import Message


class TemplateDialect(AnswerStyle):
    """The dialect of a chat template, with the vocabulary of a model.

    Attributes:
        marks: The texts of the control tokens in the marks of the dialect, by their ids.
        specials: The same with tokens that were added, which grammars write by their ids, too.
    """

    def __init__(self, dialect: Dialect, marks: Mapping[int, str], specials: Mapping[int, str]) -> None:
        self.dialect, self.marks, self.specials = dialect, marks, specials

    def sent(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return as_sent(messages, self.dialect)

    def begun(self, content: str, prompt: str) -> list[str]:
        return _parts(self.dialect.continued(prompt, content), self.marks.values())

    def pieces(self, text: str) -> list[str | int]:
        """Return a text in pieces; special tokens are ids."""
        ids = {text: id for id, text in self.specials.items()}
        return [ids.get(part, part) for part in _parts(text, ids)]

    def before_reasoning(self, prompt: str) -> str | None:
        dialect = self.dialect
        if dialect.messages is not None or dialect.reasoning is None or dialect.opened(prompt) is None:
            return None
        return prompt[: prompt.rindex(dialect.reasoning[0])]


class TemplateDialects:
    """The dialects of the chat templates of one model."""

    def __init__(self, model: LlamaModel) -> None:
        @lru_cache(maxsize=8)
        def of(text: str) -> TemplateDialect:
            dialect = dialect_with(model, text)
            return TemplateDialect(dialect, mark_texts(dialect, model), special_texts(dialect, model))

        self._of = of

    def of(self, text: str | None) -> TemplateDialect:
        """Return the dialect of a template, given its source; None for no template."""
        return self._of(text or "")


def _parts(text: str, marks: Iterable[str]) -> list[str]:
    """Return a text in parts, every second of which is a mark."""
    longest_first = sorted(marks, key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if longest_first else [text]
