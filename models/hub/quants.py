"""Which files of a repository a quantisation selects, by their names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from contextlib import suppress

from edgespec.errors import ModelNotFoundError

USUAL = "Q4_K_M"
_QUANTS = (
    r"(?:Q4_0|IQ4_NL)_\d_\d",  # several rows together; before Q4_0, with which each begins
    r"(?:UD-)?I?Q[1-8]_(?:K_(?:XXS|XS|S|M|L|XL)|K|[01]|XXS|XS|S|M|NL)",
    "TQ[12]_0",
    "MXFP4(?:_MOE)?",
    "NVFP4",
    "B?F16",
    "F32",
    "FP16",
    "FP32",
)
_SPELLINGS = {"FP16": "F16", "FP32": "F32"}
_QUANT = re.compile(rf"(?:^|[-._/ ])({'|'.join(_QUANTS)})(?=$|[-._/ ])", re.IGNORECASE)
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_NO_MODELS = re.compile("mmproj|imatrix", re.IGNORECASE)
# As in llama.cpp's `common/download.cpp`: "mtp-..." is an MTP block alone, and "...-MTP-..." a whole model with one
_MTP = re.compile(r"(?:^|/)mtp-[^/]*$", re.IGNORECASE)
# A Gemma 4 has no such block: "gemma-4-12B-it-MTP-Q8_0" is its assistant, as is "gemma-4-12B-it-assistant-Q8_0"
_ASSISTANT = re.compile(
    r"gemma-?4[^/]*(?:[-_.]it(?:-qat(?:-q4_0-unquantized)?)?-assistant|[-_.]mtp)[-_.][^/]*$", re.IGNORECASE
)
_HEADS = r"(?:^|[-_./])(?:eagle-?3|dflash2?|dspark|draft)[-_.][^/]*$"
_DRAFTS = re.compile(rf"{_MTP.pattern}|{_ASSISTANT.pattern}|{_HEADS}", re.IGNORECASE)
_GEMMA_4 = re.compile("gemma-?4", re.IGNORECASE)


def quant_of(name: str) -> str:
    """Return the quantisation in the name of a file, `spelt`; empty if it has none."""
    found = _QUANT.findall(_PART.sub("", name).removesuffix(".gguf"))
    return spelt(found[-1]) if found else ""


def spelt(quant: str) -> str:
    """Return a quantisation in its canonical spelling: in capitals, and F16 for FP16."""
    return _SPELLINGS.get(quant.upper(), quant.upper())


def part_of(name: str) -> tuple[int, int]:
    """Return the number of a part and the number of parts; (1, 1) for a whole model."""
    match = _PART.search(name)
    return (int(match[1]), int(match[2])) if match else (1, 1)


def stem_of(name: str) -> str:
    """Return the name of a file without its ending, the number of its part and its quantisation."""
    return _QUANT.sub("", re.sub(r"\.gguf$", "", _PART.sub("", name), flags=re.IGNORECASE))


def parts_of(name: str) -> list[str]:
    """Return the names of all parts of the model that `name` is a part of, or `name` alone."""
    _, n_parts = part_of(name)
    return [_PART.sub(f"-{part:05}-of-{n_parts:05}", name) for part in range(1, n_parts + 1)] if n_parts > 1 else [name]


def models_in(names: Sequence[str]) -> list[str]:
    """Return the files that are models, without projectors, drafts and the like; of a split model the first part.

    Drafts for a model are left out only where there is a model: other repositories hold nothing but drafts.
    """
    ggufs = [name for name in names if name.lower().endswith(".gguf") and not _NO_MODELS.search(name)]
    ggufs = [name for name in ggufs if not is_named_as_draft(name)] or ggufs
    return sorted(name for name in ggufs if part_of(name)[0] == 1)


def ranked_projectors(names: Sequence[str]) -> list[str]:
    """Return the projectors among the files of a repository, with which its models see, the preferred one first.

    This is the one in 16 bits: the weights are few, and smaller types cost quality.
    """
    found = sorted(name for name in names if "mmproj" in name.lower() and name.lower().endswith(".gguf"))
    order = ("F16", "BF16", "Q8_0", "F32")
    return sorted(found, key=lambda name: order.index(quant) if (quant := quant_of(name)) in order else 9)


def is_named_as_draft(name: str) -> bool:
    """Return whether the name of a file says that it is a draft head or a draft model."""
    return _DRAFTS.search(name) is not None


def is_mtp_block(name: str) -> bool:
    """Return whether the name of a file says that it is an MTP block without its model. Such files of a Gemma 4 are
    assistants."""
    return _MTP.search(name) is not None and _GEMMA_4.search(name) is None


def is_assistant(name: str) -> bool:
    """Return whether the name of a draft, one of `drafts_in`, says that it is the assistant of a Gemma 4."""
    return _MTP.search(name) is not None or _ASSISTANT.search(name) is not None


def drafts_in(names: Sequence[str]) -> list[str]:
    """Return the files that by their names draft for the models of a repository.

    MTP blocks in separate files are left out: edgespec runs them only in the file of their model. Assistants may be
    called "mtp-Q8_0.gguf" next to a Gemma 4.
    """
    models = models_in(names)
    are_assistants = any(map(_GEMMA_4.search, models))
    drafts = (name for name in names if is_named_as_draft(name) and name.lower().endswith(".gguf"))
    drafts = (name for name in drafts if are_assistants or not is_mtp_block(name))
    return sorted(name for name in drafts if name not in models and part_of(name) == (1, 1))


def choose(names: Sequence[str], quant: str = "", *, where: str = "this repository") -> str:
    """Return the file with this quantisation among the files of a repository; without a quantisation the only model, or
    the one in `USUAL`.

    Raises ModelNotFoundError that lists the models.
    """
    models = models_in(names)
    if not models:
        raise ModelNotFoundError(f"{where} has no GGUF model")
    if not quant and len(models) == 1:
        return models[0]
    wanted = spelt(quant) or USUAL
    fitting = [name for name in models if quant_of(name) == wanted]
    whole = [name for name in fitting if part_of(name) == (1, 1)]  # some have the same model in one file and in parts
    if len(fitting) == 1 or len(whole) == 1:
        return (whole or fitting)[0]
    by_file = f"hf:{where.partition(' ')[0]}/{(fitting or models)[0]}"
    if fitting:
        why, hint = ", ".join(fitting), f"choose one by its file name, such as {by_file}"
        raise ModelNotFoundError(f"{where} has several models in {wanted}", why=why, hint=hint)
    quants = list(dict.fromkeys(filter(None, map(quant_of, models))))
    near = difflib.get_close_matches(wanted, quants, n=1, cutoff=0.0)
    hint = f"did you mean :{near[0]}?" if near else f"choose one by its file name, such as {by_file}"
    raise ModelNotFoundError(f"{where} has no {wanted}", why=f"available: {', '.join(quants or models)}", hint=hint)


def selects(names: Sequence[str], quant: str, name: str) -> bool:
    """Return whether a quantisation selects this file among the files of a repository."""
    with suppress(ModelNotFoundError):
        return bool(quant) and choose(names, quant) == name
    return False
