"""Values of rows and requests, and errors that say what is wrong with them, and which field."""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.settings import shown

JsonObject = Mapping[str, object]
"""An object of parsed JSON, such as the body of a request."""


class BadInputError(Exception):
    """The reason why a row or a request is invalid; `where` is the field that is wrong, if any."""

    def __init__(self, why: str, where: str = "") -> None:
        super().__init__(why)
        self.where = where


class UnsupportedError(BadInputError):
    """A field asks for something that this program does not support. The message begins with the field's name."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where} is not supported: {why}", where)


def wrong(where: str, must: str, given: object) -> BadInputError:
    """Return the error for a field with an unusable value, such as wrong("n", "be an integer", "x")."""
    return BadInputError(f"{where} must {must}, not {shown(given)}", where)


def object_in(value: object) -> JsonObject:
    """Return a value of JSON if it is an object, else an empty object."""
    return value if isinstance(value, Mapping) else {}
