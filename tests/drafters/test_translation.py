"""A draft model with another vocabulary drafts tokens that both have, and changes no text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from other_vocabulary import permute_vocabulary

import edgespec
from edgespec.drafters.translation import Translation
from edgespec.models.names.spec import resolve

DRAFT = resolve("demo:draft").path
SETTINGS: dict[str, Any] = {"max_tokens": 48, "seed": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def plain(home: Path) -> dict[float, list[int]]:
    with edgespec.load("demo", spec_type="none", threads=1, flash_attention="off") as llm:
        return {
            temperature: [event.id for event in llm.generate("import os\n", temperature=temperature, **SETTINGS)]
            for temperature in (0.0, 0.8)
        }


def answer(path: Path, temperature: float, **more: Any) -> tuple[list[int], float, list[str]]:
    settings: dict[str, Any] = {"spec_type": "draft", "pace": "fixed:3", "threads": 1, "flash_attention": "off"} | more
    with edgespec.load("demo", draft_model=str(path), **settings) as llm:
        ids = [event.id for event in llm.generate("import os\n", temperature=temperature, **SETTINGS)]
        return ids, llm.stats.acceptance_rate, [*llm.notes]


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_other_ids_for_the_same_tokens_make_no_difference(
    tmp_path: Path, plain: dict[float, list[int]], temperature: float
) -> None:
    permute_vocabulary(DRAFT, tmp_path / "permuted.gguf")
    ids, acceptance, notes = answer(tmp_path / "permuted.gguf", temperature)
    assert ids == plain[temperature]
    assert acceptance == answer(DRAFT, temperature)[1]
    assert "a different vocabulary: it drafts only the tokens that both have (vocabulary overlap 100 %" in notes[0]


@pytest.mark.long(but=1)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("leaves", [1, 3])
def test_tokens_that_are_not_shared_are_read_and_never_drafted(
    tmp_path: Path, plain: dict[float, list[int]], leaves: int, temperature: float
) -> None:
    permute_vocabulary(DRAFT, tmp_path / "renamed.gguf", renamed=0.3)
    ids, acceptance, _ = answer(tmp_path / "renamed.gguf", temperature, spec_tree=leaves)
    if leaves == 1 or temperature == 0:  # branches leave the cells in another order, which can change rounding
        assert ids == plain[temperature]
    assert acceptance > 0


def test_rows_are_brought_into_the_target_s_order() -> None:
    target, draft = [b"a", b"b", b"c", b"dd"], [b"dd", b"x", b"a"]
    translation = Translation(target, draft, lambda piece: [9] * len(piece))
    assert translation.overlap == 0.5
    row = translation.row(np.array([1.0, 2.0, 3.0], np.float32))
    assert row.tolist() == [3.0, -np.inf, -np.inf, 1.0]
    assert [translation.tokens(token) for token in range(4)] == [[2], [9], [9], [0]]
    assert translation.own(3) == 0
