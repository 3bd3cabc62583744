"""Models that are not on this machine: those of the catalogue and of the hub, and their sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from edgespec.errors import EdgespecError, ModelNotFoundError, UsageError
from edgespec.files.paths import free_in, models_dir
from edgespec.models.hub.cache import hub_cache, is_offline, partial_bytes
from edgespec.models.hub.quants import choose, models_in, parts_of, quant_of
from edgespec.models.hub.repository import Repository, look_up
from edgespec.models.hub.requests import DownloadError, check_endpoint, headers, host, http_error, reason, session
from edgespec.models.memory.fit import QUANT_BITS
from edgespec.models.names.catalog import Entry, catalogue
from edgespec.models.names.published_heads import published_for
from edgespec.models.names.source import HubSpec, PackageSpec, Source, cached
from edgespec.models.names.spec import NotFetchedError, resolve, sources
from edgespec.text.figures import count_of, size_of

ABOVE_NAME = 1.1  # names give fewer parameters than there are: they round down, or leave out the embeddings
_PARAMS = re.compile(r"(?<![a-z\d.])(\d+(?:\.\d+)?)([bm])(?![a-z\d])")
MOST_FOUND = 20
SEARCH_S = 10.0  # without data from the hub
_PROPERTIES = ["downloads", "likes", "gated", "pipeline_tag", "gguf"]
_TEXT_TASKS = ("any-to-any", "conversational", "image-text-to-text", "text-generation", "text2text-generation")


@dataclass(frozen=True, slots=True)
class Absent:
    """A model to download as `spec`.

    Attributes:
        size_bytes: The usual size, exact or estimated from the model's name; 0 if unknown.
        begun_bytes: The size of the part that an earlier download left.
        draft: The draft that the catalogue names for it.
        head: The draft head that the catalogue names for it, in a few words.
        is_found: True for a repository that the hub found; False for a model of the catalogue.
        counts: The parameters, downloads and likes of a repository, as far as the hub reports them.
    """

    spec: str
    about: str
    quant: str = ""
    size_bytes: int = 0
    is_exact: bool = False
    begun_bytes: int = 0
    draft: str = ""
    repository: str = ""
    is_found: bool = False
    is_gated: bool = False
    counts: tuple[str, ...] = ()
    head: str = ""

    @property
    def size(self) -> str:
        """The size in words; empty if unknown."""
        return size_of(self.size_bytes) if self.is_exact else about_size(self.size_bytes)

    @property
    def facts(self) -> list[str]:
        """Short facts about the model."""
        begun = f"{size_of(self.begun_bytes)} here" if self.begun_bytes else ""
        facts = (
            ("gated" if self.is_gated else "", *self.counts) if self.is_found else (self.size, self.about, self.head)
        )
        return list(filter(None, (begun, *facts)))


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to download a model, by its `spec`.

    Attributes:
        quant: The quantisation; empty if only the name of the file selects the model.
        file: The file in the repository, of a split model the first part; empty if it was not looked up.
        size_bytes: The size of all parts.
    """

    spec: str
    quant: str
    size_bytes: int
    is_exact: bool = True
    file: str = ""
    n_parts: int = 1
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
    """Return the repositories with GGUF files of models that write text, the most downloaded first.

    Raises DownloadError.
    """
    if is_offline():
        raise DownloadError("offline: the hub is not searched")
    check_endpoint()
    client = session()
    from huggingface_hub import constants

    params = {"search": words, "filter": "gguf", "sort": "downloads", "limit": MOST_FOUND, "expand": _PROPERTIES}
    try:  # not `HfApi.list_models`, which would wait for ever
        answer = client.get(f"{constants.ENDPOINT}/api/models", params=params, headers=headers(), timeout=SEARCH_S)
        answer.raise_for_status()
        return [_found(each) for each in answer.json() if _can_be_used(each)]
    except http_error() as error:
        raise DownloadError(reason(error)) from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise DownloadError(f"{host()} does not respond like a model hub") from error


def _can_be_used(listed: dict[str, Any]) -> bool:
    """Return whether the hub lists a model that writes text, under a name that is a spec."""
    name = str(listed["id"])
    with suppress(ModelNotFoundError):
        return (listed.get("pipeline_tag") or _TEXT_TASKS[0]) in _TEXT_TASKS and sources(f"hf:{name}") == [
            HubSpec(name)
        ]
    return False


def _found(listed: dict[str, Any]) -> Absent:
    name, gguf = str(listed["id"]), listed.get("gguf") or {}
    counts = [f"{_short(int(listed.get(what) or 0))} {what}" for what in ("downloads", "likes")]
    return Absent(
        f"hf:{name}",
        str(gguf.get("architecture") or ""),
        begun_bytes=partial_bytes(name),
        repository=name,
        is_found=True,
        is_gated=bool(listed.get("gated")),
        counts=(count_of(int(gguf["total"])) if gguf.get("total") else "", *counts),
    )


def usual_choice(model: Absent) -> list[Choice]:
    """Return the default choice for a model of the catalogue; none for a repository of the hub."""
    if model.is_found:
        return []
    return [Choice(model.spec, model.quant, model.size_bytes, model.is_exact)]


def choices_of(model: Absent) -> list[Choice]:
    """Return what can be downloaded of a model, as the hub lists it. Raises DownloadError, ModelNotFoundError."""
    wanted = sources(model.spec)[0]
    if isinstance(wanted, PackageSpec):
        return usual_choice(model)
    return choices_in(look_up(wanted), model.spec, wanted)


def choices_in(repository: Repository, spec: str, wanted: HubSpec) -> list[Choice]:
    """Return the models of a repository that can be downloaded, the smallest first: of known size, with all parts.

    A `spec` of the catalogue is kept, so that its draft is downloaded too.
    """
    names, found = list(repository.files), []
    for file in models_in(names):
        sizes = [repository.files[part].size_bytes if part in names else 0 for part in parts_of(file)]
        if all(sizes):
            quant = quant_of(file) if _selects(names, quant_of(file), file) else ""
            short = str(replace(wanted, file="" if quant else file, quant=quant))
            if quant and "/" not in spec:
                short = f"{spec.partition(':')[0]}:{quant}"
            is_here = cached(replace(wanted, file=file, quant="")) is not None
            found.append(Choice(short, quant, sum(sizes), True, file, len(sizes), is_here))
    return sorted(found, key=lambda choice: (choice.size_bytes, choice.file))


def _selects(names: list[str], quant: str, file: str) -> bool:
    """Return whether a quantisation selects this file."""
    with suppress(ModelNotFoundError):
        return bool(quant) and choose(names, quant) == file
    return False


def free_for(model: Absent) -> int:
    """Return the free space on the disk where the model would be kept."""
    return free_in(hub_cache() if model.repository else models_dir())


def _absent(entry: Entry, wanted: Source) -> Absent:
    draft = entry.drafts[0] if entry.drafts else ""
    if isinstance(wanted, PackageSpec):
        return Absent(entry.name, entry.about, wanted.quant, entry.wheel_bytes, True, draft=draft)
    size, begun, head = _usual_bytes(entry), partial_bytes(entry.repository), published_for(entry)
    return Absent(
        entry.name, entry.about, entry.quant, size, False, begun, draft, entry.repository, head=str(head or "")
    )


def _usual_bytes(entry: Entry) -> int:
    """Estimate the size of a model's file from the number of parameters in its name; 0 if it has none."""
    match = _PARAMS.search(entry.name) or _PARAMS.search(entry.about.lower())
    bits = QUANT_BITS.get(entry.quant.removeprefix("UD-"))
    if match is None or bits is None:
        return 0
    n_params = float(match[1]) * (1e9 if match[2] == "b" else 1e6)
    return round(n_params * ABOVE_NAME * bits / 8)


def about_size(n_bytes: int) -> str:
    """Return an estimated size in words; empty for 0, which means unknown."""
    return f"~{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"~{n_bytes / 1e6:.0f} MB" if n_bytes else ""


def _short(n: int) -> str:
    return str(n) if n < 1000 else f"{n / 1e3:.0f}k" if n < 1e6 else f"{n / 1e6:.1f}M"
