"""The order of samplers: steps of llama.cpp's `samplers` that are not listed are off, and steps that are off may have
any place."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from edgespec.core.sampling import SamplingSettings
from edgespec.requests.bad_input import BadInputError
from edgespec.requests.samplers import CHAIN, LETTERS, ordered

USUAL = SamplingSettings()
OFF = SamplingSettings(temperature=1, top_k=0, top_p=1, min_p=0)
EVERY = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]


def changed(samplers: Any, sampling: SamplingSettings = USUAL) -> dict[str, Any]:
    """Return the settings that `samplers` changes."""
    found, _ = ordered(sampling, {"samplers": samplers})
    names = [field.name for field in fields(found)]
    return {name: getattr(found, name) for name in names if getattr(found, name) != getattr(sampling, name)}


def test_steps_that_are_not_listed_are_off() -> None:
    assert [*CHAIN] == EVERY
    assert changed(EVERY) == changed("edskypmxt") == changed([*EVERY, "adaptive_p"]) == {}
    assert changed([]) == changed("") == {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
    assert changed(["top_k", "nucleus", "temp"]) == {"min_p": 0}
    on = SamplingSettings(dry_multiplier=0.8, xtc_probability=0.5, top_n_sigma=1, repeat_penalty=1.1)
    assert changed(EVERY, on) == {}
    off = {"dry_multiplier": 0, "xtc_probability": 0, "top_n_sigma": -1, "repeat_penalty": 1}
    assert changed("kypmt", on) == off
    assert len(LETTERS) == len({*LETTERS.values()})


def test_infill_comes_last() -> None:
    sampling, fills = ordered(USUAL, {"samplers": ["top_k", "top_p", "infill"]})
    assert fills
    assert (sampling, False) == ordered(USUAL, {"samplers": "kp"})


@pytest.mark.parametrize(
    "samplers",
    [
        ["temperature", "top_k"],
        "tk",
        ["top_k", "min_p", "top_k"],
        ["infill", "top_k"],
        "kit",
        ["zap"],
        "q",
        3,
        [3],
        [[]],
    ],
)
def test_other_orders_of_steps_that_are_on_and_unknown_steps_are_refused(samplers: Any) -> None:
    with pytest.raises(BadInputError) as caught:
        ordered(USUAL, {"samplers": samplers})
    assert caught.value.where == "samplers"


@pytest.mark.parametrize(
    ("field", "order"),
    [
        ("samplers", ["temperature", "xtc", "top_k", "tfs_z", "typ_p", "top_p", "min_p"]),
        ("samplers", ["top_k", "tail-free", "mirostat", "dry", "penalties", "top-p"]),
        ("samplers", "tpfk"),
        ("sampler_priority", ["temperature", "quadratic_sampling", "top_p", "top_k", "eta_cutoff", "xtc"]),
        ("sampler_priority", "temperature\ntop_p\nmirostat\nno_repeat_ngram"),
        ("sampler_order", [5, 6, 0, 1, 3, 4, 2]),
        ("temperature_last", False),
    ],
)
def test_any_order_of_steps_that_are_off_is_accepted(field: str, order: Any) -> None:
    assert ordered(OFF, {field: order}) == (OFF, False)
    one = replace(OFF, top_k=5)  # a single step has no order
    assert ordered(one, {field: order}) == (one, False)


@pytest.mark.parametrize(
    "order",
    [
        {"sampler_priority": ["temperature", "top_k", "top_p"]},
        {"sampler_priority": "temperature top_p_top_k"},
        {"sampler_order": [5, 0, 2]},
        {"sampler_order": [7]},
        {"sampler_order": "0"},
        {"sampler_priority": [True]},
        {"temperature_last": False},
        {"temperature_last": "no"},
    ],
)
def test_an_order_that_would_change_the_text_is_refused_by_its_name(order: dict[str, Any]) -> None:
    with pytest.raises(BadInputError) as caught:
        ordered(USUAL, order)
    assert caught.value.where == next(iter(order))


def test_the_orders_of_front_ends_are_read() -> None:
    usual = [
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "dry",
        "temperature",
        "top_k",
        "top_p",
        "xtc",
    ]
    assert ordered(USUAL, {"sampler_priority": usual, "temperature_last": True}) == (USUAL, False)
    assert ordered(USUAL, {"sampler_order": [6, 0, 1, 3, 4, 2, 5]}) == (USUAL, False)
