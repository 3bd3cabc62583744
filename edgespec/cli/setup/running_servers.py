"""The servers of this user on this machine: the files in which they describe themselves, and which of them can answer
in place of a model that is loaded now.

A file says how to reach its server and what that has loaded. It counts only while the server holds a lock, which the
system releases when the process ends in any way. Other users can neither read nor write the files.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from edgespec import __version__
from edgespec.closable import Closable
from edgespec.core.setting import facts_of
from edgespec.errors import UsageError
from edgespec.files.optional_files import optional, report
from edgespec.files.paths import file_facts, state_dir
from edgespec.files.unfinished import becoming
from edgespec.gguf_file.adapters import parse_adapters
from edgespec.llm.info import ModelInfo
from edgespec.models.names.source import lasting
from edgespec.models.names.spec import resolve
from edgespec.settings import AUTO_DRAFT, LoadSettings

if TYPE_CHECKING:
    from filelock import FileLock

    from edgespec.serve.pool import Place, Pool

log = logging.getLogger(__name__)

MOST_BYTES = 2**20  # of a file
MOST_SERVERS = 256
COMPUTING = re.compile("VISIBLE_DEVICES|CPU_VARIANT|^(GGML|LLAMA)_(?!NO_BACKTRACE)")
"""Names of environment variables that may change texts. GGML_NO_BACKTRACE does not, and edgespec itself sets it."""

PLAIN = {"spec_type": "none", "pace": "off", "spec_draft_n_max": 0}
"""Settings of decoding without drafts, which every server follows if a request asks for it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that a server has loaded.

    Attributes:
        settings: how it was loaded.
        notes: for the user, from loading it.
        files: what identified its files when they were loaded (`file_facts`), by role: "model", "draft_model", ...
    """

    name: str
    settings: LoadSettings
    info: ModelInfo
    notes: list[str]
    files: dict[str, list[Any]]

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Loaded:
        """Return what `asdict` made plain data. Raises TypeError, KeyError."""
        settings = plain["settings"] | {name: tuple(plain["settings"][name]) for name in ("rpc", "lora")}
        return cls(**plain | {"settings": LoadSettings(**settings), "info": ModelInfo.from_json(plain["info"])})

    def can_answer_for(self, wanted: LoadSettings) -> bool:
        """Return whether texts would be those of `wanted`, drafted in the way that `wanted` asks for. Raises
        ModelNotFoundError, OSError."""
        return (
            file_facts(resolve(wanted.model).path) == self.files["model"]
            and all(file_facts(Path(facts[0])) == facts for facts in self.files.values())
            and self._drafts_as(wanted)
            and all(
                self._suits(name, wanted) for name, facts in facts_of(LoadSettings).items() if facts.compared != "never"
            )
        )

    def _drafts_as(self, wanted: LoadSettings) -> bool:
        if wanted.draft_model in (None, AUTO_DRAFT):
            return wanted.draft_model in (None, self.settings.draft_model)
        return file_facts(resolve(str(wanted.draft_model)).path) == self.files.get("draft_model")

    def _suits(self, name: str, wanted: LoadSettings) -> bool:
        """Return whether a setting is equal, or does not matter: the user left it open, or requests can ask for it."""
        value, usual = getattr(wanted, name), getattr(LoadSettings(""), name)
        is_open = facts_of(LoadSettings)[name].compared == "if set" and value in (usual, PLAIN.get(name, usual))
        return is_open or value == getattr(self.settings, name)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server of this user.

    Attributes:
        host: its machine.
        build: the program and the llama.cpp that it runs (`build`).
        kept_s: how long it stays after an answer; None: until it is stopped.
    """

    host: str
    build: str
    url: str
    key: str
    pid: int
    kept_s: float | None
    models: list[Loaded]

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]


# --- the files --------------------------------------------------------------------------------------------------------


def servers_folder() -> Path:
    """Return the folder of these files."""
    return state_dir() / "servers"


def private_folder() -> Path:
    """Return the folder of these files, which only this user can enter. Raises OSError."""
    folder = servers_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not _is_private(folder):
        raise PermissionError(f"others can write to {folder}")
    return folder


def build() -> str:
    """Return a name for this program, its llama.cpp and the variables that change how llama.cpp computes. Unlike
    `build_id`, it loads no library."""
    found = find_spec("llama_cpp")
    library = Path(found.origin).parent / "lib" if found and found.origin else Path()
    facts = [[path.name, stat.st_size, stat.st_mtime_ns] for path in sorted(library.glob("*")) if (stat := path.stat())]
    chosen = {name: value for name, value in os.environ.items() if COMPUTING.search(name)}
    digest = sha256(json.dumps([str(library), facts, chosen], sort_keys=True).encode())
    return f"{__version__}-{digest.hexdigest()[:16]}"


def servers() -> list[RunningServer]:
    """Return the running servers of this user on this machine, and remove the files of servers that have ended."""
    found: list[RunningServer] = []
    with optional(servers_folder()):
        for file in sorted(private_folder().glob("*.json"))[:MOST_SERVERS]:
            with suppress(OSError):  # a server that ends removes its file
                plain = _read(file) if _is_private(file) else {}
                if plain.get("host") == platform.node() and _is_held(file):  # a folder can be that of several machines
                    found += _server(plain)
    return found


def server_with(wanted: LoadSettings) -> tuple[RunningServer, Loaded] | None:
    """Return a server with a model that can answer for `wanted`, if there is one. Raises ModelNotFoundError."""
    found = servers()
    own = build() if found else ""
    for server in found:
        for model in server.models if server.build == own else ():
            with suppress(OSError):
                if model.can_answer_for(wanted):
                    return server, model
    return None


def _is_private(path: Path) -> bool:
    """Return whether only this user can change a file. Elsewhere than on POSIX the user's folder is private."""
    if os.name != "posix":
        return True
    stat = path.stat()
    return stat.st_uid == os.getuid() and not stat.st_mode & 0o022


def _is_held(file: Path) -> bool:
    """Return whether the server of a file runs; else remove the file."""
    from filelock import FileLock, Timeout  # not at the start of every command

    lock = FileLock(file.with_suffix(".lock"), mode=0o600)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    remove(file, lock)
    return False


def _read(file: Path) -> dict[str, object]:
    """Return the content of a file; nothing if it is no JSON object. Raises OSError."""
    with suppress(ValueError):
        plain = json.loads(file.read_text(encoding="utf-8")) if file.stat().st_size <= MOST_BYTES else None
        return plain if isinstance(plain, dict) else {}
    return {}


def _server(plain: dict[str, Any]) -> list[RunningServer]:
    """Return the server that a file describes; nothing if another version has written the file."""
    with suppress(KeyError, TypeError, AttributeError):
        return [RunningServer(**plain | {"models": [*map(Loaded.from_json, plain["models"])]})]
    return []


def remove(file: Path, lock: FileLock) -> None:
    """Remove the file of a server that has ended, or is about to end, and its lock, which this process holds."""
    _unlink(file)
    lock.release()
    _unlink(Path(lock.lock_file))


def _unlink(file: Path) -> None:
    with suppress(OSError):  # Windows refuses while another process looks at it
        file.unlink(missing_ok=True)


# --- the file of this process -----------------------------------------------------------------------------------------

CHANGES = ("ready", "loaded", "unloaded", "kept")
"""Events of models after which the file is written again."""


class Presence(Closable):
    """The file of a server, which exists while the server can be used. With `keep_s`, `end` is called when the last
    model was unloaded, because it was not used for that time.

    Raises UsageError if there cannot be a file, but only with `keep_s`: other servers are useful without a file.
    """

    def __init__(self, url: str, key: str, keep_s: float | None, end: Callable[[], None]) -> None:
        from filelock import FileLock

        self._ends, self._end = bool(keep_s), end
        self._lock: FileLock | None = None
        try:
            self._about = {"host": platform.node(), "build": build(), "url": url, "key": key, "pid": os.getpid()}
            self._file = private_folder() / f"{token_hex(8)}.json"
            self._lock = FileLock(self._file.with_suffix(".lock"), mode=0o600)
            self._lock.acquire(timeout=0)
        except OSError as error:
            self._give_up(error)

    def tell(self, pool: Pool, event: str) -> None:
        """Write what is loaded after an event; if that fails, the file stays as it was. Raises UsageError as the
        constructor does if there is none yet."""
        if self._lock is None or event not in CHANGES:
            return
        loaded = pool.loaded
        if self._ends and not loaded:
            self.close()
            self._end()
            return
        try:
            self._write(loaded)
        except OSError as error:
            if event == "ready":
                self._give_up(error)
            log.debug("the file of this server cannot be written: %s", error)

    def close(self) -> None:
        """Remove the file: from now on no new requests should come."""
        if self._lock is not None:
            remove(self._file, self._lock)
        self._lock = None

    def _write(self, places: list[Place]) -> None:
        """Raises OSError."""
        kept_s = max((place.offer.idle_s or 0.0 for place in places), default=0.0) if self._ends else None
        models = [asdict(_loaded(place)) for place in places]
        with becoming(self._file) as scratch:
            descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                json.dump(self._about | {"kept_s": kept_s, "models": models}, opened)

    def _give_up(self, error: OSError) -> None:
        self.close()
        if self._ends:
            what = "other commands could not find this server"
            raise UsageError(what, why=error.strerror or str(error), hint="leave out --keep-alive") from error
        report(servers_folder(), error)


def _loaded(place: Place) -> Loaded:
    """Describe a loaded model."""
    served, offer = place.served, place.offer
    assert served is not None
    settings, notes = lasting_settings(offer.settings), served.notes_of_loading
    return Loaded(offer.name, settings, served.info, notes, served.files)


def lasting_settings(settings: LoadSettings) -> LoadSettings:
    """Name files by absolute paths, so that they are the same for a process in another folder. Raises UsageError."""
    draft, corpus = settings.draft_model, settings.corpus
    draft = draft if draft is None or draft == AUTO_DRAFT else lasting(draft)
    if corpus is not None and (file := Path(corpus).expanduser()).is_file():
        corpus = str(file.absolute())
    mmproj = settings.mmproj
    if mmproj not in (None, "none"):
        mmproj = str(Path(mmproj).expanduser().absolute())
    template = settings.chat_template_file
    template = template and str(Path(template).expanduser().absolute())
    lora = [f"{each.name}={each.path.absolute()}={each.scale}" for each in parse_adapters(settings.lora)]
    model = lasting(settings.model)
    return replace(
        settings,
        model=model,
        draft_model=draft,
        corpus=corpus,
        mmproj=mmproj,
        chat_template_file=template,
        lora=(*lora,),
    )
