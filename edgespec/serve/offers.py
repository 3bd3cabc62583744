"""The models of this machine that requests can name: by their names, and never by their paths."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from edgespec.models.names.local import read_model
from edgespec.models.names.model_names import gguf_files, known_models
from edgespec.models.names.other_programs import bare, settings_elsewhere
from edgespec.models.names.source import is_path
from edgespec.models.names.spec import resolve
from edgespec.serve.pool import Offer


def name_for(spec: str) -> str:
    """Return the name in requests of the model `spec`: the same, unless `spec` is a path."""
    return resolve(spec).path.name.removesuffix(".gguf") if is_path(spec) else spec


def offers_here(named: Mapping[str, Offer], offer: Callable[[str, str], Offer] | None) -> dict[str, Offer]:
    """Return all offers, by every name that requests may use.

    `named` are the offers of the command line, by their specs. `offer` makes an offer from a name and a spec; with None
    there are no others. Names of one file share an offer, unless their Modelfiles in Ollama differ. Reads the headers
    of new files.
    """
    offers, names = {}, {}
    for spec, given in named.items():
        model = resolve(spec)
        names[given.name] = offers[os.path.realpath(model.path), _modelfile(model.name)] = given
    for key, path, aliases in _models_here():
        if key not in offers and (offer is None or not _can_answer(path)):
            continue
        words = aliases or [path.name.removesuffix(".gguf")]
        words = [*dict.fromkeys([*words, *map(bare, words)])]
        if not aliases and key not in offers and words[0] in names:
            words = [_longer(words[0], path, names)]
        if offer is not None and key not in offers and words[0] not in names:
            offers[key] = offer(words[0], words[0] if aliases else str(path.absolute()))
        for word in words if key in offers else ():
            names.setdefault(word, offers[key])
    return names


def _models_here() -> Iterator[tuple[tuple[str, str], Path, list[str]]]:
    """Yield the file and the Modelfile of each model here, with a path and all names, the shortest first.

    Files without a name are last.
    """
    named: dict[tuple[str, str], list[str]] = {}
    for name, path in known_models():
        if path is not None:
            named.setdefault((os.path.realpath(path), _modelfile(name)), []).append(name)
    for key, aliases in named.items():
        yield key, Path(key[0]), aliases
    seen = {file for file, _ in named}
    for path in gguf_files():
        if (file := os.path.realpath(path)) not in seen:
            seen.add(file)
            yield (file, ""), path, []


def _modelfile(spec: str) -> str:
    """Return the settings of answers in the Modelfile of a model of Ollama as text; empty for other models."""
    settings = settings_elsewhere(spec)
    return json.dumps(settings) if settings else ""


def _longer(name: str, path: Path, names: Container[str]) -> str:
    """Return a name that no other file has: with as many of the folders of the file as it takes."""
    for folder in path.absolute().parents:
        name = f"{folder.name}/{name}"
        if name not in names:
            break
    return name


def _can_answer(path: Path) -> bool:
    try:
        about = path.stat()
    except OSError:
        return False
    return _is_model(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=1024)
def _is_model(path: Path, size: int, changed_ns: int) -> bool:
    """Return whether a file with this size and time is a model that can be loaded, and not only a draft head."""
    return any(not model.problem and not model.is_head for model in read_model(path, str(path), embeds=True))
