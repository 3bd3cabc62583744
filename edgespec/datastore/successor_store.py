"""Files of likely successors, as token recycling uses them: the table that a model's drafter learned, saved between
runs, and tables made from a model's answers.

A file is a numpy archive of arrays; it names its model by a print of the weights. All quantisations of a model share
its tables, since most of their successors are the same and no draft changes a text. Another model has none of it, even
with the same vocabulary. Lost or damaged content is learned again, so nothing in here ends a program.
"""

from __future__ import annotations

import io
import json
import logging
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, TypedDict

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from edgespec.core.index.successor_table import SuccessorTable
from edgespec.errors import EdgespecError, ModelFileError, told_as
from edgespec.files.bounded_folder import BoundedFolder, used
from edgespec.files.cache import cache_name, read_cache, write_cache
from edgespec.files.optional_files import files_in, optional
from edgespec.files.paths import cache_dir, file_facts
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import is_same_target, target_print

VERSION = 1
SUFFIX = ".ngram"
MOST_BYTES = 1 << 25  # of all tables in the cache
MOST_IN_A_FILE = 1 << 24  # when unpacked
SAVE_EVERY_S = 60.0
LOCK_S = 2.0

Arrays = dict[str, NDArray[np.generic]]
Print = NDArray[np.float32]
"""Numbers that identify a model, as `target_print` returns them."""

log = logging.getLogger(__name__)


class Learned(Protocol):
    """The part of a drafter that learns successors: it takes tables, and returns the rows that are not saved yet."""

    n_vocab: int

    def restore(self, state: Arrays) -> None: ...

    def unsaved(self) -> SuccessorTable: ...


def store() -> BoundedFolder:
    return BoundedFolder(cache_dir() / "successors", MOST_BYTES)


def lock() -> FileLock:
    """Return the lock of all tables. Its file is not among them, so that it is never deleted while it is held."""
    return FileLock(cache_dir() / "successors.lock", timeout=LOCK_S)


class StoredTable(TypedDict):
    """The saved table of a model; the size of its file in bytes."""

    model: str
    contexts: int
    bytes: int


def stored() -> list[StoredTable]:
    """Describe the saved tables as plain data. Files that cannot be read are left out."""
    found: list[StoredTable] = []
    for file, size in store().files():
        with suppress(Exception):
            about, arrays = read_table(file)
            found.append({"model": about["model"], "contexts": len(arrays["contexts"]), "bytes": size})
    return found


def clear() -> int:
    """Delete all saved tables; return how many. Raises EdgespecError if one cannot be deleted."""
    folder = store()
    n_tables = sum(file.suffix == SUFFIX for file, _ in folder.files())
    if n_tables:
        with told_as(EdgespecError, f"{folder.folder} cannot be cleared"), lock():
            folder.clear()
    return n_tables


def read_table(file: Path, own: Print | None = None) -> tuple[dict[str, Any], Arrays]:
    """Return the description of a table and its arrays; none if it is not of the model that has the print `own`. A
    damaged file may raise any `Exception`: zipfile, numpy and json have many."""
    with zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > MOST_IN_A_FILE:
            raise ValueError("it is too large")
    with np.load(file, allow_pickle=False) as archive:
        about = json.loads(str(archive["about"]))
        if about["version"] != VERSION:
            raise ValueError("it was written by another version of edgespec")
        about["print"] = np.array(about["print"], np.float32)
        is_own = own is None or is_same_target(about["print"], own)
        return about, {name: archive[name] for name in archive.files if name != "about"} if is_own else {}


def table_bytes(model: Path, own: Print, arrays: Arrays, *, small: bool = True, **about: object) -> bytes:
    """Return the content of a file with the table of a model that has the print `own`. Compressing it, to make it
    `small`, takes much longer than all else."""
    known = {"version": VERSION, "model": model.name, "print": own.tolist(), **about}
    packed, write = io.BytesIO(), np.savez_compressed if small else np.savez
    write(packed, allow_pickle=False, about=np.array(json.dumps(known)), **arrays)
    return packed.getvalue()


def find_table(files: Iterable[Path], own: Print) -> tuple[Path, Arrays] | None:
    """Return the first of these files with a table of the model that has the print `own`, and its arrays."""
    for file in files:
        try:
            if arrays := read_table(file, own)[1]:
                return file, arrays
        except Exception as error:
            log.debug("the table of successors %s cannot be read: %s", file, error)
    return None


def known_print(model: Header) -> Print:
    """Return the print of a model, from the cache if its files are as they were. Raises ModelFileError.

    To read weights, Python's package `gguf` is imported, which takes longer than all else in here.
    """
    with told_as(ModelFileError, f"{model.path} cannot be read"):
        files = [file_facts(part) for part in model.files]
    name = cache_name("prints", {"version": VERSION, "files": files})
    try:
        return np.array(json.loads(read_cache(name) or ""), np.float32)
    except (ValueError, TypeError):  # not there, or damaged
        own = target_print(model)
        write_cache(name, json.dumps(own.tolist()))
        return own


class SuccessorStore:
    """The tables of one model for `learned`: those in `folders`, whose rows are replaced by those of later folders, and
    the saved one. Without `saves`, the saved table is neither read nor written.

    Raises ModelFileError if the model's weights have no print.
    """

    def __init__(self, model: Header, learned: Learned, folders: Iterable[Path], *, saves: bool) -> None:
        self._model, self._learned, self._folder, self._saves = model.path, learned, store(), saves
        self._saved_s = perf_counter()
        self._print = own = known_print(model)  # kept, because the model file may be replaced
        self._file = self._folder.folder / f"{sha256(own.tobytes()).hexdigest()[:16]}{SUFFIX}"
        for folder in folders:
            self._restore(find_table(files_in(folder, f"*{SUFFIX}"), own))
        recent = [file for file, _ in reversed(self._folder.files()) if file.suffix == SUFFIX]
        if saves and (found := find_table([self._file, *recent], own)):
            self._file = found[0]
            used(self._file)
            self._restore(found)

    def _restore(self, found: tuple[Path, Arrays] | None) -> None:
        if found is not None:
            try:
                self._learned.restore(found[1])
            except Exception as error:
                log.debug("the table of successors %s cannot be used: %s", found[0], error)

    def save(self, *, now: bool = True) -> None:
        """Write what was learned, with what other processes have saved; unless `now`, at most once a minute. If that
        fails, these rows are not saved."""
        if not self._saves or not (now or perf_counter() - self._saved_s > SAVE_EVERY_S):
            return
        self._saved_s = perf_counter()
        if not (unsaved := self._learned.unsaved()):
            return
        with optional(self._file):
            self._folder.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with lock():
                table = SuccessorTable()
                with suppress(Exception):  # a file that is missing or damaged is replaced
                    table.restore(read_table(self._file)[1], self._learned.n_vocab)
                table.update(unsaved)
                content = table_bytes(self._model, self._print, table.state(), small=False)
                with self._folder.writing(self._file, len(content)) as out:
                    out.write(content)
