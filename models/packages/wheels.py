"""Models in wheels of the package index: their specs, and their place on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from filelock import FileLock

from edgespec.errors import ModelNotFoundError, UsageError
from edgespec.files.paths import models_dir
from edgespec.models.hub.quants import quant_of, spelt

if TYPE_CHECKING:
    from edgespec.models.names.catalog import Entry

UNFINISHED = ".unfinished"  # in the folder of a package: everything that is not a model yet

_SIZE = re.compile(r"^# (\d+) bytes$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PackageSpec:
    """The GGUF file `member` in the wheel of `package` ("name==version"), kept as the weight type `quant`.

    `name` is the catalogue's; hashes are SHA-256, `size_bytes` is the size of the member. `str()` returns an equivalent
    spec.
    """

    name: str
    package: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    size_bytes: int
    quant: str

    def __str__(self) -> str:
        return f"{self.name}:{self.quant}" if self.quant else self.name

    @property
    def packed_quant(self) -> str:
        """The weight type of the file in the wheel."""
        return quant_of(self.member)

    @property
    def is_converted(self) -> bool:
        """Whether the packaged file is converted."""
        return self.quant != self.packed_quant

    @property
    def folder(self) -> Path:
        return models_dir() / self.package.replace("==", "-")

    @property
    def path(self) -> Path:
        """Where the model is, or will be."""
        packed = PurePosixPath(self.member)
        if not self.is_converted:
            return self.folder / packed.name
        stem = re.sub(rf"[-._]{self.packed_quant or '$'}$", "", packed.stem, flags=re.IGNORECASE)
        return self.folder / f"{stem}.{self.quant}.gguf"

    @property
    def checksum(self) -> Path:
        """The file with the model's hash and size, in the format of `checksum_text`."""
        return checksum_of(self.path)

    @property
    def is_here(self) -> bool:
        """Whether the model is here and complete, judging by its size."""
        if not self.path.is_file():
            return False
        size_bytes = self.path.stat().st_size
        with suppress(OSError, ValueError):
            if noted := _SIZE.search(self.checksum.read_text(encoding="ascii")):
                return size_bytes == int(noted[1])
        return size_bytes > 0 if self.is_converted else size_bytes == self.size_bytes

    @property
    def unfinished(self) -> Path:
        """The folder of downloaded and unpacked files, until the model is there."""
        return self.folder / UNFINISHED


def checksum_of(model: Path) -> Path:
    return model.with_name(f"{model.name}.sha256")


def checksum_text(model: Path, digest: str, size_bytes: int) -> str:
    """The record beside a model: its hash in the format of `sha256sum`, and as a comment its size."""
    return f"{digest}  {model.name}\n# {size_bytes} bytes\n"


def packaged(entry: Entry, quant: str = "") -> PackageSpec:
    """The model of a catalogue entry with a package, in this weight type or its default one. Raises ModelNotFoundError
    for an unavailable type."""
    packed = quant_of(entry.member)
    wanted = spelt(quant or entry.quant)
    types = dict.fromkeys((spelt(entry.quant), packed))
    if wanted not in types:
        raise ModelNotFoundError(
            f"{entry.name} is not available as {wanted}",
            why=f"it is available as {' and '.join(filter(None, types))}",
            hint=f"'edgespec compare {entry.name}:{packed} --quants {wanted}' makes and measures other types",
        )
    return PackageSpec(
        entry.name,
        entry.package,
        entry.wheel_sha256,
        entry.wheel_bytes,
        entry.member,
        entry.sha256,
        entry.size_bytes,
        wanted,
    )


def packaged_models() -> Iterator[PackageSpec]:
    """All of the catalogue's, of each entry the default weight type first; none while the user's file has errors."""
    from edgespec.models.names.catalog import catalogue

    with suppress(UsageError):
        for entry in catalogue().values():
            if entry.package:
                yield from (packaged(entry, quant) for quant in dict.fromkeys(("", quant_of(entry.member))))


def packaged_at(path: Path) -> PackageSpec | None:
    """The spec of a file on this machine, if it came in a package."""
    if models_dir() not in path.absolute().parents:
        return None
    return next((model for model in packaged_models() if model.path == path.absolute()), None)


def unfinished_files(wanted: PackageSpec) -> list[Path]:
    """Incomplete downloads here."""
    return sorted(path for path in wanted.unfinished.rglob("*") if path.is_file())


def package_lock(wanted: PackageSpec) -> FileLock:
    """The lock of a program that works on a package; not acquired yet."""
    return FileLock(models_dir() / f".{wanted.folder.name}.lock")
