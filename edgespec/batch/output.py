"""The output file of a job, which the next run resumes: one result per line; a crash damages at most the last one."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path

from filelock import FileLock, Timeout

from edgespec.batch.input import Figures
from edgespec.batch.results import id_in, is_failure, is_of_bad_line, mark_in
from edgespec.batch.sidecar import Sidecar
from edgespec.closable import Closable
from edgespec.errors import EdgespecError, UsageError, told_as
from edgespec.files.unfinished import becoming
from edgespec.requests.row import row_key
from edgespec.text.strict_json import json_line

OR_ANEW = "--overwrite starts over"


class OutputFile(Closable):
    """The output at `path`, locked. Raises UsageError if another job writes it, or it cannot be written.

    Call `resume` or `overwrite`, which change nothing; then `begin`; then `write` rows.

    Attributes:
        done: existing rows that are kept, by `row_key`; the values are the marks of answered rows.
        n_done, n_failed: the number of rows in `done`, and of those with an error.
        n_dropped: the number of existing rows that are removed.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.path = path.resolve()
        self.sidecar_path = sidecar_of(self.path)
        self.done: dict[int, str] = {}
        self.n_done = self.n_failed = 0
        self._sidecar: Sidecar | None = None
        self._size_bytes = 0  # of the complete rows
        self._drops: Callable[[Mapping[str, object]], bool] = is_of_bad_line
        self.n_dropped = 0
        self._file: FileIO | None = None
        self._lock = FileLock(self.path.with_name(f"{self.path.name}.job.lock"), timeout=0)
        try:
            if not self.path.parent.is_dir():
                raise UsageError(f"cannot write {path}", why=f"there is no folder {path.parent}")
            if self.path.exists() and not self.path.is_file():
                raise UsageError(f"cannot write {path}", why="it is not a file", hint="leave out -o to write to stdout")
            self._lock.acquire()
        except Timeout as error:
            raise UsageError(
                f"another batch is writing to {path}", hint="wait for it to finish, or use another file name"
            ) from error
        except (OSError, NotImplementedError) as error:
            raise UsageError(f"cannot write {path}", why=getattr(error, "strerror", None) or str(error)) from error

    def resume(self, settings: Mapping[str, object], seed: int | None, *, retry_failed: bool = False) -> int:
        """Find the existing rows that are kept.

        Errors about bad lines are removed, since the lines may have been corrected; with `retry_failed`, all errors.
        Returns the seed of the job. Raises UsageError if the rows were made with other `settings` or another `seed`
        (None: any).
        """
        if not self.path.exists() or not self.path.stat().st_size:
            return self.overwrite(settings, seed)
        try:
            before = Sidecar.read(self.sidecar_path)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"cannot resume {self.name}",
                why=(f"it was not written by edgespec batch, or {self.sidecar_path.name} is missing or damaged"),
                hint=f"use another file name; {OR_ANEW}",
            ) from error
        if changed := before.differences(settings, seed):
            hint = f"use the same settings again, or another file name; {OR_ANEW}"
            raise UsageError(f"{self.name} was made with different settings", why="; ".join(changed), hint=hint)
        self._sidecar = replace(before, input=None)  # the input may have changed
        if retry_failed:
            self._drops = is_failure
        with self._writing():
            self._find_rows()
        return before.seed

    def overwrite(self, settings: Mapping[str, object], seed: int | None) -> int:
        """Keep no existing rows. Returns the seed of the job; shards without one have the same seed, 0."""
        if seed is None:
            seed = 0 if "shard" in settings else secrets.randbits(48)
        self._sidecar = Sidecar(seed, settings)
        return self._sidecar.seed

    def begin(self) -> None:
        """Remove rows that are not kept, and open the file for new ones. Raises EdgespecError."""
        with self._writing():
            if self.n_dropped:
                self._rewrite()
            self._file = FileIO(self.path, "a")
            self._file.truncate(self._size_bytes)
            if self._sidecar is not None:
                self._sidecar.write(self.sidecar_path)

    def write(self, row: Mapping[str, object]) -> None:
        """Append a row. On an error, remove the part that was written if possible, and raise EdgespecError."""
        assert self._file is not None
        data = memoryview(encoded(row))
        with self._writing():
            try:
                written = 0
                while written < len(data):
                    written += self._file.write(data[written:])
            except OSError:
                with suppress(OSError):
                    self._file.truncate(self._size_bytes)
                raise
        self._size_bytes += len(data)

    def finish(self, input: Figures) -> None:
        """Note that this shard of the input is complete. Raises EdgespecError."""
        assert self._sidecar is not None
        with self._writing():
            replace(self._sidecar, input=input).write(self.sidecar_path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._lock.release()

    def _find_rows(self) -> None:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                row = parsed(line)
                if row is None and not file.read(1):
                    return  # the job was stopped while it wrote this line
                row = row or {}
                if self._drops(row):
                    self.n_dropped += 1
                else:
                    try:
                        self.done[row_key(id_in(row))] = mark_in(row)
                    except ValueError as error:
                        why = f"line {number} is not a batch result"
                        raise UsageError(f"cannot resume {self.name}", why=why, hint=OR_ANEW) from error
                    self.n_done += 1
                    self.n_failed += is_failure(row)
                self._size_bytes += len(line)

    def _rewrite(self) -> None:
        """Remove the rows that are not kept, and anything after the last complete row."""
        end, self._size_bytes = self._size_bytes, 0
        with becoming(self.path) as scratch, self.path.open("rb") as old, scratch.open("wb") as new:
            while old.tell() < end:
                line = old.readline()
                if not self._drops(parsed(line) or {}):
                    self._size_bytes += new.write(line)

    def _writing(self) -> AbstractContextManager[None]:
        return told_as(EdgespecError, f"cannot write {self.name}", hint="the rows already written are kept")


def sidecar_of(path: Path) -> Path:
    """Return the path of the sidecar of an output."""
    return path.with_name(f"{path.name}.job.json")


def encoded(row: Mapping[str, object]) -> bytes:
    """Return a row as a line of JSON in UTF-8; a lone surrogate, which an id may contain, stays an escape."""
    return json_line(row).encode("utf-8", "backslashreplace") + b"\n"


def parsed(line: bytes) -> dict[str, object] | None:
    """Return a row, or None if the line is not complete."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
