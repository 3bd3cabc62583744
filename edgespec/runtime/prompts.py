"""What a request makes the model read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgespec.errors import UsageError
from edgespec.llama.model import Model
from edgespec.llama.template import ChatTemplate, tokenize_leniently
from edgespec.settings import Request

LONGEST_TOKEN = 512  # characters; there are vocabularies with 128 blanks in one


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of a prompt, and texts that end the answer beside those the request asks for."""

    tokens: list[int]
    stop: tuple[str, ...] = ()


class Prompts:
    """Prompts for one model, in a context of `n_ctx` tokens."""

    def __init__(self, model: Model, template: ChatTemplate, n_ctx: int, note: Callable[[str], None]) -> None:
        self._model, self._template, self._n_ctx, self._note = model, template, n_ctx, note

    def of(self, request: Request) -> Prompt:
        """Raises UsageError for one that is empty, or longer than the context."""
        said = [request.prompt, *(message.content for message in request.messages)]
        n_characters = sum(map(len, said))
        if n_characters > LONGEST_TOKEN * self._n_ctx:  # which would take long to find out by tokens
            raise UsageError(
                f"the prompt has {n_characters:,} characters, more than fit into {self._n_ctx} tokens",
                hint="shorten it, or use a larger context (-c)",
            )
        prompt = self.tokenized(request)
        tokens = prompt.tokens
        if not tokens:
            raise UsageError("the prompt is empty", hint="this model needs at least one token to start from")
        if len(tokens) >= self._n_ctx:
            raise UsageError(
                f"the prompt has {len(tokens)} tokens, the context holds {self._n_ctx}",
                hint=f"shorten it, or use a larger context (-c {len(tokens) + 256} or more)",
            )
        return prompt

    def tokenized(self, request: Request) -> Prompt:
        """The same, however long it is."""
        template, special = self._template, request.special
        if not request.messages:
            return Prompt(self._model.tokenize(request.prompt, add_special=True, parse_special=special))
        if not request.lenient:
            return Prompt(template.tokenize(request.messages, special=special))
        return Prompt(*tokenize_leniently(template, self._model, request.messages, self._note, special=special))
