"""What of a conversation is sent to its model, as messages that fit into the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgespec.chat.attachments import Attachment, with_files
from edgespec.chat.conversation import Conversation
from edgespec.chat.counting import TokenCounts
from edgespec.chat.model import ChatModel
from edgespec.chat.recording import Recording, turn_of
from edgespec.chat.sent import as_message, fitting, later_starts
from edgespec.chat.settings import ChatSettings
from edgespec.history import Store, Turn
from edgespec.settings import Message


class Sending(Conversation):
    """A conversation with a model. The files `attached` go with its next message; `counts` are their tokens."""

    def __init__(self, model: ChatModel, store: Store, settings: ChatSettings, system: str) -> None:
        self.model = model
        self.counts = TokenCounts(model)
        self.attached: list[Attachment] = []
        super().__init__(store, settings, system)

    @property
    def about(self) -> Mapping[str, Any]:
        return self.model.about

    @property
    def context_size(self) -> int:
        return int(self.about.get("ctx_size", 0))

    def reading(self, done: float) -> str:
        """How much of what is sent the model has read, from 0 to 1, in words."""
        return f"reading {int(done * self.used):,} of {self.used:,} tokens" if 0 < done < 1 and self.used else "reading"

    def pushed_out(self) -> int:
        """How many older messages will leave the context if the attached files are sent. Raises UsageError if they do
        not fit at all, or if no model is loaded."""
        self.counts.check_room(self.attached, self.context_size)
        turns = [*self.turns, turn_of(self._id, self._head, "user", with_files(self.attached, "x"))]
        return self._fitting(turns)[0] - self.first_sent

    @property
    def messages(self) -> list[Message]:
        """The open path as it is sent."""
        return self._messages(self.turns, self.first_sent)

    def _messages(self, turns: Sequence[Turn], first: int) -> list[Message]:
        system = [Message("system", self.system)] if self.system else []
        return [*system, *(as_message(turn, self.about) for turn in turns[first:])]

    def _sent(self, recording: Recording) -> tuple[list[Message], int]:
        """The messages that fit, including the answer so far, and how many tokens of the conversation are not sent."""
        last = recording.message()
        self._make_room(self.turns, last)
        messages = self._messages(self.turns, self.first_sent) + last
        left = 0
        if self.first_sent:
            left = max(0, self.model.count(self._messages(self.turns, 0) + last) - self.model.count(messages))
        return messages, left

    def _make_room(self, turns: Sequence[Turn], last: Sequence[Message] = ()) -> None:
        """Drop the oldest messages if all of them and an answer do not fit. Raises UsageError."""
        self.first_sent, self.used = self._fitting(turns, last)

    def _fitting(self, turns: Sequence[Turn], last: Sequence[Message] = ()) -> tuple[int, int]:
        return fitting(
            lambda first: self.model.count([*self._messages(turns, first), *last]),
            self.first_sent,
            later_starts(turns, self.first_sent),
            self.context_size,
            self.settings.max_tokens,
        )

    def _overflowed(self, recording: Recording, told: int) -> bool:
        """Whether the answer stopped because the context was full, and can continue once old messages are dropped."""
        stats = recording.segment
        if recording.reason != "length" or stats is None or stats.generated_tokens == told:
            return False
        return bool(later_starts(self.turns, self.first_sent))
