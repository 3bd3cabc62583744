"""Whether the machine has changed: a short second measurement of plain decoding of a file."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.bench.modes import PLAIN
from edgespec.bench.suites import Item
from edgespec.cancel import CancelFlag
from edgespec.compare.figures import times_as_fast
from edgespec.compare.speed import Speed, measure_speed, new_speed
from edgespec.events import Progress
from edgespec.settings import LoadSettings

PROMPTS = 2


def measure_again(
    settings: LoadSettings,
    items: Sequence[Item],
    tokens: int,
    known: Speed,
    *,
    progress: Progress,
    cancel: CancelFlag,
) -> float | None:
    """Speed of plain decoding of a file now over that of `known`; None if unknown. Uses some of the same prompts.
    Raises as `measure_speed` does."""
    again, asked = new_speed(), [item for item in items if item.id in known["answers"]][:PROMPTS]
    if not asked:
        return None
    measure_speed(
        settings, (PLAIN,), asked, tokens, again, run="", progress=progress, cancel=cancel, keep=lambda speed: None
    )
    return times_as_fast(again, known)
