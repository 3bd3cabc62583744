"""How many tokens texts have for the model of a chat."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.chat.attachments import Attachment
from edgespec.chat.model import ChatModel
from edgespec.errors import EdgespecError, UsageError
from edgespec.settings import Message

ASKED = "x"  # a message has some tokens beside its text


class TokenCounts:
    """Counts each text once for each model; another thread may do it while an answer is generated."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self._counts: dict[tuple[str, int], int] = {}

    def known(self, file: Attachment) -> int | None:
        """The number of tokens if it has been counted."""
        return self._counts.get(self._key(file))

    def total(self, files: Sequence[Attachment]) -> int | None:
        """The number of all together if each has been counted."""
        counts = [self.known(file) for file in files]
        return None if None in counts else sum(filter(None, counts))

    def check_room(self, files: Sequence[Attachment], context_size: int) -> None:
        """Raises UsageError if files that have been counted are larger than the context."""
        total = self.total(files) or 0
        if total >= context_size:
            what = f"the attached files have {total:,} tokens, the context holds {context_size:,}"
            raise UsageError(what, hint="remove some (/file none N), or use a larger context (-c)")

    def count(self, file: Attachment) -> int | None:
        """The number of tokens, or None without a model."""
        key, engine = self._key(file), self._model.engine
        if key not in self._counts and engine is not None:
            try:
                alone = engine.count([Message("user", ASKED)])
                self._counts[key] = engine.count([Message("user", f"{file.block}\n\n{ASKED}")]) - alone
            except EdgespecError:  # the model has gone; whoever asks it next reports that
                return None
        return self._counts.get(key)

    def _key(self, file: Attachment) -> tuple[str, int]:
        return str(self._model.about.get("model", "")), hash(file)
