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
from itertools import islice
from pathlib import Path
from typing import Any

from edgespec.models.names.catalog import SAMPLING, is_valid
from edgespec.models.names.source import stays_within

USUAL = ("registry.ollama.ai", "library")  # the host and the owner that Ollama leaves out of a name
SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the service that Ollama's installer sets up on Linux
WEIGHTS, ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
PROJECTOR = "application/vnd.ollama.image.projector"
SYSTEM, PARAMETERS = "application/vnd.ollama.image.system", "application/vnd.ollama.image.params"
MAX_TEXT = 2**20  # bytes of a manifest, a system prompt or parameters
_DIGEST = re.compile("sha256[:-]([0-9a-f]{64})")


def ollama_projector(path: Path) -> Path | None:
    """Return the file of the projector that Ollama keeps for a model's file, if any."""
    if not _DIGEST.fullmatch(path.name):
        return None
    folder = path.parent.parent
    for manifest in sorted(folder.glob("manifests/*/*/*/*")):
        if (weights := _weights(folder, manifest)) and weights.name == path.name:
            return _layer(folder, manifest, PROJECTOR)
    return None


def folders() -> list[Path]:
    """Return the folders in which Ollama may keep its models; see "Where are models stored?" in its documentation."""
    if own := os.environ.get("OLLAMA_MODELS"):
        return [Path(own)]
    with suppress(RuntimeError):  # a user may have no home
        return [Path.home() / ".ollama" / "models", SERVICE]
    return [SERVICE]


def files() -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of each model, `NAME:TAG` as `ollama list` shows it.

    Models that cannot be used are left out: those with several files or an adapter, and those in unreadable folders.
    """
    for folder in folders():
        manifests = folder / "manifests"
        for place, below, names in os.walk(manifests):
            below.sort()
            *owners, model = Path(place).relative_to(manifests).parts or ("",)
            for tag in sorted(names) if len(owners) == 2 else ():
                if file := _weights(folder, Path(place, tag)):
                    yield f"{_name((*owners, model))}:{tag}", file


def find(name: str) -> Path | None:
    """Return the file of the model that Ollama knows by this name, or None."""
    return next((file for _, _, file in _found(name)), None)


def settings(name: str) -> dict[str, str | float]:
    """Return the settings of answers in the Modelfile of a model, by the names in `SETTINGS`: the system prompt of
    SYSTEM, and the values of PARAMETER for sampling. Values that cannot be used are left out."""
    found: dict[str, str | float] = {}
    for folder, manifest, _ in islice(_found(name), 1):
        with suppress(OSError, ValueError):
            if system := _text(folder, manifest, SYSTEM):
                found["system"] = system
        with suppress(OSError, ValueError, RecursionError):
            given = json.loads(_text(folder, manifest, PARAMETERS) or "{}")
            if isinstance(given, dict):
                found |= {key: given[key] for key in SAMPLING if key in given and is_valid(key, given[key])}
    return found


def _found(name: str) -> Iterator[tuple[Path, Path, Path]]:
    """Yield the folder, the manifest and the weights of the models that Ollama knows by this name."""
    *owners, last = name.split("/")
    model, _, tag = last.partition(":")
    parts = (*USUAL[: max(0, 2 - len(owners))], *owners, model, tag or "latest")
    if len(parts) == 4 and stays_within("/".join(parts)):
        for folder in folders():
            manifest = folder.joinpath("manifests", *parts)
            if file := _weights(folder, manifest):
                yield folder, manifest, file


def _text(folder: Path, manifest: Path, kind: str) -> str:
    """Return the text of the only layer of this kind; empty if there is none. Raises OSError, ValueError."""
    file = _layer(folder, manifest, kind)
    return file.read_text(encoding="utf-8") if file and file.stat().st_size <= MAX_TEXT else ""


def _name(parts: tuple[str, ...]) -> str:
    """Return the name for a host, an owner and a model, without what Ollama leaves out."""
    left_out = 0 if parts[0] != USUAL[0] else 1 if parts[1] != USUAL[1] else 2
    return "/".join(parts[left_out:])


def _weights(folder: Path, manifest: Path) -> Path | None:
    """Return the file with a model's weights; None if it is not here, or not the whole model."""
    return _layer(folder, manifest, WEIGHTS)


def _layer(folder: Path, manifest: Path, kind: str) -> Path | None:
    """Return the file of the only layer of this kind; None if it is not here, or if an adapter changes the model."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        if not manifest.is_file() or manifest.stat().st_size > MAX_TEXT:
            return None
        layers: list[dict[str, Any]] = json.loads(manifest.read_bytes())["layers"]
        digests = [_DIGEST.fullmatch(layer["digest"]) for layer in layers if layer["mediaType"] == kind]
        has_adapter = any(layer["mediaType"] == ADAPTER for layer in layers)
        if len(digests) == 1 and digests[0] is not None and not has_adapter:
            # Early versions of Ollama named files with a colon
            files = [folder / "blobs" / f"sha256{mark}{digests[0][1]}" for mark in "-:"]
            return next((file for file in files if file.is_file()), None)
    return None
