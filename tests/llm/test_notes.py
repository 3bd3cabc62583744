"""Messages for the user: each once, or each time that an event happens, and taken by one reader."""

from __future__ import annotations

from edgespec.llm.notes import Notes


def test_a_message_is_added_once_and_an_event_each_time() -> None:
    notes = Notes(["first"])
    for _ in range(2):
        notes.add("slow disk")
        notes.append("it is lost")
    assert [*notes] == ["first", "slow disk", "it is lost", "it is lost"]
    assert (notes[0], notes[-1], len(notes), repr(notes[:2])) == ("first", "it is lost", 4, "['first', 'slow disk']")


def test_new_messages_are_taken_once() -> None:
    notes = Notes()
    notes.add("one")
    assert (notes.take(), notes.take()) == (["one"], [])
    notes.add("two")
    assert (notes.take(), str(notes)) == (["two"], "['one', 'two']")
