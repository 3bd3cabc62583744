"""A conversation: the messages of its open branch in the store, those that are sent to the model, and its settings."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile

from edgespec.chat.attachments import Attachment, with_images, without_files
from edgespec.chat.model import Catalogued, ChatModel
from edgespec.chat.personas import Persona, persona
from edgespec.chat.saving import Recording, Write, Writes
from edgespec.chat.settings import ChatSettings, as_catalogued, setting, with_changes
from edgespec.errors import EdgespecError, UsageError
from edgespec.history import AnswerRecord, Branch, ChatInfo, Store, StoreError, Turn, new_id
from edgespec.history.data import first_line
from edgespec.llm.info import ModelInfo
from edgespec.settings import CONSTRAINTS, Message
from edgespec.text.printable import with_unix_line_ends
from edgespec.text.thinking import OPEN
from edgespec.tools.offer import Style, ToolOffer, called, replied
from edgespec.tools.results import ToolResult

UNSENT = "unsent"  # the name of a setting of a chat, and of a preference for the next new chat
SHORT = Message("user", "x")  # the template adds some tokens to the text of a message


class Conversation:
    """A conversation as it is stored.

    `id` is its id, `saved_id` the same, but None before the first message is saved. `turns` are the messages of the
    open branch; those before `first_sent` are no longer sent. The files in `attached` are sent with the next message.
    `used` is the number of tokens in the context. `system` is the system prompt of this chat; new chats begin with the
    system prompt given here, or with the persona given to `begin_as`. `persona` is the name of the chat's persona;
    `taken_persona` is None if its file cannot be read.

    If the store fails, no message is lost: it is written together with the next one, and `store_error` is the reason.
    """

    def __init__(self, model: ChatModel, store: Store, settings: ChatSettings, system: str) -> None:
        self.model, self.store, self.settings, self._own_system = model, store, settings, system
        self.counts = TokenCounts(model)
        self.attached: list[Attachment] = []
        self._own_settings = settings
        self._own_persona: tuple[Persona, Collection[str]] | None = None
        self.offer: ToolOffer | None = None  # the tools that the model gets
        self.persona = ""
        self.taken_persona: Persona | None = None
        self.is_answering = False
        self.writes = Writes(self._everything)
        self.new()

    def new(self) -> None:
        """Start another conversation; it is saved with its first message."""
        self.check_idle()
        self.saved_id: str | None = None
        self._unsent = ""
        self.take_persona(*(self._own_persona or (None,)))
        self.id, self.title = new_id(), ""
        self.turns: list[Turn] = []
        self.first_sent = self.reported_first = self.used = 0

    def open(self, name: str, key: str | None = None) -> None:
        """Resume a chat: `name` is its id, the beginning of its id, or "last". Raises StoreError.

        With `key`, a branch that has this message is shown.
        """
        self.check_idle()
        info = self.store.find(name)
        settings = dict(self.store.chat_settings(info.id))
        self._drop_persona()
        self.saved_id, self.id, self.title = info.id, info.id, info.title
        self.system, self._unsent = str(settings.pop("system", "")), str(settings.pop(UNSENT, ""))
        if "sampling" in settings:
            bias = self.settings.sampling.logit_bias  # it belongs to the vocabulary of the model, not to a chat
            kept = ChatSettings.from_json(settings)
            self.settings = replace(kept, sampling=replace(kept.sampling, logit_bias=bias))
        self.persona = str(settings.get("persona", ""))
        with suppress(UsageError):
            self.taken_persona = persona(self.persona) if self.persona else None
        self.show(self.store.path(info.head))
        self.draft_as_set_or_loaded()
        if key is not None and all(turn.key != key for turn in self.turns):
            self.switch(key)

    def take_unsent(self) -> str:
        """Return the text that was not sent when this chat, or a chat without messages, was left, and forget it."""
        text, self._unsent = self._unsent, ""
        if text:
            self.save_settings()
        with suppress(StoreError):
            if self.saved_id is None and (kept := self.store.preference(UNSENT)):
                text = kept
                self.store.set_preference(UNSENT, "")
        return text

    def keep_unsent(self, text: str) -> bool:
        """Save a text that was not sent, until this chat is opened again, or from a chat without messages a new one.

        Return False if the store does not accept it.
        """
        self._unsent = text
        if self.saved_id is not None:
            self.save_settings()
            return self.store_error is None
        try:
            self.store.set_preference(UNSENT, text)
        except StoreError:
            return False
        return True

    def begin_as(self, chosen: Persona, but: Collection[str] = ()) -> None:
        """Use a persona here and in new chats, except for the fields `but` ("system" is one). Raises UsageError."""
        self._own_persona = (chosen, but)
        self.take_persona(chosen, but)

    def take_persona(self, chosen: Persona | None, but: Collection[str] = ()) -> None:
        """Use another persona, or None for no persona, from the next message on. Raises UsageError."""
        settings = self._settings_without_persona()
        settings = settings if chosen is None else chosen.applied(settings, but)
        if not self.is_answering:
            self.model.draft_as(settings)
        self._drop_persona()
        self.settings = settings
        if chosen is not None:
            self.persona, self.taken_persona = chosen.name, chosen
            self.system = self.system if "system" in but or not chosen.system else chosen.system
        self.save_settings()

    def _drop_persona(self) -> None:
        """Restore the user's own system prompt, and the settings that the persona had replaced."""
        self.settings, self.system = self._settings_without_persona(), self._own_system
        self.persona, self.taken_persona = "", None

    def _settings_without_persona(self) -> ChatSettings:
        taken = self.taken_persona
        return self.settings if taken is None else taken.removed(self.settings, self._own_settings)

    def change(self, texts: Mapping[str, str]) -> None:
        """Change settings, given as texts by name, from the next message on. Raises UsageError."""
        settings = with_changes(self.settings, texts)
        if any(setting(name).group == "drafting" for name in texts) and not self.is_answering:
            self.model.draft_as(settings)
        self.settings = settings
        self.save_settings()

    def set_system(self, text: str) -> None:
        """Change the system prompt of this chat, from the next answer on."""
        self.system = with_unix_line_ends(text)
        self.save_settings()

    def answer_as_catalogued(self, before: Catalogued, now: Catalogued) -> None:
        """Replace settings that still have the previous model's default."""
        system_before, system = str(before.get("system", "")), str(now.get("system", ""))
        self._own_system = system if self._own_system == system_before else self._own_system
        self.system = system if self.system == system_before else self.system
        self.settings = as_catalogued(self.settings, before, now)
        self._own_settings = as_catalogued(self._own_settings, before, now)
        self.save_settings()

    def draft_as_set_or_loaded(self) -> None:
        try:
            self.model.draft_as(self.settings)
        except UsageError:  # settings for another model
            self.settings = self.settings.drafting_as_loaded()

    def undo(self) -> str:
        """Take back the last message and its answer, which stay a branch; return its text. Raises UsageError.

        Its files are attached again.
        """
        self.check_idle()
        last = next((index for index in reversed(range(len(self.turns))) if self.turns[index].role == "user"), None)
        if last is None:
            raise UsageError("there is nothing to undo")
        files, text = without_files(self.turns[last].content)
        self.attached = [*files, *(file for file in self.attached if file not in files)]
        self.show(self.turns[:last])
        self._save_head()
        return text

    def fork(self) -> str:
        """Continue in a new chat with the same messages; return its id. Raises UsageError."""
        self.check_idle()
        if self.saved_id is None:
            raise UsageError("there is nothing to fork yet")
        self.saved_id = self.id = self.store.fork(self.saved_id, self.head, f"{self.title} (fork)")
        self.title = self.store.find(self.id).title
        self.save_settings()
        return self.id

    def branches(self) -> list[Branch]:
        """Return the branches of this conversation, the newest first."""
        return self.store.branches(self.saved_id) if self.saved_id else []

    def switch(self, key: str) -> None:
        """Switch to the newest branch with the message `key`. Raises UsageError, StoreError."""
        self.check_idle()
        if (chat := self.saved_id) is not None:
            self.show(self.store.path(self.store.latest_leaf(chat, key)))
            self._save_head()

    def step(self, key: str, by: int) -> None:
        """Switch to the next version of message `key`, or with -1 to the previous one."""
        if self.saved_id is not None:
            siblings = self.store.siblings(self.saved_id, key)
            self.switch(siblings[(siblings.index(key) + by) % len(siblings)])

    def rename(self, title: str) -> None:
        """Give the chat another title."""
        self.title = title
        self._write(self.store.rename, title)

    def info(self) -> ChatInfo:
        """Return the chat as the store lists it."""
        times = [turn.created_s for turn in self.turns] or [0.0]
        return ChatInfo(self.id, self.title, times[0], times[-1], self.head, len(self.turns), self.model.names[0])

    @property
    def store_error(self) -> StoreError | None:
        """Why the store did not accept the last writes."""
        return self.writes.error

    @property
    def last_answer(self) -> AnswerRecord:
        """The record of the last answer; an empty one if there is no answer."""
        return next((turn.answer for turn in reversed(self.turns) if turn.answer is not None), AnswerRecord())

    def check_idle(self) -> None:
        """Raise UsageError while an answer is being generated."""
        if self.is_answering:
            raise UsageError("an answer is being generated", hint="stop it first")

    @property
    def head(self) -> str | None:
        return self.turns[-1].key if self.turns else None

    def show(self, turns: list[Turn]) -> None:
        """Make these turns the open branch. The context begins where it did when their last answer was generated."""
        self.turns = turns
        last, keys = self.last_answer, [turn.key for turn in turns]
        self.used, first = int(last.stats.get("context_used", 0)), last.settings.get("first_sent")
        self.first_sent = self.reported_first = keys.index(first) if first in keys else 0

    def append(self, turn: Turn) -> None:
        """Append a turn to the conversation, and save it."""
        if self.saved_id is None:
            files, text = without_files(turn.content)
            title = self.title or (first_line(text) if files else "")
            self.saved_id, self.title = self.id, title or first_line(turn.content)
            self._write(self.store.create, self.settings_as_json(), title)
        self.turns = [*self.turns, turn]
        self._write(self.store.append, turn.parent, turn.role, turn.content, turn.answer)

    def _write(self, method: Callable[..., object], *arguments: object) -> None:
        """Call a method of the store for this chat, if the chat is saved."""
        if self.saved_id is not None:
            self.writes.write(partial(method, self.saved_id, *arguments))

    def _save_head(self) -> None:
        self._write(self.store.set_head, self.head)

    def save_settings(self) -> None:
        unsent = {UNSENT: self._unsent} if self._unsent else {}
        self._write(self.store.save_settings, self.settings_as_json() | unsent)

    def settings_as_json(self) -> dict[str, object]:
        return self.settings.as_json() | {"system": self.system, "persona": self.persona} | self.model.as_json()

    def _everything(self) -> Write | None:
        """Return the write that saves the whole conversation again; None if no chat is open."""
        if self.saved_id is None:
            return None
        return partial(self.store.restore, self.saved_id, self.settings_as_json(), self.title, self.turns)

    # --- what is sent ---------------------------------------------------------------------------------------------

    @property
    def context_size(self) -> int:
        return self.model.info.ctx_size

    def trouble(self) -> str:
        """Return why the attachments cannot be sent, and what to do; "" if they can be, or are not counted."""
        return self.counts.fault(self.attached) or self._too_long()

    def _too_long(self) -> str:
        n_tokens, n_ctx = self.counts.total(self.attached) or 0, self.context_size
        if n_tokens < n_ctx or not n_ctx:
            return ""
        longest = max(self.attached, key=lambda file: file.n_bytes)
        return (
            f"{n_tokens:,} tokens are attached, {n_tokens - n_ctx + 1:,} too many for the context of {n_ctx:,}\n"
            f"  attach some pages, rows or lines (/file {longest.spec} 1-10), or start with a larger context (-c)"
        )

    def detach(self, number: str = "") -> None:
        """Remove the attachment with this number, counted from 1, or all attachments. Raises UsageError."""
        n_files = len(self.attached)
        if not number:
            self.attached = []
        elif number.isdecimal() and 1 <= int(number) <= n_files:
            self.attached = [file for place, file in enumerate(self.attached, 1) if place != int(number)]
        else:
            raise UsageError(f"there is no attachment {number!r}", hint="/file lists them")

    @property
    def messages(self) -> list[Message]:
        """The open path as it is sent."""
        return self._messages(self.turns, self.first_sent)

    def _messages(self, turns: Sequence[Turn], first: int) -> list[Message]:
        system = [Message("system", self.system)] if self.system else []
        style = self.model.style if any(turn.role == "tool" for turn in turns[first:]) else None
        return [*system, *as_messages(turns[first:], self.model.info, style)]

    @property
    def template(self) -> str:
        """The arguments of the chat template: the tools that the model gets."""
        return self.offer.template if self.offer else ""

    def sent(self, recording: Recording) -> tuple[list[Message], int]:
        """Return the messages that fit, including the answer so far, and the number of tokens that are not sent."""
        last = recording.message()
        self.make_room(self.turns, last)
        messages = self._messages(self.turns, self.first_sent) + last
        left = 0
        if self.first_sent:
            everything = self._messages(self.turns, 0) + last
            left = max(0, self.model.count(everything, self.template) - self.model.count(messages, self.template))
        return messages, left

    def make_room(self, turns: Sequence[Turn], last: Sequence[Message] = ()) -> None:
        """Drop the oldest messages if they and an answer do not fit together. Raises UsageError."""
        self.first_sent, self.used = self._fitting(turns, last)

    def _fitting(self, turns: Sequence[Turn], last: Sequence[Message] = ()) -> tuple[int, int]:
        """Return the first turn to send, and the number of tokens from that turn on.

        If the turns that are sent now and an answer do not fit, the oldest are dropped until half of the context is
        free: everything after a dropped message must be processed again, so dropping is rare. Raises UsageError if the
        last message alone is too long.
        """

        def size(first: int) -> int:
            return self.model.count([*self._messages(turns, first), *last], self.template)

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
                f"the message and the system prompt{' with the tools' if self.offer else ''} have {needed:,} tokens, "
                f"the context holds {n_ctx:,}",
                hint="shorten it, remove files (/file none N), or start with a larger context (-c)"
                + (", or do without tools (/tools off)" if self.offer else ""),
            )
        return start, needed

    def _later_starts(self, turns: Sequence[Turn]) -> list[int]:
        """Return the turns at which the sent part could begin later: those of the user."""
        return [index for index, turn in enumerate(turns) if turn.role == "user" and index > self.first_sent]

    def has_overflowed(self, recording: Recording, max_tokens: int) -> bool:
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
        self._faults: dict[tuple[str, int], str] = {}

    def total(self, files: Sequence[Attachment]) -> int | None:
        """Return the number of tokens of all files, None if one of them is not counted yet."""
        counts = [self._counts.get(self._key(file)) for file in files]
        return None if None in counts else sum(filter(None, counts))

    def count(self, file: Attachment) -> int | None:
        """Count the tokens of a file; return None without a model."""
        key, engine = self._key(file), self._model.engine
        if key not in self._counts and engine is not None:
            try:
                with_file = engine.count([with_images("user", f"{file.block}\n\n{SHORT.content}")])
                self._counts[key] = with_file - engine.count([SHORT])
                self._faults.pop(key, None)
            except UsageError as error:
                self._faults[key] = str(error)
            except EdgespecError:  # the model has died, which its next request reports
                return None
        return self._counts.get(key)

    def fault(self, files: Sequence[Attachment]) -> str:
        """Return why the model cannot read one of these files, such as an image; "" if no reason was found."""
        return next(filter(None, (self._faults.get(self._key(file), "") for file in files)), "")

    def _key(self, file: Attachment) -> tuple[str, int]:
        return self._model.info.model, hash(file)


def as_messages(turns: Sequence[Turn], info: ModelInfo, style: Style | None) -> Iterator[Message]:
    """Yield turns as messages for the model that `info` describes, with results of tools in its `style`."""
    number = 0
    for index, turn in enumerate(turns):
        if turn.role == "tool":
            yield _as_result(ToolResult.of(turn.content), number, style)
            number += 1
            continue
        following = takewhile(lambda turn: turn.role == "tool", turns[index + 1 :])
        results = [ToolResult.of(each.content) for each in following]
        is_open = bool(results) and all(each.role != "user" for each in turns[index:])
        message = as_message(turn, info, is_open=is_open)
        yield called(message, turn.said, results, style, number) if style is not None else message


def _as_result(result: ToolResult, number: int, style: Style | None) -> Message:
    if style is not None:
        return replied(result, number)
    return Message("user", f"<tool_response>\n{result.told}\n</tool_response>")


def ids_of(turn: Turn, info: ModelInfo) -> tuple[int, ...]:
    """Return the token ids of an answer as it was generated; none if the model has another vocabulary."""
    answer = turn.answer
    return answer.ids if answer is not None and answer.vocabulary == info.vocabulary else ()


def as_message(turn: Turn, info: ModelInfo, *, is_open: bool = False) -> Message:
    """Return a turn as a message for the model that `info` describes.

    An answer of a model with the same vocabulary has its token ids, so that the KV cache can be reused exactly. It has
    none if the template changes its text, for example by removing the reasoning. The reasoning stays in an answer that
    `is_open`: the model has called tools in it, and has not answered the user yet.
    """
    message, answer = with_images(turn.role, turn.content), turn.answer
    if answer is None or not (ids := ids_of(turn, info)):
        return message
    drops = info.opens_thinking or (info.drops_thinking and not is_open)
    # The reasoning before a constrained answer is among its tokens, but not in its text.
    may_reason = turn.content.lstrip().startswith(OPEN) or any(answer.settings.get(kind) for kind in CONSTRAINTS)
    is_changed = not info.keeps_answers or (drops and may_reason)
    return message if is_changed else replace(message, tokens=ids)
