"""Models that other programs downloaded: they are used where they are, under the names that they have there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgespec.models.names import llama_cpp, lm_studio, ollama
from edgespec.models.names.repositories import RepositoryModels
from edgespec.models.names.source import ELSEWHERE


class Models(Protocol):
    """The models of a program: an object, or a module, with these functions."""

    def folders(self) -> list[Path]:
        """Return the folders that may hold the models, existing or not."""

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield the name and the file of each model."""

    def find(self, name: str) -> Path | None:
        """Return the file of a name, which may be a shorter one, or None."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program with models of its own, whose files edgespec only reads.

    Attributes:
        prefix: precedes the program's names in specs.
        pull: how to download a model, and `removal`: how to delete it, with its name and its path.
        needs_owner: names without an owner need the prefix, since the catalogue's names look alike.
    """

    name: str
    prefix: str
    models: Models
    pull: str
    removal: str
    needs_owner: bool = True

    def keeps(self, path: Path) -> bool:
        """Return whether a file, or a link, is in a folder of the program."""
        folder = Path(os.path.realpath(path.absolute().parent))
        return any(Path(os.path.realpath(each)) in (folder, *folder.parents) for each in self.models.folders())


_LM_STUDIO = RepositoryModels(lm_studio.folders, lm_studio.repositories)
_LLAMA_CPP = RepositoryModels(llama_cpp.folders, llama_cpp.repositories)
PROGRAMS = (
    Program("LM Studio", "lmstudio:", _LM_STUDIO, "lms get {name}", "delete it in LM Studio, under 'My Models'"),
    Program("llama.cpp", "llama.cpp:", _LLAMA_CPP, "edgespec pull {name}", "delete the file: {path}"),
    Program("Ollama", "ollama:", ollama, "ollama pull {name}", "ollama rm {name}", needs_owner=False),
)


def program_of(spec: str) -> Program | None:
    """Return the program whose prefix a spec has, if any."""
    match = ELSEWHERE.match(spec)
    return next((each for each in PROGRAMS if match and each.prefix == match[0]), None)


def bare(spec: str) -> str:
    """Return a spec without the prefix of a program."""
    program = program_of(spec)
    return spec.removeprefix(program.prefix) if program else spec


def files_elsewhere() -> Iterator[tuple[str, Path]]:
    """Yield the spec and the file of each model of these programs."""
    for program in PROGRAMS:
        yield from ((program.prefix + name, path) for name, path in program.models.files())


def find_elsewhere(name: str) -> tuple[str, Path] | None:
    """Return the spec and the file of the first model that a program knows by this name, if any."""
    for program in PROGRAMS:
        if ("/" in name or not program.needs_owner) and (path := program.models.find(name)):
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
    names = (name for name, each in program.models.files() if os.path.realpath(each) == file)
    return next((program.prefix + name for name in names), "")
