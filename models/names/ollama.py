"""Models that Ollama downloaded: their names, and their files, which are only read.

Ollama keeps a manifest for each name, `manifests/HOST/OWNER/MODEL/TAG`, which lists the layers of the model by their
digests. A layer with weights is a GGUF file, `blobs/sha256-DIGEST`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edgespec.models.names.source import stays_within

PREFIX = "ollama:"
USUAL = ("registry.ollama.ai", "library")  # the host and the owner that Ollama leaves out of a name
SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the service that Ollama's installer sets up on Linux
WEIGHTS = "application/vnd.ollama.image.model"
_DIGEST = re.compile("sha256[:-]([0-9a-f]{64})")


def ollama_files() -> Iterator[tuple[str, Path]]:
    """Yield the spec and the file of each model, `ollama:NAME:TAG` with the name that `ollama list` shows."""
    for folder in _folders():
        manifests = folder / "manifests"
        for manifest in sorted(path for path in manifests.glob("*/*/*/*") if path.is_file()):
            if file := _weights(folder, manifest):
                host, owner, model, tag = manifest.relative_to(manifests).parts
                left_out = 0 if host != USUAL[0] else 1 if owner != USUAL[1] else 2
                yield f"{PREFIX}{'/'.join((host, owner, model)[left_out:])}:{tag}", file


def ollama_file(name: str) -> Path | None:
    """Return the file of the model that Ollama knows by this name, with `ollama:` or without, or None."""
    place, _, tag = name.removeprefix(PREFIX).partition(":")
    parts = place.split("/")
    place = "/".join((*USUAL[: max(0, 3 - len(parts))], *parts, tag or "latest"))
    if place.count("/") != 3 or not stays_within(place):
        return None
    return next(filter(None, (_weights(folder, folder / "manifests" / place) for folder in _folders())), None)


def ollama_spec(path: Path) -> str:
    """Return the spec of a file, empty if it is no model of Ollama."""
    if not _DIGEST.fullmatch(path.name):
        return ""
    file = os.path.realpath(path)
    return next((spec for spec, each in ollama_files() if os.path.realpath(each) == file), "")


def _folders() -> list[Path]:
    """Return the folders in which Ollama may keep its models; see "Where are models stored?" in its documentation."""
    if own := os.environ.get("OLLAMA_MODELS"):
        return [Path(own)]
    with suppress(RuntimeError):  # a user may have no home
        return [Path.home() / ".ollama" / "models", SERVICE]
    return [SERVICE]


def _weights(folder: Path, manifest: Path) -> Path | None:
    """Return the file with a model's weights; None if it is not here, or not in one file."""
    try:
        layers = json.loads(manifest.read_bytes())["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == WEIGHTS]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    found = [_DIGEST.fullmatch(str(digest)) for digest in digests]
    if len(found) != 1 or found[0] is None:
        return None
    # Early versions of Ollama named files with a colon
    files = [folder / "blobs" / f"sha256{mark}{found[0][1]}" for mark in "-:"]
    with suppress(OSError):
        return next((file for file in files if file.is_file()), None)
    return None
