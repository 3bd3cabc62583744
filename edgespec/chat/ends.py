"""How an answer ended, in words."""

from __future__ import annotations

from edgespec.history import Answer

ENDS = {
    "interrupted": "interrupted",
    "generating": "not finished yet",
    "cancelled": "stopped by you",
    "length": "cut off at the token limit",
    "error": "stopped by an error",
}
FULL = "cut off because the context is full"


def is_full(answer: Answer) -> bool:
    """Return whether the answer ended because the context was full."""
    size = answer.settings.get("ctx_size", 0)
    return answer.finish_reason == "length" and 0 < size <= answer.stats.get("context_used", 0)


def end_of(answer: Answer | None) -> str:
    """Return how an incomplete answer ended; "" if it is complete."""
    if answer is None:
        return ""
    return FULL if is_full(answer) else ENDS.get(answer.finish_reason, "")
