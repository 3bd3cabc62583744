"""Comparisons: one message answered twice, with other settings or by another model.

The answers are generated one after the other, and both become branches of the chat. If only drafting differs, the
comparison is a race: neither answer may find the conversation in the KV cache. The drafted answer is generated first,
because drafters look into earlier answers and must not find the same answer there. While the other one is generated,
the first can be replayed at the times at which its tokens came: each has the machine for itself, and both are seen to
run.
"""

from __future__ import annotations

import secrets
import shlex
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

from edgespec.cancel import CancelFlag
from edgespec.chat.events import Notice
from edgespec.chat.model import ChatModel, drafting_with
from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings, changed, setting
from edgespec.core.stats import Stats
from edgespec.errors import OutOfMemoryError, UsageError
from edgespec.events import Progress, TokenEvent
from edgespec.history import TokenRecord, Turn
from edgespec.settings import LoadSettings
from edgespec.text.figures import rate

PLAIN = "pace=off"  # the default changes of the second answer
AS_SET, UNDRAFTED = "current settings", "without drafting"
DRAFTED = "with drafting"
NOTABLE = 0.02  # a smaller relative difference in speed may be chance


@dataclass(frozen=True, slots=True)
class Side:
    """The settings of one of the answers."""

    changes: str  #: the differences from the chat, as the user typed them
    settings: ChatSettings
    loads: LoadSettings | None = None  #: another model, None for the chat's own
    name: str = ""  #: the title, unless the changes are

    @property
    def title(self) -> str:
        return self.name or (UNDRAFTED if self.changes == PLAIN else self.changes or AS_SET)

    @property
    def is_plain(self) -> bool:
        return self.settings.pace == "off" or self.settings.spec_type == "none"


def named(changes: str) -> list[tuple[str, str]]:
    """Return the names and values of changes such as "temp=0.5 pace=off" or "MODEL draft=none". Raises UsageError."""
    try:
        words = [word.partition("=") for word in shlex.split(changes)]
    except ValueError as error:
        raise UsageError(f"{changes!r} cannot be read", why=str(error)) from error
    return [(name, value) if has_value else ("model", name) for name, has_value, value in words]


def side_of(session: Session, changes: str) -> Side:
    """Parse changes such as "temp=0.5 pace=off" or "MODEL draft=none".

    Names are those of /set, `model` and `draft`; a word without a name is a model. Raises UsageError.
    """
    settings, loads = session.chat.settings, session.load_settings
    for name, value in named(changes):
        if name == "model":
            loads = drafting_with(loads, None).for_model(value)
        elif name == "draft":
            loads = drafting_with(loads, value)
        else:
            settings = changed(settings, setting(name).name, value)
    return Side(changes.strip(), settings, loads if loads != session.load_settings else None)


def sides_and_text(session: Session, argument: str) -> tuple[tuple[Side, Side], str]:
    """Parse "PROMPT", "CHANGES -- PROMPT" or "CHANGES | CHANGES -- PROMPT"; an empty prompt means the last message.

    Raises UsageError.
    """
    changes, has_changes, text = f"{argument} ".partition("-- ")
    if not has_changes:
        changes, text = PLAIN, argument
    first, has_both, second = changes.partition("|")
    sides = (first, second) if has_both else ("", first)
    return (side_of(session, sides[0]), side_of(session, sides[1])), text.strip()


def racing_sides(session: Session) -> tuple[Side, Side]:
    """Return the sides with and without drafting. Raises UsageError if the chat does not draft."""
    drafted = replace(side_of(session, ""), name=DRAFTED)
    if drafted.is_plain:
        raise UsageError("drafting is off in this chat", hint="/set pace auto and /set spec-type auto turn it on")
    return drafted, side_of(session, PLAIN)


@dataclass(slots=True)
class Lane:
    """One of the two answers. Times are in seconds since the answer was asked for."""

    events: list[TokenEvent] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)  #: when each event came
    begun_s: float | None = None  #: when the answer was asked for, on the clock of `perf_counter`
    turn: Turn | None = None  #: its message, None while there is none

    @property
    def key(self) -> str | None:
        """The key of its message."""
        return None if self.turn is None else self.turn.key

    @property
    def pieces(self) -> list[TokenRecord]:
        """Its tokens as the store has them."""
        shown = [event for event in self.events if event.id >= 0 or event.text]
        return [TokenRecord(event.id, event.text, event.source, event.round) for event in shown]

    def take(self, event: TokenEvent) -> None:
        """Add an event that comes now."""
        self.times_s.append(perf_counter() - (self.begun_s or 0.0))
        self.events.append(event)

    def n_until(self, time_s: float) -> int:
        """Return how many events had come at a time."""
        return bisect_right(self.times_s, time_s)

    def speed_of(self, n_events: int) -> float | None:
        """Return the tokens per second of the first events; None while that is unknown. The first token belongs to the
        prompt."""
        if n_events == len(self.events) and self.is_over:
            return self.stats.tokens_per_s if len(self.tokens) > 1 else None
        times = [time for event, time in zip(self.events[:n_events], self.times_s, strict=False) if event.id >= 0]
        took_s = times[-1] - times[0] if times else 0.0
        return (len(times) - 1) / took_s if took_s > 0 else None

    @property
    def tokens(self) -> Sequence[TokenEvent]:
        """The events that are tokens."""
        return [event for event in self.events if event.id >= 0]

    @property
    def stats(self) -> Stats:
        return (self.events[-1].stats if self.events else None) or Stats()

    @property
    def is_over(self) -> bool:
        return bool(self.events) and self.events[-1].is_last

    @property
    def was_cancelled(self) -> bool:
        return not self.is_over or self.events[-1].finish_reason == "cancelled"


class AnswerComparison:
    """Two answers to `text`, or to the last message if `text` is empty.

    `lanes` are the answers so far, `running` is the index of the one that is generated, `notes` are the notes that the
    model gave meanwhile. `had` is the answer that the chat had to this message.
    """

    def __init__(self, session: Session, sides: tuple[Side, Side], text: str = "") -> None:
        self.session, self.sides, self.text = session, sides, text
        self.lanes = (Lane(), Lane())
        self.running = 0
        self._seed = secrets.randbits(32) if session.chat.settings.seed < 0 else None  # both answers use the same seed
        self.notes: list[str] = []
        self.had: str | None = None
        self._chat: str | None = None

    @property
    def message(self) -> str:
        """The message that is answered."""
        sent = [turn.content for turn in self.session.chat.turns if turn.role == "user"]
        return self.text or (sent[-1] if sent else "")

    @property
    def is_race(self) -> bool:
        """True if the sides differ only in drafting."""
        first, second = (side.settings.drafting_as_loaded() for side in self.sides)
        return first == second and not any(side.loads for side in self.sides)

    @property
    def is_asked(self) -> bool:
        """True if the message was sent: at least one of the answers has begun."""
        return any(lane.events for lane in self.lanes)

    def run(
        self, cancel: CancelFlag, heard: Callable[[int], None] = lambda side: None, progress: Progress | None = None
    ) -> None:
        """Generate both answers. The chat continues from the answer that it had, else from the first of the two.

        `heard` is called for each event with the index of its side, `progress` while another model is loaded. `cancel`
        ends the running answer and skips the other one. Raises what Session.ask raises.
        """
        self.session.model.needed()
        for side in self.sides:
            if side.loads is not None:
                self.session.model.check(side.loads)
        last = self.session.chat.turns[-1] if self.session.chat.turns and not self.text else None
        self.had = last.key if last and last.role == "assistant" else None
        order = (1, 0) if self.is_race and self.sides[0].is_plain else (0, 1)
        for number in order:
            if cancel.is_set():
                break
            self.running = number
            with self._as(self.sides[number], cancel, progress):
                self._answer(number, "" if number != order[0] else self.text, cancel, heard)
        keys = [lane.key for lane in self.lanes]
        if self.had is not None and self.had not in keys:
            self.session.chat.switch(self.had)
        elif any(keys):
            self._switch(keys.index(self.had or next(filter(None, keys))))

    def replayed(self, now_s: float) -> tuple[int | None, float]:
        """Return which answer is replayed while the other one is generated, None for none, and since how many
        seconds."""
        other = 1 - self.running
        begun_s = self.lanes[self.running].begun_s
        if not self.is_race or begun_s is None or not self.lanes[other].is_over:
            return None, 0.0
        return other, now_s - begun_s

    def keep(self, number: int) -> None:
        """Continue the chat from the answer of side `number`; the other answer stays a branch. Raises UsageError."""
        key = self.lanes[number].key
        if key is None:
            raise UsageError("there is no such answer")
        if self._chat != self.session.chat.saved_id:
            raise UsageError("those answers are in another chat", hint="/load opens it")
        self._switch(number)

    def _switch(self, number: int) -> None:
        """Continue the chat from the answer of side `number`. Equal answers are one message, which gets the figures and
        the tokens of this side."""
        chat, turn, store = self.session.chat, self.lanes[number].turn, self.session.store
        assert turn is not None
        if turn.answer is not None and turn.key == self.lanes[1 - number].key:
            about = (chat.id, turn.parent, turn.content, turn.answer, self.lanes[number].pieces)
            chat.writes.write(partial(store.finish, None, *about))
        chat.switch(turn.key)

    def _answer(self, number: int, asks: str, cancel: CancelFlag, heard: Callable[[int], None]) -> None:
        session, lane = self.session, self.lanes[number]
        if self.is_race:
            session.model.needed().forget()
            session.states.leave(session.chat.saved_id or "")
        lane.begun_s = perf_counter()
        for event in session.ask(asks, cancel) if asks else session.regenerate(cancel, sample=0):
            if isinstance(event, Notice):
                self.notes.append(event.text)
            elif isinstance(event, TokenEvent):
                lane.take(event)
                heard(number)
        last, self._chat = session.chat.turns[-1], session.chat.saved_id
        if last.role == "assistant":
            lane.turn = last

    @contextmanager
    def _as(self, side: Side, cancel: CancelFlag, progress: Progress | None) -> Iterator[None]:
        """Within this block the session answers with the settings and model of `side`.

        If there is no room for both models, the chat's own model is unloaded and loaded again afterwards.
        """
        session, own = self.session, self.session.model
        settings = side.settings if self._seed is None else replace(side.settings, seed=self._seed)
        if side.loads is None:
            with session.answering_as(settings, own):
                yield
            return
        other = ChatModel(own.open_engine, own.settings, own.server)
        try:
            try:
                other.load(side.loads, progress, cancel)
            except OutOfMemoryError:
                session.states.keep_last(own.engine)
                own.unload()
                other.load(side.loads, progress, cancel)
            with session.answering_as(settings, other):
                yield
        finally:
            other.unload()
            if own.engine is None and not own.failure:
                own.load(own.settings, progress, None)

    # --- the result ---------------------------------------------------------------------------------------------------

    @property
    def differs_at(self) -> int | None:
        """The index of the first token that differs; None if the answers agree.

        A token that only the longer answer has differs too, unless the shorter answer was cancelled.
        """
        for index, pair in enumerate(zip(*(lane.tokens for lane in self.lanes), strict=False)):
            if pair[0].id != pair[1].id or pair[0].text != pair[1].text:
                return index
        shorter, longer = sorted(self.lanes, key=lambda lane: len(lane.tokens))
        is_one = len(shorter.tokens) == len(longer.tokens) or shorter.was_cancelled
        return None if is_one else len(shorter.tokens)

    @property
    def drafted_by(self) -> dict[str, int]:
        """The number of accepted tokens of each drafter in both answers, largest first."""
        tokens = (event for lane in self.lanes for event in lane.tokens)
        return dict(Counter(event.source for event in tokens if event.from_draft).most_common())

    @property
    def speeds(self) -> tuple[float, float]:
        """The tokens per second of both answers, when they are over."""
        return self.lanes[0].stats.tokens_per_s, self.lanes[1].stats.tokens_per_s

    def verdict(self) -> str:
        """Return one sentence: which answer was faster, and whether the texts are the same."""
        first, second = self.speeds
        if not (first and second and all(len(lane.tokens) > 1 for lane in self.lanes)):
            stopped = any(lane.was_cancelled for lane in self.lanes)
            return "stopped before there was anything to compare" if stopped else "too short to compare"
        result = f"{rate(first)} vs. {rate(second)} tok/s, {self._same_text()}"
        speedup = first / second
        if self.is_race and not any(lane.stats.proposed for lane in self.lanes):
            return f"nothing was drafted, any difference is noise: {result}"
        if any(lane.stats.repeated_tokens for lane in self.lanes):
            return f"an answer repeats itself, which drafts predict easily: {result}"
        if abs(speedup - 1) < NOTABLE:
            return f"equally fast: {result}"
        faster, factor = (self.sides[0], speedup) if speedup > 1 else (self.sides[1], 1 / speedup)
        return f"{faster.title}: {factor:.2f}x as fast, {result}"

    def _same_text(self) -> str:
        index = self.differs_at
        if index is None:
            return f"the same {min(len(lane.tokens) for lane in self.lanes)} tokens"
        rule = self.sides[0].settings.verify
        why = f", {'by rounding' if rule == 'coupled' else f'as {rule} allows'}" if self.is_race else ""
        return f"different text from token {index + 1} on{why}"
