"""The folders that are searched for models on this machine, and the GGUF files in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from edgespec.files.optional_files import report
from edgespec.files.paths import cache_dir, models_dir
from edgespec.models.hub.cache import cached_repositories, repository_folder
from edgespec.models.names import llama_cpp, lm_studio

VARIABLE = "EDGESPEC_MODELS"
DEPTH = 3  # levels of folders that are searched


def gguf_files() -> Iterator[Path]:
    """Yield the .gguf files in and below the usual folders, including broken links.

    The usual folders are the Hugging Face cache, the folder of models from packages, the working folder, `~/models`,
    the user's folders (`own_folders`), and the folders of LM Studio and llama.cpp. Unreadable folders are left out. A
    file with several names is listed under each name.
    """
    for folder, depth in list(_usual_folders()):
        yield from _files(folder, depth)


def own_folders() -> list[Path]:
    """Return the folders in EDGESPEC_MODELS, existing or not."""
    named = []
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        with suppress(OSError, RuntimeError):  # the working folder is gone; there is no such user
            named.append(Path(name).expanduser().absolute())
    return named


# --- which ------------------------------------------------------------------------------------------------------------


def _usual_folders() -> Iterator[tuple[Path, int]]:
    """Yield each folder with the number of levels to search."""
    yield from ((repository_folder(name) / "snapshots", DEPTH) for name in cached_repositories())
    yield models_dir(), 1
    with suppress(OSError):  # it may have been removed
        here = Path.cwd()
        yield here, 0 if _holds_more_than_models(here) else DEPTH
    with suppress(RuntimeError):  # a user may have no home
        yield Path.home() / "models", DEPTH
    yield from ((folder, DEPTH) for folder in (*own_folders(), *lm_studio.folders(), *llama_cpp.folders()))


def _holds_more_than_models(folder: Path) -> bool:
    """Return whether a folder is the root of a disk or contains users' homes: most of its files are no models."""
    with suppress(OSError, RuntimeError):
        return folder.resolve() in (Path(folder.anchor), *Path.home().resolve().parents)
    return folder == Path(folder.anchor)


# --- their content ----------------------------------------------------------------------------------------------------


def _files(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the .gguf files in and below a folder. Links are followed, each folder is entered once.

    Hidden folders, and the drafts and quantisations that edgespec keeps in its cache folder, are left out.
    """
    seen = {os.path.realpath(cache_dir())}
    for place, below, names in os.walk(folder, onerror=partial(report, folder), followlinks=True):
        real, level = os.path.realpath(place), len(Path(place).relative_to(folder).parts)
        is_last = real in seen or level == depth
        below[:] = [] if is_last else sorted(name for name in below if not name.startswith("."))
        if real not in seen:
            yield from (Path(place, name) for name in sorted(names) if name.lower().endswith(".gguf"))
        seen.add(real)
