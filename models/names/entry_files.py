"""Which files of this machine are a model of the catalogue, in whatever quantisation."""

from __future__ import annotations

from pathlib import Path

from edgespec.models.hub.cache import cached_files
from edgespec.models.hub.quants import models_in
from edgespec.models.names.catalog import Entry
from edgespec.models.packages.wheels import packaged


def files_here(entry: Entry) -> list[Path]:
    if entry.package:
        return sorted(packaged(entry).folder.glob("*.gguf"))
    files = cached_files(entry.repository)
    return [files[name] for name in models_in(list(files))]
