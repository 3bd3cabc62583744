"""Notes for the user about a request."""

from __future__ import annotations

from edgespec.llama.constraint import constraint_notes
from edgespec.settings import Request


def request_notes(request: Request) -> tuple[str, ...]:
    """Return notes about ignored parts of a request's constraint."""
    return constraint_notes(*request.constraint) if request.constraint is not None else ()
