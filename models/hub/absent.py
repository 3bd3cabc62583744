"""Models that are not on this machine: those of the catalogue and of the hub, and their sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from edgespec.errors import EdgespecError, UsageError
from edgespec.files.paths import free_in, models_dir
from edgespec.models.hub.cache import hub_cache, partial_bytes
from edgespec.models.hub.listing import Offer
from edgespec.models.hub.repository import look_at_offers
from edgespec.models.hub.search import FoundRepository, search
from edgespec.models.memory.what_fits import QUANT_BITS
from edgespec.models.names.catalog import Entry, catalogue
from edgespec.models.names.packaged import PackageSpec
from edgespec.models.names.source import HubSpec, Source, cached
from edgespec.models.names.spec import NotFetchedError, resolve, sources
from edgespec.text.figures import count_of, size_of

ABOVE_NAME = 1.1  # names give fewer parameters than there are: they round down, or leave out the embeddings
_PARAMS = re.compile(r"(?<![a-z\d.])(\d+(?:\.\d+)?)([bm])(?![a-z\d])")


@dataclass(frozen=True, slots=True)
class Absent:
    """A model to download as `spec`.

    Attributes:
        size_bytes: The usual size, exact or estimated from the model's name; 0 if unknown.
        begun_bytes: The size of the part that an earlier download left.
        draft: The draft that the catalogue names for it.
        found: The repository as the hub's search describes it.
    """

    spec: str
    about: str
    quant: str = ""
    size_bytes: int = 0
    is_exact: bool = False
    begun_bytes: int = 0
    draft: str = ""
    repository: str = ""
    found: FoundRepository | None = None

    @property
    def size(self) -> str:
        """The size in words; empty if unknown."""
        return size_of(self.size_bytes) if self.is_exact else about_size(self.size_bytes)

    @property
    def facts(self) -> list[str]:
        """Short facts about the model."""
        begun = [f"{size_of(self.begun_bytes)} here"] if self.begun_bytes else []
        if self.found is None:
            return [*begun, *filter(None, (self.size, self.about))]
        found = self.found
        counts = [f"{_short(found.downloads)} downloads", f"{_short(found.likes)} likes"]
        params = [count_of(found.n_params)] if found.n_params else []
        return [*begun, *(["gated"] if found.is_gated else []), *params, *counts]


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to download a model, by its `spec`."""

    spec: str
    label: str
    size_bytes: int
    is_exact: bool = True
    is_here: bool = False


def absent_models() -> Iterator[Absent]:
    """Yield the catalogue's models that are not here; none while the user's file has errors."""
    with suppress(UsageError):
        for entry in catalogue().values():
            try:
                resolve(entry.name)
            except NotFetchedError as error:
                yield _absent(entry, error.wanted)
            except EdgespecError:
                continue


def found_on_hub(words: str) -> list[Absent]:
    """Return the repositories that the hub finds. Raises DownloadError."""
    return [
        Absent(
            f"hf:{each.name}",
            each.architecture,
            begun_bytes=partial_bytes(each.name),
            repository=each.name,
            found=each,
        )
        for each in search(words)
    ]


def usual_choice(model: Absent) -> list[Choice]:
    """Return the default choice for a model of the catalogue; none for a repository of the hub."""
    if model.found is not None:
        return []
    return [Choice(model.spec, model.quant, model.size_bytes, model.is_exact)]


def choices_of(model: Absent) -> list[Choice]:
    """Return what can be downloaded of a model, the smallest first, as the hub lists it.

    Raises DownloadError, ModelNotFoundError.
    """
    wanted = sources(model.spec)[0]
    if isinstance(wanted, PackageSpec):
        return usual_choice(model)
    found = look_at_offers(wanted).offers()
    return [
        Choice(
            spec_of(model.spec, wanted, each),
            each.quant or each.file,
            each.size_bytes,
            is_here=cached(HubSpec(wanted.repository, each.file, revision=wanted.revision)) is not None,
        )
        for each in found
    ]


def spec_of(spec: str, wanted: HubSpec, offer: Offer) -> str:
    """Return the name to type. A name of the catalogue stays one, so that its draft is downloaded too."""
    if "/" not in spec and offer.quant:
        return f"{spec.partition(':')[0]}:{offer.quant}"
    return str(HubSpec(wanted.repository, "" if offer.quant else offer.file, offer.quant, wanted.revision))


def absent_entries(repository: str) -> list[Entry]:
    """Return the catalogue entries for models of a repository that are not here.

    Returns none while the user's file has errors.
    """
    with suppress(UsageError):
        entries = [entry for entry in catalogue().values() if entry.repository == repository]
        return [entry for entry in entries if cached(HubSpec(repository, quant=entry.quant)) is None]
    return []


def free_for(model: Absent) -> int:
    """Return the free space on the disk where the model would be kept."""
    return free_in(hub_cache() if model.repository else models_dir())


def _absent(entry: Entry, wanted: Source) -> Absent:
    draft = entry.drafts[0] if entry.drafts else ""
    if isinstance(wanted, PackageSpec):
        return Absent(entry.name, entry.about, wanted.quant, entry.wheel_bytes, True, draft=draft)
    size, begun = _usual_bytes(entry), partial_bytes(entry.repository)
    return Absent(entry.name, entry.about, entry.quant, size, False, begun, draft, entry.repository)


def _usual_bytes(entry: Entry) -> int:
    """Estimate the size of a model's file from the number of parameters in its name; 0 if it has none."""
    match = _PARAMS.search(entry.name) or _PARAMS.search(entry.about.lower())
    if match is None or entry.quant not in QUANT_BITS:
        return 0
    n_params = float(match[1]) * (1e9 if match[2] == "b" else 1e6)
    return round(n_params * ABOVE_NAME * QUANT_BITS[entry.quant] / 8)


def about_size(n_bytes: int) -> str:
    """Return an estimated size in words; empty for 0, which means unknown."""
    return f"~{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"~{n_bytes / 1e6:.0f} MB" if n_bytes else ""


def _short(n: int) -> str:
    return str(n) if n < 1000 else f"{n / 1e3:.0f}k" if n < 1e6 else f"{n / 1e6:.1f}M"
