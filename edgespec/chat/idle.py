"""While the user does nothing, ask the model for a title of the chat, and save the state of the chat on disk.

Small models write poor titles, so a title is used only if it is short and shares its words with the chat.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from contextlib import closing

from edgespec.cancel import CancelFlag
from edgespec.chat.session import Session
from edgespec.core.sampling import SamplingSettings
from edgespec.history import Turn
from edgespec.settings import Message, Request
from edgespec.text.thinking import without_thinking

TITLE_AFTER_S, KEPT_AFTER_S = 0.7, 10.0  # without a message or command
KEPT_WITHIN_S = 30.0  # the longest time for saving; any request to the model ends it earlier
MOST_TURNS = 6  # a longer chat keeps its first line as its title
QUESTION = "Give this conversation a short title of at most six words. Reply with the title only."
MOST_TOKENS = 24
ROOM = 96  # tokens that the question and the title need
MOST_WORDS, MOST_CHARACTERS = 6, 60
STEM = 4  # the first letters of a word, which its other forms have too; shorter words say little
ORNAMENTS = re.compile(r"^\W*title\s*:|[*_`#\"<>\u00ab\u00bb\u201c-\u201f]+", re.IGNORECASE)  # Markdown and quotes

log = logging.getLogger(__name__)


class Idle:
    """Works in a thread, between `begin` and `stop`."""

    def __init__(self, session: Session, *, makes_titles: bool = True) -> None:
        self._session, self._makes_titles = session, makes_titles
        self._tried: set[tuple[str, int]] = set()  # chats, and how many turns they had
        self._stopped, self._cancel = threading.Event(), CancelFlag()
        self.thread: threading.Thread | None = None
        self.has_title = False  # True after the model gave a chat a title, until the screen has shown it

    def begin(self) -> None:
        """Start: the user has nothing to wait for."""
        self.stop()
        session = self._session
        chat = session.chat if self._wants_title() else None
        if chat is None and not session.states.has_news:
            return
        stopped, cancel = self._stopped, self._cancel = threading.Event(), CancelFlag()
        turns, messages = list(session.turns), session.messages  # the user may open another chat meanwhile

        def work() -> None:
            try:
                if chat is not None and not stopped.wait(TITLE_AFTER_S):
                    self._make_title(chat, turns, messages, cancel)
                if not stopped.wait(KEPT_AFTER_S):
                    with session.model.watched() as engine:
                        session.states.keep(engine, KEPT_WITHIN_S)
            except Exception:  # for example a model that is closed meanwhile; the chat works without title and state
                log.debug("while idle", exc_info=True)

        self.thread = threading.Thread(target=work, name="idle", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Stop, without waiting for the end of the thread."""
        self._cancel.set()
        self._stopped.set()

    def _wants_title(self) -> bool:
        """Return whether the open chat needs a title, and asking for one does not cost the chat its KV cache."""
        session, about = self._session, self._session.about
        if not self._makes_titles or session.engine is None or session.chat is None or session.model.server:
            return False
        if not about.get("can_cut") or about.get("opens_thinking") or not 1 < len(session.turns) <= MOST_TURNS:
            return False
        answer = session.turns[-1].answer
        is_whole = answer is not None and answer.finish_reason in ("stop", "length")
        has_room = session.used + ROOM < session.context_size
        return is_whole and has_room and (session.chat, len(session.turns)) not in self._tried

    def _make_title(self, chat: str, turns: list[Turn], messages: Sequence[Message], cancel: CancelFlag) -> None:
        session = self._session
        if session.store.find(chat).title_by != "line":
            return
        with session.model.watched() as engine, closing(engine.submit(title_request(messages), cancel)) as stream:
            events = list(stream)
        if cancel.is_set():
            return
        self._tried.add((chat, len(turns)))
        text = "".join(event.text for event in events) if events[-1].finish_reason == "stop" else ""
        title = cleaned(text, " ".join(without_thinking(turn.content) for turn in turns))
        log.debug("title of %s: %r", chat, title)
        if title and session.store.rename(chat, title, by="model"):
            if session.chat == chat:
                session.title = title
            self.has_title = True


def title_request(messages: Sequence[Message]) -> Request:
    """Return the request for the title of a chat that ends with an answer.

    The question follows the chat, so only the question is processed, and the KV cache of the chat stays valid.
    """
    return Request(
        messages=(*messages, Message("user", QUESTION), Message("assistant", "Title:")),
        max_tokens=MOST_TOKENS,
        sampling=SamplingSettings(temperature=0.0),
        stop=("\n",),
        pace="off",
        lenient=True,
        remembered=False,
    )


def cleaned(text: str, chat: str) -> str:
    """Return the title in the text that a model wrote; "" if it is too long, or not about the text of the chat."""
    line = ORNAMENTS.sub("", text.strip().partition("\n")[0])
    line = " ".join(line.split()).strip(" '\u2018\u2019.,;:!-\u2013\u2014")
    before, colon, _ = line.partition(": ")
    if colon and " " in before:  # a subtitle follows
        line = before
    is_short = len(line.split()) <= MOST_WORDS and len(line) <= MOST_CHARACTERS
    return line if is_short and _is_about(line, chat) else ""


def _is_about(title: str, chat: str) -> bool:
    """Return whether at least half of the title's words are in the chat, in some form."""
    if any("\u0e00" <= character <= "\u9fff" for character in title):  # scripts without spaces: compare characters
        letters = [character for character in title if character.isalpha()]
        return 2 * sum(letter in chat for letter in letters) >= len(letters) > 1
    stems = {word[:STEM] for word in _words(title) if len(word) >= STEM}
    known = {word[:STEM] for word in _words(chat)}
    return bool(stems) and 2 * len(stems & known) >= len(stems)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())
