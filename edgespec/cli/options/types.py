"""The types of option values, and the messages for invalid ones."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from edgespec.errors import UsageError
from edgespec.models.names.source import is_path

if TYPE_CHECKING:
    from edgespec.settings import Constraint

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # a generic class in the newest versions of click only


class Text(ParamType):
    """Text in UTF-8. An environment variable is one text, whatever spaces it contains."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        invalid = first_invalid_byte(text)
        if invalid is not None:
            self.fail(f"not UTF-8: byte {invalid} is invalid.", param, ctx)
        return text

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]


class StopText(Text):
    """A stop string; an empty one would end every answer at once."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        if not text:
            self.fail("a stop string cannot be empty.", param, ctx)
        return text


class ConstraintText(Text):
    """A grammar, a JSON schema or a regular expression, or the file that one of the first two is in."""

    def __init__(self, kind: Constraint) -> None:
        self.kind = kind

    def relative_to(self, folder: Path, given: str) -> str:
        from edgespec.llama.constraint import is_text

        return given if given == "none" or is_text(self.kind, given) else str(folder / Path(given).expanduser())

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from edgespec.llama.compiler import settled
        from edgespec.settings import CONSTRAINTS

        text = super().convert(value, param, ctx)
        if not text.strip():
            self.fail(f"an empty text is not a {CONSTRAINTS[self.kind]}; use 'none' for none.", param, ctx)
        try:
            return settled(self.kind, "" if text == "none" else text)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class ModelSpec(Text):
    """A model spec, resolved later. In a configuration file, paths are relative to its folder."""

    name = "model"

    def relative_to(self, folder: Path, spec: str) -> str:
        path = Path(spec)
        if not is_path(spec) or spec.startswith("~") or path.is_absolute():
            return spec
        return str(folder / path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from edgespec.models.names.known import known_names

        names = [CompletionItem(name) for name in known_names() if name.startswith(incomplete)]
        return names if incomplete and names else [*names, CompletionItem(incomplete, type="file")]


class Integer(click.IntRange):
    """A whole number within a range."""

    name = "integer"


class Count(ParamType):
    """A number of things, perhaps in thousands or millions: 300000, 500k, 1.5M."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)([kKmM]?)", str(value).strip())
        number = round(float(match[1]) * {"": 1, "k": 1e3, "m": 1e6}[match[2].lower()]) if match else 0
        if number < 1:
            self.fail(f"{value!r} is not a number such as 300000, 500k or 1.5M.", param, ctx)
        return number


class Number(click.FloatRange):
    """A finite number within a range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Layers(ParamType):
    """The number of layers on the GPU."""

    name = "layers"
    toml_types = (int, str)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value).strip().lower()
        if text in ("auto", "all"):
            return text
        if not re.fullmatch(r"[0-9]{1,9}", text):
            self.fail(f"{value!r} is neither a number of layers (0 or more) nor 'auto' nor 'all'.", param, ctx)
        return int(text)


class Word(Text):
    """A word in any case, and with spaces, if `check` does not raise UsageError."""

    def check(self, text: str) -> None:
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx).replace(" ", "").lower()
        try:
            self.check(text)
        except UsageError as error:
            self.fail(f"{error.what}: {error.hint}." if error.hint else f"{error.what}.", param, ctx)
        return text


class SpecType(Word):
    """`auto`, `none`, or drafters separated by commas."""

    name = "drafters"

    def check(self, text: str) -> None:
        from edgespec.validation import check_spec_type  # loads numpy, which other commands' options do without

        check_spec_type(text)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from edgespec.settings import DRAFTERS

        before, comma, last = incomplete.rpartition(",")
        names = DRAFTERS if comma else ("auto", "none", *DRAFTERS)
        return [CompletionItem(before + comma + name) for name in names if name.startswith(last)]


class DraftPolicy(Word):
    """`auto`, `off`, or `fixed:` with a number of tokens."""

    name = "pace"

    def check(self, text: str) -> None:
        from edgespec.validation import check_pace

        check_pace(text)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in ("auto", "fixed:", "off") if name.startswith(incomplete)]


class LogitBias(ParamType):
    """`ID+BIAS` or `ID-BIAS`, as in llama.cpp; `ID-inf` bans the token."""

    name = "bias"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"\s*(\d{1,9})\s*([+-])\s*(\d+\.?\d*|\.\d+|inf)\s*", str(value))
        if match is None or match[0].strip().endswith("+inf"):
            self.fail(f"{value!r} is not of the form ID+BIAS or ID-BIAS (15043+1.5, 15043-inf).", param, ctx)
        return int(match[1]), float(match[2] + match[3])


def first_invalid_byte(text: str) -> int | None:
    """Where an argument or variable, which the system passes as bytes, stops being UTF-8 (byte offset)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return len(text[: error.start].encode("utf-8"))
    return None
