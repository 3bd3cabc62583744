"""An engine without a model, for tests of screens: its answers are given, token by token."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Unpack

from edgespec.cancel import CancelFlag
from edgespec.core.policy.policy import PolicyVerdict
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, UsageError
from edgespec.events import FinishReason, TokenEvent
from edgespec.llm.info import ModelInfo
from edgespec.llm.model import DraftingOptions, Model
from edgespec.llm.notes import Notes
from edgespec.llm.stream import Loop, Stream
from edgespec.settings import Inputs, LoadSettings, Message, Request

ANSWER = "The quick brown fox jumps over the lazy dog."


def drafted_events(text: str, accepted: int = 2, source: str = "draft") -> list[TokenEvent]:
    """The words of `text` as tokens: the first from the prompt's pass, then steps of `accepted` accepted
    draft tokens, one rejected draft token and a token of the target."""
    first, *words = re.findall(r"\s*\S+|\s+", text)
    events = [TokenEvent(0, first)]
    for index, word in enumerate(words):
        number, place = divmod(index, accepted + 1)
        drafted = place < accepted
        name = source if drafted else ""
        events.append(TokenEvent(1 + index, word, drafted, name, round=1 + number, proposed=accepted + 1))
    return events


def plain(events: Sequence[TokenEvent]) -> list[TokenEvent]:
    """The same tokens, each from a separate pass of the target."""
    return [replace(event, from_draft=False, source="", round=index, proposed=0) for index, event in enumerate(events)]


class _Script(Loop):
    """Takes an event of each open answer in a turn."""

    def __init__(self, say: Callable[[Request, CancelFlag], Iterator[TokenEvent]]) -> None:
        super().__init__()
        self._say = say
        self._open: list[tuple[Stream, int, Iterator[TokenEvent]]] = []

    def add(self, stream: Stream, number: int, what: Request, cancel: CancelFlag) -> None:
        self._open.append((stream, number, self._say(what, cancel)))

    def turn(self) -> None:
        for answer in [*self._open]:
            stream, number, events = answer
            stream.put(number, event := next(events))
            if event.is_last:
                self._open.remove(answer)
            if event.finish_reason == "error":
                try:
                    next(events)
                except EdgespecError as error:
                    stream.fail(number, error)

    def settle(self) -> None:
        self._open = [answer for answer in self._open if not answer[0].is_closed]


class FakeEngine(Model):
    """A model whose answers come in turn, and the last one again and again; a text is `drafted_events`.

    If drafting is off (pace "off", spec_type "none"), every token is the target's. Each step takes `round_s`.
    `error` is raised after `error_after` tokens of every answer. `requests` keeps what was asked, `calls` the names of
    everything called in between.
    """

    def __init__(
        self,
        *answers: str | Sequence[TokenEvent],
        round_s: float = 0.0,
        error: Exception | None = None,
        error_after: int = 0,
        settings: LoadSettings | None = None,
    ) -> None:
        self._settings = settings or LoadSettings("fake.gguf")
        self.notes, self.loop = Notes(), _Script(self._events)
        self.round_s, self.error, self.error_after = round_s, error, error_after
        self.requests: list[Request] = []
        self.cancels: list[CancelFlag] = []
        self.calls: list[str] = []
        self.closed = False
        self._answers = [drafted_events(a) if isinstance(a, str) else list(a) for a in answers or (ANSWER,)]

    def load(self, settings: LoadSettings) -> None:
        """Be the model of these settings from now on."""
        self._settings = settings

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            self.settings.model,
            description="fake 10M",
            draft_model=self.settings.draft_model,
            ctx_size=1024,
            threads=1,
            drafters=("draft",),
            pace=self.settings.pace,
            vocabulary="fake",
            drops_thinking=True,
        )

    @property
    def room(self) -> int:
        return 1

    def call(self, name: str, *args: Any, **keywords: Any) -> Any:
        raise NotImplementedError(name)

    def prepared(self, request: Request | Inputs, cancel: CancelFlag | None = None) -> Any:
        assert isinstance(request, Request)
        return request if request.prompt or request.messages else UsageError("the prompt is empty")

    def _events(self, request: Request, cancel: CancelFlag) -> Iterator[TokenEvent]:
        self.requests.append(request)
        self.cancels.append(cancel)
        self.calls.append("answer")
        script = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return self._said(plain(script) if self._is_plain else script, request, cancel)

    @property
    def _is_plain(self) -> bool:
        return self.settings.pace == "off" or self.settings.spec_type == "none"

    def _said(self, script: Sequence[TokenEvent], request: Request, cancel: CancelFlag) -> Iterator[TokenEvent]:
        stats = Stats(prompt_tokens=self.count(request.messages) or len(request.prompt.split()))
        started_s = first_s = time.perf_counter()
        limit = request.max_tokens if request.max_tokens >= 0 else len(script)
        finish: FinishReason = "length" if limit < len(script) else "stop"
        for _, events in groupby(script[:limit], key=lambda event: event.round):
            if cancel.is_set():
                finish = "cancelled"
                break
            time.sleep(self.round_s)
            stats.rounds += 1
            first_s = first_s if stats.generated_tokens else time.perf_counter()
            for place, event in enumerate(events):
                if self.error is not None and stats.generated_tokens >= self.error_after:
                    yield TokenEvent(-1, "", finish_reason="error", stats=stats)
                    raise self.error
                stats.generated_tokens += 1
                stats.proposed += 0 if place else event.proposed
                stats.accepted += event.from_draft
                yield event
        stats.prompt_s, stats.generation_s = first_s - started_s, time.perf_counter() - first_s
        yield TokenEvent(-1, "", finish_reason=finish, stats=stats)

    def count(self, messages: Sequence[Message], template: str = "") -> int:
        """A word is a token, a message four more."""
        return sum(4 + len(message.content.split()) for message in messages)

    def draft_with(self, **changes: Unpack[DraftingOptions]) -> None:
        self.calls.append(f"pace {changes['pace']}" if changes.get("pace") else "draft_with")
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        self._settings = replace(self.settings, **given)

    def pace_verdicts(self, request: Request) -> list[PolicyVerdict]:
        return []

    def tokenize(self, request: Request) -> list[int]:
        return [0] * self.count(request.messages)

    def render(self, request: Request) -> str:
        return "".join(f"[{message.role}]{message.content}{message.extra}" for message in request.messages)

    def forget(self) -> None:
        self.calls.append("forget")

    def keep_state(
        self, messages: Sequence[Message], file: Path, most_bytes: int, within_s: float = 60.0, template: str = ""
    ) -> int:
        self.calls.append(f"keep {file.name}")
        return 1

    def recall_state(self, messages: Sequence[Message], file: Path, template: str = "") -> int:
        self.calls.append(f"recall {file.name}")
        return 0

    def close(self) -> None:
        self.closed = True
