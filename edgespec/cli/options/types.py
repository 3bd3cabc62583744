"""The types of option values, and the messages for invalid ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from edgespec.errors import UsageError
from edgespec.models.names.source import is_path

if TYPE_CHECKING:
    from edgespec.settings import Constraint

    ParamType = click.ParamType[object]
else:
    ParamType = click.ParamType  # generic in the newest versions of click only


class Text(ParamType):
    """Text in UTF-8. An environment variable is one text, even if it contains spaces."""

    name = "text"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            self.fail(f"not UTF-8: byte {len(text[: error.start].encode())} is invalid.", param, ctx)
        return text

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]


class StopText(Text):
    """A stop string; an empty one would end every answer at once."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(value, param, ctx) or self.fail("a stop string cannot be empty.", param, ctx)


class ConstraintText(Text):
    """A grammar, a JSON schema or a regular expression; the first two can also be the name of a file."""

    def __init__(self, kind: Constraint) -> None:
        self.kind = kind

    def relative_to(self, folder: Path, given: str) -> str:
        from edgespec.llama.constraint import is_text

        return given if given == "none" or is_text(self.kind, given) else str(folder / Path(given).expanduser())

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
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
        from edgespec.models.names.model_names import known_names

        names = [CompletionItem(name) for name in known_names() if name.startswith(incomplete)]
        return names if incomplete and names else [*names, CompletionItem(incomplete, type="file")]


class FileName(Text):
    """The name of a file. In a configuration file, it is relative to its folder."""

    name = "file"

    def relative_to(self, folder: Path, given: str) -> str:
        return str(folder / Path(given).expanduser())

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class Integer(click.IntRange):
    """A whole number within a range."""

    name, metavar = "integer", "N"

    def __init__(self, min: int, max: int = 2**31 - 1) -> None:
        super().__init__(min, max)


class Number(click.FloatRange):
    """A finite number within a range."""

    name, metavar = "number", "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Parsed(ParamType):
    """A value that a function makes of a text. The function raises ValueError or UsageError for invalid texts."""

    def __init__(self, name: str, parse: Callable[[str], object], *, toml_types: tuple[type, ...] = (str,)) -> None:
        self.name, self._parse, self.toml_types = name, parse, toml_types

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str | int):  # a parsed value, such as a default
            return value
        try:
            return self._parse(Text().convert(value, param, ctx).strip())
        except UsageError as error:
            what = error.line.removeprefix(str(param and param.name)).lstrip(": ")  # click names the option
            hint = f"; {error.hint}" if error.hint else ""
            self.fail(f"{what}{hint}{'' if hint.endswith('?') else '.'}", param, ctx)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


def _layers(text: str) -> int | str:
    if text.lower() in ("auto", "all"):
        return text.lower()
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"{text!r} is not a number of layers (0 or more), 'auto' or 'all'")
    return int(text)


def _parallel(text: str) -> int:
    from edgespec.settings import MAX_SEQUENCES

    if text.lower() == "auto":
        return 0
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= MAX_SEQUENCES:
        raise ValueError(f"{text!r} is not a number from 1 to {MAX_SEQUENCES} or 'auto'")
    return int(text)


def _spec_type(text: str) -> str:
    from edgespec.validation import check_spec_type  # loads numpy, which the options of other commands do without

    names = text.replace(" ", "").lower()
    check_spec_type(names)
    return names


def _pace(text: str) -> str:
    from edgespec.validation import check_pace

    pace = text.replace(" ", "").lower()
    check_pace(pace)
    return pace


def _origin(text: str) -> str:
    from edgespec.serve.origins import checked_origin

    return checked_origin(text)


def _logit_bias(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"(\d{1,9})\s*([+-])\s*(\d+\.?\d*|\.\d+|inf)", text)
    if match is None or text.endswith("+inf"):
        raise ValueError(f"{text!r} is not of the form ID+BIAS or ID-BIAS (15043+1.5, 15043-inf)")
    return int(match[1]), float(match[2] + match[3])


def _duration(text: str) -> float:
    """Return the seconds of a duration such as 90s, 10m or 1h30m; 0 needs no unit."""
    if text == "0":
        return 0.0
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text.lower())
    if not parts or "".join(map("".join, parts)) != text.lower():
        raise ValueError(f"{text!r} is not a duration, such as 90s, 10m or 1h30m")
    return sum(float(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for number, unit in parts)


DURATION = Parsed("duration", _duration)
LAYERS = Parsed("layers", _layers, toml_types=(int, str))
PARALLEL = Parsed("parallel", _parallel)  # answers to decode together; 0: auto
SPEC_TYPE = Parsed("drafters", _spec_type)
PACE = Parsed("pace", _pace)
LOGIT_BIAS = Parsed("bias", _logit_bias)
ORIGIN = Parsed("origin", _origin)
