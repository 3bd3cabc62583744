"""Notes for the user on a request."""

from __future__ import annotations

from edgespec.llama.constraint import constraint_notes
from edgespec.settings import Request


def request_notes(request: Request) -> tuple[str, ...]:
    """Which parts of the request's constraint are ignored."""
    return constraint_notes(*request.constraint) if request.constraint is not None else ()
