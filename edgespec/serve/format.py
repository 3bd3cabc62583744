"""A format of requests and answers that another package adds to the server (docs/plugins.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgespec.requests.bad_input import JsonObject
from edgespec.serve.chat import Call, Writer
from edgespec.serve.served import Served


@dataclass(frozen=True, slots=True)
class Format:
    """A format.

    Attributes:
        paths: The paths of its endpoints, which take POST requests.
        read: Reads the body of a request for a model. Raises BadInputError.
        writer: Writes the answers.
    """

    paths: tuple[str, ...]
    read: Callable[[JsonObject, Served], Call]
    writer: type[Writer]
