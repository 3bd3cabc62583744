"""From the settings of a row in JSON to fields of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from edgespec.batch.row import BadRowError
from edgespec.core.sampling import SamplingSettings
from edgespec.settings import CONSTRAINTS, MAX_SEQUENCES, bias_pairs, schema_text, shown


def request_fields(settings: Mapping[str, Any], base: SamplingSettings, *, also: Sequence[str] = ()) -> dict[str, Any]:
    """Return fields of a `Request` from settings by the names of `Request` and `SamplingSettings`.

    Sampling settings that are missing are those of `base`. The engine checks what depends on the model. Raises
    BadRowError for a value of the wrong kind, and for an unknown name; it suggests a setting or a name in `also`.
    """
    changes: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in _CONVERTERS:
            meant = get_close_matches(name, [*_CONVERTERS, *also], 1)
            raise BadRowError(f"{shown(name)} is not supported" + "".join(f" (meant: {close}?)" for close in meant))
        (sampling if name in _SAMPLING else changes)[name] = _CONVERTERS[name](name, value)
    if not changes.keys().isdisjoint(CONSTRAINTS):  # a constraint replaces any other
        changes = dict.fromkeys(CONSTRAINTS, "") | changes
    if sampling:
        try:
            changes["sampling"] = replace(base, **sampling)
        except ValueError as error:
            raise BadRowError(str(error)) from error
    return changes


def checked_n(value: Any) -> int:
    """Return a number of samples. Raises BadRowError."""
    if not is_integer(value) or not 1 <= value <= MAX_SEQUENCES:
        raise BadRowError(f"n must be an integer from 1 to {MAX_SEQUENCES}, not {shown(value)}")
    return int(value)


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(name: str, value: Any) -> int:
    if not is_integer(value):
        raise BadRowError(f"{name} must be an integer, not {shown(value)}")
    return int(value)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadRowError(f"{name} must be a number, not {shown(value)}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadRowError(f"{name} must be a string, not {shown(value)}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadRowError(f"{name} must be true or false, not {shown(value)}")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise BadRowError(f"{name} must be a string or a list of strings, not {shown(value)}")
    return tuple(texts)


def _stops(name: str, value: Any) -> tuple[str, ...]:
    """Return the stop strings without empty ones, which some clients always send and other servers ignore too."""
    return tuple(filter(None, _texts(name, value)))


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not all(is_integer(id) for id in value):
        raise BadRowError(f"{name} must be a list of token ids, not {shown(value)}")
    return tuple(value)


def _schema(name: str, value: Any) -> str:
    """Return a schema as JSON; a string is JSON already."""
    try:
        text = schema_text(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRowError(f"{name} cannot be parsed ({error})") from error
    if not isinstance(text, str):
        raise BadRowError(f"{name} must be a schema, not {shown(value)}")
    return text


def _biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """Return (id, bias) pairs from pairs or an object; false bans a token, since JSON has no infinity."""
    pairs: Any = bias_pairs(value)
    try:
        return tuple((_token_id(token), _bias(bias)) for token, bias in pairs)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRowError(f'{name} must be {{"token id": bias}} or pairs of them, not {shown(value)}') from error


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


_SAMPLING = {field.name for field in fields(SamplingSettings)}
_CONVERTERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(_SAMPLING, _number),
    **dict.fromkeys(("max_tokens", "min_tokens", "seed", "logprobs", "draft_n_max"), _integer),
    **dict.fromkeys(("verify", "spec_type", "pace"), _text),
    "stop": _stops,
    "grammar": _text,
    "json_schema": _schema,
    "regex": _text,
    "special": _flag,
    "ignore_eos": _flag,
    "cache_prompt": _flag,
    "bad_words": _texts,
    "stop_token_ids": _ids,
    "logit_bias": _biases,
}
