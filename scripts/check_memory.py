"""Check the estimate of what loading takes against the buffers that llama.cpp reports.

    python scripts/check_memory.py                         the bundled pair
    python scripts/check_memory.py a.gguf b.gguf           loads each several times: they have to fit

Prints MB as estimated/reported for every file and setting, and the ratio of the sums. Exit code 1 if a sum, or a part
that is at least a tenth of it, is off by more than 10 %.

Weights are loaded without repacking. With it llama.cpp counts the repacked ones twice, as copies and as mapped pages;
nobody reads those pages again, and the system may drop them.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.models.memory.estimate import Estimate, Plan, estimate
from edgespec.models.names.spec import resolve

TOLERANCE, LARGE = 0.1, 0.1
PARTS = {"weights": "model", "kv": "KV|RS", "compute": "compute", "output": "output"}
SETTINGS: dict[str, dict[str, Any]] = {
    "1024 tokens": {"n_ctx": 1024},
    "8192 tokens": {"n_ctx": 8192},
    "4096 tokens, q8_0 cache": {"n_ctx": 4096, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    "4096 tokens, f32 cache": {"n_ctx": 4096, "cache_type_k": "f32", "cache_type_v": "f32"},
    "4096 tokens, no flash attention": {"n_ctx": 4096, "flash_attention": "off"},
    "4 x 1024 tokens, 36 rows": {"n_ctx": 1024, "sequences": 4, "max_outputs": 36},
    "2048 tokens, 64 a pass, rollback": {"n_ctx": 2048, "n_batch": 64, "max_outputs": 9, "rollback": 8},
}

Sizes = dict[str, float]
"""Bytes of every part."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=["demo", "demo:draft"])
    print(f"{'':36}" + "".join(f"{part:>16}" for part in (*PARTS, "sum")))
    bad = 0
    for name in parser.parse_args().files:
        header = check_model(resolve(name).path)
        print(header.path.name)
        for label, settings in SETTINGS.items():
            if not fits(header, settings):
                continue
            expected, found = sizes(estimate(Plan(header, **settings))), reported(header.path, settings)
            wrong = misses(expected, found)
            bad += bool(wrong)
            cells = [f"{expected[part] / 1e6:.1f}/{found[part] / 1e6:.1f}" for part in PARTS]
            cells.append(f"{total(expected) / total(found):.3f}")
            print(f"  {label:34}" + "".join(f"{cell:>16}" for cell in cells) + (f"  {', '.join(wrong)}!" * bool(wrong)))
    return 1 if bad else 0


def fits(header: Header, settings: dict[str, Any]) -> bool:
    """Whether the model's heads can be stored in blocks, if the setting has a quantised cache."""
    return "q8_0" not in settings.values() or not any(size % 32 for size in header.head_sizes)


def sizes(expected: Estimate) -> Sizes:
    """The parts of an estimate that llama.cpp reports too."""
    return {part: getattr(expected, part) for part in PARTS}


def reported(path: Path, settings: dict[str, Any]) -> Sizes:
    """What llama.cpp reports of a model and a context with these settings."""
    with (
        log_lines() as lines,
        Model(path, gpu_layers=0, use_extra_bufts=False) as model,
        Context(model, threads=1, **settings) as context,
    ):
        rows, first_rows = context.max_outputs, context.sequences
    found: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for line in lines:
        for part, kind in PARTS.items():
            if match := re.search(rf" (?:{kind}) buffer size = +([\d.]+) MiB", line):
                found[part] += float(match[1]) * (1 << 20)
    # It begins with a row for each sequence, and makes the buffer larger when the first decode asks for more.
    found["output"] *= rows / first_rows
    return found


def misses(expected: Sizes, found: Sizes) -> list[str]:
    """The parts that are large and off, and "sum" if that is."""
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


if __name__ == "__main__":
    sys.exit(main())
