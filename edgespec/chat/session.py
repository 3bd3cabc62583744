"""A conversation with a model, as all front ends use it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count

from edgespec.cancel import CancelFlag
from edgespec.chat.answerer import Added, Events, Notice, Opener
from edgespec.chat.attachments import Attachment, with_files, without_files
from edgespec.chat.images import delete_chats
from edgespec.chat.model import Catalogued, ChatModel
from edgespec.chat.model_messages import ids_of
from edgespec.chat.saving import Recording
from edgespec.chat.settings import ChatSettings, as_catalogued, setting, with_changes
from edgespec.chat.states import ChatStates
from edgespec.chat.tool_use import ToolUse
from edgespec.closable import Closable
from edgespec.core.policy.policy import PolicyVerdict
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import CONTEXT_FULL, Progress
from edgespec.history import Answer, ChatInfo, Store, Turn
from edgespec.history.data import turn_of
from edgespec.model.model import Model
from edgespec.settings import LoadSettings, Request
from edgespec.text.figures import counted
from edgespec.text.printable import with_unix_line_ends
from edgespec.text.repetition import RepetitionDetector
from edgespec.tools.offer import MOST_ROUNDS, Shown
from edgespec.tools.toolbox import Toolbox

AGAINST_LOOPS = "/set repeat-penalty 1.1 may help"


class Session(ToolUse, Closable):
    """A conversation, the model that answers, and the store that saves it.

    `used` is the number of tokens in the context, also while an answer is generated. `begun` is the text of an answer
    that is being continued.
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
        self.states, self.begun = states or ChatStates(0), ""
        self._store_notes = [] if store_notes is None else store_notes
        self._loops = RepetitionDetector()  # for the last answer
        model = ChatModel(open_engine, load_settings, server)
        super().__init__(model, store, settings or ChatSettings(), system, toolbox)

    def close(self) -> None:
        """Free the model and end the tools, but not the store, which belongs to the caller. May be called twice."""
        self.toolbox.close()
        self._writes.retry()
        self.states.keep_last(None if self.is_answering else self.engine)
        self.model.unload()

    # --- the model ------------------------------------------------------------------------------------------------

    def load(
        self, settings: LoadSettings | None = None, progress: Progress | None = None, cancel: CancelFlag | None = None
    ) -> None:
        """Load a model, or the previous one again.

        After errors that are detected beforehand the loaded model stays. Another model gets the catalogue's default
        settings for it, except for settings that the user has changed. Raises what Runtime raises; then
        `ChatModel.remedies` lists what to try.
        """
        self._check_idle()
        wanted, before = settings or self.load_settings, self.load_settings.model
        self.states.keep_last(self.engine)
        catalogued = self.model.load(wanted, progress, cancel)
        if wanted.model != before:
            self._answer_as_catalogued(*catalogued)
        self._draft_as_set_or_loaded()
        self.start_tools()

    @property
    def load_settings(self) -> LoadSettings:
        return self.model.settings

    def change(self, texts: Mapping[str, str]) -> None:
        """Change settings, given as texts by name, from the next message on. Raises UsageError."""
        settings = with_changes(self.settings, texts)
        if any(setting(name).group == "drafting" for name in texts) and not self.is_answering:
            self.model.draft_as(settings)
        self.settings = settings
        self._save_settings()

    def set_system(self, text: str) -> None:
        """Change the system prompt of this chat, from the next answer on."""
        self.system = with_unix_line_ends(text)
        self._save_settings()

    def verdicts(self) -> list[PolicyVerdict]:
        """Return why drafters are active or backed off in this chat."""
        if self.is_answering or self.engine is None:
            return []
        with self.model.watched() as engine:
            return engine.pace_verdicts(Request(sampling=self.settings.sampling, verify=self.settings.verify))

    def _answer_as_catalogued(self, before: Catalogued, now: Catalogued) -> None:
        """Replace settings that still have the previous model's default."""
        system_before, system = str(before.get("system", "")), str(now.get("system", ""))
        self._own_system = system if self._own_system == system_before else self._own_system
        self.system = system if self.system == system_before else self.system
        self.settings = as_catalogued(self.settings, before, now)
        self._own_settings = as_catalogued(self._own_settings, before, now)
        self._save_settings()

    # --- messages -------------------------------------------------------------------------------------------------

    def ask(self, text: str, cancel: CancelFlag | None = None, files: Sequence[Attachment] | None = None) -> Events:
        """Send a message with `files`, by default the attached ones; return the events of the answer.

        Raises UsageError if the message alone is too long for the context; then nothing is saved.
        """
        self._check_idle()
        text, sent = with_unix_line_ends(text), self.attached if files is None else files
        turn = turn_of(self._id, self._head, "user", with_files(sent, text))
        failure: GenerationError | None = None
        try:
            self._make_room([*self.turns, turn])
        except GenerationError as error:  # the model has died; /regen answers the message when a model is loaded
            failure = error
        except UsageError as error:
            if any(file.mark for file in sent):
                error.hint += f"{error.hint and '; '}/file none removes attached images"
            raise
        self._keep(turn)
        if files is None:
            self.attached = [file for file in self.attached if file not in sent]
        if failure is not None:
            raise failure
        return self._answer(cancel)

    def regenerate(
        self, cancel: CancelFlag | None = None, index: int | None = None, *, sample: int | None = None
    ) -> Events:
        """Answer the last message, or the one before turn `index`, again; the previous answer stays a branch.

        With a fixed seed this uses the next `sample`, unless one is given. Raises UsageError.
        """
        self._check_idle()
        self.model.needed()
        index = len(self.turns) - 1 if index is None else index
        if not 0 <= index < len(self.turns):
            raise UsageError("there is nothing to answer yet")
        last = self.turns[index]
        if last.role != "assistant":
            self._show(self.turns[: index + 1])
            return self._answer(cancel, sample=sample or 0)
        if not index:
            raise UsageError("this answer has no preceding message")
        # The same seed would give the same answer, the next sample of that seed does not.
        tried = 1 + int(last.answer.settings.get("sample", 0)) if last.answer and self.settings.seed >= 0 else 0
        replaced = self.turns[index:]
        self._show(self.turns[:index])
        return self._answer(cancel, replaced=replaced, sample=tried if sample is None else sample)

    def go_on(self, cancel: CancelFlag | None = None, *, ends_reasoning: bool = False) -> Events:
        """Continue the last answer, or end its reasoning and answer then. Raises UsageError."""
        self._check_idle()
        cancel = cancel or CancelFlag()
        cancel.ends_reasoning |= ends_reasoning
        self.model.needed()
        if self.turns and self.turns[-1].role == "tool":  # the answer ended while its tools were running
            return self._answer(cancel)
        if len(self.turns) < 2 or self.turns[-1].role != "assistant":
            raise UsageError("there is no answer to continue")
        begun = self.turns[-1]
        self._show(self.turns[:-1])
        self.begun = begun.content
        return self._answer(cancel, begun=begun, replaced=[begun])

    @contextmanager
    def answering_as(self, settings: ChatSettings, model: ChatModel) -> Iterator[None]:
        """Within this block, answer with other settings, by another model, and without tools: nobody is asked."""
        own = self.settings, self.model, self.toolbox.is_on
        self.settings, self.model, self.toolbox.is_on = settings, model, False
        try:
            yield
        finally:
            self.settings, self.model, self.toolbox.is_on = own
            self._save_settings()

    def edit(self, index: int, text: str, cancel: CancelFlag | None = None) -> Events:
        """Change the message of turn `index`; the previous version stays a branch.

        A message of the user keeps its files, and is answered. Raises UsageError, for example if the message is too
        long; then nothing is saved.
        """
        self._check_idle()
        if not 0 <= index < len(self.turns):
            raise UsageError(f"there is no message {index + 1}")
        text, turns, old = with_unix_line_ends(text), self.turns, self.turns[index]
        files = without_files(old.content)[0] if old.role == "user" and not without_files(text)[0] else []
        turn = turn_of(self._id, old.parent, old.role, with_files(files, text))
        self._show(turns[:index])
        if old.role == "user":
            try:
                self._make_room([*self.turns, turn])
            except EdgespecError:
                self._show(turns)
                raise
        self._keep(turn)
        return self._answer(cancel) if old.role == "user" else iter(())

    def delete(self, *chats: str) -> None:
        """Delete chats of the store, by their ids. Raises StoreError."""
        if self.chat in chats:
            self.new()
        delete_chats(self.store, chats)
        for chat in chats:
            self.states.remove(chat)

    def info(self) -> ChatInfo:
        """Return the chat as the store lists it."""
        times = [turn.created_s for turn in self.turns] or [0.0]
        return ChatInfo(self._id, self.title, times[0], times[-1], self._head, len(self.turns), self.model.names[0])

    # --- answers --------------------------------------------------------------------------------------------------

    def _answer(
        self, cancel: CancelFlag | None, *, begun: Turn | None = None, replaced: Sequence[Turn] = (), sample: int = 0
    ) -> Events:
        """Answer the last turn, or continue the answer `begun`; run the tools that it calls, and answer again.

        If the request is refused, or the model generates nothing, the turns `replaced` are restored.
        """
        self.model.needed()
        cancel = cancel or CancelFlag()
        self.offer_tools(cancel)
        yield from self._one_answer(cancel, begun, replaced, sample)
        for n_rounds in count():
            if not self.calls:
                return
            yield Added(self.turns[-1])
            self.is_answering = True
            try:
                yield from self._run_calls(n_rounds, cancel)
            finally:
                self.is_answering = False
            if cancel.is_set() or n_rounds >= MOST_ROUNDS:
                return
            yield from self._one_answer(cancel, None, (), sample)

    def _one_answer(self, cancel: CancelFlag, begun: Turn | None, replaced: Sequence[Turn], sample: int) -> Events:
        """Answer the last turn, or continue the answer `begun`, without running tools."""
        try:
            self.model.draft_as(self.settings)
            request = self._request(sample, begun)
        except EdgespecError:
            self.turns, self.begun = [*self.turns, *replaced], ""
            raise
        self.is_answering = True
        begun_ids = ids_of(begun, self.model.info) if begun else ()
        recording = Recording(self.store, self._id, self._head, self._as_answer(request), begun, begun_ids)
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
                self.is_answering = False  # only now: another chat could be opened meanwhile
        yield from self.new_notes()
        if begun is not None and recording.reason == "stop" and not recording.new_text:
            yield Notice("the answer was complete: the model added nothing")
        yield recording.last_event()
        if failure is not None:
            raise failure

    def _request(self, sample: int, begun: Turn | None) -> Request:
        """Return the request for an answer, without messages. Raises UsageError if the file of a constraint is gone."""
        settings, seed = self.settings, self.settings.seed
        if seed < 0:
            seed = begun.answer.seed if begun and begun.answer else secrets.randbits(32)
        return Request(seed=seed, sample=sample, lenient=True, **settings.of_answers() | settings.constraints)

    def _stretches(self, engine: Model, request: Request, recording: Recording, cancel: CancelFlag) -> Events:
        """Yield the events of the answer. Each time it fills the context, drop older messages and continue."""
        self._loops = RepetitionDetector()
        shown = Shown(self.offer, recording.content)
        while True:
            messages, left = self._sent(recording)
            if self.first_sent != self._reported_first:
                self._reported_first = n_dropped = self.first_sent
                dropped = f"{counted(n_dropped, 'older message')} {'was' if n_dropped == 1 else 'were'} dropped"
                yield Notice(f"the context of {self.context_size:,} tokens is full: {dropped}", about="context")
            max_tokens = request.max_tokens - recording.new_tokens if request.max_tokens >= 0 else -1
            self.states.recall(engine, self._id, messages, self.template)
            stretch = replace(
                request, messages=tuple(messages), left=left, max_tokens=max_tokens, template=self.template
            )
            with closing(engine.submit(stretch, cancel)) as events:
                for event in events:
                    self.used += event.id >= 0
                    recording.take(event)
                    if event.finish_reason is None:
                        yield shown.push(event)
                        if event.id >= 0 and self._loops.add(event.id):
                            yield Notice(f"the answer repeats itself ({self._loops.found})", "warning", "loop")
                        yield from self.new_notes()
                    elif event.text:
                        yield shown.push(replace(event, finish_reason=None, stats=None))
            if not self._overflowed(recording, max_tokens):
                break
        yield from shown.end()

    def _finish(self, recording: Recording, replaced: Sequence[Turn]) -> None:
        self.begun = ""
        self.used = recording.context_used or self.used
        first = self.turns[self.first_sent].key if self.turns else ""
        self._find_calls(recording)
        turn = recording.end(self._writes.write, first)
        self.turns = [*self.turns, *([turn] if turn is not None else replaced)]
        if turn is not None:
            self.states.answered(self._id, self.messages, self.template)

    def _as_answer(self, request: Request) -> Answer:
        model, draft = self.model.names
        return Answer(
            model=model,
            draft_model=draft or None,
            finish_reason="generating",
            seed=request.seed,
            settings=self._settings_as_json() | {"sample": request.sample, "ctx_size": self.context_size},
            vocabulary=self.model.info.vocabulary,
        )

    def new_notes(self) -> list[Notice]:
        """Return the notes of the store and the model since the last call.

        That the context is full is left out: the end of each answer says so (`Answer.end`).
        """
        notes = [self._store_notes.pop(0) for _ in range(len(self._store_notes))] + self.toolbox.new_notes()
        full = CONTEXT_FULL.format(self.context_size)
        return [Notice(text) for text in [*notes, *self.model.new_notes()] if text != full]
