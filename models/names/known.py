"""Specs of files on this machine, and all known names; no file is read for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edgespec.errors import ModelNotFoundError, UsageError
from edgespec.models.hub.cache import cached_files, cached_repositories, hub_cache, repository_of
from edgespec.models.hub.quants import models_in, quant_of
from edgespec.models.names.spec import NAMES, HubSpec, is_path, resolve
from edgespec.models.packages.wheels import packaged_at


def name_of(path: Path) -> str:
    """The shortest spec of this file: for the bundled pair and packages its name, for the hub's cache
    `owner/repo:QUANT`."""
    file = os.path.realpath(path)
    for spec in _candidates(path):
        with suppress(ModelNotFoundError):
            if os.path.realpath(resolve(spec).path) == file:
                return spec
    return with_tilde(path)


def short_name(path: Path) -> str:
    """A model's short name: the catalogue's if it was created by that, else its file's."""
    name = name_of(path)
    return name if not is_path(name) and "/" not in name else path.name.removesuffix(".gguf")


def with_tilde(path: Path) -> str:
    """A path without the user's name."""
    try:
        return str(Path("~") / path.absolute().relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(path.absolute())


def known_names() -> Iterator[str]:
    """All specs except files: the bundled pair, the catalogue, the hub's cache."""
    from edgespec.models.names.catalog import catalogue

    yield from NAMES
    with suppress(UsageError):
        yield from catalogue()
    for repository in filter(_can_be_typed, cached_repositories()):
        names = models_in(list(cached_files(repository)))
        yield from dict.fromkeys(_spec(repository, name) for name in names)


def _candidates(path: Path) -> Iterator[str]:
    yield from NAMES
    if package := packaged_at(path):
        yield from (package.name, str(package))
    place = repository_of(path)
    if place is not None and _can_be_typed(place[0]):
        repository, name = place
        commit = path.absolute().relative_to(hub_cache()).parts[2]
        for revision in ("main", commit):
            yield _spec(repository, name, revision)
            yield str(HubSpec(repository, name, revision=revision))


def _can_be_typed(repository: str) -> bool:
    """Old repositories have no owner; a spec without one is a name of the catalogue."""
    return "/" in repository


def _spec(repository: str, name: str, revision: str = "main") -> str:
    """A file of a repository by its quantisation, or by its name if that has none."""
    quant = quant_of(name)
    wanted = HubSpec(repository, "" if quant else name, quant, revision)
    return str(wanted).removeprefix("hf:") if quant else str(wanted)
