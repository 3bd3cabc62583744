"""Says in words how a model writes its answers."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.dialects.dialect import HERMES, Marks
from edgespec.dialects.templates import dialect_of

_FORMS = {
    "json": "JSON",
    "named": "a name and JSON",
    "tagged": "a name and marked arguments",
    "python": "Python",
    "gemma": "a name and an object",
}


def knows_tools(template: str) -> bool:
    """Return whether a chat template shows tools to the model."""
    return "tools" in template


def reasons(template: str) -> bool:
    """Return whether a chat template is that of a model that reasons."""
    dialect = dialect_of(template)
    has_marks = dialect.reasoning is not None and not dialect.is_assumed
    return has_marks or bool(dialect.switch) or (dialect.messages is not None and bool(dialect.messages.thought))


def reasoning_of(template: str, quote: Callable[[str], str] = str) -> str:
    """Return where the reasoning of a model is, and how it is switched off; "none" if its template has none.
    `quote` is applied to each mark."""
    if not reasons(template):
        return "none"
    dialect = dialect_of(template)
    if (form := dialect.messages) is not None:
        where = f"in messages {quote(form.thought.strip())}"
    elif dialect.is_assumed or dialect.reasoning is None:
        where = "between unknown marks"
    else:
        where = _between(dialect.reasoning, quote)
    return f"{where}, switched by {quote(dialect.switch)}" if dialect.switch else where


def calls_of(template: str, quote: Callable[[str], str] = str) -> str:
    """Return how a model calls tools; "none" if its template has none. `quote` is applied to each mark."""
    if not knows_tools(template):
        return "none"
    dialect = dialect_of(template)
    calls = dialect.calls or HERMES
    if (form := dialect.messages) is not None:
        return f"{_FORMS[calls.form]} in messages {quote(form.call.strip().format('NAME'))}"
    marks = calls.section if calls.section[0] else calls.call
    return f"{_FORMS[calls.form]} {_between(marks, quote)}" if marks[0] else _FORMS[calls.form]


def _between(marks: Marks, quote: Callable[[str], str]) -> str:
    start, end = (" ".join(mark.split()) for mark in marks)
    if start and end:
        return f"between {quote(start)} and {quote(end)}"
    return f"after {quote(start)}" if start else f"before {quote(end)}"
