"""Models of programs that keep the files of a repository together: the names of models, and the files of names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from edgespec.errors import ModelNotFoundError
from edgespec.models.hub.quants import choose, models_in, quant_of

Repositories = Iterable[tuple[str, Mapping[str, Path]]]
"""Names of repositories, `owner/model`, each with its GGUF files by their names in it."""

_NAME = re.compile(
    r"(?:(?P<owner>[^/:@]+)/)?(?P<model>[^/:@]+)(?:/(?P<file>[^:@]+\.gguf)|[:@](?P<quant>[\w.-]+))?", re.IGNORECASE
)


class RepositoryModels:
    """The models of a program, as `elsewhere.Models` describes them.

    `folders` returns the folders that may hold models, existing or not; `repositories` yields the repositories in them.
    """

    def __init__(self, folders: Callable[[], list[Path]], repositories: Callable[[], Repositories]) -> None:
        self.folders, self._repositories = folders, repositories

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield the name and the file of each model.

        A name is `owner/model:QUANT`, or `owner/model/FILE.gguf` where the quantisation selects no file or another one.
        """
        for repository, files in self._repositories():
            names = list(files)
            for name in models_in(names):
                yield _name(repository, name, names), files[name]

    def find(self, name: str) -> Path | None:
        """Return the file of the only model with this name, or None.

        As with `lms`, capitals do not matter, a quantisation can follow an @, and the owner and "-GGUF" can be left
        out.
        """
        match, found = _NAME.fullmatch(name), dict[str, Path]()
        for repository, files in self._repositories() if match else ():
            assert match is not None
            owner, _, model = repository.partition("/")
            if _key(match["owner"] or owner) == _key(owner) and _key(match["model"]) == _key(model):
                with suppress(ModelNotFoundError):
                    path = files.get(match["file"] or choose(list(files), match["quant"] or ""))
                    found |= {os.path.realpath(path): path} if path else {}
        return next(iter(found.values())) if len(found) == 1 else None


def _name(repository: str, file: str, files: list[str]) -> str:
    with suppress(ModelNotFoundError):
        if (quant := quant_of(file)) and choose(files, quant) == file:
            return f"{repository}:{quant}"
    return f"{repository}/{file}"


def _key(name: str) -> str:
    return name.lower().removesuffix("-gguf")
