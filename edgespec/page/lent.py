"""A model that the server keeps loaded, as a chat asks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.llm.notes import Notes
from edgespec.llm.shared import SharedModel
from edgespec.serve.served import REPLY_S, Served
from edgespec.settings import Inputs, Request


class LentModel(SharedModel):
    """A model of the server, lent to a chat for an answer: to close it ends nothing.

    Its notes are those of the server, which shows them.
    """

    def __init__(self, served: Served) -> None:
        self.notes = Notes()
        self.loop = served.worker.loop
        self._settings = self.usual = served.settings
        self._info = served.info
        self._worker = served.worker.within(REPLY_S)

    def close(self) -> None:
        """Do nothing: the server keeps the model."""

    def call(self, name: str, *args: Any, **keywords: Any) -> Any:
        return self._worker.call(name, *args, **keywords)

    @property
    def room(self) -> int:
        return self._worker.room

    def prepared(self, request: Request | Inputs, cancel: CancelFlag | None = None) -> Any:
        """Return the request with the drafting settings of this chat, which asks how much of its prompt is read."""
        if isinstance(request, Inputs):
            return request
        return replace(request, return_progress=True, **self.drafting)
