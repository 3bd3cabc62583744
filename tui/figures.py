"""Figures as one reads them."""

from __future__ import annotations


def rate(per_s: float) -> str:
    """A rate, with a digit after the point where it matters."""
    return f"{per_s:.0f}" if per_s >= 10 else f"{per_s:.1f}"


def percent(part: float) -> str:
    return f"{100 * part:.0f} %"
