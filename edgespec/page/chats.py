"""The chats of the user who started the server: opened for an answer or for a change, with a model of the server."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from edgespec.chat.attachments import Attachment, attachment, delete_chats, kept_file
from edgespec.chat.paths import unlike_words
from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings, setting
from edgespec.chat.states import remove_states
from edgespec.chat.transcript import messages_of, rescue, to_jsonl, to_markdown
from edgespec.closable import Closable
from edgespec.documents.reader import kind_of, read_data
from edgespec.errors import UsageError
from edgespec.files.images import has_image_name
from edgespec.history import Store, StoreError
from edgespec.page import views
from edgespec.page.lent import LentModel
from edgespec.page.views import View
from edgespec.requests.bad_input import BadInputError, JsonObject, wrong
from edgespec.requests.fields import Fields
from edgespec.serve.pool import Offer, Place
from edgespec.serve.served import Served
from edgespec.text.printable import one_line
from edgespec.tools.toolbox import Toolbox

READ_S = 120.0  # for a document
DIGEST = re.compile("[0-9a-f]{64}")
log = logging.getLogger(__name__)


def usual_settings(offer: Offer) -> ChatSettings:
    """Return the settings of new chats with a model."""
    return replace(ChatSettings.of(offer.defaults), seed=-1 if offer.seed is None else offer.seed)


class Chats(Closable):
    """The chats in the user's store, which is opened when the page is first used. `note` gets its messages.

    Methods may be called from any thread, and raise EdgespecError and BadInputError.
    """

    def __init__(self, toolbox: Toolbox, note: Callable[[str], None]) -> None:
        self._toolbox, self._note = toolbox, note
        self._opening = threading.Lock()
        self._store: Store | None = None
        self._unsaved: dict[str, Session] = {}  # chats that the store does not accept now, by their ids
        self._answering: set[Session] = set()

    @property
    def store(self) -> Store:
        with self._opening:
            self._store = self._store or Store(note=self._note)
            return self._store

    @property
    def tool_servers(self) -> list[str]:
        """The names of the servers of tools."""
        return [server.config.name for server in self._toolbox.servers]

    def close(self) -> None:
        """Save chats that could not be saved, elsewhere if need be, and close the store."""
        for session in [*self._unsaved.values()]:
            try:
                self.settle(session)
            except StoreError as error:
                file = rescue(session.chat)
                where = f"it is in {file}: 'edgespec history import' imports it" if file else "it is lost"
                self._note(f"the chat {session.chat.title!r} could not be saved ({error.line}); {where}")
        if self._store is not None:
            self._store.close()

    def session(self, offer: Offer, chat: str | None, served: Served | None = None) -> Session:
        """Return a chat, or a new one, that a loaded model answers; without one, answers are refused."""
        if (kept := self._unsaved.get(chat or "")) is not None:
            kept.chat.writes.retry()
        session = kept if kept is not None and not kept.chat.is_answering else self._opened(offer, chat)
        if served is not None:
            session.model.open_engine = lambda *_: LentModel(served)
            session.load(offer.settings)
        return session

    @contextmanager
    def answering(self, offer: Offer, chat: str | None, served: Served) -> Iterator[Session]:
        """Yield a chat, or a new one, for an answer of a loaded model. The chat is saved at the end."""
        session = self.session(offer, chat, served)
        self._answering.add(session)
        try:
            yield session
        finally:
            self._answering.discard(session)
            with suppress(StoreError):  # it was reported, or a worse error is
                self.settle(session)

    def _opened(self, offer: Offer, chat: str | None) -> Session:
        stored = self.store.chat_settings(self.store.find(chat).id).get("model") if chat else None
        begun = replace(offer.settings, model=str(stored)) if stored else offer.settings
        usual, tools = usual_settings(offer), self._toolbox.shared()
        session = Session(self.store, _refuse, begun, usual, offer.system, toolbox=tools)
        if chat:
            session.chat.open(chat)
        return session

    def settle(self, session: Session) -> None:
        """Save what the store has not accepted yet, or keep the chat until it does. Raises StoreError."""
        chat = session.chat
        chat.writes.retry()
        self._unsaved.pop(chat.id, None)
        if chat.store_error is not None:
            self._unsaved[chat.id] = session
            raise chat.store_error

    def view(self, offer: Offer, places: Sequence[Place], chat: str) -> View:
        """Return a chat as the page shows it."""
        return views.chat(self.store, self.session(offer, chat).chat, usual_settings(offer), places)

    def found(self, query: str, limit: int) -> View:
        """Return the newest chats, or those that have the words of `query`, with the messages that have them."""
        found = self.store.search(query, limit) if query.strip() else []
        chats = self.store.chats(limit, query, order="pinned")
        return {"chats": [*map(views.info, chats)], "hits": [*map(views.hit, found)]}

    def change(self, offer: Offer, places: Sequence[Place], body: JsonObject) -> View:
        """Change a chat as `action` says, and return it as it is then."""
        wanted = Fields(body)
        id, action = wanted.text("id"), wanted.text("action")
        if action == "delete":
            return {"deleted": self._deleted(id)}
        session = self.session(offer, id)
        chat, more = session.chat, View()
        if action == "rename":
            chat.rename(wanted.text("title"))
        elif action == "pin":
            self.store.pin(chat.id, wanted.flag("pinned", True))
        elif action == "move":
            self.store.move(chat.id, wanted.text("folder"))
        elif action == "switch":
            chat.switch(wanted.text("key"))
        elif action == "fork":
            self._show_up_to(session, wanted.text("key"))
            chat.fork()
        elif action == "undo":
            more = {"text": chat.undo()}
        elif action == "set":
            chat.change(texts_in(wanted))
        elif action == "system":
            chat.set_system(wanted.text("system"))
        else:
            raise wrong("action", "be rename, pin, move, switch, fork, undo, set, system or delete", action)
        self.settle(session)
        return views.chat(self.store, chat, usual_settings(offer), places) | more

    def _deleted(self, chat: str) -> str:
        """Delete a chat, and return its id. Raises UsageError while it is answered, StoreError."""
        id = self.store.find(chat).id
        if any(session.chat.id == id for session in [*self._answering]):  # its end would save the chat again
            raise UsageError("this chat is being answered", hint="stop the answer first")
        delete_chats(self.store, [id])
        remove_states([id])
        self._unsaved.pop(id, None)  # what waits to be saved would bring it back
        return id

    @staticmethod
    def _show_up_to(session: Session, key: str) -> None:
        """Make a message of the open branch the last one."""
        turns = session.chat.turns
        if key:
            session.chat.show(turns[: index_of(session, key) + 1])

    def branches(self, offer: Offer, chat: str) -> View:
        """Return the branches of a chat."""
        return {"branches": [*map(views.branch, self.session(offer, chat).chat.branches())]}

    def tokens(self, key: str) -> View:
        """Return the tokens of an answer, with the drafters that proposed them and the numbers of their passes."""
        return {"tokens": [[each.text, each.source, each.round] for each in self.store.pieces(key)]}

    def export(self, chat: str, form: str) -> tuple[str, str]:
        """Return a chat as a document, and the name for its file."""
        found = self.store.find(chat)
        writers = {"md": to_markdown, "jsonl": to_jsonl}
        if form not in writers:
            raise wrong("format", f"be one of {', '.join(writers)}", form)
        return writers[form](found, messages_of(self.store, found)), f"{found.id}.{form}"

    # --- files --------------------------------------------------------------------------------------------------------

    @staticmethod
    def read(name: str, data: bytes) -> View:
        """Read a file that was added to a message."""
        name = unlike_words(one_line(name))
        kind = kind_of(name, data[:8])
        if kind and not has_image_name(name):
            document = read_data(name, data, kind, READ_S)
            read = Attachment(document.name, document.text, document.about)
        else:
            read = attachment(name, data)
        return views.file(read) | {"text": read.text}

    @staticmethod
    def files(body: JsonObject) -> list[Attachment]:
        """Return the files of a message, which `read` has read."""
        listed = body.get("files") or []
        if not isinstance(listed, list):
            raise wrong("files", "be a list", listed)
        return [_attached(Fields(each, where=f"files[{number}]")) for number, each in enumerate(listed)]


def _refuse(*_: object) -> LentModel:
    """Load nothing: the server lends a model when an answer begins."""
    raise UsageError("no model is loaded")


def _attached(given: Fields) -> Attachment:
    name, about, image = given.text("name"), given.text("about"), given.text("image")
    if not image:
        return Attachment(name, given.text("text"), about)
    return attachment(name, image_data(image))


def image_data(digest: str) -> bytes:
    """Return an image of a chat by the hash of its content. Raises UsageError."""
    try:
        if DIGEST.fullmatch(digest):
            return kept_file(digest).read_bytes()
    except OSError as error:
        log.debug("an image cannot be read: %s", error)
    raise UsageError("this image is not here any more", hint="attach it again")


def texts_in(body: Fields) -> dict[str, str]:
    """Return the settings of a body, which are texts by name."""
    settings = body.mapping("settings")
    if bad := [name for name, value in settings.items() if not isinstance(value, str)]:
        raise BadInputError(f"settings.{bad[0]} must be a string", f"settings.{bad[0]}")
    check_constraints(settings.items())
    return settings


def check_constraints(settings: Iterable[tuple[str, str]]) -> None:
    """Raise UsageError for a constraint that is the name of a file: a client could learn what is in it."""
    for name, value in settings:
        if name not in ("model", "draft") and setting(name).names_file(value):
            raise UsageError(
                f"{name} must be a text, not the name of a file", why="the page reads no files of the server"
            )


def index_of(session: Session, key: str) -> int:
    """Return the place of a message in the open branch. Raises UsageError."""
    keys = [turn.key for turn in session.chat.turns]
    if key not in keys:
        raise UsageError(
            "there is no such message in the open branch", hint="another program may have changed the chat"
        )
    return keys.index(key)
