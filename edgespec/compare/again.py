"""Whether the machine is what it was: plain decoding of a file that was measured before, once more and shortly."""

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
    """How many times as fast plain decoding of a file is now as it was when `known` was measured; None if unknown.

    Some of the same prompts tell. Raises as `measure_speed` does.
    """
    again, asked = new_speed(), [item for item in items if item.id in known["answers"]][:PROMPTS]
    if not asked:
        return None
    measure_speed(
        settings, (PLAIN,), asked, tokens, again, run="", progress=progress, cancel=cancel, keep=lambda speed: None
    )
    return times_as_fast(again, known)
