"""Names of files as people type, paste and drag them: quotes, escapes, `~`, `file://` and globs."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from urllib.parse import unquote, urlsplit

from edgespec.errors import UsageError

MOST_ENTRIES = 50_000  # that a glob looks at
MOST_FILES = 100  # that one name may stand for
LONGEST = 20_000  # characters of a paste that may be paths
LEFT_OUT = {"__pycache__", "node_modules"}  # by `**`, as hidden folders are


def named_files(text: str) -> list[Path]:
    """The files that a text names: one path, or several with spaces between them, each perhaps a glob or a folder,
    which stands for all in it. Raises UsageError for a name that is none, and for one of too many files."""
    if "\0" in text:
        raise UsageError("a path cannot contain a null character")
    whole = _path(text.strip())
    names = [str(whole)] if os.path.lexists(whole) else [str(_path(word)) for word in _words(text)]
    found: dict[Path, None] = {}
    for name in names:
        path = Path(name)
        if _is_folder(path):
            files = _first(_matches(path, ["**"], _Budget(name)), name)
            if not files:
                raise UsageError(f"the folder {path} has no files")
            found |= dict.fromkeys(files)
        elif has_magic(name) and not os.path.lexists(path):
            start = Path(path.anchor)
            files = _first(_matches(start, path.relative_to(start).parts, _Budget(name)), name)
            if not files:
                raise UsageError(f"no file matches {name}")
            found |= dict.fromkeys(files)
        else:
            found[path] = None
    return list(found)


def is_several(name: str) -> bool:
    """True for a folder or a pattern, which may mean several files."""
    path = _path(name)
    return _is_folder(path) or (has_magic(name) and not os.path.lexists(path))


def pasted_files(text: str) -> list[Path]:
    """The files that a text names and nothing else, each by its whole path, as terminals paste what is dragged onto
    them; none if it is any other text."""
    text = text.strip()
    if len(text) > LONGEST or not re.match(r"/|~|file:|['\"]|[A-Za-z]:\\", text):
        return []
    found: list[Path] = []
    for line in text.splitlines():
        names = [line] if _is_file(_path(line.strip())) else None
        try:
            names = names or _words(line)
        except UsageError:
            return []
        paths = [_path(name.strip()) for name in names]
        if not all(path.is_absolute() and _is_file(path) for path in paths):
            return []
        found += paths
    return list(dict.fromkeys(found))


def shown_name(path: Path) -> str:
    """A file's name as the model gets it: its path within the working folder, else its last part. One without a dot or
    a slash gets one, so that it can be told from a word."""
    with suppress(ValueError, OSError):
        inside = Path(os.path.relpath(path))
        if ".." not in inside.parts and not inside.is_absolute():
            path = inside
    name = path.name if path.is_absolute() or ".." in path.parts else path.as_posix()
    return name if "." in name or "/" in name else f"./{name}"


def _words(text: str) -> list[str]:
    """The words of a shell's line; on Windows backslashes are parts of paths. Raises UsageError."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    lexer.escape = "\\" if os.sep == "/" else ""
    try:
        return list(lexer)
    except ValueError:
        raise UsageError("a quote is not closed", hint="put names with spaces between quotes") from None


def _path(name: str) -> Path:
    """The path of a name or of a file:// address."""
    if name.startswith("file:"):
        name = unquote(urlsplit(name).path)
        if os.sep != "/":
            name = name.lstrip("/")
    try:
        return Path(name).expanduser()
    except RuntimeError:  # there is no such user
        return Path(name)


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file may raise


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir may raise


class _Budget:
    """Lists folders for a pattern, and ends a search that takes too long."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._n_left = pattern, MOST_ENTRIES

    def entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """By name. Raises UsageError."""
        found: list[os.DirEntry[str]] = []
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                found.append(entry)
                self._n_left -= 1
                if self._n_left < 0:
                    what = f"{self._pattern} was given up after {MOST_ENTRIES:,} files and folders"
                    raise UsageError(what, hint="name a smaller folder")
        return sorted(found, key=lambda entry: entry.name)


def _first(files: Iterator[Path], pattern: str) -> list[Path]:
    """All of them. Raises UsageError if there are too many."""
    found: dict[Path, None] = {}
    for file in files:
        found[file] = None
        if len(found) > MOST_FILES:
            raise UsageError(f"{pattern} has more than {MOST_FILES} files", hint="choose some: /file src/**/*.py")
    return list(found)


def _matches(folder: Path, parts: Sequence[str], budget: _Budget) -> Iterator[Path]:
    """The files below `folder` that match the parts of a pattern; `**` stands for any folders but hidden ones."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _matches(folder, rest or ["*"], budget)
        for entry in budget.entries(folder):
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") and entry.name not in LEFT_OUT:
                yield from _matches(folder / entry.name, parts, budget)
    elif not has_magic(part):
        path = folder / part
        if rest and _is_folder(path):
            yield from _matches(path, rest, budget)
        elif not rest and _is_file(path):
            yield path
    else:
        for entry in budget.entries(folder):
            if fnmatchcase(entry.name, part) and entry.name.startswith(".") <= part.startswith("."):
                if rest and _is_folder(folder / entry.name):
                    yield from _matches(folder / entry.name, rest, budget)
                elif not rest and _is_file(folder / entry.name):
                    yield folder / entry.name
