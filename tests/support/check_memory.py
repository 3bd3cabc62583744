"""The estimate of what loading takes, next to the buffers that llama.cpp reports.

Weights are loaded without repacking. Otherwise llama.cpp counts repacked weights twice, as copies and as mapped pages,
although the mapped pages are not read again and the system may drop them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.llama.block_context import BlockContext
from edgespec.llama.context import Context, PooledContext
from edgespec.llama.context_params import ContextParams
from edgespec.llama.head_context import HeadContext
from edgespec.llama.model import LlamaModel
from edgespec.models.memory.estimate import MemoryEstimate, MemoryPlan

TOLERANCE, LARGE = 0.1, 0.1
PARTS = {"weights": "model", "kv": "KV|RS", "compute": "compute", "output": "output"}
SETTINGS: dict[str, dict[str, Any]] = {
    "1024 tokens": {"n_ctx": 1024},
    "8192 tokens": {"n_ctx": 8192},
    "4096 tokens, q8_0 cache": {"n_ctx": 4096, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    "4096 tokens, f32 cache": {"n_ctx": 4096, "cache_type_k": "f32", "cache_type_v": "f32"},
    "4096 tokens, no flash attention": {"n_ctx": 4096, "flash_attention": "off"},
    "4096 tokens, flash attention": {"n_ctx": 4096, "flash_attention": "on", "exact": True},
    "16 x 1024 tokens, the same in streams": {
        "n_ctx": 1024, "sequences": 16, "streams": True, "max_outputs": 16, "flash_attention": "on", "exact": True,
    },
    "4 x 1024 tokens, 36 rows": {"n_ctx": 1024, "sequences": 4, "max_outputs": 36},
    "2048 tokens, 64 a pass, rollback": {"n_ctx": 2048, "n_batch": 64, "max_outputs": 9, "rollback": 8},
}  # fmt: skip

Sizes = dict[str, float]
"""Bytes of every part."""


def sizes(expected: MemoryEstimate) -> Sizes:
    """The parts of an estimate that llama.cpp reports too."""
    return {part: getattr(expected, part) for part in PARTS}


def reported(path: Path, settings: dict[str, Any]) -> Sizes:
    """The sizes that llama.cpp reports of a model and a context with these settings."""
    with (
        log_lines() as lines,
        LlamaModel(path, gpu_layers=0, use_extra_bufts=False) as model,
        Context(model, ContextParams(threads=1, **settings)) as context,
    ):
        return _buffers(lines, context)


def reported_of_head(plan: MemoryPlan) -> Sizes:
    """The sizes that llama.cpp reports of the context of a plan's draft head, or else of its target's MTP block."""
    opened = plan.draft or plan.of_block
    of_blocks: dict[str, Any] = {} if plan.draft else {"blocks": opened.blocks}
    with (
        LlamaModel(plan.header, use_extra_bufts=False, with_mtp=plan.mtp) as model,
        LlamaModel(plan.draft.header if plan.draft else plan.header, use_extra_bufts=False) as head,
        Context(model, replace(plan, threads=1)) as target,
        log_lines() as lines,
        (BlockContext if head.header.architecture == "dflash" else HeadContext)(
            head if plan.draft else model, target, replace(opened, threads=1), **of_blocks
        ) as context,
    ):
        return _buffers(lines, context)


def reported_of_texts(plan: MemoryPlan) -> Sizes:
    """The sizes that llama.cpp reports of a model and a context for texts."""
    with (
        log_lines() as lines,
        LlamaModel(plan.header, gpu_layers=0, use_extra_bufts=False) as model,
        PooledContext(model, replace(plan, threads=1)) as context,
    ):
        return _buffers(lines, context)


def _buffers(lines: list[str], context: Context) -> Sizes:
    found: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for line in lines:
        for part, kind in PARTS.items():
            if match := re.search(rf" (?:{kind}) buffer size = +([\d.]+) MiB", line):
                found[part] += float(match[1]) * (1 << 20)
    # It begins with a row for each sequence, and makes the buffer larger when the first decode asks for more.
    found["output"] *= context.max_outputs / context.sequences
    return found


def misses(expected: Sizes, found: Sizes) -> list[str]:
    """The large parts whose estimates are wrong, and "sum" if their total is."""
    large = [part for part in PARTS if found[part] >= LARGE * total(found)]
    wrong = [part for part in large if abs(expected[part] / found[part] - 1) > TOLERANCE]
    return wrong + ["sum"] * (abs(total(expected) / total(found) - 1) > TOLERANCE)


def total(parts: Sizes) -> float:
    return sum(parts.values())


@contextmanager
def log_lines() -> Iterator[list[str]]:
    """The lines that llama.cpp logs inside the block."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, keep = logging.getLogger("edgespec.llama"), Keep()
    level = logger.level
    logger.addHandler(keep)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(keep)
        logger.setLevel(level)
