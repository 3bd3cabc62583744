"""Names of files as users type, paste and drag them: with quotes, escapes, `~`, `file://` and patterns."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from glob import escape, glob, has_magic
from itertools import islice
from pathlib import Path
from urllib.parse import unquote, urlsplit

from edgespec.errors import UsageError

MOST_ENTRIES = 50_000  # files and folders that one pattern looks at
MOST_FILES = 100  # the largest number of files that one name may mean
LONGEST = 20_000  # characters of a paste that is checked for paths
LEFT_OUT = {"__pycache__", "node_modules"}  # folders that `**` leaves out, like hidden ones


def named_files(text: str) -> list[Path]:
    """Return the files that a text names: one path, or several with spaces between them.

    A name may be a pattern, or a folder, which means all files in it. Raises UsageError if a name means no file, or
    too many.
    """
    if "\0" in text:
        raise UsageError("a path cannot contain a null character")
    whole = _path(text.strip())
    names = [str(whole)] if os.path.lexists(whole) else [str(_path(word)) for word in _words(text)]
    files: dict[Path, None] = {}
    for name in names:
        path = Path(name)
        if _is_folder(path):
            files |= _matching(str(Path(escape(name), "**")), f"the folder {path} has no files")
        elif has_magic(name) and not os.path.lexists(path):
            files |= _matching(name, f"no file matches {name}")
        else:
            files[path] = None
    return list(files)


def is_several(name: str) -> bool:
    """Return whether a name is a folder or a pattern."""
    path = _path(name)
    return _is_folder(path) or (has_magic(name) and not os.path.lexists(path))


def pasted_files(text: str) -> list[Path]:
    """Return the files of a text that is nothing but absolute paths, as terminals paste dragged files; else []."""
    text = text.strip()
    if len(text) > LONGEST or not re.match(r"/|~|file:|['\"]|[A-Za-z]:\\", text):
        return []
    files: list[Path] = []
    for line in text.splitlines():
        names = [line] if _is_file(_path(line.strip())) else None
        try:
            names = names or _words(line)
        except UsageError:
            return []
        paths = [_path(name.strip()) for name in names]
        if not all(path.is_absolute() and _is_file(path) for path in paths):
            return []
        files += paths
    return list(dict.fromkeys(files))


def shown_name(path: Path) -> str:
    """Return the name that the model gets for a file: its path within the working folder, else its last part.

    A name without a dot or slash gets "./" in front, so that it cannot be confused with a word.
    """
    with suppress(ValueError, OSError):
        inside = Path(os.path.relpath(path))
        if ".." not in inside.parts and not inside.is_absolute():
            path = inside
    return unlike_words(path.name if path.is_absolute() or ".." in path.parts else path.as_posix())


def unlike_words(name: str) -> str:
    """Return the name of a file with "./" in front if it has neither a dot nor a slash."""
    return name if "." in name or "/" in name else f"./{name}"


def _words(text: str) -> list[str]:
    """Split a line as a shell does; on Windows backslashes are parts of paths. Raises UsageError."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    lexer.escape = "\\" if os.sep == "/" else ""
    try:
        return list(lexer)
    except ValueError:
        raise UsageError("a quote is not closed", hint="put names with spaces between quotes") from None


def _path(name: str) -> Path:
    """Return the path of a name or of a file:// address."""
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


def _matching(pattern: str, problem: str) -> dict[Path, None]:
    """Return the files that match a pattern. Raises UsageError with `problem` if there are none."""
    files = set(islice(_matches(pattern), MOST_FILES + 1))
    if len(files) > MOST_FILES:
        raise UsageError(f"{pattern} has more than {MOST_FILES} files", hint="choose some: /file src/**/*.py")
    if not files:
        raise UsageError(problem)
    return dict.fromkeys(sorted(files))


def _matches(pattern: str) -> Iterator[Path]:
    """Yield the files that match a pattern; `**` matches any folders but hidden ones and `LEFT_OUT`.

    A pattern that names such a folder finds it.
    """
    parts = Path(pattern).parts
    if "**" not in parts:
        yield from (path for path in map(Path, glob(pattern)) if _is_file(path))  # noqa: PTH207
        return
    n_before = parts.index("**")
    start, end = str(Path(*parts[:n_before])), str(Path(*(parts[n_before + 1 :] or ["*"])))
    n_left = MOST_ENTRIES
    for top in glob(start) if has_magic(start) else [start]:  # noqa: PTH207 - Path.glob finds hidden names
        for folder, folders, files in os.walk(top):
            left_out = {name for name in folders if name.startswith(".") or name in LEFT_OUT} - {*parts}
            folders[:] = sorted({*folders} - left_out)
            n_left -= len(folders) + len(files)
            if n_left < 0:
                what = f"{pattern} was given up after {MOST_ENTRIES:,} files and folders"
                raise UsageError(what, hint="name a smaller folder")
            for name in sorted(files):
                path = Path(folder, name)
                if path.match(end) and name.startswith(".") <= Path(end).name.startswith(".") and _is_file(path):
                    yield path
