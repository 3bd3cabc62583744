"""What people write where a grammar, a JSON schema or a regular expression is wanted: it, or the file it is in."""

from __future__ import annotations

from pathlib import Path

from edgespec.errors import UsageError
from edgespec.settings import CONSTRAINTS, Constraint

MOST_BYTES = 4_000_000  # far beyond any grammar


def settled(kind: Constraint, given: str) -> str:
    """The same, with a file named by its whole path. Raises UsageError for one that cannot be read."""
    constraint_text(kind, given)
    return given if not given or is_text(kind, given) else str(Path(given).expanduser().absolute())


def constraint_text(kind: Constraint, given: str) -> str:
    """The text itself, or that of the file. Raises UsageError."""
    if not given or is_text(kind, given):
        return given
    what = CONSTRAINTS[kind]
    try:
        file = Path(given).expanduser()
        if file.stat().st_size > MOST_BYTES:
            raise UsageError(f"cannot use {given} as a {what}", why="it is too large for one")
        text = file.read_text("utf-8-sig")
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~nobody
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the {what} {given}", why=why, hint=_HINTS[kind]) from error
    if not text.strip():
        raise UsageError(f"cannot use {given} as a {what}", why="it is empty")
    return text


def is_text(kind: Constraint, given: str) -> bool:
    """Whether this is no file's name."""
    if kind == "json_schema":
        return given.lstrip().startswith("{") or given.strip() in ("true", "false")
    return kind == "regex" or "::=" in given or given.lstrip().startswith("%llguidance")


_HINTS: dict[Constraint, str] = {
    "json_schema": "name a file, or write the schema itself: it begins with {",
    "grammar": "name a file, or write rules: root ::= ...",
    "regex": "",
}
