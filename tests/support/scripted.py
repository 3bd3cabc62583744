"""A worker without an engine, whose model says given texts. Vocabulary, chat template and prompts are the real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from tiny_gguf import model_metadata, write_file

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.events import TokenEvent
from edgespec.llama.model import LlamaModel
from edgespec.llama.template import ChatTemplate
from edgespec.llm.info import ModelInfo
from edgespec.llm.notes import Notes
from edgespec.runtime.prompts import Prompts
from edgespec.runtime.template_dialect import TemplateDialects
from edgespec.settings import LoadSettings, Request
from edgespec.text.textstream import TextStream

N_CTX = 1 << 17
CONTROL, ADDED = 3, 4  # types of tokens: without text in an answer, and with text


def write_marked(path: Path, template: str, control: Sequence[str], added: Sequence[str] = ()) -> Path:
    """Write the vocabulary of a model with this chat template, whose marks are tokens; return the path."""
    metadata = model_metadata("llama", n_ctx=N_CTX)
    tokens, types = (cast("list[Any]", metadata[f"tokenizer.ggml.{name}"]) for name in ("tokens", "token_type"))
    new = [mark for mark in (*control, *added) if mark not in tokens]
    metadata["tokenizer.ggml.tokens"] = [*tokens, *new]
    metadata["tokenizer.ggml.token_type"] = [*types, *(CONTROL if mark in control else ADDED for mark in new)]
    return write_file(path, metadata | {"tokenizer.chat_template": template}, {})


class _Said:
    """The events of one answer, which are all there from the beginning."""

    is_closed = False

    def __init__(self, events: Sequence[tuple[int, TokenEvent]]) -> None:
        self._events = [*events]

    @property
    def has_news(self) -> bool:
        return True

    @property
    def is_over(self) -> bool:
        return not self._events

    def take(self) -> Iterator[tuple[int, TokenEvent]]:
        while self._events:
            yield self._events.pop(0)

    def close(self) -> None:
        self.is_closed = True


class ScriptedWorker:
    """Has what a server needs of a `Worker`. `say` returns the text of the next answer, as the model writes it.

    Attributes:
        prompts: The prompts of the answers so far, with their marks.
    """

    loop = None
    is_alive = True

    def __init__(self, path: Path, say: Callable[[Request], str]) -> None:
        self.settings, self.notes, self._say = LoadSettings(str(path)), Notes(), say
        self._model = LlamaModel.load_vocabulary(path)
        self._template = ChatTemplate(self._model, style_of=TemplateDialects(self._model).of)
        self._prompts = Prompts(self._model, self._template, N_CTX, self.notes.add)
        self.prompts: list[str] = []

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            self.settings.model,
            description="scripted",
            ctx_size=N_CTX,
            sequences=4,
            pace="off",
            opens_thinking=self._template.opens_thinking,
            drops_thinking=True,
            switches_thinking=True,
        )

    def open_vocabulary(self) -> LlamaModel:
        return LlamaModel.load_vocabulary(self.settings.model)

    def within(self, seconds: float) -> ScriptedWorker:
        return self

    def render(self, request: Request) -> str:
        return self._prompts.render(request)

    def prompt_length(self, request: Request) -> int:
        return self._prompts.n_tokens(request)

    def submit_all(self, requests: Sequence[Request], cancel: CancelFlag | None = None) -> _Said:
        """Say the answer to the first request, a token at a time, after the prompt was made as the engine makes it."""
        request = requests[0]
        prompt = self._prompts.of(request)
        self.prompts.append(self._model.detokenize(prompt.tokens, special=True).decode("utf-8", "replace"))
        stats = Stats(prompt_tokens=len(prompt.tokens))
        return _Said([(0, event) for event in self._events(request, prompt.stop, stats)])

    def _events(self, request: Request, stop: Sequence[str], stats: Stats) -> Iterator[TokenEvent]:
        model, stream = self._model, TextStream((*request.stop, *stop))
        for id in model.tokenize(self._say(request), parse_special=True):
            if model.is_end(id) or stream.stopped:
                break
            stats.generated_tokens += 1
            yield TokenEvent(id, stream.push(model.token_bytes(id)))
        yield TokenEvent(-1, stream.flush(), finish_reason="stop", stats=stats, cut=stream.stopped)

    def close(self) -> None:
        self._model.close()
