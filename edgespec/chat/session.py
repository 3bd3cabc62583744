"""A conversation as every front end sees it: what was said, what of it is sent, and answers kept while they come."""

from __future__ import annotations

import re
import secrets
import threading
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from edgespec.cancel import CancelFlag
from edgespec.chat.recording import Recording, turn_of
from edgespec.chat.settings import ChatSettings, changed, setting
from edgespec.closable import Closable
from edgespec.core.policy.auto_pace import PaceVerdict
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import Progress, TokenEvent
from edgespec.gguf_file.model_check import check_model
from edgespec.history import Answer, Branch, ChatInfo, Store, StoreError, Turn, UnknownChatError, new_id
from edgespec.history.data import first_line
from edgespec.models.names.known import short_name
from edgespec.models.names.spec import catalogued_settings, lasting, resolve
from edgespec.runtime.worker import Remedy, WorkerDiedError, remedies
from edgespec.settings import AUTO_DRAFT, CONSTRAINTS, LoadSettings, Message, Request
from edgespec.text.repetition import RepetitionDetector
from edgespec.text.thinking import OPEN

RACE_TOKENS = 256
AGAINST_LOOPS = "/set repeat-penalty 1.1 may help"
Level = Literal["info", "warning", "error"]


class Answerer(Protocol):
    """What answers: a Runtime, or a Worker with one in a process of its own."""

    settings: LoadSettings
    notes: list[str]

    def describe(self) -> dict[str, Any]: ...

    def answer(self, request: Request, cancel: CancelFlag | None = None) -> Generator[TokenEvent, None, None]: ...

    def count(self, messages: Sequence[Message]) -> int: ...

    def draft_with(
        self,
        *,
        spec_type: str | None = None,
        pace: str | None = None,
        spec_draft_n_max: int | None = None,
        spec_tree: int | None = None,
    ) -> None: ...

    def pace_verdicts(self, request: Request) -> list[PaceVerdict]: ...

    def forget(self) -> None: ...

    def close(self) -> None: ...


Opener = Callable[[LoadSettings, Progress | None, CancelFlag | None], Answerer]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to tell beside the answer; what it is `about` a screen may show in another way."""

    text: str
    level: Level = "info"
    about: Literal["", "context", "loop"] = ""


Events = Iterator[TokenEvent | Notice]


class Session(Closable):
    """One conversation, the model that answers it, and the store that keeps it.

    `turns` is the open path from the first message on; those before `first_sent` have left the context. `engine` is
    None while no model is loaded, and after one has died. `used` tokens of the context are in use, counted while an
    answer is made too. `system` is the system prompt of the open chat; a new one begins with the one given here.
    Nothing said is lost where the store fails: it is kept here and tried again at the next write, `unsaved` counts it
    and `store_error` says why.
    """

    def __init__(
        self,
        store: Store,
        open_engine: Opener,
        load_settings: LoadSettings,
        settings: ChatSettings | None = None,
        system: str = "",
        store_notes: list[str] | None = None,
    ) -> None:
        self.store, self._open_engine = store, open_engine
        self.load_settings, self.settings, self._own_system = load_settings, settings or ChatSettings(), system
        self.engine: Answerer | None = None
        self.attached: list[tuple[str, str]] = []  # names and texts of files that go with the next message
        self.begun = ""  # of an answer that is gone on with
        self._about: dict[str, Any] = {}
        self._drafting: dict[str, Any] = {}  # as the engine has it
        self._store_notes = [] if store_notes is None else store_notes
        self._notes_told = 0
        self._is_answering = False
        self._loops = RepetitionDetector()  # of the last answer
        self._writing = threading.RLock()
        self._failed: tuple[LoadSettings, dict[str, Any], EdgespecError] | None = None
        self._writes: list[Callable[[], object]] = []
        self.store_error: StoreError | None = None
        self.new()

    def close(self) -> None:
        """End the model; the store is the caller's. Safe to call twice."""
        with self._writing:
            self._retry()
        self.unload()

    # --- the model ------------------------------------------------------------------------------------------------

    def load(
        self,
        settings: LoadSettings | None = None,
        progress: Progress | None = None,
        cancel: CancelFlag | None = None,
    ) -> None:
        """Load a model, or the one of before again. What can be known to fail leaves the loaded one where it is.
        Another one answers with what the catalogue has for it, but for what the user has set.

        Raises what Runtime raises; `remedies` tells what could be tried then.
        """
        self._check_idle()
        wanted = settings or self.load_settings
        try:
            check_model(resolve(wanted.model).path)
            if wanted.draft_model and wanted.draft_model != AUTO_DRAFT:
                check_model(resolve(wanted.draft_model).path)
            catalogued = [catalogued_settings(each.model) for each in (self.load_settings, wanted)]
            self.unload()
            self.engine = self._open_engine(wanted, progress, cancel)
        except EdgespecError as error:
            if self.engine is None:
                self._failed = (wanted, {}, error)
            raise
        self._notes_told = 0
        self._about, self._drafting = self.engine.describe(), {}
        if wanted.model != self.load_settings.model:
            self._answer_as_catalogued(*catalogued)
        self.load_settings, self._failed = wanted, None
        self._draft_as_set_or_loaded()

    def unload(self) -> None:
        """Free the model."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def remedies(self) -> list[Remedy]:
        """With what settings to start again after the model has died, or could not be loaded."""
        if self._failed is None:
            return []
        wanted, about, error = self._failed
        found = remedies(wanted, about, error=error)
        if wanted != self.load_settings:
            found.append(Remedy(f"back to {self.load_settings.model}", self.load_settings))
        return found

    @property
    def failure(self) -> str:
        """Why there is no model, in words; empty where none has failed."""
        return str(self._failed[-1]) if self._failed else ""

    @property
    def about(self) -> Mapping[str, Any]:
        """What is loaded, or was (`Runtime.describe`)."""
        return self._about

    def change(self, name: str, text: str) -> None:
        """Change one setting for the next message on. Raises UsageError."""
        item = setting(name)
        before = self.settings
        if item.field in CONSTRAINTS and item.parse(text):  # one takes the place of any other
            none: dict[str, Any] = dict.fromkeys(CONSTRAINTS, "")
            before = replace(before, **none)
        settings = changed(before, name, text)
        if item.group == "drafting" and not self._is_answering:
            self._draft_as_set(settings)
        self.settings = settings
        self._save_settings()

    def set_system(self, text: str) -> None:
        """Change the system prompt of this chat, from the next answer on."""
        self.system = text
        self._save_settings()

    def verdicts(self) -> list[PaceVerdict]:
        """Why drafters guess or rest in this chat."""
        request = Request(sampling=self.settings.sampling, verify=self.settings.verify)
        if self.engine is None or self._is_answering:
            return []
        with self._watching():
            return self.engine.pace_verdicts(request)

    def _draft_as_set(self, settings: ChatSettings) -> None:
        if self.engine is None:
            return
        loaded = self.load_settings
        wanted: dict[str, Any] = {
            "spec_type": settings.spec_type or loaded.spec_type,
            "pace": settings.pace or loaded.pace,
            "spec_draft_n_max": loaded.draft_n_max if settings.n_max is None else settings.n_max,
            "spec_tree": loaded.spec_tree if settings.tree is None else settings.tree,
        }
        if wanted == self._drafting:
            return
        with self._watching():
            self.engine.draft_with(**wanted)
            self._about, self._drafting = self.engine.describe(), wanted

    def _answer_as_catalogued(self, before: Mapping[str, str | float], now: Mapping[str, str | float]) -> None:
        """Replace what still is as the catalogue, or the default, had it for the model before."""
        system_before, system = str(before.get("system", "")), str(now.get("system", ""))
        self._own_system = system if self._own_system == system_before else self._own_system
        self.system = system if self.system == system_before else self.system
        sampling, default = self.settings.sampling, SamplingSettings()
        changes: dict[str, Any] = {
            name: now.get(name, getattr(default, name))
            for name in ("temperature", "top_p")
            if getattr(sampling, name) == before.get(name, getattr(default, name))
        }
        self.settings = replace(self.settings, sampling=replace(sampling, **changes))
        self._save_settings()

    def _draft_as_set_or_loaded(self) -> None:
        try:
            self._draft_as_set(self.settings)
        except UsageError:  # what was set for another model
            self.settings = replace(self.settings, spec_type=None, pace=None, n_max=None, tree=None)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Within this block a model that dies is remembered as dead."""
        try:
            yield
        except WorkerDiedError as error:
            self._failed = (self.load_settings, self._about, error)
            self.unload()
            raise

    def _check_idle(self) -> None:
        """Raises UsageError while an answer is made."""
        if self._is_answering:
            raise UsageError("an answer is being generated", hint="stop it first")

    # --- the conversation -----------------------------------------------------------------------------------------

    def new(self) -> None:
        """Begin another conversation; it comes into the store with its first message."""
        self._check_idle()
        self.system = self._own_system
        self.chat: str | None = None
        self._id = new_id()
        self.title = ""
        self.turns: list[Turn] = []
        self.first_sent = self._left_told = self.used = 0

    def open(self, name: str) -> None:
        """Go on with a chat of the store: its id, the beginning of one, or "last". Raises StoreError."""
        self._check_idle()
        info = self.store.find(name)
        settings = dict(self.store.chat_settings(info.id))
        self.chat = self._id = info.id
        self.title = info.title
        self.system = str(settings.pop("system", ""))
        if "sampling" in settings:
            bias = self.settings.sampling.logit_bias  # belongs to a vocabulary, not to a chat
            kept = ChatSettings.from_json(settings)
            self.settings = replace(kept, sampling=replace(kept.sampling, logit_bias=bias))
        self._go_to(info.head)
        self._draft_as_set_or_loaded()

    def ask(self, text: str, cancel: CancelFlag | None = None) -> Events:
        """Say something, with the files attached to it, and get the answer.

        Raises UsageError where the message alone is too long for the context, before anything is kept.
        """
        self._check_idle()
        text = "\n\n".join([*(_as_block(*file) for file in self.attached), text])
        turn = turn_of(self._id, self._head, "user", text)
        try:
            self._make_room([*self.turns, turn])
        except WorkerDiedError:
            self.attached = []
            self._keep(turn)  # what was said is said, and can be answered later
            raise
        self.attached = []
        self._keep(turn)
        return self._answer(cancel)

    def regenerate(self, cancel: CancelFlag | None = None, index: int | None = None) -> Events:
        """Answer the last message again, or the one before turn `index`; the answer of before stays a branch.

        Raises UsageError.
        """
        self._check_idle()
        self._need_engine()
        index = len(self.turns) - 1 if index is None else index
        if not 0 <= index < len(self.turns):
            raise UsageError("there is nothing to answer yet")
        last = self.turns[index]
        if last.role != "assistant":
            self._show(self.turns[: index + 1])
            return self._answer(cancel)
        if not index:
            raise UsageError("this answer has no preceding message")
        # The same seed would say the same again: the next sample of it does not.
        tried = 1 + int(last.answer.settings.get("sample", 0)) if last.answer and self.settings.seed >= 0 else 0
        replaced = self.turns[index:]
        self._show(self.turns[:index])
        return self._answer(cancel, replaced=replaced, sample=tried)

    def go_on(self, cancel: CancelFlag | None = None) -> Events:
        """Go on with the last answer, which had stopped. Raises UsageError."""
        self._check_idle()
        self._need_engine()
        if len(self.turns) < 2 or self.turns[-1].role != "assistant":
            raise UsageError("there is no answer to continue")
        begun = self.turns[-1]
        self._show(self.turns[:-1])
        self.begun = begun.content
        return self._answer(cancel, begun=begun)

    def edit(self, index: int, text: str, cancel: CancelFlag | None = None) -> Events:
        """Say something else at turn `index`; what was said there stays a branch. What the user says is answered.

        Raises UsageError, where the message is too long too, before anything is kept.
        """
        self._check_idle()
        if not 0 <= index < len(self.turns):
            raise UsageError(f"there is no message {index + 1}")
        turns, old = self.turns, self.turns[index]
        turn = turn_of(self._id, old.parent, old.role, text)
        self._show(turns[:index])
        if old.role == "user":
            try:
                self._make_room([*self.turns, turn])
            except EdgespecError:
                self._show(turns)
                raise
        self._keep(turn)
        return self._answer(cancel) if old.role == "user" else iter(())

    def undo(self) -> str:
        """Take back the last message and its answer, which stay a branch; returns what was said. Raises UsageError."""
        self._check_idle()
        last = next((index for index in reversed(range(len(self.turns))) if self.turns[index].role == "user"), None)
        if last is None:
            raise UsageError("there is nothing to undo")
        text = self.turns[last].content
        self._show(self.turns[:last])
        self._save_head()
        return text

    def fork(self) -> str:
        """Go on in a new chat that begins with this one's messages; returns its id. Raises UsageError."""
        self._check_idle()
        if self.chat is None:
            raise UsageError("there is nothing to fork yet")
        self.chat = self._id = self.store.fork(self.chat, self._head, f"{self.title} (fork)")
        self.title = self.store.find(self._id).title
        self._save_settings()
        return self._id

    def branches(self) -> list[Branch]:
        """Where this conversation has gone, the newest first."""
        return self.store.branches(self.chat) if self.chat else []

    def switch(self, key: str) -> None:
        """Show the newest branch that message `key` is part of. Raises UsageError, StoreError."""
        self._check_idle()
        if (chat := self.chat) is not None:
            self._go_to(self.store.latest_leaf(chat, key))
            self._save_head()

    def step(self, key: str, by: int) -> None:
        """Show the next (or with -1 the last) of the messages that stand where `key` stands."""
        if self.chat is not None:
            siblings = self.store.siblings(self.chat, key)
            self.switch(siblings[(siblings.index(key) + by) % len(siblings)])

    def rename(self, title: str) -> None:
        """Give the chat another title."""
        self.title = title
        if (chat := self.chat) is not None:
            self._write(lambda: self.store.rename(chat, title))

    def info(self) -> ChatInfo:
        """The chat as the store would list it."""
        times = [turn.created_s for turn in self.turns] or [0.0]
        return ChatInfo(
            self._id,
            self.title,
            times[0],
            times[-1],
            self._head,
            len(self.turns),
            _called(self._about.get("model")),
        )

    @property
    def unsaved(self) -> int:
        """Writes that the store has not taken yet."""
        return len(self._writes)

    @property
    def context_size(self) -> int:
        return int(self._about.get("ctx_size", 0))

    @property
    def last_stats(self) -> Stats | None:
        """The figures of the last answer on the open path; None where there is none, or it came without."""
        last = next((turn.answer for turn in reversed(self.turns) if turn.answer is not None), None)
        return Stats.from_json(last.stats) if last is not None and last.stats.get("timings") else None

    @property
    def n_looped(self) -> int:
        """How many tokens of the last answer are a loop."""
        return self._loops.found.tokens if self._loops.found else 0

    @property
    def _head(self) -> str | None:
        return self.turns[-1].key if self.turns else None

    def _go_to(self, head: str | None) -> None:
        self._show(self.store.path(head))

    def _save_head(self) -> None:
        if (chat := self.chat) is not None:
            head = self._head
            self._write(lambda: self.store.set_head(chat, head))

    def _show(self, turns: list[Turn]) -> None:
        """Make these the open path; of the context has left what had when its last answer was made."""
        self.turns = turns
        last = next((turn.answer.stats for turn in reversed(turns) if turn.answer is not None), {})
        self.used = int(last.get("context_used", 0))
        starts = [str(turn.answer.settings.get("first_sent", "")) for turn in turns if turn.answer is not None]
        keys = {turn.key: index for index, turn in enumerate(turns)}
        self.first_sent = self._left_told = keys.get(starts[-1], 0) if starts else 0

    def _keep(self, turn: Turn) -> None:
        """Make a turn the last one, here and in the store."""
        chat, settings = self._id, self._settings_as_json()
        if self.chat is None:
            title = self.title
            self.chat, self.title = chat, title or first_line(turn.content)
            self._write(lambda: self.store.create(chat, settings, title))
        self.turns = [*self.turns, turn]
        self._write(lambda: self.store.append(chat, turn.parent, turn.role, turn.content, turn.answer))

    # --- answers --------------------------------------------------------------------------------------------------

    def request(self, messages: Sequence[Message], **changes: Any) -> Request:
        """A request as the settings have it."""
        settings = self.settings
        seed = settings.seed if settings.seed >= 0 else secrets.randbits(32)
        as_set = Request(
            messages=tuple(messages),
            max_tokens=settings.max_tokens,
            sampling=settings.sampling,
            seed=seed,
            stop=settings.stop,
            verify=settings.verify,
            lenient=True,
            **settings.constraints,
        )
        return replace(as_set, **changes)

    def race_request(self, prompt: str) -> Request:
        """A question of its own, answered at no great length."""
        length = self.settings.max_tokens if self.settings.max_tokens >= 0 else RACE_TOKENS
        return self.request([Message("user", prompt)], max_tokens=min(length, RACE_TOKENS))

    def _need_engine(self) -> Answerer:
        if self.engine is None:
            raise UsageError("no model is loaded", hint="/restart loads it again, /model another one")
        return self.engine

    def _answer(
        self,
        cancel: CancelFlag | None,
        *,
        begun: Turn | None = None,
        replaced: Sequence[Turn] = (),
        sample: int = 0,
    ) -> Events:
        """Answer the last turn, going on from what has `begun`; of nothing becomes what was to be `replaced`."""
        engine, chat, cancel = self._need_engine(), self._id, cancel or CancelFlag()
        self._draft_as_set(self.settings)
        self._is_answering = True
        request = self.request((), sample=sample)
        if begun is not None and begun.answer is not None and self.settings.seed < 0:
            request = replace(request, seed=begun.answer.seed)
        begun_ids = self._message(begun).tokens if begun else ()
        recording = Recording(self.store, chat, self._head, self._as_answer(request), begun, begun_ids)
        failure: GenerationError | None = None
        try:
            with self._watching():
                yield from self._stretches(engine, request, recording, cancel)
        except GenerationError as error:
            failure = error
            recording.reason = "error"
        finally:
            self._is_answering = False
            self._finish(recording, replaced)
        yield from self.new_notes()
        if begun is not None and recording.reason == "stop" and not recording.new_text:
            yield Notice("the answer was complete: the model added nothing")
        yield recording.last_event()
        if failure is not None:
            raise failure

    def _stretches(self, engine: Answerer, request: Request, recording: Recording, cancel: CancelFlag) -> Events:
        """The answer in one stretch, or in several: where it fills the context, older messages leave in between."""
        self._loops = RepetitionDetector()
        opened = f"{OPEN}\n" if self._about.get("opens_thinking") and not recording.content else ""
        while True:
            messages, left = self._sent(recording)
            if self.first_sent != self._left_told:
                self._left_told = left_now = self.first_sent
                dropped = "1 older message was" if left_now == 1 else f"{left_now} older messages were"
                said = f"the context of {self.context_size:,} tokens is full: {dropped} dropped"
                yield Notice(said, about="context")
            told = request.max_tokens - recording.new_tokens if request.max_tokens >= 0 else -1
            stretch = replace(request, messages=tuple(messages), left=left, max_tokens=told)
            with closing(engine.answer(stretch, cancel)) as events:
                for event in events:
                    self.used += event.id >= 0
                    if opened and event.finish_reason is None:
                        event, opened = replace(event, text=opened + event.text), ""
                    recording.take(event)
                    if event.finish_reason is None:
                        yield event
                        if event.id >= 0 and self._loops.add(event.id):
                            yield Notice(f"the answer repeats itself ({self._loops.found})", "warning", "loop")
                        yield from self.new_notes()
                    elif event.text:
                        yield replace(event, finish_reason=None, stats=None)
            if not self._overflowed(recording, told):
                return
            self.new_notes()  # that the context is full, which is mended now

    def _finish(self, recording: Recording, replaced: Sequence[Turn]) -> None:
        self.begun = ""
        self.used = recording.context_used or self.used
        first = self.turns[self.first_sent].key if self.turns else ""
        turn = recording.end(self._write, first)
        self.turns = [*self.turns, *([turn] if turn is not None else replaced)]

    def _as_answer(self, request: Request) -> Answer:
        about = self._about
        return Answer(
            model=_called(about.get("model")),
            draft_model=_called(about.get("draft_model")) or None,
            finish_reason="generating",
            seed=request.seed,
            settings=self._settings_as_json() | {"sample": request.sample, "ctx_size": self.context_size},
            vocabulary=str(about.get("vocabulary", "")),
        )

    def new_notes(self) -> list[Notice]:
        """What the model's side has noted since the last time."""
        notes = [self._store_notes.pop(0) for _ in range(len(self._store_notes))]
        if self.engine is not None:
            told, self._notes_told = self._notes_told, len(self.engine.notes)
            notes += self.engine.notes[told:]
        return [Notice(text) for text in notes]

    # --- what is sent ---------------------------------------------------------------------------------------------

    def _message(self, turn: Turn) -> Message:
        """A turn as the model gets it, with the ids it was generated as where they say the same."""
        answer = turn.answer
        if answer is None or answer.vocabulary != self._about.get("vocabulary"):
            return Message(turn.role, turn.content)
        thinks = turn.content.lstrip().startswith(OPEN)
        changed = thinks and (self._about.get("drops_thinking") or self._about.get("opens_thinking"))
        return Message(turn.role, turn.content, () if changed else answer.ids)

    def _messages(self, turns: Sequence[Turn], first: int) -> list[Message]:
        system = [Message("system", self.system)] if self.system else []
        return [*system, *map(self._message, turns[first:])]

    def _sent(self, recording: Recording) -> tuple[list[Message], int]:
        """The messages that fit, the answer in the making too, and how many tokens of the conversation are not sent."""
        last = recording.message()
        self._make_room(self.turns, last)
        messages = self._messages(self.turns, self.first_sent) + last
        left = 0
        if self.first_sent:
            engine = self._need_engine()
            left = max(0, engine.count(self._messages(self.turns, 0) + last) - engine.count(messages))
        return messages, left

    def _make_room(self, turns: Sequence[Turn], last: Sequence[Message] = ()) -> None:
        """Let the oldest messages leave where all of them and an answer do not fit; many at once, since whatever leaves
        has the rest read anew. Raises UsageError where the last message alone is too long."""
        engine, n_ctx = self._need_engine(), self.context_size

        def size(first: int) -> int:
            with self._watching():
                return engine.count([*self._messages(turns, first), *last])

        reserve = n_ctx // 4 if self.settings.max_tokens < 0 else min(self.settings.max_tokens, n_ctx // 4)
        needed = size(self.first_sent)
        if needed <= n_ctx - reserve:
            self.used = needed
            return
        starts = self._later_starts(turns)
        at = bisect_left(starts, True, key=lambda start: size(start) <= n_ctx // 2)
        start = starts[min(at, len(starts) - 1)] if starts else self.first_sent
        needed = size(start)
        if needed >= n_ctx - 1:
            raise UsageError(
                f"the message and the system prompt have {needed:,} tokens, the context holds {n_ctx:,}",
                hint="shorten it, or use a larger context (-c)",
            )
        self.first_sent, self.used = start, needed

    def _overflowed(self, recording: Recording, told: int) -> bool:
        """Whether the answer stopped because the context was full, and can go on once old messages have left."""
        stats = recording.segment
        if recording.reason != "length" or stats is None or stats.generated_tokens == told:
            return False
        return bool(self._later_starts(self.turns))

    def _later_starts(self, turns: Sequence[Turn]) -> list[int]:
        """Where what is sent could begin once more messages have left."""
        return [index for index, turn in enumerate(turns) if turn.role == "user" and index > self.first_sent]

    # --- the store ------------------------------------------------------------------------------------------------

    def _settings_as_json(self) -> dict[str, Any]:
        loaded = self.load_settings
        models = {"model": lasting(loaded.model), "draft_model": loaded.draft_model and lasting(loaded.draft_model)}
        return self.settings.as_json() | {"system": self.system} | models

    def _save_settings(self) -> None:
        if self.chat is not None:
            chat, settings = self.chat, self._settings_as_json()
            self._write(lambda: self.store.save_settings(chat, settings))

    def _write(self, write: Callable[[], object]) -> None:
        """Write to the store, after what it did not take before. Where it fails that is kept for the next time."""
        with self._writing:  # the screen writes beside the answer
            self._writes.append(write)
            self._retry()

    def _retry(self) -> None:
        rewritten = False
        while self._writes:
            try:
                self._writes[0]()
            except UnknownChatError as error:
                if rewritten or self.chat is None:
                    self._writes.pop(0)
                    self.store_error = error
                    return
                rewritten = True  # the file was begun anew, or the chat deleted: what is open goes in again
                self._writes[:0] = self._everything()
            except StoreError as error:
                self.store_error = error
                return
            else:
                self._writes.pop(0)
        self.store_error = None

    def _everything(self) -> list[Callable[[], object]]:
        """The writes that put the open conversation into a store that does not know it."""
        chat, settings, title = self._id, self._settings_as_json(), self.title
        appends = [
            partial(self.store.append, chat, turn.parent, turn.role, turn.content, turn.answer) for turn in self.turns
        ]
        return [partial(self.store.create, chat, settings, title), *appends]


def _called(model: object) -> str:
    """What a model is called; nothing for none."""
    return short_name(Path(str(model))) if model else ""


def _as_block(name: str, text: str) -> str:
    """A file's text within a message, behind a fence that it does not hold itself."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{name}:\n{fence}\n{text.rstrip()}\n{fence}"
