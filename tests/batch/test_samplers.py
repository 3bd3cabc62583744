"""The field `samplers`: steps of the chain that are not listed are off, and the order must be that of the chain."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec.batch.bad_input import BadInputError
from edgespec.batch.samplers import CHAIN, LETTERS, settings_without


def test_steps_that_are_not_listed_are_off() -> None:
    names = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
    assert settings_without("edskypmxt") == settings_without(names) == {}
    assert settings_without("kypmt") == {
        "repeat_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "dry_multiplier": 0,
        "top_n_sigma": -1,
        "xtc_probability": 0,
    }
    every = {name: value for settings in CHAIN.values() for name, value in settings.items()}
    assert settings_without([]) == settings_without("") == every
    assert settings_without(["top_k", "nucleus", "temp"]).keys() == every.keys() - {"top_k", "top_p", "temperature"}
    assert len(LETTERS) == len({*LETTERS.values()})


def test_infill_comes_last() -> None:
    off = settings_without(["top_k", "top_p", "infill"])
    assert off.pop("infill") is True
    assert off == settings_without("kp")


@pytest.mark.parametrize(
    "samplers",
    [["temperature", "top_k"], "tk", ["top_k", "top_k"], ["infill", "top_k"], "kit", ["mirostat"], "q", 3, [3], None],
)
def test_other_orders_and_unknown_steps_are_refused(samplers: Any) -> None:
    with pytest.raises(BadInputError) as caught:
        settings_without(samplers)
    assert caught.value.where == "samplers"
