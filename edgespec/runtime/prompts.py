"""From requests to prompts: chat templates, tokens, and limits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

from edgespec.dialects.calls import Schemas, tool_schemas
from edgespec.dialects.grammar import bare_schema, call_grammar
from edgespec.errors import ImageError, PromptTooLongError, UsageError
from edgespec.files.images import size_of_image
from edgespec.gguf_file.chat_templates import CHATML
from edgespec.llama.constraint import constraint_notes
from edgespec.llama.model import LlamaModel
from edgespec.llama.projector import Cells
from edgespec.llama.template import ChatTemplate
from edgespec.runtime.adapting import (
    Talk,
    adapted,
    named,
    one_call_each,
    text_apart,
    with_late_system,
    with_one_system,
    with_text_arguments,
)
from edgespec.runtime.described import calls_in, described, with_calls
from edgespec.runtime.template_dialect import TemplateDialect, TemplateDialects
from edgespec.settings import Message, Request

MESSAGE = 256  # characters that take as long as a template takes for one message
IMAGE = 1 << 16  # characters that take as long as decoding an image
MOST_PIXELS = 512_000_000  # of all images of a prompt
LONGEST_TOKEN = 512  # characters; some vocabularies have a token of 128 blanks
USUAL_TOKEN = 4  # characters
# Variables of chat templates. Other names of the first one are translated.
SWITCH, BUDGET = "enable_thinking", "thinking_budget"
Made = TypeVar("Made")
ANSWER_ROOM = 256  # tokens for an answer in the context size that an error suggests


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of a prompt, stop strings in addition to those of the request, and images by their positions. The
    answer begins at position `start`: the tokens from there on are a part of it that exists already."""

    tokens: list[int]
    stop: tuple[str, ...] = ()
    images: Mapping[int, Cells] = field(default_factory=dict)
    start: int = 0


class Prompts:
    """Prompts for one model, in a context of `n_ctx` tokens."""

    def __init__(self, model: LlamaModel, template: ChatTemplate, n_ctx: int, note: Callable[[str], None]) -> None:
        self._model, self._template, self._n_ctx, self._note = model, template, n_ctx, note
        self._dialects = TemplateDialects(model)

    def of(self, request: Request) -> Prompt:
        """Return the prompt of a request. Raises UsageError if it is empty or longer than the context."""
        n_characters = self.length(request)
        if n_characters > LONGEST_TOKEN * self._n_ctx:  # tokenizing it would take long
            raise PromptTooLongError(
                f"the prompt has {n_characters:,} characters, more than fit into {self._n_ctx} tokens",
                hint=self._remedy(n_characters // USUAL_TOKEN),
                n_ctx=self._n_ctx,
            )
        prompt = self.tokenized(request)
        tokens = prompt.tokens
        if not tokens:
            raise UsageError("the prompt is empty", hint="this model needs at least one token to start from")
        if len(tokens) >= self._n_ctx:
            raise PromptTooLongError(
                f"the prompt has {len(tokens)} tokens, the context holds {self._n_ctx}",
                hint=self._remedy(len(tokens) + ANSWER_ROOM),
                n_tokens=len(tokens),
                n_ctx=self._n_ctx,
            )
        return prompt

    def constrained(self, request: Request) -> Request:
        """Return a request with the grammar of a call if it must call a tool: in the form of the model, or JSON where
        no grammar describes that."""
        if not request.must_call:
            return request
        written, tools = self.dialect(request), called_tools(request)
        if not tools:
            raise UsageError(
                f"there is no tool {', '.join(request.must_call)}", hint="name one of the template's tools"
            )
        if grammar := call_grammar(written.dialect, tools, written.specials):
            return replace(request, grammar=grammar)
        return replace(request, json_schema=bare_schema(tools))

    def call_grammar(self, request: Request) -> str:
        """Return the grammar of the calls of an answer that may have calls; "" if it may not, or if no grammar
        describes them."""
        if not request.messages or request.constraint is not None or request.reference:
            return ""
        if not (tools := all_tools(request)):
            return ""
        written = self.dialect(request)
        return call_grammar(written.dialect, tools, written.specials, several=request.parallel_calls)

    def _remedy(self, n_needed: int) -> str:
        """Return what to do about a prompt that needs a context of `n_needed` tokens."""
        trained = self._model.n_ctx_train
        if trained and n_needed > trained:
            return f"shorten it: the model was trained for contexts of {trained} tokens"
        return f"shorten it, or use a larger context (`ctx_size={n_needed}` or more)"

    def tokens_of(self, messages: Sequence[Message], template: str = "") -> list[int]:
        """Return the prompt of some messages as ids, which may be more than the context holds; `template` has arguments
        for the chat template, as in a request."""
        return self.tokenized(Request(messages=tuple(messages), template=template, lenient=True)).tokens

    def ids(self, request: Request) -> list[int]:
        """Return the ids of a prompt. Raises as `of`. A worker sends the ids only, since images stay in its process."""
        return self.of(request).tokens

    def n_tokens(self, request: Request) -> int:
        """Return the number of tokens of a prompt, which may be more than the context holds."""
        return len(self.tokenized(request).tokens)

    @staticmethod
    def length(request: Request) -> int:
        """Return the number of characters in the prompt of a request; each token id counts as one."""
        said = [request.prompt, request.template]
        said += [text for message in request.messages for text in (message.content, message.extra)]
        return sum(map(len, said)) + len(request.prompt_tokens)

    @staticmethod
    def effort(request: Request) -> int:
        """Return the number of characters that take as long as this prompt; an empty message takes time too."""
        n_images = sum(len(message.images) for message in request.messages)
        return Prompts.length(request) + MESSAGE * len(request.messages) + IMAGE * n_images

    def dialect(self, request: Request) -> TemplateDialect:
        """Return how the model writes the answer to a request."""
        return self._dialects.of(self._template.given(request.template).text)

    def render(self, request: Request) -> str:
        """Return the messages of a request as the chat template writes them. Raises UsageError."""
        return self._made(request, ChatTemplate.render)

    def token_ids(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return a text of any length as ids."""
        return self._model.tokenize(text, add_special=add_special, parse_special=parse_special)

    def token_bytes(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes of each id, of control tokens their names. Raises UsageError."""
        wrong = next((token for token in tokens if not 0 <= token < self._model.n_vocab), None)
        if wrong is not None:
            raise UsageError(f"there is no token {wrong}", why=f"ids go from 0 to {self._model.n_vocab - 1}")
        return [self._model.token_bytes(token, special=True) for token in tokens]

    def _arguments(self, request: Request) -> dict[str, object]:
        """Return the arguments for the template, by the names that it has: a request without reasoning switches it off
        there, and a limit of reasoning may be one of them."""
        given: dict[str, object] = json.loads(request.template or "{}")
        template, budget = self._template.given(request.template), request.reasoning_budget
        if SWITCH in given or budget == 0:
            value = budget != 0 and given.pop(SWITCH)
            given |= {switch: value} if (switch := self._dialects.of(template.text).dialect.switch) else {}
        return given | ({BUDGET: budget} if budget >= 0 and template.has(BUDGET) else {})

    def tokenized(self, request: Request) -> Prompt:
        """Return the prompt of a request, which may be empty or longer than the context."""
        special = request.special
        if request.prompt_tokens:
            return _completed([*request.prompt_tokens])
        self._check_images(request)
        if not request.messages:
            return _completed(self._model.tokenize(request.prompt, add_special=True, parse_special=special))
        prompt = self._made(request, partial(ChatTemplate.prompt, special=special))
        return Prompt(prompt.tokens, prompt.stop, prompt.images, prompt.start)

    def _made(self, request: Request, make: Callable[[ChatTemplate, Sequence[Message]], Made]) -> Made:
        """Return what `make` makes of the messages of a request. If the template rejects them, a lenient request adapts
        them. Raises UsageError."""
        base = self._base(request)
        written = self._dialects.of(base.given(request.template).text)
        talk = Talk(written.sent(request.messages), self._arguments(request))

        def attempt(talk: Talk) -> Made:
            return make(*self._asked(base, talk))

        try:
            return attempt(talk)
        except UsageError as error:
            refusal = error
        if request.lenient:
            tools = talk.arguments.get("tools") or ()
            without = {name: value for name, value in talk.arguments.items() if name != "tools"}
            told = Talk(described(talk.messages, tools), without)
            found = adapted(talk, told, attempt, refusal, self._note)
            if found is not None:
                return found[0]

        def rendered(part: Sequence[Message]) -> str:
            """Render messages of which the last one is no answer to continue."""
            return ChatTemplate.render(*self._asked(base, replace(talk, messages=tuple(part))))

        raise named(talk.messages, refusal, rendered)

    def _base(self, request: Request) -> ChatTemplate:
        """Return the chat template. A model without one gets ChatML if the request is lenient."""
        if self._template.text is not None or not request.lenient:
            return self._template
        self._note(f"{self._model.path.name} has no chat template: using ChatML instead")
        return self._chatml

    @cached_property
    def _chatml(self) -> ChatTemplate:
        return ChatTemplate(self._model, CHATML, self._template.see)

    def _asked(self, base: ChatTemplate, talk: Talk) -> tuple[ChatTemplate, tuple[Message, ...]]:
        """Return the template with its arguments, and messages in the form in which it shows them: tools, calls and
        results for which it has no place are described as text."""
        arguments, messages = talk.arguments, talk.messages
        template = base.given(json.dumps(arguments) if arguments else "")
        if not template.shows_late_system:
            messages = with_one_system(messages)
            if (changed := with_late_system(messages)) != messages:
                self._note("later system messages become the user's: the chat template leaves them out")
                messages = changed
        if not template.has("tools"):
            return template, described(messages, arguments.get("tools") or ())
        if any(map(calls_in, messages)):
            if not template.shows_calls:
                messages = tuple(map(with_calls, messages))
            elif template.wants_text_arguments:
                messages = with_text_arguments(messages)
            if not template.shows_calls_after_text:
                messages = text_apart(messages)
            if not template.shows_all_calls:
                messages = one_call_each(messages)
        if any(message.role == "tool" for message in messages) and not template.shows_results:
            messages = described(messages, ())
        return template, messages

    @staticmethod
    def _check_images(request: Request) -> None:
        """Raise UsageError if decoding all images would take too long: a small file may hold a very large image."""
        images = [image for message in request.messages for image in message.images]
        n_pixels = sum(math.prod(size_of_image(image.data, image.name)) for image in images)
        if n_pixels > MOST_PIXELS:
            why = f"together they have {n_pixels:,} pixels, and at most {MOST_PIXELS:,} are decoded"
            raise ImageError("the images of the prompt are too large", why=why, hint="make them smaller")


def _completed(tokens: list[int]) -> Prompt:
    return Prompt(tokens, start=len(tokens))


def all_tools(request: Request) -> Schemas:
    """Return the parameters of the tools of a request, by their names."""
    return tool_schemas(json.loads(request.template or "{}").get("tools") or ())


def called_tools(request: Request) -> Schemas:
    """Return the parameters of the tools of which a request must call one, by their names."""
    schemas = all_tools(request)
    return {name: schemas[name] for name in request.must_call if name in schemas}


def request_notes(request: Request) -> tuple[str, ...]:
    """Return notes for the user about ignored parts of a request's constraint."""
    return constraint_notes(*request.constraint) if request.constraint is not None else ()
