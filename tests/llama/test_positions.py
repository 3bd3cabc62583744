"""Indexes of tokens and positions in the KV cache, which images with M-RoPE set apart."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.llama.sequences import Positions

STATE = np.arange(40, dtype=np.uint8)


@pytest.fixture
def positions() -> Positions:
    """Sequence 0 has two images: 12 cells from index 5 with 4 positions, and 6 cells from index 20 with 3."""
    made = Positions()
    made.add(0, 5, 12, 4)
    made.add(0, 20, 6, 3)
    return made


def test_text_after_an_image_continues_after_its_positions(positions: Positions) -> None:
    pairs = {0: 0, 5: 5, 17: 9, 19: 11, 20: 12, 26: 15, 30: 19}
    assert {index: positions.position(0, index) for index in pairs} == pairs
    assert positions.position(1, 30) == 30


def test_the_length_of_a_sequence_counts_all_cells(positions: Positions) -> None:
    last = {-1: 0, 4: 5, 5: 17, 9: 18, 11: 20, 12: 26, 15: 27, 18: 30}  # an image's cells have its first position
    assert {position: positions.length(0, position) for position in last} == last


def test_a_cut_forgets_later_images(positions: Positions) -> None:
    positions.truncate(0, 20)
    assert [positions.position(0, index) for index in (19, 26)] == [11, 18]
    positions.truncate(0, 5)
    assert not positions


def test_a_copy_has_the_images_of_its_prefix(positions: Positions) -> None:
    positions.copy(0, 1, 19)
    positions.copy(0, 2, -1)
    assert [positions.position(sequence, 30) for sequence in (1, 2)] == [22, 19]


def test_saved_states_know_their_images(positions: Positions) -> None:
    for sequence in (0, 1):
        state = positions.with_images(sequence, STATE)
        assert (state.size > STATE.size) == (sequence == 0)
        assert np.array_equal(positions.taken_from(7, state), STATE)
        assert positions.position(7, 30) == positions.position(sequence, 30)


def test_an_image_without_mrope_changes_nothing() -> None:
    positions = Positions()
    positions.add(0, 5, 12, 12)
    assert not positions
