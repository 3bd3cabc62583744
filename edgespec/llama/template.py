"""The chat template of a GGUF, which turns messages into the token ids of a prompt."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn

from edgespec.errors import UsageError
from edgespec.gguf_file.chat_templates import CHATML
from edgespec.llama.model import LlamaModel
from edgespec.llama.projector import Cells, Picture
from edgespec.llama.rendering import TemplateFailedError, renderer
from edgespec.settings import Image, Message
from edgespec.text.thinking import CLOSE, OPEN

CHATML_END = "<|im_end|>"
MARK = re.compile("([\ue000\ue003])(\\d+)[\ue001\ue004]")  # a content, or an image
SEAM = "\ue002"
_MARKS = dict.fromkeys(range(0xE000, 0xE005))
SIGN = re.compile(r"([^\w\s])")
_FAILURES = {
    "parse": "the chat template of {name} cannot be parsed",
    "render": "the model's chat template rejects these messages",  # raise_exception() is its way to refuse a role
    "limit": "the chat template of {name} exceeds a limit",
}
OTHERS = "use another template (`chat_template`, `chat_template_file`), or a plain prompt (`prompt`)"


class AnswerStyle:
    """The parts of prompts that depend on how a model writes its answers. A model of unknown style writes text."""

    def sent(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return messages in the form in which the template expects them."""
        return tuple(messages)

    def begun(self, content: str, prompt: str) -> list[str]:
        """Return a begun answer, which follows a prompt, in parts: every second one is a control token."""
        return [content]

    def before_reasoning(self, prompt: str) -> str | None:
        """Return a prompt without the reasoning that it has opened; None if there is none."""
        return prompt[: prompt.rindex(OPEN)] if prompt.rstrip().endswith(OPEN) else None


See = Callable[[Image], Picture]
"""Returns an image as a part of a prompt. Raises UsageError if the model cannot see."""


@dataclass(slots=True)
class Prompted:
    """The tokens of a prompt, and its images by the positions where their cells begin."""

    tokens: list[int] = field(default_factory=list)
    images: dict[int, Cells] = field(default_factory=dict)
    start: int = 0
    """The position where the answer begins. The tokens from there on are a begun answer."""
    #: strings that must end the answer, beyond the model's end tokens
    stop: tuple[str, ...] = ()

    def add(self, picture: Picture) -> None:
        self.images |= {len(self.tokens) + place: cells for place, cells in picture.cells.items()}
        self.tokens += picture.tokens


def cannot_see(image: Image) -> NoReturn:
    raise UsageError(f"{image.name} cannot be read", why="no projector is loaded")


class ChatTemplate:
    """A model's chat template, or `text` instead. `tool_use` is the template for requests with tools, if there is a
    separate one. A broken template raises UsageError when it is used."""

    def __init__(
        self,
        model: LlamaModel,
        text: str | None = None,
        see: See = cannot_see,
        tool_use: str = "",
        style_of: Callable[[str], AnswerStyle] = lambda text: AnswerStyle(),
    ) -> None:
        self._model, self.see, self._style_of = model, see, style_of
        self.text = (model.chat_template if text is None else text) or None
        self._tool_use = ChatTemplate(model, tool_use, see, style_of=style_of) if tool_use else None
        self._bos_text = _text_of(model, model.bos)
        self._arguments = ""

    def given(self, arguments: str) -> ChatTemplate:
        """Return this template with a JSON object of arguments, such as `tools`."""
        if self._tool_use is not None and '"tools"' in arguments and json.loads(arguments).get("tools"):
            return self._tool_use.given(arguments)
        if arguments == self._arguments:
            return self
        # Once for all copies.
        _ = self._takes_parts, self._called, self._two_called, self.shows_calls_after_text, self.shows_late_system
        _ = self._style
        made = copy.copy(self)
        made._arguments = arguments
        return made

    def has(self, text: str) -> bool:
        """Return whether the source of the template contains a text, such as the name of a variable."""
        return text in (self.text or "")

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt as text, which ends where the assistant's answer begins."""
        return self._render(messages, lambda text: text)

    def _render(
        self, messages: Sequence[Message], prepared: Callable[[str], str], *, in_parts: bool | None = None
    ) -> str:
        """Render the messages after `prepared` was applied to each string of the arguments, to the roles and to the
        messages' extra fields. Their contents are rendered unchanged."""
        in_parts = self._takes_parts if in_parts is None else in_parts
        name, model = self._model.path.name, self._model
        if self.text is None:
            raise UsageError(f"{name} has no chat template", hint="use a plain prompt instead (`prompt`)")

        def read(text: str) -> dict[str, object]:
            return dict(_each_string(json.loads(text), prepared)) if text else {}

        given = {
            "add_generation_prompt": True,
            **read(self._arguments),
            "messages": [
                {"role": prepared(m.role), "content": [{"type": "text", "text": m.content}] if in_parts else m.content}
                | read(m.extra)
                for m in messages
            ],
            "bos_token": self._bos_text,
            "eos_token": _text_of(model, model.eos),
        }
        try:
            return renderer().render(self.text, given)
        except TemplateFailedError as error:
            raise UsageError(_FAILURES[error.failed].format(name=name), why=error.why, hint=OTHERS) from error

    def tokenize(self, messages: Sequence[Message], *, special: bool = False) -> list[int]:
        """Return the prompt as ids, as `prompt` does."""
        return self.prompt(messages, special=special).tokens

    def prompt(self, messages: Sequence[Message], *, special: bool = False) -> Prompted:
        """Return the prompt. Control tokens that are written in a message stay text unless `special`, and so do added
        tokens, except in earlier answers.

        An assistant's message at the end is continued. The prompt begins with the model's BOS, but never with two.
        Other tokens that a tokenizer adds to prompts are left to the template."""
        model = self._model
        begun = messages[-1] if messages and messages[-1].role == "assistant" else None
        messages = messages[:-1] if begun else messages
        # Mark contents, to separate text of messages from text of the template in the rendered prompt.
        pictures = [self.see(image) for message in messages for image in message.images]
        marked, n_images = list[Message](), 0
        for index, message in enumerate(messages):
            apart = self._stands_apart(message, special)
            content = f"\ue000{index}\ue001" if apart else _with_marks(message, n_images)
            marked.append(replace(message, content=content))
            n_images += len(message.images)
        rendered = self._render(marked, _without_marks if special else self._unspecial)
        text, *pieces = MARK.split(rendered)
        starts_with_bos = bool(self._bos_text) and text.startswith(self._bos_text)
        made = Prompted([model.bos] if model.bos is not None and model.adds_bos and not starts_with_bos else [])
        made.tokens += self._ids_of_template(text)
        for kind, number, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            if kind == "\ue000":
                self._add_content(made, messages[int(number)])
            else:
                made.add(pictures[int(number)])
            made.tokens += self._ids_of_template(text)
        if len(made.images) < sum(len(picture.cells) for picture in pictures):
            raise UsageError(f"the chat template of {model.path.name} leaves out images")
        made.start = len(made.tokens)
        if begun:
            made.tokens += begun.tokens or self._ids_of_answer(begun.content, text)
        made.stop = (CHATML_END,) if self.text == CHATML else ()
        return made

    def _ids_of_template(self, text: str) -> list[int]:
        return [id for part in text.split(SEAM) for id in self._model.tokenize(part, parse_special=True)]

    def _add_content(self, made: Prompted, message: Message) -> None:
        """Add the content of a message whose content is tokenized separately."""
        if message.tokens:
            made.tokens += message.tokens
            return
        # The model itself writes added tokens, so those in its earlier answers are tokens.
        tokenize = self._model.tokenize if message.role == "assistant" else self._model.tokenize_text
        start = 0
        for image in message.images:
            made.tokens += tokenize(message.content[start : image.at])
            made.add(self.see(image))
            start = image.at
        made.tokens += tokenize(message.content[start:])

    def _stands_apart(self, message: Message, special: bool) -> bool:
        if message.tokens or MARK.search(message.content) or SEAM in message.content:
            return True
        return not special and self._has_tokens(message.content, is_answer=message.role == "assistant")

    def _has_tokens(self, text: str, *, is_answer: bool = False) -> bool:
        """Return whether the tokenizer would read tokens in a text: control tokens, or those that were added."""
        model = self._model
        return model.control_texts.any_in(text) or (not is_answer and model.added_texts.any_in(text))

    def _unspecial(self, text: str) -> str:
        """Return a text with seams through the tokens in it: the arguments of tools may be any text."""
        text = _without_marks(text)
        # Tools have thousands of short strings, and tokenizing takes tenths of a millisecond for each.
        return SIGN.sub(rf"\1{SEAM}", text) if self._has_tokens(text) else text

    def _ids_of_answer(self, begun: str, prompt: str) -> list[int]:
        """Return a begun answer as ids."""
        parts = self._style.begun(begun, prompt)
        return [id for n, part in enumerate(parts) for id in self._model.tokenize(part, parse_special=n % 2 == 1)]

    # --- what it shows --------------------------------------------------------------------------------------------

    @cached_property
    def _style(self) -> AnswerStyle:
        return self._style_of(self.text or "")

    @property
    def shows_calls(self) -> bool:
        """False if the template leaves out the calls of tools in earlier answers."""
        return not self._called or "xyzzy" in self._called

    @property
    def shows_results(self) -> bool:
        """False if the template leaves out the results of tools."""
        return not self._called or "plugh" in self._called

    @property
    def shows_all_calls(self) -> bool:
        """False if the template leaves out calls after the first one of an answer, or rejects several calls."""
        return not self._called or "plover" in self._two_called

    @cached_property
    def shows_calls_after_text(self) -> bool:
        """False if the template leaves out the calls of an answer that has a text too."""
        shown = self._with_calls(self._argument, text="waldo")
        return not shown or "xyzzy" in shown

    @cached_property
    def wants_text_arguments(self) -> bool:
        """True if the template writes the arguments of calls as they are given, so that they must be texts of JSON."""
        as_object, as_text = (self._with_calls(given) for given in ({"grault": "x"}, '{"grault": "x"}'))
        return '"grault"' in as_text and ("'grault'" in as_object or "grault" not in as_object)

    @cached_property
    def shows_late_system(self) -> bool:
        """False if the template leaves out one of two system messages, of which the second is not the first message."""
        users = Message("user", "a"), Message("user", "b")
        shown = self.probe(Message("system", "xyzzy"), users[0], Message("system", "plugh"), users[1])
        return not shown or ("xyzzy" in shown and "plugh" in shown)

    @cached_property
    def _called(self) -> str:
        """A prompt with a call and its result, or nothing if the template rejects it."""
        return self._with_calls(self._argument)

    @cached_property
    def _two_called(self) -> str:
        """The same with two calls and their results."""
        return self._with_calls(self._argument, self._argument)

    @property
    def _argument(self) -> str | dict[str, str]:
        return '{"grault": "x"}' if self.wants_text_arguments else {"grault": "x"}

    def _with_calls(self, *arguments: str | dict[str, str], text: str = "") -> str:
        """Return a prompt with a text, calls of functions and their results; "" if the template rejects it."""
        names = dict(zip(("xyzzy", "plover"), arguments, strict=False))
        calls = [
            {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": given}}
            for number, (name, given) in enumerate(names.items())
        ]
        results = [
            Message("tool", "plugh", extra=json.dumps({"tool_call_id": f"call{number:05}", "name": name}))
            for number, name in enumerate(names)
        ]
        answer = Message("assistant", text, extra=json.dumps({"tool_calls": calls}))
        return self.probe(*self._style.sent([Message("user", "a"), answer, *results]))

    @cached_property
    def _takes_parts(self) -> bool:
        """True if the template leaves out contents that are not lists of parts, as some do that know images."""
        text = "xyzzy"
        if self.text is None or "type" not in self.text or text in self.probe(Message("user", text), in_parts=False):
            return False
        return text in self.probe(Message("user", text), in_parts=True)

    @cached_property
    def opens_thinking(self) -> bool:
        """True if answers begin inside of reasoning that the template has opened."""
        return self._style.before_reasoning(self.probe(Message("user", "a"))) is not None

    @cached_property
    def keeps_answers(self) -> bool:
        """True if a later prompt has an answer at the place where it was generated. False if the template writes
        something before it, such as the header of a message."""
        asked, text = self.probe(Message("user", "a")), "xyzzy"
        asked = self._style.before_reasoning(asked) or asked
        shown = self.probe(Message("user", "a"), Message("assistant", text), Message("user", "c"))
        return not shown or "".join(shown.split()).startswith("".join(f"{asked}{text}".split()))

    @cached_property
    def drops_thinking(self) -> bool:
        """True if the template leaves out the reasoning of earlier answers."""
        thought = "xyzzy"
        answer = Message("assistant", f"{OPEN}\n{thought}\n{CLOSE}\n\nb")
        shown = self.probe(*self._style.sent([Message("user", "a"), answer, Message("user", "c")]))
        return bool(shown) and thought not in shown

    def probe(self, *messages: Message, in_parts: bool | None = None) -> str:
        try:
            return self._render(messages, str, in_parts=in_parts)
        except UsageError:
            return ""


def _without_marks(text: str) -> str:
    """Return a text without the characters of marks, which the description of a tool must not contain."""
    return text.translate(_MARKS)


def _with_marks(message: Message, number: int) -> str:
    """Return the content of a message with a mark for each image; `number` is that of the first one."""
    content = message.content
    for offset, image in reversed([*enumerate(message.images)]):
        content = f"{content[: image.at]}\ue003{number + offset}\ue004{content[image.at :]}"
    return content


def _each_string(value: Any, prepared: Callable[[str], str]) -> Any:
    """Return JSON after `prepared` was applied to each of its strings, keys included."""
    if isinstance(value, str):
        return prepared(value)
    if isinstance(value, dict):
        return {prepared(key): _each_string(item, prepared) for key, item in value.items()}
    return [_each_string(item, prepared) for item in value] if isinstance(value, list) else value


def _text_of(model: LlamaModel, token: int | None) -> str:
    return "" if token is None else model.token_bytes(token, special=True).decode("utf-8", "replace")
