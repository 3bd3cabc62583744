"""The file in which `edgespec serve` describes itself for other commands of the same user (`running_servers.py`)."""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from secrets import token_hex
from typing import TYPE_CHECKING

from filelock import FileLock

from edgespec.cli.setup.running_servers import Loaded, build, private_folder, remove, servers_folder
from edgespec.cli.setup.servers import lasting_settings
from edgespec.closable import Closable
from edgespec.errors import UsageError
from edgespec.files.optional_files import report
from edgespec.files.unfinished import becoming

if TYPE_CHECKING:
    from edgespec.serve.pool import Place, Pool

CHANGES = ("ready", "loaded", "unloaded", "kept")
"""Events of models after which the file is written again."""

log = logging.getLogger(__name__)


class Presence(Closable):
    """The file of a server, which exists while the server can be used. With `keep_s`, `end` is called when the last
    model was unloaded, because it was not used for that time.

    Raises UsageError if there cannot be a file, but only with `keep_s`: other servers are useful without a file.
    """

    def __init__(self, url: str, key: str, keep_s: float | None, end: Callable[[], None]) -> None:
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
