"""The folders that are searched for models on this machine, and the GGUF files in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from edgespec.errors import UsageError
from edgespec.files.paths import cache_dir, models_dir
from edgespec.models.hub.cache import cached_repositories, repository_folder
from edgespec.models.names import catalog

VARIABLE = "EDGESPEC_MODELS"
DEPTH = 3  # levels of folders that are searched


def gguf_files(folders: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield the .gguf files in and below the usual folders and these, including broken links.

    The usual folders are the Hugging Face cache, the folder of models from packages, the working folder, `~/models`,
    the user's folders (`own_folders`), and the folders of LM Studio and llama.cpp. Unreadable folders are left out. A
    file with several names is listed under each name.
    """
    for folder, depth in [*_usual_folders(), *((folder, DEPTH) for folder in folders)]:
        yield from _files(folder, depth)


def own_folders() -> dict[Path, str]:
    """Return the folders in the user's `models.toml` and EDGESPEC_MODELS, existing or not, with the source of each.

    Raises UsageError for errors in the file.
    """
    named = dict.fromkeys(catalog.folders(), catalog.USER_FILE)
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        with suppress(OSError, RuntimeError):  # the working folder is gone; there is no such user
            named.setdefault(Path(name).expanduser().absolute(), VARIABLE)
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
    with suppress(UsageError, OSError):
        yield from ((folder, DEPTH) for folder in own_folders())
    yield from ((folder, DEPTH) for folder in _of_other_tools())


def _holds_more_than_models(folder: Path) -> bool:
    """Return whether a folder is the root of a disk or contains users' homes: most of its files are no models."""
    if folder == Path(folder.anchor):
        return True
    with suppress(OSError, RuntimeError):
        return folder.resolve() in Path.home().resolve().parents
    return False


def _of_other_tools() -> Iterator[Path]:
    """Yield the folders in which LM Studio and llama.cpp keep plain GGUF files.

    See https://lmstudio.ai/docs/basics/import-model (earlier versions had the second folder) and
    `fs_get_cache_directory` in llama.cpp.
    """
    with suppress(RuntimeError):
        home = Path.home()
        yield home / ".lmstudio" / "models"
        yield home / ".cache" / "lm-studio" / "models"
        usual = platformdirs.user_cache_path("llama.cpp", appauthor=False, opinion=False)
        yield Path(os.environ.get("LLAMA_CACHE") or usual)


# --- their content ----------------------------------------------------------------------------------------------------


def _files(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the .gguf files in and below a folder, level by level. Links are followed, each folder is entered once.

    The drafts and quantisations that edgespec keeps in its cache folder are left out.
    """
    seen = {os.path.realpath(cache_dir())}
    level = [folder]
    for _ in range(depth + 1):
        below: list[Path] = []
        for place in level:
            if (real := os.path.realpath(place)) not in seen and not _is_of_the_system(real):
                seen.add(real)
                files, inner = _entries(place)
                yield from files
                below += inner
        level = below


def _is_of_the_system(real: str) -> bool:
    """Return whether a folder is virtual and not on a disk. Below /dev there are real ones, such as /dev/shm."""
    return real == "/dev" or f"{real}/".startswith(("/proc/", "/sys/"))


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the .gguf files in a folder and its folders that are not hidden, both in order."""
    files, folders = [], []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # not accessible
                path = folder / entry.name
                leads_nowhere = entry.is_symlink() and not path.exists()
                if entry.name.lower().endswith(".gguf") and (leads_nowhere or entry.is_file()):
                    files.append(path)
                elif not entry.name.startswith(".") and not leads_nowhere and entry.is_dir():
                    folders.append(path)
    return sorted(files), sorted(folders)
