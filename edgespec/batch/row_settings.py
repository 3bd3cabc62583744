"""From the settings of a row in JSON to fields of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from edgespec.batch.bad_input import BadInputError, wrong
from edgespec.core.sampling import SamplingSettings
from edgespec.settings import CONSTRAINTS, MAX_SEQUENCES, bias_pairs, schema_text, shown


def request_fields(settings: Mapping[str, Any], base: SamplingSettings, *, also: Sequence[str] = ()) -> dict[str, Any]:
    """Return fields of a `Request` from settings by the names of `Request` and `SamplingSettings`.

    Sampling settings that are missing are those of `base`. The engine checks what depends on the model. Raises
    BadInputError for a value of the wrong kind, and for an unknown name; it suggests a setting or a name in `also`.
    """
    changes: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in CONVERTERS:
            meant = get_close_matches(name, [*CONVERTERS, *also], 1)
            raise BadInputError(f"{shown(name)} is not supported" + "".join(f" (meant: {close}?)" for close in meant))
        (sampling if name in _SAMPLING else changes)[name] = CONVERTERS[name](name, value)
    if not changes.keys().isdisjoint(CONSTRAINTS):  # a constraint replaces any other
        changes = dict.fromkeys(CONSTRAINTS, "") | changes
    if sampling:
        try:
            changes["sampling"] = replace(base, **sampling)
        except ValueError as error:
            where = next((name for name in sampling if str(error).startswith(name)), "")
            raise BadInputError(str(error), where) from error
    return changes


def checked_n(value: Any) -> int:
    """Return a number of samples. Raises BadInputError."""
    if not is_integer(value) or not 1 <= value <= MAX_SEQUENCES:
        raise wrong("n", f"be an integer from 1 to {MAX_SEQUENCES}", value)
    return int(value)


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


Converter = Callable[[str, Any], Any]
"""Returns the value of a named setting as the request has it. Raises BadInputError."""


def _checked(is_valid: Callable[[Any], bool], must: str) -> Converter:
    def convert(name: str, value: Any) -> Any:
        if not is_valid(value):
            raise wrong(name, must, value)
        return value

    return convert


_integer = _checked(is_integer, "be an integer")
_number = _checked(lambda value: isinstance(value, float) or is_integer(value), "be a number")
_text = _checked(lambda value: isinstance(value, str), "be a string")
_flag = _checked(lambda value: isinstance(value, bool), "be true or false")


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise wrong(name, "be a string or a list of strings", value)
    return tuple(texts)


def _stops(name: str, value: Any) -> tuple[str, ...]:
    """Return the stop strings without empty ones, which some clients always send and other servers ignore too."""
    return tuple(filter(None, _texts(name, value)))


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not all(map(is_integer, value)):
        raise wrong(name, "be a list of token ids", value)
    return tuple(value)


def _schema(name: str, value: Any) -> str:
    """Return a schema as JSON; a string is JSON already."""
    try:
        text = schema_text(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInputError(f"{name} cannot be parsed ({error})", name) from error
    if not isinstance(text, str):
        raise wrong(name, "be a schema", value)
    return text


def _biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """Return (id, bias) pairs from pairs or an object; false bans a token, since JSON has no infinity."""
    pairs: Any = bias_pairs(value)
    try:
        return tuple((_token_id(token), _bias(bias)) for token, bias in pairs)
    except (TypeError, ValueError, OverflowError) as error:
        raise wrong(name, 'be {"token id": bias} or pairs of them', value) from error


def _token_id(value: Any) -> int:
    if not isinstance(value, str) and not is_integer(value):
        raise TypeError
    return int(value)


def _bias(value: Any) -> float:
    if value is False:
        return float("-inf")
    if isinstance(value, bool | str):
        raise TypeError
    return float(value)


_SAMPLING = [field.name for field in fields(SamplingSettings)]
CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys(_SAMPLING, _number),
    **dict.fromkeys(("max_tokens", "min_tokens", "seed", "logprobs", "draft_n_max"), _integer),
    **dict.fromkeys(("verify", "spec_type", "pace", "grammar", "regex"), _text),
    **dict.fromkeys(("special", "ignore_eos", "cache_prompt"), _flag),
    "stop": _stops,
    "json_schema": _schema,
    "bad_words": _texts,
    "stop_token_ids": _ids,
    "logit_bias": _biases,
}
SETTINGS = tuple(name for name in CONVERTERS if name not in (*CONSTRAINTS, "logprobs"))
"""The settings that requests of all formats have under the same names."""
