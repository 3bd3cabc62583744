"""An engine without a model, for tests of jobs: what it does with a request is written in the prompt."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import FinishReason, TokenEvent
from edgespec.model.info import ModelInfo
from edgespec.model.model import Model
from edgespec.model.notes import Notes
from edgespec.runtime.worker import WorkerDiedError
from edgespec.settings import LoadSettings, Request


@dataclass(eq=False)
class FakeStream(Model):
    """Answers `room` requests at a time with `max_tokens` tokens each, a token of each in turn.

    An answer says prompt, seed and sample, then dots. A prompt with "too long" is refused, one with "fails" fails after
    a token; one with "kills" raises WorkerDiedError in place of its first token, as long as `deaths` lasts. `requests`
    keeps what was taken, `most_open` how many of those were not answered yet.
    """

    n_slots: int = 2
    ahead: int = 0
    deaths: int = 1000
    keeps_requests: bool = True
    requests: list[Request] = field(default_factory=list)
    most_open: int = 0
    n_open: int = 0
    n_streams: int = 0
    closed: int = 0

    @property
    def settings(self) -> LoadSettings:
        return LoadSettings("fake")

    @property
    def info(self) -> ModelInfo:
        return ModelInfo("fake")

    @property
    def room(self) -> int:
        return self.n_slots

    def call(self, name: str, *args: Any, **keywords: Any) -> Any:
        raise NotImplementedError(name)

    def check_settings(self, request: Request) -> None:
        pass

    def close(self) -> None:
        pass

    def stream(
        self, requests: Iterable[Request | None], cancel: CancelFlag | None = None
    ) -> Generator[tuple[int, TokenEvent | EdgespecError], None, None]:
        cancel, arriving, waiting = cancel or CancelFlag(), iter(requests), list[tuple[int, Request]]()
        open_ones: dict[int, Request] = {}
        n_tokens: dict[int, int] = {}
        n_taken, is_last = 0, False
        self.n_streams += 1
        try:
            while open_ones or waiting or not is_last:
                while not is_last and len(open_ones) + len(waiting) < self.room + self.ahead:
                    is_last = cancel.is_set()
                    try:
                        request = None if is_last else next(arriving)
                    except StopIteration:
                        is_last, request = True, None
                    if request is None:
                        break
                    waiting.append((n_taken, request))
                    if self.keeps_requests:
                        self.requests.append(request)
                    n_taken += 1
                while waiting and len(open_ones) < self.room and not cancel.is_set():
                    index, request = waiting.pop(0)
                    if "too long" in text_of(request):
                        yield index, UsageError("the prompt is too long", hint="shorten it")
                    else:
                        open_ones[index], n_tokens[index] = request, 0
                if cancel.is_set():
                    waiting.clear()
                self.n_open = len(open_ones) + len(waiting)
                self.most_open = max(self.most_open, self.n_open)
                for index, request in list(open_ones.items()):
                    if "kills" in text_of(request) and self.deaths > 0:
                        self.deaths -= 1
                        raise WorkerDiedError("llama.cpp crashed", why="it was told to")
                    if cancel.is_set() or n_tokens[index] >= request.max_tokens:
                        del open_ones[index]
                        yield index, _last(request, n_tokens.pop(index), "cancelled" if cancel.is_set() else "length")
                    elif "fails" in text_of(request) and n_tokens[index] == 1:
                        del open_ones[index]
                        yield index, GenerationError("no finite logits")
                    else:
                        yield index, _token(request, n_tokens[index])
                        n_tokens[index] += 1
        finally:
            self.closed += 1


class FakeWorkers:
    """Stands for the class `Worker`: one engine, whoever opens it."""

    def __init__(self) -> None:
        self.engine = FakeStream(2)
        self.settings: list[LoadSettings] = []
        self.closed = 0
        self.notes = Notes(["something to know"])

    def __call__(self, settings: LoadSettings, progress: Any, cancel: Any) -> FakeWorkers:
        progress("loading", 1.0)
        self.settings.append(settings)
        self.stream, self.check_settings = self.engine.stream, self.engine.check_settings
        return self

    def close(self) -> None:
        self.closed += 1


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


def _last(request: Request, n_tokens: int, finish: FinishReason) -> TokenEvent:
    stats = Stats(prompt_tokens=len(text_of(request)), generated_tokens=n_tokens, rounds=n_tokens)
    return TokenEvent(-1, "", finish_reason=finish, stats=stats)
