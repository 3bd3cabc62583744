"""Figures as one reads them."""

from __future__ import annotations


def rate(per_s: float) -> str:
    """A rate, with a digit after the point where it matters."""
    return f"{per_s:.0f}" if per_s >= 9.95 else f"{per_s:.1f}"


def clock(seconds: float) -> str:
    """A duration as 1:02 or 1:02:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
