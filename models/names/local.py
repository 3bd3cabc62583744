"""The models of this machine: the bundled pair and the GGUF files in the usual folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.errors import EdgespecError
from edgespec.gguf_file.head_check import check_draft_file, is_head
from edgespec.gguf_file.header import Header, quantisation, read_header
from edgespec.gguf_file.model_check import is_embedding
from edgespec.models.hub.quants import part_of, parts_of
from edgespec.models.names.model_names import gguf_files
from edgespec.models.names.other_programs import files_elsewhere, program_of
from edgespec.models.names.source import HEADS, PAIR
from edgespec.models.names.spec import resolve


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that can be loaded as `spec`, or a file that cannot: `problem` then says why, and little else is known.

    `size_bytes` counts all parts of a split file; `default_draft` is the draft model that comes with it. `modified_s`
    is when the file was written, in seconds since 1970.
    """

    spec: str
    path: Path
    name: str
    architecture: str = ""
    n_params: int = 0
    quantisation: str = ""
    size_bytes: int = 0
    n_ctx_train: int = 0
    n_vocab: int = 0
    default_draft: Path | None = None
    problem: str = ""
    modified_s: float | None = field(default=None, compare=False)
    header: Header | None = field(default=None, repr=False, compare=False)

    @property
    def is_head(self) -> bool:
        """True for a draft head, which can only draft for the model that it was made for."""
        return self.header is not None and is_head(self.header)

    @property
    def is_embedding(self) -> bool:
        """True for a model that makes vectors or scores, and cannot generate text."""
        return self.header is not None and is_embedding(self.header)


def local_models(*, embeds: bool = False) -> Iterator[LocalModel]:
    """Yield the bundled pair, then the files in the usual folders (`gguf_files`), then the other models of other
    programs.

    `embeds` as in `read_model`. Each file is yielded once, as soon as it is read. Files that are not language models,
    such as projectors, are left out, and so are the bundled heads, which are found with their target.
    """
    seen = {os.path.realpath(head) for head in HEADS.glob("*.gguf")}
    for spec, path in PAIR.items():
        seen.add(os.path.realpath(path))
        yield from read_model(path, spec)
    elsewhere = [*files_elsewhere()]
    specs = {os.path.realpath(path): spec for spec, path in reversed(elsewhere)}  # of several specs the first
    for path in (*gguf_files(), *(path for _, path in elsewhere)):
        if (file := os.path.realpath(path)) not in seen:
            seen.add(file)
            yield from read_model(path, specs.get(file, str(path)), embeds=embeds)


def local_model(spec: str, *, embeds: bool = False) -> LocalModel:
    """Return one model by its name or path; `embeds` as in `read_model`. Raises ModelNotFoundError, ModelFileError."""
    return _described(check_draft_file(resolve(spec).path, embeds=embeds), spec)


# --- one file ---------------------------------------------------------------------------------------------------------


def read_model(path: Path, spec: str, *, embeds: bool = False) -> Iterator[LocalModel]:
    """Yield the model in a file, or a description of the problem; nothing for files that accompany a model. An
    embedding model is a problem unless `embeds`."""
    if "mmproj" in path.name.lower() or part_of(path.name)[0] > 1:
        return
    if path.is_symlink() and not path.exists():
        yield LocalModel(spec, path, path.stem, problem=f"it is a broken link to {path.readlink()}")
        return
    try:
        header = read_header(path)
        if not {header.architecture, header.metadata.get("general.type")} & _EXTRAS:
            yield _described(check_draft_file(header, embeds=embeds), spec)
    except EdgespecError as error:
        problem, size_bytes = error.why or error.what, _size_bytes(path)
        yield LocalModel(spec, path, path.stem, size_bytes=size_bytes, problem=problem, modified_s=_modified_s(path))


def _modified_s(path: Path) -> float | None:
    with suppress(OSError):
        return path.stat().st_mtime
    return None


def _size_bytes(path: Path) -> int:
    """Of all parts that are here."""
    size_bytes = 0
    for part in parts_of(path.name):
        with suppress(OSError):
            size_bytes += path.with_name(part).stat().st_size
    return size_bytes


def _described(header: Header, spec: str) -> LocalModel:
    return LocalModel(
        spec=spec,
        path=header.path,
        name=header.name,
        architecture=header.architecture,
        n_params=header.n_params,
        quantisation=quantisation(header),
        size_bytes=header.size_bytes,
        n_ctx_train=header.number("context_length"),
        n_vocab=header.n_vocab,
        default_draft=None if program_of(spec) else resolve(spec).default_draft,
        modified_s=_modified_s(header.path),
        header=header,
    )


# --- tables -----------------------------------------------------------------------------------------------------------

# Architectures and types (general.type) of files that accompany a model
_EXTRAS = frozenset(("adapter", "clip", "controlvector", "imatrix", "mmproj"))
