"""A corpus: texts as token ids on disk, indexed so that any run of tokens is found at once (2311.08252).

One file: `MAGIC` and a header in JSON, then from byte `START` on uint32 tokens of all texts, `BETWEEN` after each, and
as many uint32 positions (`core.context_index`). It is memory-mapped. The answer store uses the same files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import file_digest
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgespec.core.index.context_index import ContextIndex, Tokens, order_of
from edgespec.core.index.continuation import BETWEEN
from edgespec.errors import EdgespecError, UsageError, did_you_mean, told_as
from edgespec.files.optional_files import files_in, is_there
from edgespec.files.paths import data_dir
from edgespec.files.unfinished import becoming, check_destination
from edgespec.llama.model import LlamaModel
from edgespec.text.encodings import decoded

VERSION = 1
MAGIC = b"edgespec corpus\n"
START = 4096
SUFFIX = ".corpus"
CHUNK = 1 << 20  # characters tokenised at a time
MOST_TOKENS = 2**32 - 2

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class About:
    """The origin of a corpus. `vocabulary` is the `LlamaModel.vocabulary_id`, `sha256` the hash of all data."""

    vocabulary: str
    model: str
    files: int
    texts_bytes: int
    tokens: int
    sha256: str = ""
    version: int = VERSION


class Corpus:
    """An opened corpus. Raises UsageError for a file that is not a corpus, or is damaged or truncated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about = read_about(path)
        n = self.about.tokens
        tokens: Tokens = np.memmap(path, np.uint32, "r", START, (n,)) if n else np.zeros(0, np.uint32)
        order: Tokens = np.memmap(path, np.uint32, "r", START + 4 * n, (n,)) if n else tokens
        self.index = ContextIndex(tokens, order)

    def check(self) -> None:
        """Read all of it. Raises UsageError if a byte has changed since it was made."""
        if _digest(self.path) != self.about.sha256:
            raise UsageError(f"{self.path} is damaged", why="its data has changed", hint="build it again")


def find(name: str) -> Path:
    """The file of a corpus: a path, or the name of a corpus in edgespec's own folder. Raises UsageError."""
    own = corpus_dir() / f"{name.removesuffix(SUFFIX)}{SUFFIX}"
    found = next((path for path in (Path(name).expanduser(), own) if is_there(path)), None)
    if found is None:
        near = did_you_mean(name, [path.stem for path in files_in(corpus_dir(), f"*{SUFFIX}")])
        hint = near or "'edgespec corpus ls' lists those in its own folder"
        raise UsageError(f"there is no corpus {name}", hint=hint)
    return found


def file_for(name: str) -> Path:
    """The path for a corpus of that name; a path stays as it is."""
    is_path = name.endswith(SUFFIX) or "/" in name or "\\" in name
    return Path(name).expanduser() if is_path else corpus_dir() / f"{name}{SUFFIX}"


def listed(note: Callable[[str], None], folder: Path | None = None) -> list[tuple[Path, About]]:
    """Those in a folder, or in edgespec's own; those that cannot be read are reported to `note`."""
    found = []
    for path in files_in(folder or corpus_dir(), f"*{SUFFIX}"):
        try:
            found.append((path, read_about(path)))
        except UsageError as error:
            note(str(error))
    return found


def corpus_dir() -> Path:
    """The default folder."""
    return data_dir() / "corpora"


def read_about(path: Path) -> About:
    """Raises UsageError for a file that is not a corpus, or is truncated."""
    hint = "build it with 'edgespec corpus build'"
    with told_as(UsageError, f"cannot read {path}"), path.open("rb") as file:
        start, size = file.read(START), os.fstat(file.fileno()).st_size
    if not start.startswith(MAGIC):
        raise UsageError(f"{path} is not a corpus", hint=hint)
    try:
        about = About(**json.loads(start[len(MAGIC) :].rstrip(b"\0")))
        wanted = START + 8 * about.tokens
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} is damaged", why="its header cannot be read", hint=hint) from error
    if about.version != VERSION:
        raise UsageError(f"{path} was made by another version of edgespec", hint=hint)
    if size != wanted:
        raise UsageError(f"{path} is damaged", why=f"it has {size:,} bytes instead of {wanted:,}", hint=hint)
    return about


def check_fits(corpus: Corpus, model: LlamaModel) -> None:
    """Raises UsageError for a corpus with another vocabulary."""
    if corpus.about.vocabulary != model.vocabulary_id:
        raise UsageError(
            f"the corpus {corpus.path} does not fit {model.path.name}",
            why=f"it was made with the vocabulary of {corpus.about.model}",
            hint="build it again for this model (edgespec corpus build -m)",
        )


# --- making one -------------------------------------------------------------------------------------------------------


def text_files(paths: Iterable[Path]) -> list[Path]:
    """These files and those below these folders, except hidden ones. Raises UsageError."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no file or folder {path}")
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [
            file
            for file in below
            if file.is_file() and not any(part[0] == "." for part in file.relative_to(path).parts)
        ]
    return list(dict.fromkeys(found))


def build(
    files: Sequence[Path], model: LlamaModel, out: Path, progress: Progress = lambda what, done: None
) -> tuple[About, list[str]]:
    """Make a corpus of UTF-8 texts with the vocabulary of `model`; also returns the files that are not text.

    Takes about 30 bytes of memory per token. Raises UsageError if there is nothing to read, EdgespecError if the file
    cannot be written; then no file is left.
    """
    left_out: list[str] = []
    sizes = [file.stat().st_size for file in files]
    total = max(1, sum(sizes))
    n_files = n_bytes = done = 0
    with told_as(EdgespecError, f"the corpus {out} cannot be written"):
        if out.parent == corpus_dir():  # a missing folder elsewhere may be a mistyped name
            out.parent.mkdir(parents=True, exist_ok=True)
        check_destination(out, [], MAGIC)
        with becoming(out) as unfinished, unfinished.open("w+b") as scratch:
            scratch.seek(START)
            for file, size in zip(files, sizes, strict=True):
                try:
                    n_bytes += _write_tokens(file, model, scratch)
                    n_files += 1
                except UnicodeDecodeError:
                    left_out.append(f"{file}: not UTF-8 text")
                except OSError as error:
                    if error.filename is None:  # the corpus itself: the disk is full
                        raise
                    left_out.append(f"{file}: {error.strerror}")
                done += size
                progress("tokenising", done / total)
            n = (scratch.tell() - START) // 4
            if n <= n_files:  # nothing but the marks between them
                raise UsageError("there is nothing to build a corpus from", why="; ".join(left_out[:3]) or "no files")
            if n > MOST_TOKENS:
                raise UsageError(f"a corpus holds up to {MOST_TOKENS:,} tokens, this text has {n:,}")
            about = About(model.vocabulary_id, model.path.name, n_files, n_bytes, n)
            about, _ = complete(scratch, about, lambda share: progress("sorting", share))
    return about, left_out


def complete(
    scratch: BinaryIO, about: About, progress: Callable[[float], None] = lambda done: None
) -> tuple[About, ContextIndex]:
    """Add the index and the header to a file that has the tokens from `START` on. Returns the index too. Raises
    OSError."""
    scratch.seek(START)
    tokens = np.frombuffer(scratch.read(), np.uint32)
    order = order_of(tokens, progress)
    scratch.write(order.data)
    scratch.flush()
    about = replace(about, sha256=_digest(Path(scratch.name)))
    scratch.seek(0)
    scratch.write(MAGIC + json.dumps(asdict(about)).encode())
    scratch.flush()
    os.fsync(scratch.fileno())
    return about, ContextIndex(tokens, order)


def _write_tokens(file: Path, model: LlamaModel, out: BinaryIO) -> int:
    """Append the tokens of a text; returns its bytes. Raises UnicodeDecodeError before anything is written."""
    data = file.read_bytes()
    text = decoded(data)
    if "\0" in text:
        raise UnicodeDecodeError("utf-8", b"\0", 0, 1, "binary")
    for part in _parts(text):
        out.write(np.array(model.tokenize(part), np.uint32).data)
    out.write(np.array([BETWEEN], np.uint32).data)
    return len(data)


def _parts(text: str) -> Iterator[str]:
    """Pieces of about `CHUNK` characters that end with a line, unless lines are longer than that."""
    start = 0
    while start < len(text):
        end = min(len(text), start + CHUNK)
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        yield text[start:end]
        start = end


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(START)
        return file_digest(file, "sha256").hexdigest()
