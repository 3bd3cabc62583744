"""Merge the outputs of all shards into one file, as one job would have written it with `--ordered`.

Each result of a shard has the number of its input line. Memory holds only the place of each result, 8 bytes; the
results are copied from file to file, and the output appears when it is complete.
"""

from __future__ import annotations

import os
import re
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from edgespec.batch.input import LINE, Shard
from edgespec.batch.output import OutputFile, parsed, sidecar_of
from edgespec.batch.results import is_failure
from edgespec.batch.sidecar import Sidecar, in_few
from edgespec.closable import Closable
from edgespec.errors import EdgespecError, UsageError, told_as
from edgespec.files.unfinished import becoming

MOST_OPEN = 128  # files at a time
ANEW = "lines of the input were moved or removed between two runs of the shard: use --overwrite with it"
_END = re.compile(rb', "%s": (\d{1,18})\}\n\Z' % LINE.encode())


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    path: Path
    shard: Shard
    sidecar: Sidecar
    input: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.name} (shard {self.shard})"


def merge(paths: Sequence[Path], target: OutputFile) -> tuple[int, int]:
    """Replace `target` by the results of all shards, in the order of the input.

    Returns the number of rows, and of failed rows. Raises UsageError if the shards do not belong together,
    EdgespecError if files cannot be read or written; then nothing is changed.
    """
    parts = [_part(path) for path in paths]
    _check_settings(parts)
    _check_shards(parts)
    _check_inputs(parts)
    places, n_failed = _places(parts)
    first = parts[0].sidecar
    sidecar = Sidecar(first.seed, {name: value for name, value in first.settings.items() if name != "shard"})
    n_rows = 0
    with _replacing(target, sidecar) as merged, _Files(parts) as files:
        for line, place in enumerate(places):
            if place:
                offset, index = divmod(place - 1, len(parts))
                merged.write(files.result(index, offset, line))
                n_rows += 1
    return n_rows, n_failed


# --- what belongs together --------------------------------------------------------------------------------------------


def _part(path: Path) -> _Part:
    """Return a part. Raises UsageError if it is not the complete output of a shard."""
    name, beside = str(path), sidecar_of(path.resolve())
    if not path.is_file():
        raise UsageError(f"cannot merge {name}", why="there is no such file")
    try:
        sidecar = Sidecar.read(beside)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot merge {name}",
            why=f"{beside.name} in its folder is missing or damaged",
            hint="copy it together with the output of a shard",
        ) from error
    try:
        shard = Shard.parse(str(sidecar.settings["shard"]))
    except (KeyError, ValueError) as error:
        raise UsageError(f"cannot merge {name}", why="it is not the output of a shard (--shard)") from error
    if sidecar.input is None:
        raise UsageError(
            f"cannot merge {name}", why=f"shard {shard} is not finished", hint="run its command again, which resumes"
        )
    return _Part(name, path, shard, sidecar, sidecar.input)


def _check_settings(parts: Sequence[_Part]) -> None:
    first = parts[0]
    settings = {**first.sidecar.settings, "seed": first.sidecar.seed}
    for part in parts[1:]:
        others = {**part.sidecar.settings, "seed": part.sidecar.seed}
        differ = [name for name in {**settings, **others} if settings.get(name) != others.get(name)]
        told = [
            f"{name} is {in_few(settings.get(name))} in {first.name}, {in_few(others.get(name))} in {part.name}"
            for name in differ
            if name != "shard"
        ]
        if told:
            raise UsageError(f"{first.name} and {part.name} were made with different settings", why="; ".join(told))


def _check_shards(parts: Sequence[_Part]) -> None:
    found: dict[int, _Part] = {}
    for part in parts:
        if part.shard.count != parts[0].shard.count:
            raise UsageError(f"{parts[0].title} and {part.title} are shards of different jobs")
        if (other := found.setdefault(part.shard.index, part)) is not part:
            raise UsageError(f"shard {part.shard} is given twice", why=f"{other.name} and {part.name}")
    count = parts[0].shard.count
    if missing := [f"{index}/{count}" for index in range(count) if index not in found]:
        more = f" and {len(missing) - 10:,} more" if len(missing) > 10 else ""
        raise UsageError(f"shards are missing: {', '.join(missing[:10])}{more}", hint="name the outputs of all shards")


def _check_inputs(parts: Sequence[_Part]) -> None:
    first = parts[0]
    for part in parts[1:]:
        if any(part.input[name] != first.input[name] for name in ("digest", "lines")):
            raise UsageError(
                f"{first.name} and {part.name} answer different inputs",
                why="; ".join(f"{each.input['lines']:,} lines, {each.input['digest']}" for each in (first, part)),
                hint="run the command of each shard again with the same input (and --limit); answered rows are kept",
            )


def _places(parts: Sequence[_Part]) -> tuple[array[int], int]:
    """Return the place of the result of each input line, and the number of failed rows.

    A place is 1 + part + byte offset * number of parts, or 0 for a line without a row.
    """
    places, n_failed = array("Q", bytes(8)) * (parts[0].input["lines"] + 1), 0
    for index, part in enumerate(parts):
        n_rows = 0
        with told_as(EdgespecError, f"cannot read {part.name}"):
            for line, offset, is_failed in _results(part):
                if place := places[line]:
                    other = parts[(place - 1) % len(parts)].name
                    where = f"in {other} and in {part.name}" if other != part.name else f"both in {other}"
                    raise UsageError(f"line {line:,} of the input has two results, {where}", hint=ANEW)
                places[line] = 1 + index + offset * len(parts)
                n_rows += 1
                n_failed += is_failed
        if n_rows != part.input["rows"]:
            why = f"it has {n_rows:,} rows, and shard {part.shard} of the input {part.input['rows']:,}"
            hint = "run its command again" if n_rows < part.input["rows"] else ANEW
            raise UsageError(f"cannot merge {part.name}", why=why, hint=hint)
    return places, n_failed


def _results(part: _Part) -> Iterator[tuple[int, int, bool]]:
    """Yield the input line and the offset of each result, and True for an error. Raises OSError, UsageError."""
    offset = 0
    with part.path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            end, row = _END.search(text), parsed(text)
            if row is None or end is None:
                why = f"its line {number} is not a result of a shard"
                raise UsageError(f"cannot merge {part.name}", why=why, hint="run its command again")
            if not 1 <= (line := int(end[1])) <= part.input["lines"]:
                why = f"its line {number} answers line {line:,} of an input of {part.input['lines']:,}"
                raise UsageError(f"cannot merge {part.name}", why=why, hint=ANEW)
            yield line, offset, is_failure(row)
            offset += len(text)


# --- copying ----------------------------------------------------------------------------------------------------------


class _Files(Closable):
    """The files of the parts, of which a limited number is open at a time."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts, self._open = parts, OrderedDict[int, BinaryIO]()

    def result(self, index: int, offset: int, line: int) -> bytes:
        """Return the result of an input line, at this offset of a part, as one job would have written it."""
        part = self._parts[index]
        with told_as(EdgespecError, f"cannot read {part.name}"):
            if (file := self._open.pop(index, None)) is None:
                if len(self._open) >= MOST_OPEN:
                    self._open.popitem(last=False)[1].close()
                file = part.path.open("rb")
            self._open[index] = file
            file.seek(offset)
            text = file.readline()
        end = _END.search(text)
        if end is None or int(end[1]) != line:
            raise EdgespecError(f"{part.name} has changed while it was merged", hint="wait until its job has ended")
        return text[: end.start()] + b"}\n"

    def close(self) -> None:
        for file in self._open.values():
            file.close()


@contextmanager
def _replacing(target: OutputFile, sidecar: Sidecar) -> Iterator[BinaryIO]:
    """Replace the target at the end of the block by the file that is written in the block.

    The old sidecar is removed before, so that no job resumes the new file with the old settings.
    """
    with told_as(EdgespecError, f"cannot write {target.name}", hint="the parts are unchanged"):
        with becoming(target.path) as scratch:
            with scratch.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            target.sidecar_path.unlink(missing_ok=True)
        sidecar.write(target.sidecar_path)
