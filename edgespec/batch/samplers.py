"""The field `samplers` of llama.cpp's server: which steps of its sampling chain are on, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgespec.batch.bad_input import UnsupportedError, wrong

CHAIN: Mapping[str, Mapping[str, Any]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0},
}
"""The steps of the chain in their order, each with the settings that switch it off."""
ABSENT = ("adaptive_p",)
"""Steps that do nothing: the fields that would switch them on are refused."""
INFILL = "infill"
_STEPS = (*CHAIN, *ABSENT, INFILL)
LETTERS = dict(zip("edskypmxtai", _STEPS, strict=True))
"""The steps by their letters, of which `samplers` consists if it is a string."""
NAMES = {
    **{name: name for name in _STEPS},
    **{name.replace("_", "-"): name for name in _STEPS},
    **dict.fromkeys(("typical_p", "typical-p", "typical", "typ"), "typ_p"),
    "nucleus": "top_p",
    "temp": "temperature",
}


def settings_without(samplers: Any) -> dict[str, Any]:
    """Return the settings that switch off the steps of the chain that are not in `samplers`. Raises BadInputError for
    an order that is not that of the chain; an empty list switches all steps off."""
    given = [*samplers] if isinstance(samplers, str | list) else [samplers]
    known = LETTERS if isinstance(samplers, str) else NAMES
    if not all(isinstance(name, str) and name in known for name in given):
        raise wrong("samplers", f"be a list of {', '.join(_STEPS)}", samplers)
    steps = [known[name] for name in given if known[name] not in ABSENT]
    fills = steps[-1:] == [INFILL]
    if steps != [*filter(steps.__contains__, CHAIN), *([INFILL] if fills else [])]:
        raise UnsupportedError("samplers", f"their order must be {', '.join(CHAIN)}, {INFILL}, each of them once")
    if fills and "temperature" in steps:
        raise UnsupportedError("samplers", f"{INFILL} and temperature cannot be combined")
    off = {name: value for step, settings in CHAIN.items() if step not in steps for name, value in settings.items()}
    return off | ({"infill": True} if fills else {})
