"""The table of draft heads: each kind is a drafter, and files are told apart by it."""

from __future__ import annotations

import re

import pytest

from edgespec.drafters.heads import HEADS, Head, architectures
from edgespec.drafters.registry import names_that_need
from edgespec.gguf_file.model_check import ARCHITECTURES, OTHER_ARCHITECTURES
from edgespec.models.names.heads import CONVERTED, TITLES
from edgespec.training.job import NGRAM, SHAPES

SIZES = {"width": 8, "inputs": 16, "queries": 8, "keys": 4, "values": 4, "head": 2, "pairs": 1, "ffn": 12, "read": 24}
SIZES |= {"tokens": 100, "drafts": 50, "target": 10, "both": 20, "rank": 3, "lattice": 5}


def test_each_kind_of_head_is_a_drafter_with_a_title() -> None:
    assert names_that_need("head") == tuple(HEADS) and {*HEADS} < {*TITLES}
    assert {*SHAPES} <= {*HEADS} and NGRAM not in HEADS and {*CONVERTED} < {*HEADS}


def test_a_head_given_as_a_model_is_called_a_head() -> None:
    assert all("draft head" in OTHER_ARCHITECTURES[name] for name in architectures())
    assert not ARCHITECTURES & {*architectures()}


def test_kinds_of_one_architecture_differ_by_a_mark() -> None:
    for name in architectures():
        marks = [head.mark for head in HEADS.values() if head.architecture == name]
        assert len({*marks}) == len(marks) and "" in marks


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_shapes_follow_from_sizes(head: Head) -> None:
    whole = head.shapes(2, lambda layer: SIZES, lambda name: True)
    needed = head.shapes(2, lambda layer: SIZES, lambda name: False)
    assert needed.items() <= whole.items()
    assert not [name for name in whole if not re.fullmatch(r"[\w.]+\.(weight|bias)|d2t", name)]
    layers = {name.split(".")[1] for name in whole if name.startswith(("blk.", "head."))}
    assert layers == {"0", "1"}
    assert whole["output_norm.weight" if head.form != "networks" else "head.1.down.weight"][0] == 8
    assert all(whole[name][-1] == 50 for name in head.by_draft_token)


def test_a_head_with_a_list_of_tokens_has_a_row_for_each() -> None:
    assert HEADS["eagle3"].by_draft_token == ["output.weight"]
    assert HEADS["dspark"].by_draft_token == ["output.weight", "markov_w2.weight"]
