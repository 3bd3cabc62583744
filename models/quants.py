"""Which files of a repository a quantisation means, told from their names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgespec.errors import ModelNotFoundError

USUAL = "Q4_K_M"
_QUANTS = (
    r"(?:UD-)?I?Q[1-8]_(?:K_(?:XXS|XS|S|M|L|XL)|K|[01]|XXS|XS|S|M|NL)",
    "TQ[12]_0",
    "MXFP4(?:_MOE)?",
    "NVFP4",
    "B?F16",
    "F32",
    "FP16",
    "FP32",
)
_QUANT = re.compile(rf"(?:^|[-._/ ])({'|'.join(_QUANTS)})(?=$|[-._/ ])", re.IGNORECASE)
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_NO_MODELS = re.compile("mmproj|imatrix", re.IGNORECASE)


class SeveralFitError(ModelNotFoundError):
    """A repository holds more than one model in a quantisation."""


def quant_of(name: str) -> str:
    """The quantisation in the name of a file, in capitals; empty where it has none."""
    found = _QUANT.findall(_PART.sub("", name).removesuffix(".gguf"))
    return found[-1].upper() if found else ""


def part_of(name: str) -> tuple[int, int]:
    """Which part of how many a file is; (1, 1) for a whole model."""
    match = _PART.search(name)
    return (int(match[1]), int(match[2])) if match else (1, 1)


def parts_of(name: str) -> list[str]:
    """The names of all parts of the model that `name` is the first part of, or `name` alone."""
    _, n_parts = part_of(name)
    return [_PART.sub(f"-{part:05}-of-{n_parts:05}", name) for part in range(1, n_parts + 1)] if n_parts > 1 else [name]


def models_in(names: Sequence[str]) -> list[str]:
    """The files that are models, of a split one the first part; projectors and the like are none."""
    ggufs = [name for name in names if name.lower().endswith(".gguf") and not _NO_MODELS.search(name)]
    return sorted(name for name in ggufs if part_of(name)[0] == 1)


def choose(names: Sequence[str], quant: str = "", *, where: str = "this repository") -> str:
    """The model among the files of a repository that has this quantisation; without one `USUAL`, or the only one.

    Raises ModelNotFoundError that says which there are, and of these SeveralFitError.
    """
    models = models_in(names)
    if not models:
        raise ModelNotFoundError(f"{where} holds no GGUF model", hint=f"look for one that does: {_gguf_names(where)}")
    if not quant and len(models) == 1:
        return models[0]
    wanted = quant.upper() or USUAL
    fitting = [name for name in models if quant_of(name) == wanted]
    whole = [name for name in fitting if part_of(name) == (1, 1)]  # some hold the same in one file and in parts
    if len(fitting) == 1 or len(whole) == 1:
        return (whole or fitting)[0]
    if fitting:
        raise SeveralFitError(
            f"{where} holds several models in {wanted}", why=", ".join(fitting), hint="name one by its file"
        )
    there = list(dict.fromkeys(quant_of(name) or name for name in models))
    raise ModelNotFoundError(
        f"{where} holds nothing in {wanted}", why=f"there are {', '.join(there)}", hint=f"add one, as in :{there[0]}"
    )


def _gguf_names(where: str) -> str:
    name = where.rpartition("/")[2]
    return f"{name}-GGUF" if "/" in where else "names that end in -GGUF"
