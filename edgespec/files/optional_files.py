"""Files that edgespec can do without: if one cannot be used, the program continues, and says once what that costs."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from edgespec.files.paths import cache_dir, config_dir, data_dir, is_writable, state_dir

MOST_LOOKED_AT = 10_000  # files
DENIED = "permission denied"
SUFFIXES = {".json", ".toml", ".kv", ".ngram", ".corpus", ".lock", ".db"}  # of files: no folder of edgespec has one

log = logging.getLogger(__name__)


class Lost(NamedTuple):
    """The cost of doing without a folder or file."""

    cost: str
    is_folder: bool = True


def known_places() -> dict[Path, Lost]:
    """Return edgespec's folders and files, each after the folder that it is in."""
    cache, data, config, state = cache_dir(), data_dir(), config_dir(), state_dir()
    servers = Lost("running servers are not found, and are not found by others")
    return {
        cache: Lost("measurements, earlier answers and read chats are forgotten, so starts are slower"),
        cache / "trials": Lost("each start repeats the safety check of the model"),
        cache / "pace": Lost("each start measures the costs of passes again"),
        cache / "prints": Lost("each start identifies the model's weights again"),
        cache / "speed": Lost("the speed of this machine is measured again"),
        cache / "paid": Lost("draft models that do not pay are tried again"),
        cache / "answers": Lost("earlier answers are neither used for drafts nor saved"),
        cache / "successors": Lost("learned tables are neither used for drafts nor saved"),
        cache / "successors.lock": Lost("learned tables are not saved", is_folder=False),
        cache / "chats": Lost("resumed chats are processed again"),
        data: Lost("chats, corpora, downloaded packages and typed lines are neither found nor saved"),
        data / "chats.db": Lost("chats are neither found nor saved", is_folder=False),
        data / "models": Lost("models from packages are neither found nor saved"),
        data / "corpora": Lost("corpora are neither found nor saved"),
        data / "images": Lost("images of chats are neither found nor saved"),
        data / "chat_history": Lost("typed lines are neither found nor saved", is_folder=False),
        data / "allowed_tools.json": Lost("tools ask for permission again", is_folder=False),
        config: Lost("your settings, personas, catalogue and tool servers are not used"),
        config / "config.toml": Lost("your settings are not used", is_folder=False),
        config / "models.toml": Lost("your catalogue is not used", is_folder=False),
        config / "mcp.json": Lost("your tool servers are not used", is_folder=False),
        config / "personas": Lost("your personas are not found"),
        state: servers,
        state / "servers": servers,
    }


@contextmanager
def optional(path: Path) -> Iterator[None]:
    """Suppress an OSError in this block, and say once what is lost without `path`, which is one of edgespec's files.

    The outermost folder that cannot be used is named. Files that do not exist, are locked by another program, or are
    not edgespec's are not reported.
    """
    try:
        yield
    except OSError as error:
        report(path, error)


def report(path: Path, error: OSError) -> None:
    """Say once what is lost because of an error, as `optional` does."""
    log.debug("%s is not used: %s", path, error)
    path = Path(error.filename or path)  # such as a lock
    above = {place: lost for place, lost in known_places().items() if path.is_relative_to(place)}
    if not above or isinstance(error, FileNotFoundError | TimeoutError):
        return
    broken = next(filter(why_unusable, above), None)
    place = broken or [*above][-1]
    why = why_unusable(broken) if broken else error.strerror or str(error)
    log.warning("%s cannot be used (%s): %s", place, why, above[place].cost)


def files_in(folder: Path, pattern: str = "*") -> list[Path]:
    """Return what is in one of edgespec's folders and has such a name, sorted; nothing if the folder cannot be read."""
    with optional(folder):
        return sorted(path for path in folder.iterdir() if path.match(pattern))
    return []


def is_there(file: Path) -> bool:
    """Return whether one of edgespec's files exists and can be read."""
    with optional(file), file.open("rb"):
        return True
    return False


def why_unusable(path: Path) -> str:
    """Return why a folder or file cannot be used; empty if it can, or could be created."""
    is_read_only = path.is_relative_to(config_dir())
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            return "it is a link to a place that does not exist"
        return "" if is_read_only or is_writable(path) else "it cannot be created"
    except OSError as error:
        return error.strerror or str(error)
    is_folder, known = stat.S_ISDIR(found.st_mode), known_places().get(path)
    should_be = known.is_folder if known else is_folder and path.suffix not in SUFFIXES
    if is_folder != should_be:
        return "it is a folder, and not a file" if is_folder else "it is a file, and not a folder"
    wanted = os.R_OK | (os.X_OK if is_folder else 0) | (0 if is_read_only else os.W_OK)
    return "" if os.access(path, wanted) else DENIED


def unusable() -> Iterator[tuple[Path, str, str]]:
    """Yield each of edgespec's folders and files that cannot be used, with the reason and what is lost without it."""
    places = known_places()
    waiting = [config_dir(), cache_dir(), data_dir(), state_dir()][::-1]
    for _ in range(MOST_LOOKED_AT):
        if not waiting:
            return
        path = waiting.pop()
        if why := why_unusable(path):
            place = next(each for each in reversed(places) if path.is_relative_to(each))
            yield path, why, places[place].cost
        elif path.is_dir() and not path.is_symlink():
            waiting += sorted(path.iterdir(), reverse=True)


class _Once(logging.Filter):
    """Lets each warning through once: worker processes, which report to this process, find the same as it."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        text = record.getMessage()
        is_new = text not in self._known
        self._known.add(text)
        return is_new


log.addFilter(_Once())
