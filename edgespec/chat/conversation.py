"""A conversation in the store: the messages of its open branch, its persona and its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from edgespec.chat.attachments import Attachment, without_files
from edgespec.chat.model import ChatModel
from edgespec.chat.personas import Persona, persona
from edgespec.chat.saving import Write, Writes
from edgespec.chat.settings import ChatSettings
from edgespec.core.stats import Stats
from edgespec.errors import UsageError
from edgespec.history import Answer, Branch, Store, StoreError, Turn, new_id
from edgespec.history.data import first_line


class Conversation:
    """A conversation as it is stored.

    `turns` are the messages of the open branch; those before `first_sent` are no longer sent. The files in `attached`
    are sent with the next message. `used` is the number of tokens in the context. `system` is the system prompt of this
    chat; new chats begin with the system prompt given here, or with the persona given to `begin_as`. `persona` is the
    name of the chat's persona; `taken_persona` is None if its file cannot be read.

    If the store fails, no message is lost: it is written together with the next one. `unsaved` counts such writes, and
    `store_error` is the reason.
    """

    def __init__(self, model: ChatModel, store: Store, settings: ChatSettings, system: str) -> None:
        self.model, self.store, self.settings, self._own_system = model, store, settings, system
        self.attached: list[Attachment] = []
        self._own_settings = settings
        self._own_persona: tuple[Persona, Collection[str]] | None = None
        self.persona = ""
        self.taken_persona: Persona | None = None
        self._is_answering = False
        self._writes = Writes(self._everything)
        self.new()

    def new(self) -> None:
        """Start another conversation; it is saved with its first message."""
        self._check_idle()
        self.chat: str | None = None
        self._drop_persona()
        if self._own_persona is not None:
            self.take_persona(*self._own_persona)
        self._id = new_id()
        self.title = ""
        self.turns: list[Turn] = []
        self.first_sent = self._reported_first = self.used = 0

    def open(self, name: str) -> None:
        """Resume a chat: `name` is its id, the beginning of its id, or "last". Raises StoreError."""
        self._check_idle()
        info = self.store.find(name)
        settings = dict(self.store.chat_settings(info.id))
        self._drop_persona()
        self.chat = self._id = info.id
        self.title = info.title
        self.system = str(settings.pop("system", ""))
        if "sampling" in settings:
            bias = self.settings.sampling.logit_bias  # it belongs to the vocabulary of the model, not to a chat
            kept = ChatSettings.from_json(settings)
            self.settings = replace(kept, sampling=replace(kept.sampling, logit_bias=bias))
        self.persona = str(settings.get("persona", ""))
        with suppress(UsageError):
            self.taken_persona = persona(self.persona) if self.persona else None
        self._go_to(info.head)
        self._draft_as_set_or_loaded()

    def begin_as(self, chosen: Persona, but: Collection[str] = ()) -> None:
        """Use a persona here and in new chats, except for the fields `but` ("system" is one). Raises UsageError."""
        self._own_persona = (chosen, but)
        self.take_persona(chosen, but)

    def take_persona(self, chosen: Persona | None, but: Collection[str] = ()) -> None:
        """Use another persona, or None for no persona, from the next message on. Raises UsageError."""
        settings = self._settings_without_persona()
        settings = settings if chosen is None else chosen.applied(settings, but)
        if not self._is_answering:
            self.model.draft_as(settings)
        self._drop_persona()
        self.settings = settings
        if chosen is not None:
            self.persona, self.taken_persona = chosen.name, chosen
            self.system = self.system if "system" in but or not chosen.system else chosen.system
        self._save_settings()

    def _drop_persona(self) -> None:
        """Restore the user's own system prompt, and the settings that the persona had replaced."""
        self.settings, self.system = self._settings_without_persona(), self._own_system
        self.persona, self.taken_persona = "", None

    def _settings_without_persona(self) -> ChatSettings:
        taken = self.taken_persona
        return self.settings if taken is None else taken.removed(self.settings, self._own_settings)

    def _draft_as_set_or_loaded(self) -> None:
        try:
            self.model.draft_as(self.settings)
        except UsageError:  # settings for another model
            self.settings = self.settings.drafting_as_loaded()

    def undo(self) -> str:
        """Take back the last message and its answer, which stay a branch; return its text. Raises UsageError.

        Its files are attached again.
        """
        self._check_idle()
        last = next((index for index in reversed(range(len(self.turns))) if self.turns[index].role == "user"), None)
        if last is None:
            raise UsageError("there is nothing to undo")
        files, text = without_files(self.turns[last].content)
        self.attached = [*files, *(file for file in self.attached if file not in files)]
        self._show(self.turns[:last])
        self._save_head()
        return text

    def fork(self) -> str:
        """Continue in a new chat with the same messages; return its id. Raises UsageError."""
        self._check_idle()
        if self.chat is None:
            raise UsageError("there is nothing to fork yet")
        self.chat = self._id = self.store.fork(self.chat, self._head, _fork_title(self.title))
        self.title = self.store.find(self._id).title
        self._save_settings()
        return self._id

    def branches(self) -> list[Branch]:
        """Return the branches of this conversation, the newest first."""
        return self.store.branches(self.chat) if self.chat else []

    def switch(self, key: str) -> None:
        """Switch to the newest branch with the message `key`. Raises UsageError, StoreError."""
        self._check_idle()
        if (chat := self.chat) is not None:
            self._go_to(self.store.latest_leaf(chat, key))
            self._save_head()

    def step(self, key: str, by: int) -> None:
        """Switch to the next version of message `key`, or with -1 to the previous one."""
        if self.chat is not None:
            siblings = self.store.siblings(self.chat, key)
            self.switch(siblings[(siblings.index(key) + by) % len(siblings)])

    def rename(self, title: str) -> None:
        """Give the chat another title."""
        self.title = title
        self._write(self.store.rename, title)

    @property
    def unsaved(self) -> int:
        """The number of writes that the store did not accept yet."""
        return len(self._writes)

    @property
    def store_error(self) -> StoreError | None:
        """Why the store did not accept them."""
        return self._writes.error

    @property
    def is_answering(self) -> bool:
        """True while an answer is generated."""
        return self._is_answering

    @property
    def last_stats(self) -> Stats | None:
        """The statistics of the last answer, None without one."""
        stats = self._last_answer.stats
        return Stats.from_json(stats) if stats.get("timings") else None

    @property
    def _last_answer(self) -> Answer:
        """How the last answer was generated; `Answer()` without one."""
        return next((turn.answer for turn in reversed(self.turns) if turn.answer is not None), Answer())

    def _check_idle(self) -> None:
        """Raise UsageError while an answer is being generated."""
        if self._is_answering:
            raise UsageError("an answer is being generated", hint="stop it first")

    @property
    def _head(self) -> str | None:
        return self.turns[-1].key if self.turns else None

    def _go_to(self, head: str | None) -> None:
        self._show(self.store.path(head))

    def _show(self, turns: list[Turn]) -> None:
        """Make these turns the open branch. The context begins where it did when their last answer was generated."""
        self.turns = turns
        last, keys = self._last_answer, [turn.key for turn in turns]
        self.used, first = int(last.stats.get("context_used", 0)), last.settings.get("first_sent")
        self.first_sent = self._reported_first = keys.index(first) if first in keys else 0

    def _keep(self, turn: Turn) -> None:
        """Append a turn to the conversation, and save it."""
        if self.chat is None:
            files, text = without_files(turn.content)
            title = self.title or (first_line(text) if files else "")
            self.chat, self.title = self._id, title or first_line(turn.content)
            self._write(self.store.create, self._settings_as_json(), title)
        self.turns = [*self.turns, turn]
        self._write(self.store.append, turn.parent, turn.role, turn.content, turn.answer)

    def _write(self, method: Callable[..., object], *arguments: Any) -> None:
        """Call a method of the store for this chat, if the chat is saved."""
        if self.chat is not None:
            self._writes.write(partial(method, self.chat, *arguments))

    def _save_head(self) -> None:
        self._write(self.store.set_head, self._head)

    def _save_settings(self) -> None:
        self._write(self.store.save_settings, self._settings_as_json())

    def _settings_as_json(self) -> dict[str, Any]:
        return self.settings.as_json() | {"system": self.system, "persona": self.persona} | self.model.as_json()

    def _everything(self) -> list[Write]:
        """Return the writes that save the whole conversation again; none if no chat is open."""
        if self.chat is None:
            return []
        create = partial(self.store.create, self.chat, self._settings_as_json(), self.title)
        append = partial(self.store.append, self.chat)
        return [create, *(partial(append, turn.parent, turn.role, turn.content, turn.answer) for turn in self.turns)]


def _fork_title(title: str) -> str:
    """Return "TITLE (fork)", or the next number for a title that has such an end already."""
    end = re.search(r" \(fork(?: (\d{1,9}))?\)$", title)
    return f"{title[: end.start()]} (fork {int(end[1] or 1) + 1})" if end else f"{title} (fork)"
