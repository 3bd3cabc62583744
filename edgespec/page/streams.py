"""Answers as streams of events for the page, made in a thread that asks the model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from secrets import token_hex
from typing import cast, get_args

from edgespec.cancel import CancelFlag
from edgespec.chat.comparing import PLAIN, AnswerComparison, Side, named, side_of
from edgespec.chat.events import Added, ChatEvents, Notice
from edgespec.chat.session import Session
from edgespec.errors import UsageError
from edgespec.events import TokenEvent
from edgespec.history import StoreError
from edgespec.page import views
from edgespec.page.chats import Chats, check_constraints, index_of, texts_in
from edgespec.page.views import View
from edgespec.requests.bad_input import JsonObject, wrong
from edgespec.requests.fields import Fields
from edgespec.tools.toolbox import Calling, Decision

Emit = Callable[[View | TokenEvent], None]
"""Takes an event for the page, or the end of an answer, for the figures of the server."""

DECISIONS: tuple[str, ...] = get_args(Decision)


class Calls:
    """The calls of tools that are not done, with the ids by which the page decides about them."""

    def __init__(self) -> None:
        self._ids: dict[Calling, str] = {}
        self._lock = threading.Lock()

    def view(self, calling: Calling) -> View:
        """Return a call as it proceeds."""
        with self._lock:
            id = self._ids.setdefault(calling, token_hex(8))
            if calling.state == "done":
                del self._ids[calling]
        return views.calling(calling, id)

    def decide(self, body: JsonObject) -> View:
        """Allow or deny a call. Raises BadInputError, UsageError."""
        wanted = Fields(body)
        id, decision = wanted.text("id"), wanted.choice("decision", DECISIONS, "")
        with self._lock:
            calling = next((calling for calling, of in self._ids.items() if of == id), None)
        if calling is None:
            raise UsageError("this call does not wait for a decision any more")
        calling.decide(cast(Decision, decision))
        return {"decided": decision}


class PageAnswer:
    """An answer, or a race, that the page has asked for with `body`."""

    def __init__(self, chats: Chats, calls: Calls, session: Session, body: JsonObject, cancel: CancelFlag) -> None:
        self._chats, self._calls, self._session, self._cancel = chats, calls, session, cancel
        self._fields, self._files = Fields(body), chats.files(body)

    def answer(self, emit: Emit) -> None:
        """Do what `action` says, and emit the events of the answer. Raises EdgespecError, BadInputError."""
        self._change()
        events = self._begun(self._fields.text("action", "ask"))
        self._emit_chat(emit)
        for event in events:
            if isinstance(event, Notice):
                emit({"type": "notice", "text": event.text, "level": event.level})
            elif isinstance(event, Calling):
                emit(self._calls.view(event))
            elif isinstance(event, Added):
                emit(self._turn(len(self._session.chat.turns) - 1))
            else:
                emit(event if event.is_last else views.event(event))
        self._emit_end(emit)

    def race(self, emit: Emit) -> None:
        """Answer a message twice, with the settings of two `sides`. Raises EdgespecError, BadInputError."""
        session = self._session
        self._change()
        session.chat.attached = self._files
        comparison = AnswerComparison(session, self._sides(), self._fields.text("text"))
        begun = set[int]()

        def heard(number: int) -> None:
            event = comparison.lanes[number].events[-1]
            if number not in begun:
                begun.add(number)
                if len(begun) == 1:
                    self._emit_chat(emit)
                emit({"type": "lane", "lane": number, "title": comparison.sides[number].title})
            emit(event if event.is_last else {**views.event(event), "lane": number})

        comparison.run(self._cancel, heard)
        lanes = [
            {"key": lane.key, "title": side.title, "stats": views.stats(lane.stats)}
            for lane, side in zip(comparison.lanes, comparison.sides, strict=True)
        ]
        result = {"verdict": comparison.verdict(), "differs_at": comparison.differs_at}
        emit({"type": "result", "lanes": lanes, "drafted_by": comparison.drafted_by, **result})
        self._emit_end(emit)

    def _change(self) -> None:
        """Change the settings and the system prompt of the chat as the body says."""
        if settings := texts_in(self._fields):
            self._session.chat.change(settings)
        if "system" in self._fields:
            self._session.chat.set_system(self._fields.text("system"))

    def _begun(self, action: str) -> ChatEvents:
        session, cancel = self._session, self._cancel
        text, key = self._fields.text("text"), self._fields.text("key")
        if action == "ask":
            return session.ask(text, cancel, self._files)
        index = index_of(session, key) if key else len(session.chat.turns) - 1
        if action == "regenerate":
            return session.regenerate(cancel, index)
        if action == "edit":
            return session.edit(index, text, cancel)
        if action == "continue":
            return session.go_on(cancel)
        raise wrong("action", "be ask, regenerate, edit or continue", action)

    def _sides(self) -> tuple[Side, Side]:
        sides = self._fields.take("sides", ["", PLAIN])
        if not isinstance(sides, list) or len(sides) != 2 or not all(isinstance(side, str) for side in sides):
            raise wrong("sides", "be a list of two texts", sides)
        for side in sides:
            check_constraints(named(side))
        first, second = (side_of(self._session, side) for side in sides)
        if first.loads or second.loads:
            raise UsageError("a race here is between settings of one model")
        return first, second

    def _emit_chat(self, emit: Emit) -> None:
        """Emit the chat, and the message that was added to it."""
        chat = self._session.chat
        emit({"type": "chat", "id": chat.id, "title": chat.title})
        if chat.turns and chat.turns[-1].role == "user":
            emit(self._turn(len(chat.turns) - 1))

    def _turn(self, index: int) -> View:
        chat = self._session.chat
        return {"type": "turn", "turn": views.turn(self._chats.store, chat.id, chat.turns[index])}

    def _emit_end(self, emit: Emit) -> None:
        chat = self._session.chat
        try:
            self._chats.settle(self._session)
        except StoreError as error:
            text = f"this chat is not saved yet, and kept in memory until it can be: {error}"
            emit({"type": "notice", "level": "error", "text": text})
        about = {"id": chat.id, "title": chat.title}
        emit({"type": "end", "turn": self._turn(len(chat.turns) - 1)["turn"] if chat.turns else None, "chat": about})
