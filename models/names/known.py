"""The specs of files on this machine, and all known names; no file is opened for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.models.hub.cache import cached_files, cached_repositories, hub_cache, repository_of
from edgespec.models.hub.quants import models_in, quant_of
from edgespec.models.names.catalog import catalogue
from edgespec.models.names.source import NAMES, HubSpec, cached, is_path, packaged, packaged_at


def name_of(path: Path) -> str:
    """Return the shortest spec of this file: for bundled files and packages its name, for the hub's cache
    `owner/repo:QUANT`."""
    file = os.path.realpath(path)
    for name, bundled in NAMES.items():
        if file == os.path.realpath(bundled):
            return name
    if package := packaged_at(path):
        return package.name if package == packaged(package.entry) else str(package)
    place = repository_of(path)
    if place is not None and _can_be_typed(place[0]):
        repository, name = place
        commit = path.absolute().relative_to(hub_cache()).parts[2]
        quant = quant_of(name)
        for revision in ("main", commit):
            for wanted in (HubSpec(repository, "", quant, revision), HubSpec(repository, name, revision=revision)):
                found = cached(wanted)
                if found is not None and os.path.realpath(found) == file and (wanted.quant or wanted.file):
                    return _short(wanted)
    return with_tilde(path)


def short_name(path: Path) -> str:
    """Return a model's short name: the catalogue's if it came under that name, else its file's."""
    name = name_of(path)
    return name if not is_path(name) and "/" not in name else path.name.removesuffix(".gguf")


def with_tilde(path: Path) -> str:
    """Return a path without the user's name."""
    try:
        return str(Path("~") / path.absolute().relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(path.absolute())


def known_names() -> Iterator[str]:
    """Yield all specs except files: the bundled ones, the catalogue, the hub's cache."""
    yield from NAMES
    with suppress(UsageError):
        yield from catalogue()
    for repository in filter(_can_be_typed, cached_repositories()):
        wanted = {quant_of(name) or name: name for name in models_in(list(cached_files(repository)))}
        for quant, name in wanted.items():
            yield _short(HubSpec(repository, name) if quant == name else HubSpec(repository, quant=quant))


def _can_be_typed(repository: str) -> bool:
    """Return whether a repository has an owner: without one a spec is a name of the catalogue."""
    return "/" in repository


def _short(wanted: HubSpec) -> str:
    """Return the spec without "hf:" where that is clear: with a quantisation."""
    return str(wanted).removeprefix("hf:") if wanted.quant else str(wanted)
