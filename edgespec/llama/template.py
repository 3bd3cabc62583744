"""The chat template of a GGUF, which turns messages into the token ids of a prompt."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from edgespec.errors import UsageError
from edgespec.llama.model import Model
from edgespec.llama.rendering import TemplateFailedError, renderer
from edgespec.settings import Message
from edgespec.text.thinking import CLOSE, OPEN

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
CHATML_END = "<|im_end|>"
MARK = re.compile("\ue000(\\d+)\ue001")
SEAM = "\ue002"
SIGN = re.compile(r"([^\w\s])")
# Templates test these variables. As in Transformers they are none, and not undefined, if they are not given.
_NOT_GIVEN = {
    "tools": None, "tool_choice": None, "functions": None, "function_call": None, "add_generation_prompt": True
}  # fmt: skip
_FAILURES = {
    "parse": "the chat template of {name} cannot be parsed",
    "render": "the model's chat template rejects these messages",  # raise_exception() is its way to refuse a role
    "limit": "the chat template of {name} exceeds a limit",
}


class ChatTemplate:
    """A model's chat template, or `text` instead. A broken template raises UsageError when it is used."""

    def __init__(self, model: Model, text: str | None = None) -> None:
        self._model = model
        self._text = text or model.chat_template
        self._bos_text = _text_of(model, model.bos)
        self._arguments = ""

    def given(self, arguments: str) -> ChatTemplate:
        """Return this template with a JSON object of arguments, such as `tools`."""
        if arguments == self._arguments:
            return self
        made = copy.copy(self)
        made._arguments = arguments
        return made

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt as text, which ends where the assistant's answer begins."""
        return self._render(messages, lambda text: text)

    def _render(self, messages: Sequence[Message], prepared: Callable[[str], str]) -> str:
        """Render the messages after `prepared` was applied to each string of the arguments and of the messages' extra
        fields. Their roles and contents are rendered unchanged."""
        name, model = self._model.path.name, self._model
        if self._text is None:
            raise UsageError(f"{name} has no chat template", hint="use a plain prompt instead (--raw)")

        def read(text: str) -> dict[str, Any]:
            return dict(_each_string(json.loads(text), prepared)) if text else {}

        given = {
            **_NOT_GIVEN,
            **read(self._arguments),
            "messages": [{"role": m.role, "content": m.content, **read(m.extra)} for m in messages],
            "bos_token": self._bos_text,
            "eos_token": _text_of(model, model.eos),
        }
        try:
            return renderer().render(self._text, given)
        except TemplateFailedError as error:
            raise UsageError(_FAILURES[error.failed].format(name=name), why=error.why, hint="use --raw") from error

    def tokenize(self, messages: Sequence[Message], *, special: bool = False) -> list[int]:
        """Return the prompt as ids. Control tokens that are written in a message stay text unless `special`.

        An assistant's message at the end is continued. The prompt begins with the model's BOS, but never with two.
        Other tokens that a tokenizer adds to prompts are left to the template."""
        model = self._model
        begun = messages[-1] if messages and messages[-1].role == "assistant" else None
        messages = messages[:-1] if begun else messages
        # Mark contents, to separate text of messages from text of the template in the rendered prompt.
        marked = [
            replace(message, content=f"\ue000{index}\ue001") if self._stands_apart(message, special) else message
            for index, message in enumerate(messages)
        ]
        pieces = MARK.split(self._render(marked, str if special else self._unspecial))
        starts_with_bos = bool(self._bos_text) and pieces[0].startswith(self._bos_text)
        tokens = [model.bos] if model.bos is not None and model.adds_bos and not starts_with_bos else []
        for index, piece in enumerate(pieces):
            if index % 2:
                tokens += self._ids(messages[int(piece)])
            else:
                tokens += [id for part in piece.split(SEAM) for id in model.tokenize(part, parse_special=True)]
        if begun:
            opened = pieces[-1][pieces[-1].rfind(OPEN) :] if pieces[-1].rstrip().endswith(OPEN) else ""
            tokens += self._ids(replace(begun, content=begun.content.removeprefix(opened)))
        return tokens

    def _stands_apart(self, message: Message, special: bool) -> bool:
        if message.tokens or MARK.search(message.content) or SEAM in message.content:
            return True
        return not special and self._model.control_texts.any_in(message.content)

    def _unspecial(self, text: str) -> str:
        """Return a text with seams through the control tokens in it: the arguments of tools may be any text."""
        text = text.replace(SEAM, "")
        # Tools have thousands of short strings, and tokenizing takes tenths of a millisecond for each.
        return SIGN.sub(rf"\1{SEAM}", text) if self._model.control_texts.any_in(text) else text

    def _ids(self, message: Message) -> list[int]:
        return list(message.tokens) or self._model.tokenize(message.content)

    # --- thinking -------------------------------------------------------------------------------------------------

    @cached_property
    def opens_thinking(self) -> bool:
        """True if answers start inside a thinking block that the template opened."""
        return self._probe(Message("user", "a")).rstrip().endswith(OPEN)

    @cached_property
    def drops_thinking(self) -> bool:
        """True if the template leaves out the reasoning of earlier answers."""
        thought = "xyzzy"
        answer = Message("assistant", f"{OPEN}\n{thought}\n{CLOSE}\n\nb")
        shown = self._probe(Message("user", "a"), answer, Message("user", "c"))
        return bool(shown) and thought not in shown

    def _probe(self, *messages: Message) -> str:
        try:
            return self.render(messages)
        except UsageError:
            return ""


def tokenize_leniently(
    template: ChatTemplate, model: Model, messages: Sequence[Message], note: Callable[[str], None], *, special: bool
) -> tuple[list[int], tuple[str, ...]]:
    """Tokenize a conversation even if the template rejects it. Also return strings that must end the answer, beyond the
    model's end tokens.

    Rejections are reported to `note`. Then messages are merged so that user and assistant alternate; if the template
    rejects the merged messages too, ChatML replaces it. Raises UsageError if the template exceeds a limit: the model
    would not know the other format, and a shorter conversation may be within the limit.
    """
    try:
        return template.tokenize(messages, special=special), ()
    except UsageError as error:
        if isinstance(error.__cause__, TemplateFailedError) and error.__cause__.failed == "limit":
            raise
        refusal = error.why or error.what
    for n_kept in (1, 0):  # most templates accept a system prompt, but many only as the first message
        merged = _taking_turns(messages, n_kept)
        if merged == list(messages):
            continue
        with suppress(UsageError):
            tokens = template.tokenize(merged, special=special)
            note(f"the chat template rejects these messages ({refusal}): messages were merged")
            return tokens, ()
    note(f"the chat template cannot be used ({refusal}): using ChatML instead")
    return ChatTemplate(model, CHATML).tokenize(messages, special=special), (CHATML_END,)


def _taking_turns(messages: Sequence[Message], n_kept: int) -> list[Message]:
    """Return messages in which no two of the user, and no two of the assistant, follow each other.

    System messages after the first `n_kept` messages become the user's, since few templates have a place for them.
    Messages with tool calls or results stay as they are.
    """
    turns: list[Message] = []
    for index, message in enumerate(messages):
        if message.role == "system" and index >= n_kept:
            message = replace(message, role="user")
        last = turns[-1] if turns else None
        if (
            last
            and last.role == message.role
            and message.role in ("user", "assistant")
            and not last.extra + message.extra
        ):
            turns[-1] = Message(last.role, f"{last.content}\n\n{message.content}")
        else:
            turns.append(message)
    return turns


def _each_string(value: Any, prepared: Callable[[str], str]) -> Any:
    """Return JSON after `prepared` was applied to each of its strings, keys included."""
    if isinstance(value, str):
        return prepared(value)
    if isinstance(value, dict):
        return {prepared(key): _each_string(item, prepared) for key, item in value.items()}
    return [_each_string(item, prepared) for item in value] if isinstance(value, list) else value


def _text_of(model: Model, token: int | None) -> str:
    return "" if token is None else model.token_bytes(token, special=True).decode("utf-8", "replace")
