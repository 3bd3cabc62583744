"""The chat template of a GGUF: messages in, token ids of the prompt out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from edgespec.errors import UsageError
from edgespec.llama.model import Model
from edgespec.settings import Message


class ChatTemplate:
    """The model's own template. Raises UsageError when the file has none, or when it refuses the messages."""

    def __init__(self, model: Model) -> None:
        if model.chat_template is None:
            raise UsageError(f"{model.path.name} has no chat template", hint="give it a plain prompt instead (--raw)")
        self._model = model
        self._bos_text = _text_of(model, model.bos)
        try:
            self._formatter = Jinja2ChatFormatter(
                model.chat_template, eos_token=_text_of(model, model.eos), bos_token=self._bos_text
            )
        except Exception as error:  # jinja2's own errors, and whatever a template does while it is compiled
            raise UsageError(
                f"the chat template of {model.path.name} cannot be read", why=str(error), hint="use --raw"
            ) from error

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt as text, ready for the assistant's answer."""
        try:
            answer = self._formatter(messages=[{"role": m.role, "content": m.content} for m in messages])
        except Exception as error:  # a template may raise anything; raise_exception() is its way to refuse a role
            raise UsageError(
                "the model's chat template refuses these messages", why=str(error), hint="use --raw"
            ) from error
        return str(answer.prompt)

    def tokenize(self, messages: Sequence[Message], *, special: bool = False) -> list[int]:
        """The prompt as ids. Control tokens written inside a message stay text unless `special`."""
        if special or not any(_has_control_tokens(self._model, message.content) for message in messages):
            return self._tokenize_rendered([self.render(messages)])
        # Mark the contents, so that what a message says and what the template says can be told apart once rendered.
        marked = [Message(message.role, f"\ue000{index}\ue001") for index, message in enumerate(messages)]
        pieces = re.split("\ue000(\\d+)\ue001", self.render(marked))
        pieces[1::2] = [messages[int(index)].content for index in pieces[1::2]]
        return self._tokenize_rendered(pieces)

    def _tokenize_rendered(self, pieces: list[str]) -> list[int]:
        """Template text and message contents in turns, control tokens counting in the former only.

        The model's BOS comes first, but not twice; what else a tokenizer adds to prompts is the template's affair.
        """
        model = self._model
        starts_with_bos = bool(self._bos_text) and pieces[0].startswith(self._bos_text)
        tokens = [model.bos] if model.bos is not None and model.adds_bos and not starts_with_bos else []
        for index, text in enumerate(pieces):
            tokens += model.tokenize(text, parse_special=index % 2 == 0)
        return tokens


def _has_control_tokens(model: Model, text: str) -> bool:
    return model.tokenize(text, parse_special=True) != model.tokenize(text)


def _text_of(model: Model, token: int | None) -> str:
    return "" if token is None else model.token_bytes(token, special=True).decode("utf-8", "replace")
