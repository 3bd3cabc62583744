"""The part of a conversation that is sent to its model: messages that fit into the context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from edgespec.chat.answerer import Answerer
from edgespec.chat.attachments import Attachment, with_files
from edgespec.chat.conversation import Conversation
from edgespec.chat.model import ChatModel
from edgespec.chat.saving import Recording
from edgespec.chat.settings import ChatSettings
from edgespec.errors import EdgespecError, UsageError
from edgespec.history import Store, Turn
from edgespec.history.data import turn_of
from edgespec.settings import Message
from edgespec.text.figures import counted
from edgespec.text.thinking import OPEN

SHORT = Message("user", "x")  # the template adds some tokens to the text of a message


class Sending(Conversation):
    """A conversation whose messages are sent to its model."""

    def __init__(self, model: ChatModel, store: Store, settings: ChatSettings, system: str) -> None:
        self.counts = TokenCounts(model)
        super().__init__(model, store, settings, system)

    @property
    def engine(self) -> Answerer | None:
        return self.model.engine

    @property
    def about(self) -> Mapping[str, Any]:
        return self.model.about

    @property
    def context_size(self) -> int:
        return int(self.about.get("ctx_size", 0))

    def reading(self, done: float) -> str:
        """Return how much of the prompt the model has processed, in words; `done` is from 0 to 1."""
        return f"reading {int(done * self.used):,} of {self.used:,} tokens" if 0 < done < 1 and self.used else "reading"

    def detach(self, number: str = "") -> None:
        """Remove the attachment with this number, counted from 1, or all attachments. Raises UsageError."""
        n_files = len(self.attached)
        if not number:
            self.attached = []
        elif number.isdecimal() and 1 <= int(number) <= n_files:
            self.attached = [file for place, file in enumerate(self.attached, 1) if place != int(number)]
        else:
            raise UsageError(f"there is no attachment {number!r}", hint="/file lists them")

    def crowding(self) -> str:
        """Return a warning if the attachments do not fit, or drop older messages from the context; else ""."""
        if not self.attached or self.engine is None:
            return ""
        turn = turn_of(self._id, self._head, "user", with_files(self.attached, SHORT.content))
        try:
            self.check_room(self.attached)
            n_dropped = self._fitting([*self.turns, turn])[0] - self.first_sent
        except UsageError as error:
            return f"this does not fit: {error.what}"
        except EdgespecError:  # the model has died, which its next request reports
            return ""
        dropped, size = counted(n_dropped, "older message"), f"{self.context_size:,} tokens"
        return f"sending this drops {dropped} from the context of {size}" if n_dropped else ""

    def check_room(self, files: Sequence[Attachment]) -> None:
        """Raise UsageError if the counted files are larger than the context."""
        total = self.counts.total(files) or 0
        if self.engine is not None and total >= self.context_size:
            what = f"the attached files have {total:,} tokens, the context holds {self.context_size:,}"
            raise UsageError(what, hint="remove some (/file none N), or use a larger context (-c)")

    @property
    def messages(self) -> list[Message]:
        """The open path as it is sent."""
        return self._messages(self.turns, self.first_sent)

    def _messages(self, turns: Sequence[Turn], first: int) -> list[Message]:
        system = [Message("system", self.system)] if self.system else []
        return [*system, *(as_message(turn, self.about) for turn in turns[first:])]

    def _sent(self, recording: Recording) -> tuple[list[Message], int]:
        """Return the messages that fit, including the answer so far, and the number of tokens that are not sent."""
        last = recording.message()
        self._make_room(self.turns, last)
        messages = self._messages(self.turns, self.first_sent) + last
        left = 0
        if self.first_sent:
            left = max(0, self.model.count(self._messages(self.turns, 0) + last) - self.model.count(messages))
        return messages, left

    def _make_room(self, turns: Sequence[Turn], last: Sequence[Message] = ()) -> None:
        """Drop the oldest messages if they and an answer do not fit together. Raises UsageError."""
        self.first_sent, self.used = self._fitting(turns, last)

    def _fitting(self, turns: Sequence[Turn], last: Sequence[Message] = ()) -> tuple[int, int]:
        """Return the first turn to send, and the number of tokens from that turn on.

        If the turns that are sent now and an answer do not fit, the oldest are dropped until half of the context is
        free: everything after a dropped message must be processed again, so dropping is rare. Raises UsageError if the
        last message alone is too long.
        """

        def size(first: int) -> int:
            return self.model.count([*self._messages(turns, first), *last])

        n_ctx, start = self.context_size, self.first_sent
        reserve = n_ctx // 4 if self.settings.max_tokens < 0 else min(self.settings.max_tokens, n_ctx // 4)
        needed = size(start)
        if needed <= n_ctx - reserve:
            return start, needed
        if later := self._later_starts(turns):
            at = bisect_left(later, True, key=lambda start: size(start) <= n_ctx // 2)
            start = later[min(at, len(later) - 1)]
            needed = size(start)
        if needed >= n_ctx - 1:
            raise UsageError(
                f"the message and the system prompt have {needed:,} tokens, the context holds {n_ctx:,}",
                hint="shorten it, or use a larger context (-c)",
            )
        return start, needed

    def _later_starts(self, turns: Sequence[Turn]) -> list[int]:
        """Return the turns at which the sent part could begin later: those of the user."""
        return [index for index, turn in enumerate(turns) if turn.role == "user" and index > self.first_sent]

    def _overflowed(self, recording: Recording, max_tokens: int) -> bool:
        """Return whether an answer ended because the context is full, and older messages can be dropped."""
        stats = recording.segment
        if recording.reason != "length" or stats is None or stats.generated_tokens == max_tokens:
            return False
        return bool(self._later_starts(self.turns))


class TokenCounts:
    """Counts the tokens of files, each once per model. Another thread may count while an answer is generated."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self._counts: dict[tuple[str, int], int] = {}

    def total(self, files: Sequence[Attachment]) -> int | None:
        """Return the number of tokens of all files, None if one of them is not counted yet."""
        counts = [self._counts.get(self._key(file)) for file in files]
        return None if None in counts else sum(filter(None, counts))

    def count(self, file: Attachment) -> int | None:
        """Count the tokens of a file; return None without a model."""
        key, engine = self._key(file), self._model.engine
        if key not in self._counts and engine is not None:
            try:
                with_file = engine.count([Message("user", f"{file.block}\n\n{SHORT.content}")])
                self._counts[key] = with_file - engine.count([SHORT])
            except EdgespecError:  # the model has died, which its next request reports
                return None
        return self._counts.get(key)

    def _key(self, file: Attachment) -> tuple[str, int]:
        return str(self._model.about.get("model", "")), hash(file)


def as_message(turn: Turn, about: Mapping[str, Any]) -> Message:
    """Return a turn as a message for the model that `about` describes.

    An answer of a model with the same vocabulary has its token ids, so that the KV cache can be reused exactly. It has
    none if the template changes its text by removing the reasoning.
    """
    answer = turn.answer
    if answer is None or answer.vocabulary != about.get("vocabulary"):
        return Message(turn.role, turn.content)
    thinks = turn.content.lstrip().startswith(OPEN)
    changed = thinks and (about.get("drops_thinking") or about.get("opens_thinking"))
    return Message(turn.role, turn.content, () if changed else answer.ids)
