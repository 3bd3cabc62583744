"""A conversation with a model, as all front ends use it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count

from edgespec.cancel import CancelFlag
from edgespec.chat.attachments import Attachment, delete_chats, with_files, without_files
from edgespec.chat.conversation import Conversation, ids_of
from edgespec.chat.events import Added, ChatEvents, Notice, Opener
from edgespec.chat.model import ChatModel
from edgespec.chat.saving import Recording
from edgespec.chat.settings import ChatSettings
from edgespec.chat.states import ChatStates
from edgespec.chat.tool_use import ToolUse
from edgespec.closable import Closable
from edgespec.core.policy.policy import PolicyVerdict
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import CONTEXT_FULL, Progress
from edgespec.history import AnswerRecord, Store, Turn
from edgespec.history.data import turn_of
from edgespec.llm.model import Model
from edgespec.settings import LoadSettings, Request
from edgespec.text.figures import counted
from edgespec.text.printable import with_unix_line_ends
from edgespec.text.repetition import RepetitionDetector
from edgespec.tools.offer import MOST_ROUNDS, Shown
from edgespec.tools.toolbox import Toolbox

AGAINST_LOOPS = "/set repeat-penalty 1.1 may help"


class Session(Closable):
    """A conversation and what answers in it.

    `chat` is the open conversation, `tools` are those that its model may call, `states` the saved KV caches. `begun` is
    the text of an answer that is being continued.
    """

    def __init__(
        self,
        store: Store,
        open_engine: Opener,
        load_settings: LoadSettings,
        settings: ChatSettings | None = None,
        system: str = "",
        store_notes: list[str] | None = None,
        server: str = "",
        states: ChatStates | None = None,
        toolbox: Toolbox | None = None,
    ) -> None:
        self.store, self.states, self.begun = store, states or ChatStates(0), ""
        model = ChatModel(open_engine, load_settings, server)
        self.chat = Conversation(model, store, settings or ChatSettings(), system)
        self.tools = ToolUse(self.chat, toolbox or Toolbox([]))
        self._store_notes = [] if store_notes is None else store_notes
        self._loops = RepetitionDetector()  # for the last answer

    def close(self) -> None:
        """Free the model and end the tools, but not the store, which belongs to the caller. May be called twice."""
        self.tools.toolbox.close()
        self.chat.writes.retry()
        self.states.keep_last(None if self.chat.is_answering else self.model.engine)
        self.model.unload()

    # --- the model ------------------------------------------------------------------------------------------------

    @property
    def model(self) -> ChatModel:
        return self.chat.model

    @property
    def load_settings(self) -> LoadSettings:
        return self.model.settings

    def load(
        self, settings: LoadSettings | None = None, progress: Progress | None = None, cancel: CancelFlag | None = None
    ) -> None:
        """Load a model, or the previous one again.

        After errors that are detected beforehand the loaded model stays. Another model gets the catalogue's default
        settings for it, except for settings that the user has changed. Raises what Runtime raises; then
        `ChatModel.remedies` lists what to try.
        """
        self.chat.check_idle()
        target, before = settings or self.load_settings, self.load_settings.model
        self.states.keep_last(self.model.engine)
        catalogued = self.model.load(target, progress, cancel)
        if target.model != before:
            self.chat.answer_as_catalogued(*catalogued)
        self.chat.draft_as_set_or_loaded()
        self.tools.start()

    def verdicts(self) -> list[PolicyVerdict]:
        """Return why drafters are active or backed off in this chat."""
        if self.chat.is_answering or self.model.engine is None:
            return []
        settings = self.chat.settings
        with self.model.watched() as engine:
            return engine.pace_verdicts(Request(sampling=settings.sampling, verify=settings.verify))

    # --- messages -------------------------------------------------------------------------------------------------

    def ask(self, text: str, cancel: CancelFlag | None = None, files: Sequence[Attachment] | None = None) -> ChatEvents:
        """Send a message with `files`, by default the attached ones; return the events of the answer.

        Raises UsageError if the message alone is too long for the context; then nothing is saved.
        """
        chat = self.chat
        chat.check_idle()
        text, sent = with_unix_line_ends(text), chat.attached if files is None else files
        turn = turn_of(chat.id, chat.head, "user", with_files(sent, text))
        failure: GenerationError | None = None
        try:
            chat.make_room([*chat.turns, turn])
        except GenerationError as error:  # the model has died; /regen answers the message when a model is loaded
            failure = error
        except UsageError as error:
            if any(file.mark for file in sent):
                error.hint += f"{error.hint and '; '}/file none removes attached images"
            raise
        chat.append(turn)
        if files is None:
            chat.attached = [file for file in chat.attached if file not in sent]
        if failure is not None:
            raise failure
        return self._answer(cancel)

    def regenerate(
        self, cancel: CancelFlag | None = None, index: int | None = None, *, sample: int | None = None
    ) -> ChatEvents:
        """Answer the last message, or the one before turn `index`, again; the previous answer stays a branch.

        With a fixed seed this uses the next `sample`, unless one is given. Raises UsageError.
        """
        chat = self.chat
        chat.check_idle()
        self.model.needed()
        index = len(chat.turns) - 1 if index is None else index
        if not 0 <= index < len(chat.turns):
            raise UsageError("there is nothing to answer yet")
        last = chat.turns[index]
        if last.role != "assistant":
            chat.show(chat.turns[: index + 1])
            return self._answer(cancel, sample=sample or 0)
        if not index:
            raise UsageError("this answer has no preceding message")
        # The same seed would give the same answer, the next sample of that seed does not.
        tried = 1 + int(last.answer.settings.get("sample", 0)) if last.answer and chat.settings.seed >= 0 else 0
        replaced = chat.turns[index:]
        chat.show(chat.turns[:index])
        return self._answer(cancel, replaced=replaced, sample=tried if sample is None else sample)

    def go_on(self, cancel: CancelFlag | None = None, *, ends_reasoning: bool = False) -> ChatEvents:
        """Continue the last answer, or end its reasoning and answer then. Raises UsageError."""
        chat = self.chat
        chat.check_idle()
        cancel = cancel or CancelFlag()
        cancel.ends_reasoning |= ends_reasoning
        self.model.needed()
        if chat.turns and chat.turns[-1].role == "tool":  # the answer ended while its tools were running
            return self._answer(cancel)
        if len(chat.turns) < 2 or chat.turns[-1].role != "assistant":
            raise UsageError("there is no answer to continue")
        begun = chat.turns[-1]
        chat.show(chat.turns[:-1])
        self.begun = begun.content
        return self._answer(cancel, begun=begun, replaced=[begun])

    @contextmanager
    def answering_as(self, settings: ChatSettings, model: ChatModel) -> Iterator[None]:
        """Within this block, answer with other settings, by another model, and without tools: the user is not asked."""
        chat, toolbox = self.chat, self.tools.toolbox
        own = chat.settings, chat.model, toolbox.is_on
        chat.settings, chat.model, toolbox.is_on = settings, model, False
        try:
            yield
        finally:
            chat.settings, chat.model, toolbox.is_on = own
            chat.save_settings()

    def edit(self, index: int, text: str, cancel: CancelFlag | None = None) -> ChatEvents:
        """Change the message of turn `index`; the previous version stays a branch.

        A message of the user keeps its files, and is answered. Raises UsageError, for example if the message is too
        long; then nothing is saved.
        """
        chat = self.chat
        chat.check_idle()
        if not 0 <= index < len(chat.turns):
            raise UsageError(f"there is no message {index + 1}")
        text, turns, old = with_unix_line_ends(text), chat.turns, chat.turns[index]
        files = without_files(old.content)[0] if old.role == "user" and not without_files(text)[0] else []
        turn = turn_of(chat.id, old.parent, old.role, with_files(files, text))
        chat.show(turns[:index])
        if old.role == "user":
            try:
                chat.make_room([*chat.turns, turn])
            except EdgespecError:
                chat.show(turns)
                raise
        chat.append(turn)
        return self._answer(cancel) if old.role == "user" else iter(())

    def delete(self, *chats: str) -> None:
        """Delete chats of the store, by their ids. Raises StoreError."""
        if self.chat.saved_id in chats:
            self.chat.new()
        delete_chats(self.store, chats)
        for chat in chats:
            self.states.remove(chat)

    # --- answers --------------------------------------------------------------------------------------------------

    def _answer(
        self, cancel: CancelFlag | None, *, begun: Turn | None = None, replaced: Sequence[Turn] = (), sample: int = 0
    ) -> ChatEvents:
        """Answer the last turn, or continue the answer `begun`; run the tools that it calls, and answer again.

        If the request is refused, or the model generates nothing, the turns `replaced` are restored.
        """
        self.model.needed()
        cancel = cancel or CancelFlag()
        self.tools.offer(cancel)
        yield from self._one_answer(cancel, begun, replaced, sample)
        for n_rounds in count():
            if not self.tools.calls:
                return
            yield Added(self.chat.turns[-1])
            self.chat.is_answering = True
            try:
                yield from self.tools.run(n_rounds, cancel)
            finally:
                self.chat.is_answering = False
            if cancel.is_set() or n_rounds >= MOST_ROUNDS:
                return
            yield from self._one_answer(cancel, None, (), sample)

    def _one_answer(self, cancel: CancelFlag, begun: Turn | None, replaced: Sequence[Turn], sample: int) -> ChatEvents:
        """Answer the last turn, or continue the answer `begun`, without running tools."""
        chat = self.chat
        try:
            self.model.draft_as(chat.settings)
            request = self._request(sample, begun)
        except EdgespecError:
            chat.turns, self.begun = [*chat.turns, *replaced], ""
            raise
        chat.is_answering = True
        begun_ids = ids_of(begun, self.model.info) if begun else ()
        recording = Recording(self.store, chat.id, chat.head, self._as_answer(request), begun, begun_ids)
        failure: GenerationError | None = None
        try:
            with self.model.watched() as engine:
                yield from self._stretches(engine, request, recording, cancel)
        except GenerationError as error:
            failure = error
            recording.reason = "error"
        finally:
            try:
                self._finish(recording, replaced)
            finally:
                chat.is_answering = False  # only now: another chat could be opened meanwhile
        yield from self.new_notes()
        if begun is not None and recording.reason == "stop" and not recording.new_text:
            yield Notice("the answer was complete: the model added nothing")
        yield recording.last_event()
        if failure is not None:
            raise failure

    def _request(self, sample: int, begun: Turn | None) -> Request:
        """Return the request for an answer, without messages. Raises UsageError if the file of a constraint is gone."""
        settings = self.chat.settings
        seed = settings.seed
        if seed < 0:
            seed = begun.answer.seed if begun and begun.answer else secrets.randbits(32)
        return Request(seed=seed, sample=sample, lenient=True, **settings.of_answers() | settings.constraints)

    def _stretches(self, engine: Model, request: Request, recording: Recording, cancel: CancelFlag) -> ChatEvents:
        """Yield the events of the answer. Each time it fills the context, drop older messages and continue."""
        chat = self.chat
        self._loops = RepetitionDetector()
        shown = Shown(chat.offer, recording.content)
        while True:
            messages, left = chat.sent(recording)
            if chat.first_sent != chat.reported_first:
                chat.reported_first = n_dropped = chat.first_sent
                dropped = f"{counted(n_dropped, 'older message')} {'was' if n_dropped == 1 else 'were'} dropped"
                yield Notice(f"the context of {chat.context_size:,} tokens is full: {dropped}", about="context")
            max_tokens = request.max_tokens - recording.new_tokens if request.max_tokens >= 0 else -1
            self.states.recall(engine, chat.id, messages, chat.template)
            stretch = replace(
                request, messages=tuple(messages), left=left, max_tokens=max_tokens, template=chat.template
            )
            with closing(engine.submit(stretch, cancel)) as events:
                for event in events:
                    chat.used += event.id >= 0
                    recording.take(event)
                    if event.finish_reason is None:
                        yield shown.push(event)
                        if event.id >= 0 and self._loops.add(event.id):
                            yield Notice(f"the answer repeats itself ({self._loops.found})", "warning", "loop")
                        yield from self.new_notes()
                    elif event.text:
                        yield shown.push(replace(event, finish_reason=None, stats=None))
            if not chat.has_overflowed(recording, max_tokens):
                break
        yield from shown.end()

    def _finish(self, recording: Recording, replaced: Sequence[Turn]) -> None:
        chat, self.begun = self.chat, ""
        chat.used = recording.context_used or chat.used
        first = chat.turns[chat.first_sent].key if chat.turns else ""
        self.tools.find_calls(recording)
        turn = recording.end(chat.writes.write, first)
        chat.turns = [*chat.turns, *([turn] if turn is not None else replaced)]
        if turn is not None:
            self.states.answered(chat.id, chat.messages, chat.template)

    def _as_answer(self, request: Request) -> AnswerRecord:
        model, draft = self.model.names
        return AnswerRecord(
            model=model,
            draft_model=draft or None,
            finish_reason="generating",
            seed=request.seed,
            settings=self.chat.settings_as_json() | {"sample": request.sample, "ctx_size": self.chat.context_size},
            vocabulary=self.model.info.vocabulary,
        )

    def reading(self, done: float) -> str:
        """Return how much of the prompt the model has processed, in words; `done` is from 0 to 1."""
        if self.tools.toolbox.is_starting:
            return "starting tools"
        used = self.chat.used
        return f"reading {int(done * used):,} of {used:,} tokens" if 0 < done < 1 and used else "reading"

    def new_notes(self) -> list[Notice]:
        """Return the notes of the store and the model since the last call.

        The note that the context is full is left out: the end of each answer says so (`AnswerRecord.end`).
        """
        notes = [self._store_notes.pop(0) for _ in range(len(self._store_notes))] + self.tools.toolbox.new_notes()
        full = CONTEXT_FULL.format(self.chat.context_size)
        return [Notice(text) for text in [*notes, *self.model.new_notes()] if text != full]
