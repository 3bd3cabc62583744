"""Reading the body of a request, field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields as fields_of
from typing import Any

from edgespec.batch.row import BadRowError
from edgespec.batch.row_settings import request_fields
from edgespec.core.sampling import SamplingSettings
from edgespec.serve.errors import BadFieldError, unsupported
from edgespec.settings import Request, shown

SETTINGS = (
    *(field.name for field in fields_of(SamplingSettings)),
    *("max_tokens", "seed", "stop", "grammar", "json_schema", "regex", "special", "ignore_eos", "verify"),
    *("spec_type", "pace", "draft_n_max"),
)
ALIASES = {
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "repetition_penalty": "repeat_penalty",
    "typ_p": "typical_p",
}
LONGEST = {"logit_bias": 2**14, "stop": 2**8}  # entries
OFF: dict[str, tuple[Any, ...]] = {  # what is not there, and the values with which nothing is asked of it
    "mirostat": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "top_n_sigma": (-1, 0),
    "adaptive_target": (-1,),
    "lora": ([],),
    "samplers": (),
    "chat_template": (),
    "audio": (),
    "web_search_options": (),
    "use_beam_search": (False,),
    "modalities": (["text"],),
    "guided_choice": (),
    "draft_model": (),
}


class Fields:
    """The fields of a body that are not null. Each method takes one out; `unknown` are those that nobody has asked for.
    All raise BadFieldError."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._left = {name: value for name, value in body.items() if value is not None}
        for name, known in ALIASES.items():
            if name in self._left:
                value = self._left.pop(name)
                if self._left.setdefault(known, value) != value:
                    raise BadFieldError(name, f"{name} and {known} contradict each other")

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, default: Any = None) -> Any:
        """Whatever it is."""
        return self._left.pop(name, default)

    def text(self, name: str, default: str = "") -> str:
        value = self.take(name, default)
        if not isinstance(value, str):
            raise BadFieldError(name, f"{name} must be a string, not {shown(value)}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise BadFieldError(name, f"{name} must be true or false, not {shown(value)}")
        return value

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        value = self.take(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise BadFieldError(name, f"{name} must be an integer from {least} to {most}, not {shown(value)}")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self.take(name, default)
        if value not in choices:
            raise BadFieldError(name, f"{name} must be one of {', '.join(choices)}, not {shown(value)}")
        return str(value)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.take(name, {})
        if not isinstance(value, dict):
            raise BadFieldError(name, f"{name} must be an object, not {shown(value)}")
        return value

    def refuse(self) -> None:
        """What asks for something that is not there."""
        for name, harmless in OFF.items():
            value = self.take(name)
            if value is not None and value not in harmless:
                raise unsupported(name, f"this server does not have it; {shown(value)} cannot be honoured")

    def request(self, base: Request, **what: Any) -> dict[str, Any]:
        """The fields of a `Request` that are given, and `what`; `base` has the other settings."""
        given = {name: self.take(name) for name in SETTINGS if name in self._left} | what
        for name, most in LONGEST.items():
            if isinstance(values := given.get(name), list | dict) and len(values) > most:
                raise BadFieldError(name, f"{name} may have {most:,} entries, not {len(values):,}")
        if isinstance(seed := given.get("seed"), int) and seed < 0:  # -1 asks for any
            del given["seed"]
            if seed != -1:
                given["seed"] = seed % 2**63
        for name in ("grammar", "regex"):  # some clients send empty ones
            if given.get(name) == "":
                del given[name]
        constraints = [name for name in ("grammar", "json_schema", "regex") if given.get(name) not in (None, "")]
        if len(constraints) > 1:
            raise BadFieldError(constraints[0], f"{constraints[0]} and {constraints[1]} cannot be combined")
        try:
            return request_fields(given, base.sampling)
        except BadRowError as error:
            message = str(error)
            named = next((name for name in given if message.startswith(name)), None)
            raise BadFieldError(named or "", message) from error

    def rest(self) -> dict[str, Any]:
        """What nobody has asked for."""
        return dict(self._left)

    @property
    def unknown(self) -> list[str]:
        return list(self._left)


def object_of(body: Any) -> dict[str, Any]:
    """Raises BadFieldError unless a body is an object."""
    if not isinstance(body, dict):
        raise BadFieldError("", f"the body must be a JSON object, not {shown(body)}")
    return body
