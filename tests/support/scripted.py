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
from edgespec.llm.model import Model
from edgespec.llm.notes import Notes
from edgespec.llm.stream import Loop, Stream
from edgespec.runtime.prompts import Prompts
from edgespec.runtime.template_dialect import TemplateDialects
from edgespec.settings import Inputs, LoadSettings, Request
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


class _Script(Loop):
    """Gives each request all events of its answer in the next turn."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[Stream, int, Sequence[TokenEvent]]] = []

    def add(self, stream: Stream, number: int, what: Sequence[TokenEvent], cancel: CancelFlag) -> None:
        self._waiting.append((stream, number, what))

    def turn(self) -> None:
        waiting, self._waiting = self._waiting, []
        for stream, number, events in waiting:
            for event in events:
                stream.put(number, event)

    def settle(self) -> None:
        self._waiting = [each for each in self._waiting if not each[0].is_closed]


class ScriptedWorker(Model):
    """Has what a server needs of a `Worker`. `say` returns the text of the next answer, as the model writes it.

    Attributes:
        prompts: The prompts of the answers so far, with their marks.
    """

    is_alive = True
    room = 4

    def __init__(self, path: Path, say: Callable[[Request], str]) -> None:
        self._settings, self.notes, self.loop, self._say = LoadSettings(str(path)), Notes(), _Script(), say
        self._model = LlamaModel.load_vocabulary(path)
        self._template = ChatTemplate(self._model, style_of=TemplateDialects(self._model).of)
        self._prompts = Prompts(self._model, self._template, N_CTX, self.notes.add)
        self.prompts: list[str] = []

    @property
    def settings(self) -> LoadSettings:
        return self._settings

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

    def call(self, name: str, *args: Any, **keywords: Any) -> Any:
        return getattr(self._prompts, name.removeprefix("prompts."))(*args, **keywords)

    def prompt_length(self, request: Request) -> int:
        return self._prompts.n_tokens(request)

    def prepared(self, request: Request | Inputs, cancel: CancelFlag | None = None) -> list[TokenEvent]:
        """Make the prompt of a request as the engine makes it, and say the answer, a token at a time."""
        assert isinstance(request, Request)
        prompt = self._prompts.of(request)
        self.prompts.append(self._model.detokenize(prompt.tokens, special=True).decode("utf-8", "replace"))
        return [*self._events(request, prompt.stop, Stats(prompt_tokens=len(prompt.tokens)))]

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
