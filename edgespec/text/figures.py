"""Numbers and times as text."""

from __future__ import annotations

from datetime import UTC, datetime

NEAR_DAYS = 30  # within which a time is shown as an age
NOTABLE = 0.05  # a smaller difference in speed may be chance
FEW = 32  # tokens: one draft that fails makes a tenth of a shorter answer's time


def rate(per_s: float) -> str:
    """A rate, with a decimal where it matters."""
    return f"{per_s:.0f}" if per_s >= 9.95 else f"{per_s:.1f}"


def size_of(n_bytes: float) -> str:
    """A number of bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes:.0f} B"


def count_of(n: int) -> str:
    """A number of parameters."""
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.1f}M" if n >= 1e6 else f"{n / 1e3:.0f}k"


def counted(n: int, noun: str) -> str:
    """A number of things."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def clock(seconds: float) -> str:
    """A duration as 1:02 or 1:02:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def when(time_s: float) -> str:
    """A time in the past, in seconds since 1970."""
    then, now = datetime.fromtimestamp(time_s), datetime.now()
    days = (now.date() - then.date()).days
    if days == 0:
        return f"today {then:%H:%M}"
    if days == 1:
        return "yesterday"
    return f"{days} days ago" if 1 < days < NEAR_DAYS else f"{then:%Y-%m-%d}"


def iso(time_s: float) -> str:
    """Return a time in ISO 8601, in UTC."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")


def faster(speedup: float | None, n_tokens: int) -> str:
    """Say what drafting did to the speed of an answer of `n_tokens`; empty if the effect is unknown, small, or
    estimated from few tokens."""
    if speedup is None or n_tokens < FEW or abs(speedup - 1) < NOTABLE:
        return ""
    # Drafts are tried out before they are known not to pay.
    if speedup > 1:
        return f"{speedup:.1f}x faster with drafts"
    return f"trying drafts took {percent(1 - speedup)} of the time"


def gauge(share: float, width: int = 10) -> str:
    """A bar of `width` characters, and the share in whole per cent."""
    filled = round(share * width)
    return f"{'━' * filled}{'─' * (width - filled)} {percent(share):>5}"


def percent(share: float) -> str:
    """A share in whole per cent; 100 only if it is exactly 1."""
    return f"{min(share, 0.99) if share < 1 else share:.0%}".replace("%", " %")
