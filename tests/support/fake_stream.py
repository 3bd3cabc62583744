"""A worker without a process or a model, for tests of jobs: what it does with a request is written in the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import GenerationError, UsageError
from edgespec.events import FinishReason, TokenEvent
from edgespec.llm.info import ModelInfo
from edgespec.llm.model import Model
from edgespec.llm.notes import Notes
from edgespec.llm.stream import Loop, Stream
from edgespec.runtime.worker import WorkerDiedError
from edgespec.settings import LoadSettings, Request


@dataclass(slots=True, eq=False)
class _Open:
    stream: Stream
    number: int
    request: Request
    cancel: CancelFlag
    n_tokens: int = 0


class _Turns(Loop):
    """Makes a token of each answer in a turn, `n_slots` answers at a time."""

    def __init__(self, worker: FakeStream) -> None:
        super().__init__()
        self._worker = worker
        self._waiting: list[_Open] = []
        self._open: list[_Open] = []
        self.death: WorkerDiedError | None = None

    def add(self, stream: Stream, number: int, what: Request, cancel: CancelFlag) -> None:
        self._waiting.append(_Open(stream, number, what, cancel))

    def turn(self) -> None:
        while self._waiting and len(self._open) < self._worker.n_slots:
            answer = self._waiting.pop(0)
            if answer.cancel.is_set():
                answer.stream.put(answer.number, _last(answer, "cancelled"))
            elif "too long" in text_of(answer.request):
                answer.stream.put(answer.number, UsageError("the prompt is too long", hint="shorten it"))
            else:
                self._open.append(answer)
        for answer in [*self._open]:
            if "kills" in text_of(answer.request) and self._worker.deaths > 0:
                self._worker.deaths -= 1
                self._worker.n_deaths += 1
                self.death = WorkerDiedError("llama.cpp crashed", why="it was told to")
                break
            self._step(answer)
        if self.death is not None:
            broken, self._open, self._waiting = [*self._open, *self._waiting], [], []
            for answer in broken:
                answer.stream.fail(answer.number, self.death)

    def _step(self, answer: _Open) -> None:
        stream, number, request = answer.stream, answer.number, answer.request
        if answer.cancel.is_set() or answer.n_tokens >= request.max_tokens:
            self._open.remove(answer)
            stream.put(number, _last(answer, "cancelled" if answer.cancel.is_set() else "length"))
        elif "fails" in text_of(request) and answer.n_tokens == 1:
            self._open.remove(answer)
            stream.put(number, GenerationError("no finite logits"))
        else:
            stream.put(number, _token(request, answer.n_tokens))
            answer.n_tokens += 1

    def settle(self) -> None:
        self._waiting = [answer for answer in self._waiting if not answer.stream.is_closed]
        self._open = [answer for answer in self._open if not answer.stream.is_closed]


class FakeStream(Model):
    """Answers `n_slots` requests at a time with `max_tokens` tokens each, a token of each in turn.

    An answer says prompt, seed and sample, then dots. A prompt with "too long" is refused, one with "fails" fails after
    a token; one with "kills" ends the process in place of its first token, as long as `deaths` lasts. `opened` is the
    same worker as a new process. `requests` keeps what was taken.
    """

    def __init__(self, n_slots: int = 2, ahead: int = 0, deaths: int = 1000) -> None:
        self.n_slots, self.ahead, self.deaths = n_slots, ahead, deaths
        self.requests: list[Request] = []
        self.n_deaths = self.n_opened = self.n_closed = 0
        self.notes, self.loop = Notes(), _Turns(self)

    def opened(self, notes: Notes | None = None) -> FakeStream:
        self.n_opened += 1
        self.notes, self.loop = Notes() if notes is None else notes, _Turns(self)
        self.notes.add("something to know")
        return self

    @property
    def settings(self) -> LoadSettings:
        return LoadSettings("fake")

    @property
    def info(self) -> ModelInfo:
        return ModelInfo("fake", sequences=self.n_slots)

    @property
    def room(self) -> int:
        return self.n_slots + self.ahead

    def prepared(self, request: Any, cancel: CancelFlag | None = None) -> Any:
        self.requests.append(request)
        return request

    def call(self, name: str, *args: Any, **keywords: Any) -> Any:
        raise NotImplementedError(name)

    def check_settings(self, request: Request) -> None: ...

    def close(self) -> None:
        self.n_closed += 1


class FakeWorkers:
    """Replaces the class `Worker`: each call opens the same worker."""

    def __init__(self) -> None:
        self.engine = FakeStream(2, ahead=4)
        self.settings: list[LoadSettings] = []

    def __call__(
        self, settings: LoadSettings, progress: Any, cancel: Any = None, notes: Notes | None = None
    ) -> FakeStream:
        progress("loading", 1.0)
        self.settings.append(settings)
        return self.engine.opened(notes)


def text_of(request: Request) -> str:
    return request.prompt or request.messages[-1].content


def said(request: Request) -> str:
    """The answer to a request."""
    return f"{text_of(request)} {request.seed} {request.sample}" + "." * (request.max_tokens - 1)


def _token(request: Request, number: int) -> TokenEvent:
    first = f"{text_of(request)} {request.seed} {request.sample}"
    top: dict[str, Any] = {}
    if request.logprobs is not None:
        top = {"logprob": -0.5, "top_logprobs": tuple((65 + place, -0.5 - place) for place in range(request.logprobs))}
    return TokenEvent(66 if number else 65, "." if number else first, round=number, **top)


def _last(answer: _Open, finish: FinishReason) -> TokenEvent:
    n_prompt, n_tokens = len(text_of(answer.request)), answer.n_tokens
    stats = Stats(prompt_tokens=n_prompt, generated_tokens=n_tokens, rounds=n_tokens)
    return TokenEvent(-1, "", finish_reason=finish, stats=stats)
