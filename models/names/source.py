"""The source of a model, a repository of the Hugging Face hub or a package, and its files on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from urllib.parse import quote

from edgespec.errors import ModelNotFoundError
from edgespec.models.hub.cache import cached_files
from edgespec.models.hub.quants import SeveralFitError, choose, models_in, parts_of
from edgespec.models.names.catalog import Entry
from edgespec.models.names.packaged import PackageSpec, packaged

BUNDLED = Path(__file__).parents[1] / "demo"
NAMES = ("demo", "demo:draft")

HUB = re.compile(
    r"(?:hf://|hf:|(?P<web>(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/))(?P<rest>.*)", re.IGNORECASE
)
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
BRANCH_OF_HUB = r"refs/(?:pr/\d+|convert/\w+)"  # the hub creates these, and allows no other slash within a revision


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
        is_plain = re.fullmatch(BRANCH_OF_HUB, self.revision, re.ASCII)
        escaped = self.revision if is_plain else quote(self.revision, safe="")
        revision = f"@{escaped}" if self.revision != "main" else ""
        which = f"/{self.file}" if self.file else f":{self.quant}" if self.quant else ""
        return f"hf:{self.repository}{revision}{which}"


Source = HubSpec | PackageSpec


def cached(wanted: Source) -> Path | None:
    """Return the file of a model if all parts of it are here; of a split model the first one."""
    if isinstance(wanted, PackageSpec):
        return wanted.path if wanted.is_here else None
    files = cached_files(wanted.repository, wanted.revision)
    try:
        name = wanted.file or choose(list(files), wanted.quant)
    except ModelNotFoundError:
        return None
    parts = parts_of(name)
    return files[parts[0]] if all(part in files for part in parts) else None


def check_unambiguous(wanted: HubSpec) -> None:
    """Raise ModelNotFoundError with their names if several files here have this quantisation."""
    try:
        if not wanted.file:
            choose(list(cached_files(wanted.repository, wanted.revision)), wanted.quant, where=wanted.repository)
    except SeveralFitError:
        raise
    except ModelNotFoundError:
        return


def files_here(entry: Entry) -> list[Path]:
    """Return the files here that are a model of the catalogue, in any quantisation."""
    if entry.package:
        return sorted(packaged(entry).folder.glob("*.gguf"))
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
    if is_address(spec):
        return False
    starts_as_path = spec.startswith((".", "/", "\\", "~")) or re.match(r"[A-Za-z]:[\\/]", spec)
    return bool(starts_as_path) or spec.lower().endswith(".gguf")


def lasting(spec: str) -> str:
    """Return `spec` in a form that means the same from any folder."""
    return str(Path(spec).expanduser().absolute()) if is_path(spec) else spec
