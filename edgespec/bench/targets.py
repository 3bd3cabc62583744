"""The files to compare, their labels in tables, and the reference; quantisations of it are made once and stay in the
cache folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.files.paths import derived_file, make_room
from edgespec.gguf_file.header import Header, read_header
from edgespec.llama.quantize import TYPES, quantize
from edgespec.models.names.local import local_model
from edgespec.models.names.spec import resolve
from edgespec.models.pair.vocabulary import Vocabulary


@dataclass(slots=True, frozen=True)
class Target:
    """A file to compare: `name` identifies it, `label` distinguishes it from the others in tables."""

    name: str
    path: Path
    quantisation: str
    size_bytes: int
    header: Header = field(repr=False)
    default_draft: Path | None
    label: str = ""


@dataclass(slots=True, frozen=True)
class Targets:
    """All files to compare; `messages` report the quantisations that were made."""

    all: tuple[Target, ...]
    reference: Target
    messages: tuple[str, ...]


def find_targets(
    specs: Sequence[str],
    quants: Sequence[str] = (),
    reference: str | None = None,
    progress: Callable[[str, float], None] = lambda what, done: None,
) -> Targets:
    """Find the files that `specs` name, and make missing quantisations of the reference.

    The reference is the largest file unless one is named. Raises ModelNotFoundError, ModelFileError, UsageError.
    """
    targets: list[Target] = []
    for spec in specs:
        _find_or_add(targets, spec)
    base = _find_or_add(targets, reference) if reference else max(targets, key=lambda target: target.size_bytes)
    for target in targets:
        if target is not base:
            _check_vocabulary(base, target)
    messages = []
    if quants and base.quantisation not in ("F32", "F16", "BF16"):
        messages.append(f"{base.name} is already {base.quantisation}: files made from it lose quality twice")
    for type in quants:
        if any(target.quantisation == type for target in targets):
            continue
        path = make_quant(base.path, type, lambda done, type=type: progress(f"making {type} of {base.name}", done))  # type: ignore[misc]
        made = _target(str(path), f"{base.name} {type}")
        targets.append(made)
        messages.append(f"created {made.name}: {', '.join(sorted(made.header.weight_types))}")
    named = [replace(target, name=name) for target, name in zip(targets, _names(targets), strict=True)]
    labelled = [replace(target, label=label) for target, label in zip(named, _labels(named), strict=True)]
    return Targets(tuple(labelled), labelled[targets.index(base)], tuple(messages))


def _find_or_add(targets: list[Target], spec: str) -> Target:
    """Return the target that `spec` names; the same file may have several names."""
    new = _target(spec)
    for target in targets:
        if target.path.samefile(new.path):
            return target
    targets.append(new)
    return new


def _target(spec: str, name: str = "") -> Target:
    model = local_model(spec)
    assert model.header is not None
    name = name or resolve(spec).name.removesuffix(".gguf")
    return Target(name, model.path, model.quantisation, model.size_bytes, model.header, model.default_draft)


def _check_vocabulary(base: Target, target: Target) -> None:
    """Raise UsageError unless both models have the same tokens: only then can they be compared."""
    found = [Vocabulary.of(each.header) for each in (base, target)]
    ours, theirs = ((each.kind, each.texts, each.adds_bos and each.bos) for each in found)
    if ours != theirs:
        sizes = " and ".join(f"{each.kind} of {len(each.texts)} tokens" for each in found)
        raise UsageError(
            f"{target.name} cannot be compared with {base.name}",
            why=f"their vocabularies differ ({sizes})",
            hint="compare files of the same model",
        )


def _names(targets: Sequence[Target]) -> list[str]:
    """Return their names; files with the same name get as many of their folders as needed."""
    names, depth = [target.name for target in targets], 1
    paths = [Path(os.path.abspath(target.path).removesuffix(".gguf")).parts for target in targets]  # noqa: PTH100
    while len(set(names)) < len(names):
        depth += 1
        names = ["/".join(path[-depth:]) for path in paths]
    return names


def _labels(targets: Sequence[Target]) -> list[str]:
    """Return the quantisations if they distinguish the files of one model, otherwise the names."""
    quantisations = [target.quantisation for target in targets]
    same_model = len({target.header.n_params for target in targets}) == 1
    return quantisations if same_model and len(set(quantisations)) == len(targets) else [each.name for each in targets]


# --- quantisations ----------------------------------------------------------------------------------------------------


def check_quants(names: Iterable[str]) -> list[str]:
    """Return the names in llama.cpp's spelling, each once. Raises UsageError for a type that cannot be made."""
    wanted = list(dict.fromkeys(name.strip().upper() for name in names))
    if unknown := [name for name in wanted if name not in TYPES]:
        raise UsageError(f"cannot make quantisation {unknown[0]!r}", hint=f"the types are {', '.join(TYPES)}")
    return wanted


def make_quant(source: Path, type: str, progress: Callable[[float], None] = lambda done: None) -> Path:
    """Return a file of the model `source` with weights of `type` ("Q4_K_M"), which is made unless it is in the cache.

    A source that is already quantised is accepted too, and loses quality twice. Raises UsageError, ModelFileError.
    """
    path = derived_file("quants", source, type)
    if path.is_file():
        return path
    make_room(path.parent, size_bytes(read_header(source).n_params, type), f"{type} of {source.name}")
    quantize(source, path, type, again=True, progress=progress)
    return path


def size_bytes(n_params: int, type: str) -> int:
    """Estimate the size of a file: the bits in the type's name, plus two for scales and larger tensors."""
    bits = re.search(r"\d+", type)
    assert bits is not None
    return n_params * (int(bits[0]) + 2) // 8
