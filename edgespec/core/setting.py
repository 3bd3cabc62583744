"""The declaration of a setting: the field of a dataclass, with the facts from which its other uses are derived.

An option of the command line, a setting of a chat, a field of a row and of a request's body, a body for another server
and the record of a job are made from these facts. To add a setting, declare it and use its value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Literal, TypeVar

Default = TypeVar("Default")
Kind = Literal[
    "integer",
    "number",
    "flag",
    "choice",
    "text",
    "file",  # the name of a file
    "model",  # a file, a name or a repository
    "texts",  # any number of texts
    "stops",  # texts that end an answer
    "breakers",  # texts across which no repetition extends
    "ids",  # tokens
    "biases",  # pairs of a token and a number
    "adapters",  # pairs of an adapter and its scale
    "constraint",  # a grammar or an expression
    "schema",
    "drafters",
    "pace",
    "layers",  # "auto", "all" or a number of them
]


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a setting.

    Attributes:
        kind: The form of its values. Each place that reads or shows values has a table of kinds.
        help: The text that explains it on the command line and in chats. A setting without this text has no option.
        default: The default, which `setting` fills in.
        least: The smallest value of a number; None: there is no limit.
        most: The largest one.
        is_open: The smallest value itself is not allowed.
        zero_chooses: Zero lets the program choose the value, and the option does not accept it.
        must: The condition for a number, for messages, if the limits do not state it well.
        choices: The values of a choice.
        option: The names of the option, if the field's name is not the only one.
        metavar: The value in the help of the option.
        shown: The default in the help of the option, if it is not the field's.
        section: The section of the help, if it is not that of the other settings.
        variable: The environment variable of the option, if it is not `EDGESPEC_` and its long name.
        advanced: `--help` leaves the option out.
        row: Rows of a batch and bodies of requests can set it. Otherwise bodies can, unless `wire` is "apart".
        compared: When a resumed job or a running server must have the value that is asked for now, because texts
            depend on it: "always", "if set" (unless the value is the default), or "never".
        wire: The servers that it is sent to. "all": every server; "own": edgespec's, and other servers are not asked if
            it is set; "quiet": edgespec's, and other servers do without it; "apart": `body_of` writes it.
    """

    kind: Kind
    help: str = ""
    _: KW_ONLY
    default: object = None
    least: float | None = None
    most: float | None = None
    is_open: bool = False
    zero_chooses: bool = False
    must: str = ""
    choices: tuple[str, ...] = ()
    option: str = ""
    metavar: str | None = None
    shown: str = ""
    section: str = ""
    variable: str = ""
    advanced: bool = False
    row: bool = True
    compared: Literal["always", "if set", "never"] = "if set"
    wire: Literal["all", "own", "quiet", "apart"] = "own"

    def allows(self, number: float) -> bool:
        """Return whether a number is within the limits."""
        if self.least is not None and (number <= self.least if self.is_open else number < self.least):
            return False
        return self.most is None or number <= self.most

    @property
    def range(self) -> str:
        """The limits of a number in words, for messages."""
        if self.must:
            return self.must
        if self.least is None:
            return "a number" if self.most is None else f"at most {self.most}"
        least = f"above {self.least}" if self.is_open else f"{self.least} or more"
        if self.most is None:
            return least
        return f"{least} and at most {self.most}" if self.is_open else f"from {self.least} to {self.most}"


class SettingError(ValueError):
    """A setting has an invalid value: `field` is its name, and `must` says what the value must be, and what it is."""

    def __init__(self, field: str, must: str) -> None:
        super().__init__(field, must)
        self.field, self.must = field, must

    def __str__(self) -> str:
        return f"{self.field} must be {self.must}"


def setting(default: Default, facts: Facts) -> Default:
    """Declare a field of a dataclass as a setting with these facts."""
    declared: Default = field(default=default, metadata={"facts": replace(facts, default=default)})
    return declared


def facts_of(settings: type) -> dict[str, Facts]:
    """Return the facts of the settings that a dataclass declares, by the names of their fields."""
    return {each.name: each.metadata["facts"] for each in fields(settings) if "facts" in each.metadata}


def option_names(field: str, facts: Facts) -> list[str]:
    """Return the names of the option of a setting: `-n` and `--max-tokens`."""
    return facts.option.split() or [f"--{field.replace('_', '-')}"]


def long_name(field: str, facts: Facts) -> str:
    """Return the name of a setting in chats and in configuration files: the longest one of its option."""
    return max((name.partition("/")[0] for name in option_names(field, facts)), key=len).lstrip("-")


_NAMED = re.compile(r"`([a-z_]+)(?:=([^`\n]*))?`")


def with_names(message: str, name: Callable[[str, str], str]) -> str:
    """Return a message in which settings have other names than those of their fields.

    Messages name settings by fields, as `ctx_size` or `ctx_size=2048`, for users of Python and of the server. The
    command line and chats call them otherwise: `name` returns their words for a field and its value, which may be
    empty; "" keeps the field.
    """
    return _NAMED.sub(lambda found: name(found[1], found[2] or "") or found[0], message)


def typed_option(field: str, facts: Facts, value: str = "") -> str:
    """Return what is typed to give a setting a value: `-c 2048`, `--fast`."""
    on, _, off = option_names(field, facts)[0].partition("/")
    if facts.kind == "flag":
        return off if value == "False" else on
    return f"{on} {value}".rstrip()
