"""The fields that order the steps of the sampling chain: those of llama.cpp's server, and of text front ends.

The order of this program's chain is that of llama.cpp. A step that is off may have any place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from edgespec.core.sampling import SamplingSettings
from edgespec.requests.bad_input import JsonObject, UnsupportedError, wrong


class Step(NamedTuple):
    """A step of the chain: the settings that switch it off, and whether settings have it on."""

    off: Mapping[str, Any]
    is_on: Callable[[SamplingSettings], bool]


NO_PENALTIES = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
CHAIN: Mapping[str, Step] = {
    "penalties": Step(NO_PENALTIES, lambda sampling: sampling.penalizes),
    "dry": Step({"dry_multiplier": 0.0}, lambda sampling: sampling.uses_dry),
    "top_n_sigma": Step({"top_n_sigma": -1.0}, lambda sampling: sampling.top_n_sigma > 0),
    "top_k": Step({"top_k": 0}, lambda sampling: sampling.top_k > 0),
    "typ_p": Step({"typical_p": 1.0}, lambda sampling: sampling.typical_p < 1),
    "top_p": Step({"top_p": 1.0}, lambda sampling: sampling.top_p < 1),
    "min_p": Step({"min_p": 0.0}, lambda sampling: sampling.min_p > 0),
    "xtc": Step({"xtc_probability": 0.0}, lambda sampling: sampling.uses_xtc),
    "temperature": Step({"temperature": 1.0}, lambda sampling: sampling.temperature != 1),
}
"""The steps of the chain, in their order."""
ABSENT = (
    *("adaptive_p", "tfs_z", "tfs", "tail_free", "top_a", "epsilon_cutoff", "eta_cutoff", "mirostat", "quadratic"),
    *("quadratic_sampling", "dynamic_temperature", "no_repeat_ngram", "encoder_repetition_penalty"),
)
"""Steps of other programs that do nothing here: the fields that would switch them on are refused."""
INFILL = "infill"
LETTERS = dict(zip("edskypmxtiaf", (*CHAIN, INFILL, "adaptive_p", "tfs_z"), strict=True))
"""The steps by their letters, of which `samplers` consists if it is a string."""
NUMBERS = dict(enumerate(("top_k", "top_a", "top_p", "tfs", "typ_p", "temperature", "penalties")))
"""The steps by their numbers in koboldcpp."""
NAMES = {
    **{name: name for name in (*CHAIN, *ABSENT, INFILL)},
    **dict.fromkeys(("typical_p", "typical", "typ"), "typ_p"),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), "penalties"),
    "nucleus": "top_p",
    "temp": "temperature",
    "top_nsigma": "top_n_sigma",
    "top_p_top_k": "top_k top_p",
}
ORDERS = ("samplers", "sampler_priority", "sampler_order", "temperature_last")


def ordered(sampling: SamplingSettings, given: JsonObject) -> tuple[SamplingSettings, bool]:
    """Return settings without the steps that the field `samplers` leaves out, and whether it asks for `infill`.

    Raises BadInputError for an order of steps that are on which is not that of the chain.
    """
    fills = False
    if "samplers" in given:
        is_text = isinstance(given["samplers"], str)
        steps = _steps("samplers", given["samplers"], LETTERS if is_text else NAMES)
        fills = INFILL in steps
        left_out = [step.off for name, step in CHAIN.items() if name not in steps]
        sampling = replace(sampling, **{name: value for off in left_out for name, value in off.items()})
        _check("samplers", steps, sampling)
        if fills and "temperature" in steps and CHAIN["temperature"].is_on(sampling):
            raise UnsupportedError("samplers", f"{INFILL} and temperature cannot be combined")
    is_last = given.get("temperature_last")
    if is_last is not None and not isinstance(is_last, bool):
        raise wrong("temperature_last", "be true or false", is_last)
    if "sampler_priority" in given:
        names = given["sampler_priority"]  # a text in text-generation-webui
        steps = _steps("sampler_priority", names.split() if isinstance(names, str) else names, NAMES)
        if is_last:
            steps = [*(step for step in steps if step != "temperature"), "temperature"]
        _check("sampler_priority", steps, sampling)
    if "sampler_order" in given:
        _check("sampler_order", _steps("sampler_order", given["sampler_order"], NUMBERS), sampling)
    if is_last is False and "sampler_priority" not in given:
        _check("temperature_last", ["temperature", "top_n_sigma", "typ_p", "top_p", "min_p", "xtc"], sampling)
    return sampling, fills


def _steps(field: str, given: object, known: Mapping[Any, str]) -> list[str]:
    """Return the steps that a field names; neighbours that are the same step here count once."""
    steps: list[str] = []
    for name in given if isinstance(given, str | list) else [given]:
        found = known.get(name.replace("-", "_") if isinstance(name, str) else name if type(name) is int else None)
        if found is None:
            raise wrong(field, f"be a list of {', '.join(map(str, NUMBERS if known is NUMBERS else CHAIN))}", given)
        steps += [step for step in found.split() if steps[-1:] != [step]]
    return steps


def _check(field: str, steps: Sequence[str], sampling: SamplingSettings) -> None:
    on = [step for step in steps if step == INFILL or (step in CHAIN and CHAIN[step].is_on(sampling))]
    usual = [step for step in (*CHAIN, INFILL) if step in on]
    if on != usual:
        raise UnsupportedError(field, f"the order of the samplers that are on must be {', '.join(usual)}")
