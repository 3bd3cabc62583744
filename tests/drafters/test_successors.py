"""The table of likely successors, as several drafters use it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgespec.core.draft import Draft
from edgespec.core.sampling import FloatRow
from edgespec.drafters.base import Outcome
from edgespec.drafters.successors import BLENDED, Successors

V = 12


def outcome(row: list[float], token: int = 3) -> Outcome:
    rows = np.array(row, np.float32)
    return Outcome(None, [token], Draft.empty(), [], lambda node: rows)  # type: ignore[arg-type]


def test_the_likeliest_follow_with_their_shares() -> None:
    table = Successors(V)
    table.learn(outcome([0.0] * 5 + [np.log(3.0)] + [-np.inf] * 6))
    ids, weights = table.of(3)
    assert ids[0] == 5 and weights[0] == pytest.approx(3 / 8)
    assert not len(table.of(4)[0])


def test_a_step_that_two_drafters_show_is_learnt_once() -> None:
    table, shown = Successors(V), list[int]()

    def logits(node: int) -> FloatRow:
        shown.append(node)
        return np.arange(V, dtype=np.float32)

    step = replace(outcome([0.0]), logits=logits)
    table.learn(step)
    table.learn(step)
    assert shown == [-1]


@pytest.mark.parametrize("scattered", [False, True])
def test_blending_gives_log_probabilities(scattered: bool) -> None:
    """The draft is sure of token 1, and the table is almost sure of token 7."""
    table, drafted = Successors(V), np.array([2.0, 30.0], np.float32)
    table.learn(outcome([0.0] * 7 + [60.0] + [0.0] * 4))
    row = np.full(V, -np.inf, np.float32)
    row[:2] = drafted
    table.blend(row, 3, drafted if scattered else None)
    assert np.exp(row).sum() == pytest.approx(1)
    assert np.exp(row[[1, 7]]).tolist() == pytest.approx([1 - BLENDED, BLENDED])
    before = row.copy()
    table.blend(row, 4)
    assert (row == before).all()
