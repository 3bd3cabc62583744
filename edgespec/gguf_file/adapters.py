"""LoRA adapters: how an option names them, and whether a file is an adapter for a model.

llama.cpp ends the process on some files that are no adapters, and ignores what others contain. So all that it relies on
is checked here.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import ModelFileError, UsageError
from edgespec.gguf_file.header import Header, read_header
from edgespec.gguf_file.walk import mapped, shown

MOST_ADAPTERS = 64  # of a model
MOST_SCALE = 1e3
TYPES = ("F32", "F16", "BF16", "Q8_0")  # of their weights
_FLOAT = 6  # gguf_type
_NAME = re.compile(r"[^\s:=/\\]+")
_ENDINGS = (".lora_a", ".lora_b")
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_ALPHA, _INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"
_OTHER_MODEL = "It was made for another model."


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter: its name in requests, its file, and the scale with which answers use it if they do not say. 0: they
    do not use it."""

    name: str
    path: Path
    scale: float = 1.0


def parse_adapters(texts: Sequence[str]) -> tuple[Adapter, ...]:
    """Return the adapters that are named as [NAME=]FILE[=SCALE]; their name is that of the file by default. Raises
    UsageError."""
    found = tuple(map(_parsed, [texts] if isinstance(texts, str) else texts))
    if len(found) > MOST_ADAPTERS:
        raise UsageError(f"a model can have at most {MOST_ADAPTERS} adapters, not {len(found)}")
    names = [adapter.name for adapter in found]
    for adapter in found:
        if names.count(adapter.name) > 1:
            raise UsageError(f"two adapters are called {adapter.name}", hint="name one of them: `lora=NAME=FILE`")
    return found


def _parsed(text: str) -> Adapter:
    before, _, after = text.rpartition("=")
    scale = _number(after) if before and not Path(text).exists() else None
    rest = text if scale is None else before
    name, _, file = rest.partition("=")
    if not file or Path(rest).exists():
        name, file = Path(rest).name.removesuffix(".gguf"), rest
    if not _NAME.fullmatch(name):
        why = "its name has blanks, colons or slashes" if name else "its name is missing"
        raise UsageError(f"{text!r} is not an adapter", why=why, hint="`lora=NAME=FILE.gguf`, or NAME=FILE.gguf=SCALE")
    return Adapter(name, Path(file).expanduser(), 1.0 if scale is None else checked_scale(scale))


def checked_scale(scale: float) -> float:
    """Return a scale. Raises UsageError if it is out of range."""
    if not abs(scale) <= MOST_SCALE:
        what = f"lora: the scale of an adapter must be from -{MOST_SCALE:g} to {MOST_SCALE:g}, not {scale:g}"
        raise UsageError(what, field="lora")
    return scale


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# --- files ------------------------------------------------------------------------------------------------------------


def check_adapter(path: Path, target: Header) -> Header:
    """Return the header of a LoRA adapter for this model. Raises ModelNotFoundError, ModelFileError."""
    header = read_header(path)
    about, architecture = header.metadata, header.architecture
    if (about.get("general.type"), about.get("adapter.type")) != ("adapter", "lora"):
        hint = "llama.cpp's convert_lora_to_gguf.py makes adapters of files in other formats"
        raise _unusable(header, "its general.type is not adapter, or its adapter.type is not lora", hint)
    if architecture != target.architecture:
        raise _unusable(
            header, f"it is for models of the architecture {shown(architecture)}, not {target.architecture}"
        )
    if _INVOCATION in about:
        raise _unusable(header, "it is to be used from certain tokens on (aLoRA), which is not supported")
    if _ALPHA in about and not _is_float(header, _ALPHA):
        raise _unusable(header, f"its {_ALPHA} is not a finite number of 32 bits")
    if not header.tensors:
        raise _unusable(header, "it has no weights")
    for name in {_weight_of(header, name) for name in header.tensors}:
        _check_pair(header, name, target)
    return header


def _unusable(header: Header, why: str, hint: str = "") -> ModelFileError:
    return ModelFileError(f"{header.path} cannot be used as a LoRA adapter", why=why, hint=hint)


def _weight_of(header: Header, name: str) -> str:
    """Return the name of the model's weight that a tensor of an adapter changes."""
    for ending in _ENDINGS:
        if name.endswith(ending):
            return name.removesuffix(ending)
    raise _unusable(header, f"its tensor {shown(name)} is neither lora_a nor lora_b")


def _check_pair(header: Header, name: str, target: Header) -> None:
    """Check the two matrices of a weight, of which llama.cpp multiplies b with the product of a and the inputs."""
    a, b = (header.tensors.get(name + ending) for ending in _ENDINGS)
    weight = target.tensors.get(name)
    if a is None or b is None:
        raise _unusable(header, f"it has only one of lora_a and lora_b for {shown(name)}")
    if wrong := {a.type, b.type} - {*TYPES}:
        raise _unusable(header, f"{shown(name)} has the type {min(wrong)}; only {', '.join(TYPES)} are possible")
    if weight is None or len(weight.shape) < 2:
        raise _unusable(header, f"{target.path.name} has no matrix {shown(name)}", _OTHER_MODEL)
    if name == _EMBEDDING and _OUTPUT not in target.tensors:
        raise _unusable(header, f"{shown(name)} is the output of {target.path.name}, too, which cannot be changed")
    (inner, outer, *rest), rank = weight.shape, b.shape[:1]
    fits = (a.shape, b.shape) == ((inner, *rank, *rest), (*rank, outer, *rest))
    if name == _EMBEDDING:  # a is looked up by token
        fits = (a.shape, b.shape) == ((*rank, outer), (*rank, inner))
    if not fits:
        why = f"its shapes {a.shape} and {b.shape} for {shown(name)} do not fit the weight's {weight.shape}"
        raise _unusable(header, why, _OTHER_MODEL)


def _is_float(header: Header, key: str) -> bool:
    """Return whether a value is a finite float32: llama.cpp ends the process if it has another type."""
    stored = key.encode()
    with mapped(header.path) as data:
        place = data.find(struct.pack("<Q", len(stored)) + stored) + 8 + len(stored)
        kind = struct.unpack("<I", data[place : place + 4])[0]
    return kind == _FLOAT and math.isfinite(float(str(header.metadata[key])))
