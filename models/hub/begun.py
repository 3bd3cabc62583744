"""Which model an incomplete download belongs to, if that can be known: the cache keeps only a hash of the file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.models.hub.cache import repository_folder
from edgespec.models.hub.quants import parts_of, quant_of
from edgespec.models.names.catalog import Entry, catalogue
from edgespec.models.names.spec import HubSpec, cached


def begun_model(repository: str) -> str:
    """A spec of the model of which some parts are here and others are not; empty if no split model is incomplete."""
    names = _names_here(repository)
    for name in sorted(names):
        parts = parts_of(name)
        if not names.issuperset(parts):
            fitting = [entry.name for entry in absent_entries(repository) if entry.quant == quant_of(name)]
            return fitting[0] if fitting else str(HubSpec(repository, parts[0]))
    return ""


def absent_entries(repository: str) -> list[Entry]:
    """The catalogue entries for models of a repository that are not here; none while the user's file has errors."""
    with suppress(UsageError):
        entries = [entry for entry in catalogue().values() if entry.repository == repository]
        return [entry for entry in entries if cached(HubSpec(repository, quant=entry.quant)) is None]
    return []


def _names_here(repository: str) -> set[str]:
    """The file names of all revisions that are here."""
    snapshots = repository_folder(repository) / "snapshots"
    files = (path for path in snapshots.glob("*/**/*") if path.name.lower().endswith(".gguf") and path.is_file())
    return {Path(*path.relative_to(snapshots).parts[1:]).as_posix() for path in files}
