"""Models in packages of the Python package index, and their places on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgespec.errors import ModelNotFoundError, UsageError
from edgespec.files.paths import models_dir
from edgespec.models.hub.quants import quant_of, spelt
from edgespec.models.names.catalog import Entry, catalogue


@dataclass(frozen=True, slots=True)
class PackageSpec:
    """A model of the catalogue in a package, kept in the weight type `quant`. `str()` returns its name."""

    entry: Entry
    quant: str

    def __str__(self) -> str:
        return f"{self.name}:{self.quant}" if self.quant else self.name

    @property
    def name(self) -> str:
        """The name in the catalogue."""
        return self.entry.name

    @property
    def package(self) -> str:
        """The package with its version: "name==version"."""
        return self.entry.package

    @property
    def packed_quant(self) -> str:
        """The weight type of the file in the package."""
        return quant_of(self.entry.member)

    @property
    def is_converted(self) -> bool:
        """True if the file of the package is converted to another weight type."""
        return self.quant != self.packed_quant

    @property
    def folder(self) -> Path:
        return models_dir() / self.package.replace("==", "-")

    @property
    def path(self) -> Path:
        """The place of the model on this machine. The file gets this name when it is complete."""
        packed = PurePosixPath(self.entry.member)
        if not self.is_converted:
            return self.folder / packed.name
        stem = re.sub(rf"[-._]{self.packed_quant or '$'}$", "", packed.stem, flags=re.IGNORECASE)
        return self.folder / f"{stem}.{self.quant}.gguf"

    @property
    def is_here(self) -> bool:
        return self.path.is_file()


def packaged(entry: Entry, quant: str = "") -> PackageSpec:
    """Return the model of a catalogue entry with a package, in this weight type or its default one.

    Raises ModelNotFoundError if the type is not available.
    """
    packed = quant_of(entry.member)
    wanted = spelt(quant or entry.quant)
    types = dict.fromkeys((spelt(entry.quant), packed))
    if wanted not in types:
        raise ModelNotFoundError(
            f"{entry.name} is not available as {wanted}",
            why=f"it is available as {' and '.join(filter(None, types))}",
            hint=f"'edgespec compare {entry.name}:{packed} --quants {wanted}' makes and measures other types",
        )
    return PackageSpec(entry, wanted)


def packaged_models() -> Iterator[PackageSpec]:
    """Yield all packaged models of the catalogue, the default weight type of each first.

    Yields nothing while the user's catalogue has errors.
    """
    with suppress(UsageError):
        for entry in catalogue().values():
            if entry.package:
                yield from (packaged(entry, quant) for quant in dict.fromkeys(("", quant_of(entry.member))))


def packaged_at(path: Path) -> PackageSpec | None:
    """Return the packaged model that is kept in this file; None for other files."""
    if models_dir() not in path.absolute().parents:
        return None
    return next((model for model in packaged_models() if model.path == path.absolute()), None)
