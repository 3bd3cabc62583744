"""The table of likely successors, as several drafters use it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.core.draft import Draft
from edgespec.core.index.successor_table import SuccessorTable, successors_in
from edgespec.core.sampling import FloatRow
from edgespec.drafters.base import Outcome
from edgespec.drafters.successors import BLENDED, Successors

V = 12


def outcome(row: list[float], token: int = 3, before: int = -1, *, is_remembered: bool = True) -> Outcome:
    rows = np.array(row, np.float32)
    return Outcome(None, [token], Draft.empty(), [], lambda node: rows, before, is_remembered)  # type: ignore[arg-type]


def likely(token: int) -> list[float]:
    """A row in which one token is likely."""
    return [9.0 * (other == token) for other in range(V)]


def test_the_likeliest_follow_with_their_shares() -> None:
    table = Successors(V)
    table.learn(outcome([0.0] * 5 + [np.log(3.0)] + [-np.inf] * 6))
    ids, weights, _ = table.of(3)
    assert ids[0] == 5 and weights[0] == pytest.approx(3 / 8)
    assert not len(table.of(4)[0])


def test_a_step_that_two_drafters_show_is_learnt_once() -> None:
    table, shown = Successors(V), list[int]()

    def logits(node: int) -> FloatRow:
        shown.append(node)
        return np.arange(V, dtype=np.float32)

    step = outcome([0.0])._replace(logits=logits)
    table.learn(step)
    table.learn(step)
    assert shown == [-1]


@pytest.mark.parametrize("scattered", [False, True])
def test_blending_mixes_probabilities(scattered: bool) -> None:
    """The draft is sure of token 1, and the table is almost sure of token 7."""
    table, drafted = Successors(V), np.array([2.0, 30.0], np.float32)
    table.learn(outcome([0.0] * 7 + [60.0] + [0.0] * 4))
    row = np.full(V, -np.inf, np.float32)
    row[:2] = drafted
    table.blend(row, 3, drafted if scattered else None)
    probabilities = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
    assert probabilities[[1, 7]].tolist() == pytest.approx([1 - BLENDED, BLENDED])
    before = row.copy()
    table.blend(row, 4)
    assert (row == before).all()


def test_two_tokens_say_more_than_one() -> None:
    table = Successors(V)
    table.learn(outcome(likely(5), before=1))
    table.learn(outcome(likely(6), before=2))
    assert [table.of(3, before=before)[0] for before in (1, 2, 4)] == [[5], [6], [6]]
    assert table.of(3, before=1)[2] > table.of(3, before=4)[2]


def unsaved(table: Successors) -> list[list[int]]:
    """The contexts whose rows are not saved yet."""
    return table.unsaved().state()["contexts"].tolist()  # type: ignore[no-any-return]


def test_what_is_learned_replaces_earlier_tables() -> None:
    earlier, table = Successors(V), Successors(V)
    earlier.learn(outcome(likely(5), before=1))
    kept = SuccessorTable()
    kept.update(earlier.unsaved())
    table.restore(kept.state())
    assert table.of(3, before=1)[0] == [5]
    assert table.of(3, before=1)[2] < earlier.of(3, before=1)[2]
    table.learn(outcome(likely(6), before=2))
    assert table.of(3, before=1)[0] == [5]  # an earlier row after two tokens before a new one after one
    table.learn(outcome(likely(7), before=1))
    assert table.of(3, before=1)[0] == [7]


def test_answers_that_are_not_to_be_remembered_are_not_saved() -> None:
    table = Successors(V)
    table.learn(outcome(likely(5), before=1))
    table.learn(outcome(likely(6), before=2, is_remembered=False))
    assert unsaved(table) == [[1, 3]]  # the row after token 3 alone is now that of the second answer
    assert table.of(3, before=2)[0] == [6]
    assert not unsaved(table)


def test_the_oldest_of_many_unsaved_rows_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.core.index.successor_table.MOST_CONTEXTS", 2)
    table = Successors(V)
    for token in (1, 2):
        table.learn(outcome(likely(5), token, before=3))
    assert unsaved(table) == [[3, 2], [-1, 2]]


def test_a_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.core.index.successor_table.MOST_CONTEXTS", 2)
    table, row = SuccessorTable(), successors_in(np.array(likely(5), np.float32))
    for token in (1, 2, 1, 3):
        table.put((-1, token), row)
    assert len(table) == 2
    assert [table.get(-1, token) is not None for token in (1, 2, 3)] == [True, False, True]


def test_tables_of_other_data_are_refused() -> None:
    table = SuccessorTable()
    table.put((1, 2), successors_in(np.array(likely(5), np.float32)))
    table.put((1, 3), successors_in(np.array([9.0, 8.0, *[0.0] * 10], np.float32)))
    state = table.state()
    changes: list[dict[str, NDArray[Any]]] = [
        {"ids": np.array([5, 0, V], np.int32)},
        {"ids": np.array([5.0, 0.0, 1.0])},
        {"contexts": np.array([[1, 2], [-2, 3]], np.int32)},
        {"contexts": np.array([1, 2, 1, 3], np.int32)},
        {"lengths": np.array([0, 3], np.uint8)},
        {"lengths": np.array([1, 3], np.uint8)},
        {"lengths": np.array([1.0, 2.0])},
        {"lengths": np.array([[1, 2]], np.uint8)},
        {"logits": np.array([9.0, np.nan, np.nan], np.float16)},
        {"logits": np.array([9.0, 8.0, 9.0], np.float16)},
    ]
    for change in changes:
        with pytest.raises(ValueError, match="a table of successors"):
            SuccessorTable().restore(state | change, V)
    again = SuccessorTable()
    again.restore(state, V)
    assert again.get(1, 2) is not None and again.get(1, 3) is not None and not SuccessorTable().state()["contexts"].size


def test_forgetting_leaves_tables_and_rows_to_be_saved() -> None:
    table, earlier = Successors(V), SuccessorTable()
    earlier.put((-1, 3), successors_in(np.array(likely(7), np.float32)))
    table.restore(earlier.state())
    table.learn(outcome(likely(5)))
    table.forget()
    assert table.of(3)[0][0] == 7
    assert len(table.unsaved()) == 1
