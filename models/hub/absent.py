"""Models that are not on this machine: the catalogue's, and those found on the hub; in which sizes they can be had."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from edgespec.errors import EdgespecError, UsageError
from edgespec.files.paths import free_in, models_dir
from edgespec.models.hub.cache import begun_files, hub_cache
from edgespec.models.hub.offers import Offer
from edgespec.models.hub.repository import look_at_offers
from edgespec.models.hub.search import Repository, search
from edgespec.models.memory.what_fits import QUANT_BITS
from edgespec.models.names.catalog import Entry, catalogue
from edgespec.models.names.spec import HubSpec, NotFetchedError, Source, cached, resolve, sources
from edgespec.models.packages.wheels import PackageSpec, packaged, unfinished_files
from edgespec.text.figures import count_of, size_of

ABOVE_NAME = 1.1  # names give fewer parameters than there are: they round down, or leave out the embeddings
_PARAMS = re.compile(r"(?<![a-z\d.])(\d+(?:\.\d+)?)([bm])(?![a-z\d])")


@dataclass(frozen=True, slots=True)
class Absent:
    """A model to download as `spec`: its usual size in bytes, which is exact or estimated from its name, 0 if unknown;
    what is here of it after an earlier download; its draft in the catalogue; what the hub tells of a repository."""

    spec: str
    about: str
    quant: str = ""
    size_bytes: int = 0
    is_exact: bool = False
    begun_bytes: int = 0
    draft: str = ""
    repository: str = ""
    told: Repository | None = None

    @property
    def size(self) -> str:
        """Its size in words; empty if unknown."""
        return size_of(self.size_bytes) if self.is_exact else about_size(self.size_bytes)

    @property
    def facts(self) -> list[str]:
        """What is known about it, in short."""
        begun = [f"{size_of(self.begun_bytes)} here"] if self.begun_bytes else []
        if self.told is None:
            return [*begun, *filter(None, (self.size, self.about))]
        told = self.told
        counts = [f"{_short(told.downloads)} downloads", f"{_short(told.likes)} likes"]
        params = [count_of(told.n_params)] if told.n_params else []
        return [*begun, *(["gated"] if told.is_gated else []), *params, *counts]


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to download a model, by its `spec`."""

    spec: str
    label: str
    size_bytes: int
    is_exact: bool = True
    is_here: bool = False


def absent_models() -> Iterator[Absent]:
    """The catalogue's models that are not here; none while the user's file has errors."""
    with suppress(UsageError):
        for entry in catalogue().values():
            try:
                resolve(entry.name)
            except NotFetchedError as error:
                yield _absent(entry, error.wanted)
            except EdgespecError:
                continue


def found_on_hub(words: str) -> list[Absent]:
    """The repositories that the hub finds. Raises DownloadError."""
    return [
        Absent(f"hf:{each.name}", each.architecture, repository=each.name, told=each, begun_bytes=_begun_in(each.name))
        for each in search(words)
    ]


def usual_choice(model: Absent) -> list[Choice]:
    """How a model of the catalogue is downloaded unless something else is chosen; unknown for a repository."""
    if model.told is not None:
        return []
    return [Choice(model.spec, model.quant, model.size_bytes, model.is_exact)]


def choices_of(model: Absent) -> list[Choice]:
    """All that can be downloaded of a model, the smallest first, as the hub lists it. Raises DownloadError,
    ModelNotFoundError."""
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
    """The name to type: a name of the catalogue stays one, so that its draft is downloaded too."""
    if "/" not in spec and offer.quant:
        return f"{spec.partition(':')[0]}:{offer.quant}"
    return str(HubSpec(wanted.repository, "" if offer.quant else offer.file, offer.quant, wanted.revision))


def free_for(model: Absent) -> int:
    """The free disk space where it would be kept."""
    return free_in(hub_cache() if model.repository else models_dir())


def _absent(entry: Entry, wanted: Source) -> Absent:
    draft = entry.drafts[0] if entry.drafts else ""
    if isinstance(wanted, PackageSpec):
        begun = sum(path.stat().st_size for path in unfinished_files(packaged(entry)))
        return Absent(entry.name, entry.about, wanted.quant, wanted.wheel_bytes, True, begun, draft)
    size, begun = _usual_bytes(entry), _begun_in(entry.repository)
    return Absent(entry.name, entry.about, entry.quant, size, False, begun, draft, entry.repository)


def _usual_bytes(entry: Entry) -> int:
    """The size of its file, as the number of parameters in its name suggests; 0 if there is none."""
    match = _PARAMS.search(entry.name) or _PARAMS.search(entry.about.lower())
    if match is None or entry.quant not in QUANT_BITS:
        return 0
    n_params = float(match[1]) * (1e9 if match[2] == "b" else 1e6)
    return round(n_params * ABOVE_NAME * QUANT_BITS[entry.quant] / 8)


def about_size(n_bytes: int) -> str:
    """An estimated size; empty for 0, which is an unknown one."""
    return f"~{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"~{n_bytes / 1e6:.0f} MB" if n_bytes else ""


def _short(n: int) -> str:
    return str(n) if n < 1000 else f"{n / 1e3:.0f}k" if n < 1e6 else f"{n / 1e6:.1f}M"


def _begun_in(repository: str) -> int:
    return sum(path.stat().st_size for path in begun_files(repository))
