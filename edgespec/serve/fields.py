"""Reads the body of a request field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields as fields_of
from typing import Any

from edgespec.batch.constraining import take_constraint
from edgespec.batch.known import CONSTRAINING, Known, check, read_of
from edgespec.batch.openai import ALIASES
from edgespec.batch.row import BadRowError, UnsupportedError
from edgespec.batch.row_settings import request_fields
from edgespec.core.sampling import SamplingSettings
from edgespec.serve.errors import BadFieldError, wrong
from edgespec.settings import Request, shown

SETTINGS = (
    *(field.name for field in fields_of(SamplingSettings)),
    *("max_tokens", "seed", "stop", "special", "ignore_eos", "verify", "spec_type", "pace", "draft_n_max"),
    *("min_tokens", "stop_token_ids", "bad_words", "cache_prompt"),
)
LONGEST = {"logit_bias": 2**14, "stop": 2**8}  # entries


class Fields:
    """The fields of a body that are not null. Each method takes a field out, and raises BadFieldError for a wrong
    value. With the table `known`, other fields are refused or ignored as it says; `notes` are about the ignored
    ones."""

    def __init__(self, body: Mapping[str, Any], known: Known | None = None, notes: Sequence[str] = ()) -> None:
        self.notes = [*notes]
        if known is not None:
            with told_as_fields():
                self.notes += check(body, known)
            body = read_of(body, known)
        self._left = {name: value for name, value in body.items() if value is not None}
        for name, usual in ALIASES.items():
            if name in self._left:
                value = self._left.pop(name)
                if self._left.setdefault(usual, value) != value:
                    raise BadFieldError(name, f"{name} and {usual} contradict each other")

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, default: Any = None) -> Any:
        """Take a value without a check."""
        return self._left.pop(name, default)

    def text(self, name: str, default: str = "") -> str:
        value = self.take(name, default)
        if not isinstance(value, str):
            raise wrong(name, "be a string", value)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise wrong(name, "be true or false", value)
        return value

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        value = self.take(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise wrong(name, f"be an integer from {least} to {most}", value)
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self.take(name, default)
        if value not in choices:
            raise wrong(name, f"be one of {', '.join(choices)}", value)
        return str(value)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.take(name, {})
        if not isinstance(value, dict):
            raise wrong(name, "be an object", value)
        return value

    def request(self, base: Request, **what: Any) -> dict[str, Any]:
        """Take the fields of a `Request`, and add `what`; `base` has the other settings."""
        given = {name: self.take(name) for name in SETTINGS if name in self._left} | what
        for name, most in LONGEST.items():
            if isinstance(values := given.get(name), list | dict) and len(values) > most:
                raise BadFieldError(name, f"{name} may have {most:,} entries, not {len(values):,}")
        if isinstance(seed := given.get("seed"), int) and seed < 0:  # -1 asks for a random one
            del given["seed"]
            if seed != -1:
                given["seed"] = seed % 2**63
        with told_as_fields():
            given |= take_constraint({name: self.take(name) for name in CONSTRAINING if name in self._left})
        for name in ("grammar", "regex"):  # some clients send empty ones
            if given.get(name) == "":
                del given[name]
        try:
            return request_fields(given, base.sampling)
        except BadRowError as error:
            message = str(error)
            named = next((name for name in given if message.startswith(name)), None)
            raise BadFieldError(named or "", message) from error

    def rest(self) -> dict[str, Any]:
        """Return the fields that were not taken."""
        return dict(self._left)


@contextmanager
def told_as_fields() -> Iterator[None]:
    """Turn errors of rows of a batch into errors of the fields of a request."""
    try:
        yield
    except UnsupportedError as error:
        raise BadFieldError(error.where, str(error), code="unsupported_parameter") from error
    except BadRowError as error:
        raise BadFieldError(error.where, str(error)) from error


def object_of(body: Any) -> dict[str, Any]:
    """Return a body. Raises BadFieldError unless it is an object."""
    if not isinstance(body, dict):
        raise BadFieldError("", f"the body must be a JSON object, not {shown(body)}")
    return body
