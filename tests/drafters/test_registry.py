"""The table of drafters: names, help texts, and drafters without weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.core.index.context_index import ContextIndex, order_of
from edgespec.drafters.registry import REGISTRY, Parts, help_text
from edgespec.drafters.successors import Successors
from edgespec.drafters.suffix import SuffixDrafter

TEXT = "import os\n" + "    self.assertEqual(os.path.join('a', 'b'), 'a/b')\n" * 6


def test_each_drafter_is_made_under_its_name() -> None:
    tokens = np.array([1, 2, 3], np.uint32)
    parts = Parts(Successors(8), corpus=ContextIndex(tokens, order_of(tokens)))
    made = {name: entry.make(parts).name for name, entry in REGISTRY.items() if entry.make is not None}
    assert all(name == known_as for name, known_as in made.items())
    assert "draft" not in made


def test_the_help_names_each_drafter_once() -> None:
    assert [help_text().count(f" {name}: ") + help_text().startswith(f"{name}: ") for name in REGISTRY] == [1] * len(
        REGISTRY
    )
    assert help_text().endswith("auto: every available drafter but lookup, lookahead and self.")


@pytest.mark.parametrize("spec_type", ["lookup", "draft,lookup"])
def test_lookup_drafts_from_this_text_alone(spec_type: str) -> None:
    settings: dict[str, Any] = {"max_tokens": 48, "temperature": 0.8, "seed": 5, "ignore_eos": True}
    with edgespec.load("demo", spec_type="none", threads=1) as plain:
        want = [event.id for event in plain.generate(TEXT, **settings)]
    with edgespec.load("demo", spec_type=spec_type, pace="fixed:6", threads=1) as llm:
        assert [event.id for event in llm.generate(TEXT, **settings)] == want
        assert llm.stats.by_source["lookup"].accepted > 0
        answers = [drafter.answers for drafter in llm.engine.speculator.drafters if isinstance(drafter, SuffixDrafter)]
        assert answers == [None]
