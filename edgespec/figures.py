"""Figures as one reads them."""

from __future__ import annotations


def rate(per_s: float) -> str:
    """A rate, with a digit after the point where it matters."""
    return f"{per_s:.0f}" if per_s >= 9.95 else f"{per_s:.1f}"


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
