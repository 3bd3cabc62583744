"""Models of LM Studio, which keeps the files of a repository of the hub in the folder `OWNER/MODEL`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import platformdirs

from edgespec.models.names.repositories import Repositories

MOST_SETTINGS = 2**20  # bytes


def folders() -> list[Path]:
    """Return the folders in which LM Studio may keep its models, existing or not.

    They are in its home folder (see `findLMStudioHome` in lmstudio-js), unless its settings name another folder (see
    `resolveModelsFolderPath` in lms).
    """
    try:
        home = Path.home()
    except RuntimeError:  # a user may have no home
        return []
    pointer = _read(home / ".lmstudio-home-pointer").strip()
    homes = [*([Path(pointer)] if pointer else []), home / ".lmstudio", home / ".cache" / "lm-studio"]
    settings = platformdirs.user_config_path("LM Studio", appauthor=False, roaming=True)  # of earlier versions
    moved = [folder for each in (*homes, settings) if (folder := _moved(each / "settings.json"))]
    return [*dict.fromkeys([*moved, *(each / "models" for each in homes)])]


def repositories() -> Repositories:
    """Yield all repositories with their GGUF files."""
    for folder in folders():
        for owner in _folders_in(folder):
            for model in _folders_in(owner):
                yield f"{owner.name}/{model.name}", dict(_files_in(model))


def _folders_in(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(each for each in folder.iterdir() if not each.name.startswith(".") and each.is_dir())
    return []


def _files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a repository. Some have a folder for each quantisation."""
    for place in (folder, *_folders_in(folder)):
        with suppress(OSError):
            found = sorted(path for path in place.iterdir() if path.suffix.lower() == ".gguf" and path.is_file())
            yield from ((path.relative_to(folder).as_posix(), path) for path in found)


def _moved(settings: Path) -> Path | None:
    """Return the folder of models that the settings name, if any."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        named = Path(json.loads(_read(settings))["downloadsFolder"])
        return named if named.is_absolute() else None
    return None


def _read(file: Path) -> str:
    """Return the text of a small file, empty if it cannot be read."""
    with suppress(OSError, ValueError):
        if file.stat().st_size <= MOST_SETTINGS:
            return file.read_text(encoding="utf-8-sig")
    return ""
