"""Models that other programs downloaded: they are used where they are, under the names that they have there.

LM Studio and llama.cpp keep the files of a repository of the hub together, so that a model's name is that of its
repository. Ollama has names of its own (`ollama.py`).
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import platformdirs

from edgespec.errors import ModelNotFoundError
from edgespec.files.optional_files import report
from edgespec.files.paths import cache_dir
from edgespec.models.hub.cache import cached_files, cached_repositories, hub_cache
from edgespec.models.hub.quants import choose, models_in, parts_of, quant_of, selects
from edgespec.models.names import ollama
from edgespec.models.names.source import ELSEWHERE

Repositories = Iterable[tuple[str, Mapping[str, Path]]]
"""Names of repositories, `owner/model`, each with its GGUF files by their names in it."""

DEPTH = 3  # levels of folders that are searched
MOST_SETTINGS = 2**20  # bytes of a settings file or a manifest
_NAME = re.compile(
    r"(?:(?P<owner>[^/:@]+)/)?(?P<model>[^/:@]+)(?:/(?P<file>[^:@]+\.gguf)|[:@](?P<quant>[\w.-]+))?", re.IGNORECASE
)
_MANIFEST = re.compile(r"manifest=([^=]+)=([^=]+)=.*\.json")


@dataclass(frozen=True, slots=True)
class Program:
    """A program with models of its own, whose files edgespec only reads.

    Attributes:
        prefix: precedes the program's names in specs.
        pull: how to download a model, and `removal`: how to delete it, with its name and its path.
        folders: returns the folders that may hold the models, existing or not.
        layout: yields the repositories in such a folder.
        needs_owner: names without an owner need the prefix, since the catalogue's names look alike.
    """

    name: str
    prefix: str
    pull: str
    removal: str
    folders: Callable[[], list[Path]]
    layout: Callable[[Path], Repositories]
    needs_owner: bool = True

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield the name and the file of each model.

        A name is `owner/model:QUANT`, or `owner/model/FILE.gguf` where the quantisation selects no file or another one.
        """
        for repository, files in self._repositories():
            names = list(files)
            for name in models_in(names):
                quant = quant_of(name)
                end = f":{quant}" if selects(names, quant, name) else f"/{name}"
                yield f"{repository}{end}", files[name]

    def find(self, name: str) -> Path | None:
        """Return the file of the only model with this name, or None.

        As with `lms`, capitals do not matter, a quantisation can follow an @, and the owner and "-GGUF" can be left
        out.
        """
        match, matches = _NAME.fullmatch(name), dict[str, Path]()
        for repository, files in self._repositories() if match else ():
            assert match is not None
            owner, _, model = repository.partition("/")
            if _key(match["owner"] or owner) == _key(owner) and _key(match["model"]) == _key(model):
                with suppress(ModelNotFoundError):
                    path = files.get(match["file"] or choose(list(files), match["quant"] or ""))
                    matches |= {os.path.realpath(path): path} if path else {}
        return next(iter(matches.values())) if len(matches) == 1 else None

    def settings(self, name: str) -> dict[str, str | float]:
        """Return the model's own settings of answers, by the names in `SETTINGS`."""
        return {}

    def keeps(self, path: Path) -> bool:
        """Return whether a file, or a link, is in a folder of the program."""
        folder = Path(os.path.realpath(path.absolute().parent))
        return any(Path(os.path.realpath(each)) in (folder, *folder.parents) for each in self.folders())

    def _repositories(self) -> Iterator[tuple[str, Mapping[str, Path]]]:
        for folder in self.folders():
            yield from self.layout(folder)


class _Ollama(Program):
    __slots__ = ()

    def files(self) -> Iterator[tuple[str, Path]]:
        return ollama.files()

    def find(self, name: str) -> Path | None:
        return ollama.find(name)

    def settings(self, name: str) -> dict[str, str | float]:
        return ollama.settings(name)


def _key(name: str) -> str:
    return name.lower().removesuffix("-gguf")


# --- folders and layouts ----------------------------------------------------------------------------------------------


def files_below(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
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


def lm_studio_folders() -> list[Path]:
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
    moved = (_entry_of_json(each / "settings.json", "downloadsFolder") for each in (*homes, settings))
    folders = [Path(folder) for folder in moved if Path(folder).is_absolute()]
    return [*dict.fromkeys([*folders, *(each / "models" for each in homes)])]


def _in_folders(folder: Path) -> Repositories:
    """Yield the repositories of LM Studio: `OWNER/MODEL/FILE`, some with a folder for each quantisation."""
    repositories = defaultdict[str, dict[str, Path]](dict)
    for path in files_below(folder):
        owner, _, name = path.relative_to(folder).as_posix().partition("/")
        model, _, file = name.partition("/")
        if file and path.is_file():
            repositories[f"{owner}/{model}"][file] = path
    return repositories.items()


def llama_cpp_folders() -> list[Path]:
    """Return llama.cpp's own cache, existing or not; see `fs_get_cache_directory` and `hf_cache` in llama.cpp.

    There is none if llama.cpp uses the hub's cache, which is its default.
    """
    with suppress(RuntimeError):  # a user may have no home
        usual = platformdirs.user_cache_path("llama.cpp", appauthor=False, opinion=False)
        folder = Path(os.environ.get("LLAMA_CACHE") or usual)
        return [folder] if folder != hub_cache() else []
    return []


def _in_cache(folder: Path) -> Repositories:
    """Yield the repositories of llama.cpp, whose cache is like the hub's.

    Earlier versions kept flat files, `OWNER_MODEL_FILE`, with a manifest for each name:
    `manifest=OWNER=MODEL=TAG.json`, which names the file.
    """
    for name in cached_repositories(folder):
        yield name, cached_files(name, cache=folder)
    flat = defaultdict[str, dict[str, Path]](dict)
    for manifest in sorted(folder.glob("manifest=*.json")):
        match = _MANIFEST.fullmatch(manifest.name)
        for file in parts_of(_entry_of_json(manifest, "ggufFile", "rfilename")) if match else ():
            assert match is not None
            path = folder / f"{match[1]}_{match[2]}_{file}".replace("/", "_")
            if file.lower().endswith(".gguf") and "\\" not in file and path.is_file():
                flat[f"{match[1]}/{match[2]}"][file] = path
    yield from flat.items()


def _entry_of_json(file: Path, *keys: str) -> str:
    """Return the text below these keys of a small file; empty if there is none."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        value = json.loads(_read(file))
        for key in keys:
            value = value[key]
        return str(value)
    return ""


def _read(file: Path) -> str:
    """Return the text of a small file, empty if it cannot be read."""
    with suppress(OSError, ValueError):
        if file.stat().st_size <= MOST_SETTINGS:
            return file.read_text(encoding="utf-8-sig")
    return ""


# --- the programs -----------------------------------------------------------------------------------------------------

PROGRAMS: tuple[Program, ...] = (
    Program(
        "LM Studio", "lmstudio:", "lms get {name}", "delete it in LM Studio, under 'My Models'",
        lm_studio_folders, _in_folders,
    ),
    Program(
        "llama.cpp", "llama.cpp:", "edgespec pull {name}", "delete the file: {path}",
        llama_cpp_folders, _in_cache,
    ),
    _Ollama(
        "Ollama", "ollama:", "ollama pull {name}", "ollama rm {name}",
        ollama.folders, lambda folder: (), needs_owner=False,
    ),
)  # fmt: skip


def program_of(spec: str) -> Program | None:
    """Return the program whose prefix a spec has, if any."""
    match = ELSEWHERE.match(spec)
    return next((each for each in PROGRAMS if match and each.prefix == match[0]), None)


def bare(spec: str) -> str:
    """Return a spec without the prefix of a program."""
    program = program_of(spec)
    return spec.removeprefix(program.prefix) if program else spec


def settings_elsewhere(spec: str) -> dict[str, str | float]:
    """Return the settings of answers that another program keeps for its model, by the names in `SETTINGS`."""
    program = program_of(spec)
    return program.settings(bare(spec)) if program else {}


def files_elsewhere() -> Iterator[tuple[str, Path]]:
    """Yield the spec and the file of each model of these programs."""
    for program in PROGRAMS:
        yield from ((program.prefix + name, path) for name, path in program.files())


def find_elsewhere(name: str) -> tuple[str, Path] | None:
    """Return the spec and the file of the first model that a program knows by this name, if any."""
    for program in PROGRAMS:
        if ("/" in name or not program.needs_owner) and (path := program.find(name)):
            return program.prefix + name, path
    return None


def keeper_of(path: Path) -> Program | None:
    """Return the program in whose folders a file is, if any."""
    return next((program for program in PROGRAMS if program.keeps(path)), None)


def spec_elsewhere(path: Path) -> str:
    """Return the spec of a file of these programs, empty if no name means the file."""
    if (program := keeper_of(path)) is None:
        return ""
    file = os.path.realpath(path)
    names = (name for name, each in program.files() if os.path.realpath(each) == file)
    return next((program.prefix + name for name in names), "")
