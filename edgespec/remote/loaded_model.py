"""A model that a server on this machine has loaded, which answers as the same model in this process would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.core.policy.policy import PolicyVerdict
from edgespec.errors import EdgespecError
from edgespec.events import COMPLETE, CONTEXT_FULL, TokenEvent
from edgespec.llm.info import ModelInfo
from edgespec.llm.stream import Events
from edgespec.remote.model import RemoteModel
from edgespec.remote.wire import body_of
from edgespec.settings import LoadSettings, Request

REPLY_S = 3.0  # for short requests, without which the answer is still shown


class UnansweredError(EdgespecError):
    """The server has failed before the first token, so that another model can still answer."""


class LoadedModel(RemoteModel):
    """A model of edgespec's server. The server's file describes the model, so no question precedes the first answer.

    `notes` are those of loading it.
    """

    is_own = True

    def __init__(self, url: str, key: str, settings: LoadSettings, info: ModelInfo, notes: Sequence[str]) -> None:
        self._info = info
        super().__init__(url, key, settings)
        for note in notes:
            self.notes.add(note)

    async def _introduction(self, also: Sequence[str]) -> tuple[ModelInfo, Mapping[str, object]]:
        return self._info, {}

    def check_settings(self, request: Request) -> None:
        """Do nothing: the server checks the settings when it is asked for an answer."""

    def token_ids(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return a text as ids. Raises UnansweredError."""
        try:
            return super().token_ids(text, add_special=add_special, parse_special=parse_special)
        except EdgespecError as error:
            raise _unanswered(error) from error

    def stream(self, requests: Iterable[Request | None], cancel: CancelFlag | None = None) -> Events:
        """Ask for answers that equal those of a process that has just loaded the model.

        Raises UnansweredError for an error before the first token of all answers.
        """
        # Without exact kernels a token's bits depend on the pass in which it was read.
        cached, has_begun = self.info.exact, False
        for number, event in super().stream((each and replace(each, cache_prompt=cached) for each in requests), cancel):
            if isinstance(event, EdgespecError) and not has_begun:
                raise _unanswered(event) from event
            if isinstance(event, TokenEvent):
                has_begun |= event.id >= 0 or event.finish_reason in COMPLETE
                if event.finish_reason == "error" and not has_begun:
                    continue
                if event.stats and event.finish_reason == "length":
                    self._note_full_context(event.stats.prompt_tokens + event.stats.generated_tokens)
            yield number, event

    def _note_full_context(self, n_tokens: int) -> None:
        if n_tokens >= self.info.ctx_size:
            self.notes.add(CONTEXT_FULL.format(self.info.ctx_size))

    def keep(self, seconds: float) -> None:
        """Let the server end after another time without requests, if it was started to end."""
        with suppress(EdgespecError):
            body = {"model": self.settings.model, "keep_alive": seconds}
            self.connection.reply("/api/generate", body, REPLY_S)

    def pace_verdicts(self, request: Request) -> list[PolicyVerdict]:
        """Return why drafters are active or off for requests like this one; nothing if the server does not reply."""
        body = self.drafting | body_of(request, is_own=True)[1] | {"model": self.settings.model}
        with suppress(EdgespecError, KeyError, TypeError, ValueError):
            return [_verdict(each) for each in self.connection.reply("/pace", body, REPLY_S)["drafters"]]
        return []


def _unanswered(error: EdgespecError) -> UnansweredError:
    return UnansweredError(error.what, why=error.why, hint=error.hint)


def _verdict(plain: Mapping[str, Any]) -> PolicyVerdict:
    return PolicyVerdict(**{**plain, "widths": {int(width): float(cost) for width, cost in plain["widths"].items()}})
