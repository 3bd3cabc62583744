"""The source of a model, a repository of the Hugging Face hub or a package, and its files on this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from urllib.parse import quote

from edgespec.errors import ModelNotFoundError, UsageError
from edgespec.files.paths import models_dir
from edgespec.models.hub.cache import cached_files
from edgespec.models.hub.quants import choose, models_in, parts_of, quant_of, spelt
from edgespec.models.names.catalog import CatalogueModel, catalogue

BUNDLED = Path(__file__).parents[1] / "demo"
HEADS = BUNDLED.with_name("heads")
PAIR = {"demo": BUNDLED / "target.gguf", "demo:draft": BUNDLED / "draft.gguf"}
NAMES = PAIR | {head.stem: head for head in sorted(HEADS.glob("*.gguf"))}
"""The files that come with the program, by their names."""

HUB = re.compile(
    r"(?:hf://|hf:|(?P<web>(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/))(?P<rest>.*)", re.IGNORECASE
)
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
ELSEWHERE = re.compile(r"(?:lmstudio|llama\.cpp|ollama):(?!//)")
"""The beginnings of names of other programs' models (`other_programs.py`)."""


@dataclass(frozen=True, slots=True)
class HubSpec:
    """A model in a repository of the Hugging Face hub: its `file`, or the file of the quantisation `quant` (`spelt`).

    With both empty, it is the repository's default model. `str()` returns an equivalent spec.
    """

    repository: str
    file: str = ""
    quant: str = ""
    revision: str = "main"

    def __str__(self) -> str:
        revision = f"@{quote(self.revision, safe='')}" if self.revision != "main" else ""
        which = f"/{self.file}" if self.file else f":{self.quant}" if self.quant else ""
        return f"hf:{self.repository}{revision}{which}"


@dataclass(frozen=True, slots=True)
class PackageSpec:
    """A model of the catalogue in a package. `str()` returns its name."""

    entry: CatalogueModel

    def __str__(self) -> str:
        return self.entry.name

    @property
    def package(self) -> str:
        """The package with its version: "name==version"."""
        return self.entry.package

    @property
    def quant(self) -> str:
        """The weight type in which the model is kept."""
        return spelt(self.entry.quant)

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

    @property
    def size_bytes(self) -> int:
        """The size of the transfer."""
        return self.entry.wheel_bytes

    @property
    def missing_bytes(self) -> int:
        return 0 if self.is_here else self.size_bytes

    @property
    def needed_bytes(self) -> int:
        """An upper bound for the disk space that the download takes: the package, its file and the converted file."""
        n_files = 3 if self.is_converted else 1
        return 0 if self.is_here else self.size_bytes + n_files * self.entry.size_bytes


Source = HubSpec | PackageSpec


def source_of(entry: CatalogueModel, quant: str = "") -> Source:
    """Return the source of an entry of the catalogue. Raises ModelNotFoundError for a package in another type."""
    if not entry.package:
        return HubSpec(entry.repository, quant=spelt(quant) or entry.quant)
    if quant and spelt(quant) != spelt(entry.quant):
        raise ModelNotFoundError(
            f"{entry.name} is not available as {spelt(quant)}",
            why=f"it is available as {spelt(entry.quant)}",
            hint=f"'edgespec compare {entry.name} --quants {spelt(quant)}' makes and measures other types",
        )
    return PackageSpec(entry)


def cached(wanted: Source) -> Path | None:
    """Return the file of a model if all parts of it are here; of a split model the first one."""
    if isinstance(wanted, PackageSpec):
        return wanted.path if wanted.is_here else None
    files = cached_files(wanted.repository, wanted.revision)
    try:
        return whole_file(files, wanted.file or choose(list(files), wanted.quant))
    except ModelNotFoundError:
        return None


def whole_file(files: Mapping[str, Path], name: str) -> Path | None:
    """Return the file with this name if all its parts are in `files`; of a split model the first part."""
    parts = parts_of(name)
    return files[parts[0]] if all(part in files for part in parts) else None


def files_here(entry: CatalogueModel) -> list[Path]:
    """Return the files here that are a model of the catalogue, in any quantisation."""
    if entry.package:
        return sorted(PackageSpec(entry).folder.glob("*.gguf"))
    files = cached_files(entry.repository)
    return [files[name] for name in models_in(list(files))]


def stays_within(name: str) -> bool:
    """Return whether a path from an untrusted name stays within its folder, on any system."""
    inside = {"", ".", ".."}.isdisjoint(name.split("/"))
    return inside and "\\" not in name and not PureWindowsPath(name).anchor and name.isprintable()


def is_address(spec: str) -> bool:
    """Return whether `spec` is a web address, of the hub or of another site."""
    return HUB.fullmatch(spec) is not None or ADDRESS.match(spec) is not None


def is_path(spec: str) -> bool:
    """Return whether `spec` can only be a file: `./x`, `/x`, `~/x`, `C:\\x`, or anything that ends in `.gguf`."""
    if is_address(spec) or ELSEWHERE.match(spec):
        return False
    starts_as_path = spec.startswith((".", "/", "\\", "~")) or re.match(r"[A-Za-z]:[\\/]", spec)
    return bool(starts_as_path) or spec.lower().endswith(".gguf")


def lasting(spec: str) -> str:
    """Return `spec` in a form that means the same from any folder."""
    return str(Path(spec).expanduser().absolute()) if is_path(spec) else spec


# --- models in packages -----------------------------------------------------------------------------------------------


def packaged_at(path: Path) -> PackageSpec | None:
    """Return the packaged model that is kept in this file; None for other files, and if the catalogue has errors."""
    if models_dir() not in path.absolute().parents:
        return None
    with suppress(UsageError):
        packages = (PackageSpec(entry) for entry in catalogue().values() if entry.package)
        return next((each for each in packages if each.path == path.absolute()), None)
    return None
