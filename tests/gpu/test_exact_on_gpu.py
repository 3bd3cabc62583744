"""Exact text with layers on a GPU: passes are padded to a class of widths, so that drafts cannot change a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu import needs_gpu

import edgespec
from edgespec.runtime.runtime import Runtime

pytestmark = [needs_gpu, pytest.mark.timeout(900)]  # a software device compiles its shaders at first

PROMPTS = ["def fibonacci(n):", "import os\nimport", "x = [" + "1, " * 60]
ON_GPU: dict[str, Any] = {"gpu_layers": "all", "store": False, "ctx_size": 512}


def texts(llm: Runtime) -> list[list[int]]:
    return [
        [event.id for event in llm.generate(prompt, max_tokens=24, temperature=temperature, seed=7, ignore_eos=True)]
        for prompt in PROMPTS
        for temperature in (0.0, 0.8)
    ]


def test_strict_texts_do_not_depend_on_drafts(home: Path) -> None:
    """At any cost, so also on software devices, whose wider passes cost more."""
    strict = ON_GPU | {"strict": True}
    with edgespec.load("demo", spec_type="none", **strict) as llm:
        classes = llm.info.width_class
        if classes is None:
            pytest.skip("no widths of passes round alike on this device")
        expected = texts(llm)
    for pace in ("fixed:1", "fixed:3", "fixed:7", "auto"):
        with edgespec.load("demo", spec_type="draft", pace=pace, **strict) as llm:
            assert texts(llm) == expected, pace
            assert llm.info.width_class == classes
            assert llm.info.rounding == 0.0
            assert pace == "auto" or llm.stats.proposed > 0


def test_what_is_said_by_default_is_what_was_measured(home: Path) -> None:
    with edgespec.load("demo", **ON_GPU) as llm:
        info, is_warned = llm.info, any("the same seed may give another text" in note for note in llm.notes)
    assert info.offloaded and not info.exact
    assert (info.width_class is None) == is_warned == (info.rounding != 0.0)
    with edgespec.load("demo", **ON_GPU, exact=False) as llm:
        assert llm.info.width_class is None and llm.info.rounding is None
