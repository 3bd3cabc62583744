"""Contexts that keep the graphs of narrow passes: in any order, each pass has the logits of a new context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import write_model

from edgespec.core.features import FINAL_STATE
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.library import api
from edgespec.llama.model import LlamaModel

WIDTHS = [1, 4, 1, 2, 16, 3, 17, 1, 5, 40, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 1, 16, 2, 3]  # more than are kept


def rows(context: Context, tokens: list[int], start: int) -> np.ndarray:
    """Decode tokens of the first sequence and return their logits."""
    n = len(tokens)
    context.decode(tokens, range(start, start + n), [(0,)] * n, [True] * n)
    return np.stack([context.logits(index).copy() for index in range(n)])


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen2moe", "qwen35"])
def test_passes_of_all_widths_in_turn(tmp_path: Path, architecture: str) -> None:
    """In between the context gives states too, forgets all, and goes beyond the cells for which graphs were made."""
    tokens = np.random.default_rng(0).integers(0, 250, 600).tolist()
    settings: dict[str, Any] = {"n_ctx": 1024, "max_outputs": 40, "n_batch": 64, "threads": 1, "exact": True}
    path = write_model(tmp_path / "tiny.gguf", architecture)
    with (
        LlamaModel(path) as model,
        Context(model, ContextParams(**settings)) as context,
        Context(model, ContextParams(**settings)) as fresh,
    ):
        for turn in range(3):
            start = 0
            for number, width in enumerate(WIDTHS):
                if (turn, number) == (1, 5):  # llama.cpp then reserves again
                    context.watch_layers([FINAL_STATE, *([1] if architecture == "llama" else [])])
                if (turn, number) == (1, 9):
                    context.watch_layers([])
                found = rows(context, tokens[start : start + width], start)
                fresh.forget(0)
                for at in range(0, start + width, 32):
                    part = tokens[at : min(at + 32, start + width)]
                    expected = rows(fresh, part, at)
                n = min(width, len(expected))
                assert np.array_equal(found[-n:], expected[-n:]), (turn, number, width)
                start += width
            context.forget(0)


def test_a_graph_is_used_again_after_passes_of_other_widths(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", "llama")
    with (
        LlamaModel(path) as model,
        Context(model, ContextParams(n_ctx=256, max_outputs=16, threads=1, exact=True)) as context,
    ):
        for _ in range(3):
            for width in (1, 3, 16, 2):
                context.forget(0)
                rows(context, [5] * width, 0)
        assert api.llama_perf_context(context._handle).n_reused == 8
