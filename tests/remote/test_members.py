"""A fleet of members that come and go: where rows go, and that each is answered once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import GenerationError, LostError, UsageError
from edgespec.events import Completion, TokenEvent
from edgespec.llm import fleet as module
from edgespec.llm.fleet import Arrived, Fleet
from edgespec.llm.info import ModelInfo
from edgespec.settings import LoadSettings, Request

Put = Callable[[Arrived], None]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEAD_S", 0.0)


class Fake:
    """A member that answers each prompt with itself, or does what `react` says: True if that was something else."""

    def __init__(self, name: str, react: Callable[[Fake, str, Put], bool] = lambda fake, prompt, put: False) -> None:
        self.name, self.settings, self.texts_depend_on = name, LoadSettings(name), dict[str, Any]()
        self.own_settings = dict[str, Any]()
        self.info, self.restarts = ModelInfo(name, sequences=2), False
        self.is_gone, self.is_closed = False, False
        self.asked: list[str] = []
        self._react = react

    def check_settings(self, request: Request) -> None: ...

    def begin(self, request: Request, put: Put) -> Future[None]:
        self.asked.append(request.prompt)
        if not self._react(self, request.prompt, put):
            answer(request.prompt, put)
        return Future()

    def recover(self, error: LostError) -> Future[None]:
        back: Future[None] = Future()
        if self.is_gone:
            back.set_exception(LostError("it has left"))
        else:
            back.set_result(None)
        return back

    def close(self) -> None:
        self.is_closed = True


class Coming:
    """Members that join when it is asked for the nth time."""

    def __init__(self, when: dict[int, Fake]) -> None:
        self._when, self._n_asked = when, 0

    def are_expected(self, alone_s: float) -> bool:
        return bool(self._when)

    def joined(self) -> Sequence[Fake]:
        self._n_asked += 1
        return [self._when.pop(number) for number in [*self._when] if number <= self._n_asked]

    def close(self) -> None: ...


def answer(prompt: str, put: Put) -> None:
    put(TokenEvent(1, prompt))
    put(TokenEvent(-1, "", finish_reason="stop", stats=Stats()))


def lost(fake: Fake, put: Put) -> bool:
    put(LostError(f"{fake.name} went away"))
    return True


def answers(fleet: Fleet, prompts: Iterable[str]) -> dict[int, str]:
    """Return the answer to each prompt, or its error, and check that there is one of each."""
    found: dict[int, str] = {}
    for index, event in fleet.stream(Request(prompt=prompt) for prompt in prompts):
        if isinstance(event, TokenEvent) and event.is_last:
            continue
        if isinstance(event, TokenEvent) and event.is_anew:
            found.pop(index)
            continue
        assert index not in found
        found[index] = event.text if isinstance(event, TokenEvent) else str(event)
    return found


PROMPTS = [f"row {number}" for number in range(40)]
ALL = dict(enumerate(PROMPTS))


def test_a_member_that_joins_later_gets_rows() -> None:
    late = Fake("late")
    with Fleet([Fake("first")], recruits=Coming({5: late})) as fleet:
        assert answers(fleet, PROMPTS) == ALL
        assert fleet.n_members == 2
    with pytest.raises(UsageError, match="closed"):
        fleet.submit(Request("x"))
    assert late.asked
    assert late.is_closed


@pytest.mark.slow
def test_one_that_is_gone_is_named_and_its_rows_go_to_who_comes() -> None:
    def leave(fake: Fake, prompt: str, put: Put) -> bool:
        fake.is_gone = fake.is_gone or prompt == "row 7"
        return fake.is_gone and lost(fake, put)

    first, late = Fake("first", leave), Fake("late")
    with Fleet([first], kind="node", recruits=Coming({30: late})) as fleet:
        assert answers(fleet, PROMPTS) == ALL
        assert [*fleet.notes] == ["first is lost (it has left)"]
    assert first.is_closed
    assert "row 7" in late.asked


def test_when_the_last_one_is_gone_and_nobody_comes_it_ends() -> None:
    def leave(fake: Fake, prompt: str, put: Put) -> bool:
        fake.is_gone = True
        return lost(fake, put)

    with (
        Fleet([Fake("a", leave), Fake("b", leave)], kind="node") as fleet,
        pytest.raises(LostError, match="every node"),
    ):
        answers(fleet, PROMPTS)


def test_a_row_that_is_answered_by_a_lost_member_after_all_counts_once() -> None:
    late: list[Put] = []

    def keep(fake: Fake, prompt: str, put: Put) -> bool:
        if prompt == "row 3" and not late:
            late.append(put)
            return lost(fake, put)
        for each in late:
            answer("row 3, twice", each)
        return False

    with Fleet([Fake("a", keep), Fake("b", keep)]) as fleet:
        assert answers(fleet, PROMPTS) == ALL
    assert late


def test_a_row_that_fails_is_tried_at_another_member_first() -> None:
    def fail(fake: Fake, prompt: str, put: Put) -> bool:
        put(GenerationError("it is broken"))
        return True

    broken, sound = Fake("broken", fail), Fake("sound")
    with Fleet([broken, sound]) as fleet:
        assert answers(fleet, PROMPTS) == ALL
    assert broken.asked


def test_a_row_that_ends_members_gets_an_error_alone() -> None:
    def die(fake: Fake, prompt: str, put: Put) -> bool:
        return prompt == "row 9" and lost(fake, put)

    with Fleet([Fake("a", die), Fake("b", die)]) as fleet:
        found = answers(fleet, PROMPTS)
    assert found.pop(9).endswith("went away")
    assert found == {index: prompt for index, prompt in ALL.items() if index != 9}


def test_a_reader_does_not_wait_for_another_one() -> None:
    with Fleet([Fake("a")]) as fleet:
        unread, answer = fleet.submit(Request("one")), fleet.submit(Request("two"))
        assert (str(answer), str(unread)) == ("two", "one")


def test_an_answer_that_begins_again_has_its_text_once() -> None:
    def break_off(fake: Fake, prompt: str, put: Put) -> bool:
        put(TokenEvent(1, "half of "))
        return len(fake.asked) % 2 == 1 and lost(fake, put)

    with Fleet([Fake("a", break_off)]) as fleet:
        assert str(fleet.submit(Request("one"))) == "half of one"
        assert Completion.of(fleet.submit(Request("two"))).text == "half of two"


def test_a_cancelled_row_has_one_end() -> None:
    cancel = CancelFlag()

    def fail(fake: Fake, prompt: str, put: Put) -> bool:
        cancel.set()
        put(GenerationError("it is broken"))
        return True

    with Fleet([Fake("a", fail)]) as fleet:
        ends = [event for _, event in fleet.stream([Request("one"), Request("one", sample=1)], cancel)]
    assert [event.finish_reason for event in ends if isinstance(event, TokenEvent)] == ["cancelled"] * len(ends)
