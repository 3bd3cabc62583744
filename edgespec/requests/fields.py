"""Reads the fields of a request one by one, in a batch and in the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from edgespec.core.setting import Facts, facts_of
from edgespec.requests.bad_input import BadInputError, JsonObject, wrong
from edgespec.requests.images import parts_of, without_images
from edgespec.requests.known_fields import ALIASES, CONSTRAINING, Known, check, name_in, read_of
from edgespec.requests.row_settings import SETTINGS, is_integer, request_fields, take_constraint
from edgespec.requests.samplers import ORDERS
from edgespec.settings import Request, bias_pairs, random_seed, shown

LONGEST = {"logit_bias": 2**14, "stop": 2**8, "dry_sequence_breakers": 2**6}  # entries
LONGEST_ID = 10  # characters; int() accepts no text of thousands of digits

Form = TypeVar("Form")


class Fields:
    """The fields of a body that are not null. Each method takes a field out, and raises BadInputError for a wrong
    value. With the table `known`, other fields are refused or ignored as it says; `notes` are about the ignored
    ones. `where` is the name of an object within the body."""

    def __init__(
        self, body: JsonObject, known: Known | None = None, notes: Sequence[str] = (), where: str = ""
    ) -> None:
        self._where, self.notes = where, [*notes]
        if known is not None:
            self.notes += check(body, known)
            body = read_of(body, known)
        self._left = {name: value for name, value in body.items() if value is not None}
        for name, usual in ALIASES.items() if not where else ():
            if name in self._left:
                value = self._left.pop(name)
                if self._left.setdefault(usual, value) != value:
                    raise BadInputError(f"{name} and {usual} contradict each other", name)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, default: object = None) -> object:
        """Take a value without a check."""
        return self._left.pop(name, default)

    def put(self, name: str, value: object) -> None:
        """Set a field that was read in another form."""
        self._left[name] = value

    def text(self, name: str, default: str = "") -> str:
        return str(self._checked(name, default, lambda value: isinstance(value, str), "be a string"))

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self._checked(name, default, lambda value: isinstance(value, bool), "be true or false"))

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        must = f"be an integer from {least} to {most}"
        return int(self._checked(name, default, lambda value: is_integer(value) and least <= value <= most, must))

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        return str(self._checked(name, default, choices.__contains__, f"be one of {', '.join(choices)}"))

    def mapping(self, name: str) -> dict[str, Any]:
        return dict(self._checked(name, {}, lambda value: isinstance(value, dict), "be an object"))

    def declared(self, form: type, names: Iterable[str] = ()) -> dict[str, Any]:
        """Take fields that a dataclass declares with `setting`, the named ones or all, and return their values."""
        facts = facts_of(form)
        return {name: self._value(name, facts[name]) for name in names or facts if name in self}

    def read(self, form: type[Form]) -> Form:
        """Take the fields that a dataclass declares with `setting`, and return such an object."""
        return form(**self.declared(form))

    def _value(self, name: str, facts: Facts) -> object:
        if facts.kind == "flag":
            return self.flag(name)
        if facts.kind == "choice":
            return self.choice(name, facts.choices, "")
        if facts.kind == "text":
            return self.text(name)
        assert facts.kind == "integer"
        assert facts.least is not None
        assert facts.most is not None
        return self.integer(name, 0, int(facts.least), int(facts.most))

    def within(self, name: str) -> Fields:
        """Take an object, and return its fields."""
        return Fields(self.mapping(name), where=name_in(self._where, name))

    def _checked(self, name: str, default: object, is_valid: Callable[[object], bool], must: str) -> Any:
        value = self.take(name, default)
        if not is_valid(value):
            raise wrong(name_in(self._where, name), must, value)
        return value

    def request(self, base: Request) -> dict[str, Any]:
        """Take the settings of an answer, and return them as fields of a `Request`; `base` has the other settings."""
        names = (*SETTINGS, *ORDERS, "custom_token_bans")
        given = {name: self.take(name) for name in names if name in self._left}
        take_bans(given)
        for name, most in LONGEST.items():
            if isinstance(values := given.get(name), list | dict) and len(values) > most:
                raise BadInputError(f"{name} may have {most:,} entries, not {len(values):,}", name)
        if isinstance(seed := given.get("seed"), int) and seed < 0:  # -1 asks for a random one
            given["seed"] = random_seed() if seed == -1 else seed % 2**63
        if given.get("reasoning_budget") == -1:  # asks for no other limit than the default
            del given["reasoning_budget"]
        given |= take_constraint({name: self.take(name) for name in CONSTRAINING if name in self._left})
        for name in ("grammar", "regex"):  # some clients send empty ones
            if given.get(name) == "":
                del given[name]
        return request_fields(given, base.sampling)

    def rest(self) -> dict[str, object]:
        """Return the fields that were not taken."""
        return dict(self._left)


def take_bans(fields: dict[str, object]) -> None:
    """Replace the field for banned tokens by biases. Raises BadInputError."""
    if banned := fields.pop("custom_token_bans", None):
        fields["logit_bias"] = [*_pairs(fields.get("logit_bias")), *_bans(banned)]


def _bans(given: object) -> list[tuple[object, bool]]:
    """Return biases for banned tokens, which text front ends send as a list, or as a text with commas."""
    ids = given.split(",") if isinstance(given, str) else given
    if not isinstance(ids, list) or not all(
        is_integer(id) or (isinstance(id, str) and id.strip().isdecimal() and len(id.strip()) <= LONGEST_ID)
        for id in ids
    ):
        raise wrong("custom_token_bans", "be token ids with commas between them", given)
    return [(int(id), False) for id in ids]


def _pairs(biases: object) -> list[object]:
    pairs = bias_pairs(biases or ())
    if not isinstance(pairs, list | tuple):
        raise wrong("logit_bias", 'be {"token id": bias} or pairs of them', biases)
    return [*pairs]


def object_of(body: object) -> dict[str, object]:
    """Return a body. Raises BadInputError unless it is an object."""
    if not isinstance(body, dict):
        raise BadInputError(f"the body must be a JSON object, not {shown(body)}")
    return body


def content_of(where: str, given: object) -> str:
    """Return the text of a message, which may be given in parts. Raises BadInputError, also for images."""
    return without_images(where, parts_of(where, given))
