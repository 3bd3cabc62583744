"""What a request makes the model read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgespec.errors import PromptTooLongError, UsageError
from edgespec.llama.model import Model
from edgespec.llama.template import ChatTemplate, tokenize_leniently
from edgespec.settings import Message, Request

MESSAGE = 256  # characters that are read in the time that a template takes for one message
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
        n_characters = self.length(request)
        if n_characters > LONGEST_TOKEN * self._n_ctx:  # which would take long to find out by tokens
            raise PromptTooLongError(
                f"the prompt has {n_characters:,} characters, more than fit into {self._n_ctx} tokens",
                hint="shorten it, or use a larger context (-c)",
            )
        prompt = self.tokenized(request)
        tokens = prompt.tokens
        if not tokens:
            raise UsageError("the prompt is empty", hint="this model needs at least one token to start from")
        if len(tokens) >= self._n_ctx:
            raise PromptTooLongError(
                f"the prompt has {len(tokens)} tokens, the context holds {self._n_ctx}",
                hint=f"shorten it, or use a larger context (-c {len(tokens) + 256} or more)",
            )
        return prompt

    def tokens_of(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt of some messages as ids, however long it is."""
        return self.tokenized(Request(messages=tuple(messages), lenient=True)).tokens

    @staticmethod
    def length(request: Request) -> int:
        """How many characters a request gives for its prompt."""
        said = [request.prompt, request.template]
        said += [text for message in request.messages for text in (message.content, message.extra)]
        return sum(map(len, said))

    @staticmethod
    def effort(request: Request) -> int:
        """The characters that take as long to read as a request's prompt: a message takes time even if it is empty."""
        return Prompts.length(request) + MESSAGE * len(request.messages)

    def render(self, request: Request) -> str:
        """The text that the chat template makes of a request's messages. Raises UsageError."""
        return self._template.given(request.template).render(request.messages)

    def token_ids(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Any text as ids, however long it is."""
        return self._model.tokenize(text, add_special=add_special, parse_special=parse_special)

    def token_bytes(self, tokens: list[int]) -> list[bytes]:
        """The bytes of each id; a control token's are its name. Raises UsageError."""
        wrong = next((token for token in tokens if not 0 <= token < self._model.n_vocab), None)
        if wrong is not None:
            raise UsageError(f"there is no token {wrong}", why=f"ids go from 0 to {self._model.n_vocab - 1}")
        return [self._model.token_bytes(token, special=True) for token in tokens]

    def tokenized(self, request: Request) -> Prompt:
        """The same, however long it is."""
        special = request.special
        if not request.messages:
            return Prompt(self._model.tokenize(request.prompt, add_special=True, parse_special=special))
        template = self._template.given(request.template)
        if not request.lenient:
            return Prompt(template.tokenize(request.messages, special=special))
        return Prompt(*tokenize_leniently(template, self._model, request.messages, self._note, special=special))
