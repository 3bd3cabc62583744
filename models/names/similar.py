"""Hints for an unknown spec: similar files of this machine, and similar names of the catalogue."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from edgespec.models.hub.quants import models_in
from edgespec.models.names.catalog import near
from edgespec.models.names.folders import gguf_files
from edgespec.models.names.known import name_of
from edgespec.models.names.source import NAMES, is_path

HOW_TO_NAME_A_MODEL = "use a file (./model.gguf), a repository (hf:owner/name:Q4_K_M) or 'demo'"
MOST = 3  # suggestions


def hint_for_name(name: str) -> str:
    """Return the hint for a name that is neither in the catalogue nor a file.

    Raises UsageError for a catalogue with errors.
    """
    files = _similar(name, gguf_files())
    if files and _stem(name) == _stem(files[0].name):
        return _did_you_mean(map(_spec, files))
    # Other programs write the size of a model after a ":", in place of a quantisation.
    in_catalogue = near(name.replace(":", "-")) or near(name.partition(":")[0])
    if known := [*difflib.get_close_matches(name.lower(), NAMES, n=1), *in_catalogue]:
        return f"{_did_you_mean(map(repr, known))} 'edgespec ls --catalog' lists the names"
    if files:
        return _did_you_mean(map(_spec, files))
    return f"{HOW_TO_NAME_A_MODEL}; 'edgespec ls --catalog' lists names"


def hint_for_file(spec: str, path: Path) -> str:
    """Return the hint for a path without a file. A bare name may mean a file in any of the folders with models."""
    beside = sorted(path.parent.glob("*.gguf"))
    if path.name == spec:
        similar = [_spec(each) for each in _similar(spec, [*beside, *gguf_files()])]
    else:
        folder = spec.removesuffix(path.name)
        similar = [folder + each.name for each in _similar(path.name, beside)]
    if similar:
        return _did_you_mean(similar)
    names = [each.name for each in beside]
    return f"GGUF files there: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}" if names else ""


def _similar(name: str, files: Iterable[Path]) -> list[Path]:
    """Return the models among the files with this name, with or without .gguf, or else with a similar one."""
    by_name: dict[str, dict[Path, None]] = {}
    for path in files:
        if models_in([path.name]) and path.is_file():
            by_name.setdefault(_stem(path.name), {})[path.absolute()] = None
    wanted = _stem(name)
    names = [wanted] if wanted in by_name else difflib.get_close_matches(wanted, by_name, n=MOST)
    return [path for each in names for path in by_name[each]][:MOST]


def _stem(name: str) -> str:
    return name.lower().removesuffix(".gguf")


def _spec(path: Path) -> str:
    """Return the spec of a file, relative to the working folder if that is shorter."""
    spec = name_of(path)
    with suppress(ValueError, OSError):  # it is elsewhere; this folder is gone
        return str(path.relative_to(Path.cwd())) if is_path(spec) else spec
    return spec


def _did_you_mean(specs: Iterable[str]) -> str:
    return f"did you mean {' or '.join(specs)}?"
