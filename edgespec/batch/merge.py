"""Merge the outputs of all shards into one file, as one job would have written it with `--ordered`.

Each result of a shard has the number of its input line. Memory holds only the place of each result, 8 bytes; the
results are copied from file to file, and the output appears when it is complete.
"""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edgespec.batch.input import LINE, Shard
from edgespec.batch.output import OutputFile, parsed, sidecar_of
from edgespec.batch.results import is_failure
from edgespec.batch.sidecar import Sidecar, in_few
from edgespec.errors import EdgespecError, UsageError, told_as
from edgespec.files.unfinished import becoming

MOST_OPEN = 128  # parts at a time: systems allow a process 256 files and more
AGAIN = "run its command again; if lines of the input were moved or removed between two runs, with --overwrite"
_END = re.compile(rb', "%s": (\d{1,18})\}\n\Z' % LINE.encode())


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    path: Path
    shard: Shard
    sidecar: Sidecar
    n_rows: int
    n_lines: int  # of the whole input
    facts: Mapping[str, object]  # what all parts must have in common


def merge(paths: Sequence[Path], target: OutputFile) -> tuple[int, int]:
    """Replace `target` by the results of all shards, in the order of the input.

    Returns the number of rows, and of failed rows. Raises UsageError if the shards do not belong together,
    EdgespecError if files cannot be read or written; then nothing is changed.
    """
    parts = [_part(path) for path in paths]
    _check_together(parts)
    places, n_failed = _places(parts)
    first = parts[0].sidecar
    sidecar = Sidecar(first.seed, {name: value for name, value in first.settings.items() if name != "shard"})
    n_rows = 0
    with _replacing(target, sidecar) as merged, ExitStack() as stack:
        files = dict[int, BinaryIO]()
        for line, place in enumerate(places):
            if place:
                offset, index = divmod(place - 1, len(parts))
                if index not in files:
                    if len(files) == MOST_OPEN:
                        files.clear()
                        stack.close()
                    files[index] = stack.enter_context(_opened(parts[index]))
                merged.write(_result(parts[index], files[index], offset, line))
                n_rows += 1
    return n_rows, n_failed


# --- what belongs together --------------------------------------------------------------------------------------------


def _refusal(name: str, why: str, hint: str = AGAIN) -> UsageError:
    return UsageError(f"cannot merge {name}", why=why, hint=hint)


def _part(path: Path) -> _Part:
    """Return a part. Raises UsageError if it is not the complete output of a shard."""
    name, beside = str(path), sidecar_of(path.resolve())
    if not path.is_file():
        raise _refusal(name, "there is no such file", "")
    try:
        sidecar = Sidecar.read(beside)
    except (OSError, ValueError) as error:
        why = f"{beside.name} in its folder is missing or damaged"
        raise _refusal(name, why, "copy it together with the output of a shard") from error
    settings = {"seed": sidecar.seed, **sidecar.settings}
    try:
        shard = Shard.parse(str(settings.pop("shard")))
    except (KeyError, ValueError) as error:
        raise _refusal(name, "it is not the output of a shard (--shard)", "") from error
    if sidecar.input is None:
        raise _refusal(name, f"shard {shard} is not finished", "run its command again, which resumes")
    facts = {"input": sidecar.input["digest"], "lines": sidecar.input["lines"], "number of shards": shard.count}
    return _Part(name, path, shard, sidecar, sidecar.input["rows"], sidecar.input["lines"], settings | facts)


def _check_together(parts: Sequence[_Part]) -> None:
    """Raise UsageError unless the parts are all shards of one job."""
    first, count = parts[0], parts[0].shard.count
    for part in parts[1:]:
        if differ := [
            f"{name} is {in_few(first.facts.get(name))} in {first.name}, {in_few(part.facts.get(name))} in {part.name}"
            for name in {**first.facts, **part.facts}
            if first.facts.get(name) != part.facts.get(name)
        ]:
            raise UsageError(
                f"{first.name} and {part.name} are of different jobs",
                why="; ".join(differ),
                hint="run the command of each shard again with the same settings and the same input (and --limit)",
            )
    n_given = Counter(part.shard.index for part in parts)
    if wrong := [index for index in range(count) if n_given[index] != 1]:
        told = [f"{index}/{count} is {'given twice' if n_given[index] else 'missing'}" for index in wrong[:10]]
        more = f", and {len(wrong) - 10:,} more" if len(wrong) > 10 else ""
        raise UsageError(f"each shard is needed once: {', '.join(told)}{more}")


def _places(parts: Sequence[_Part]) -> tuple[array[int], int]:
    """Return the place of the result of each input line, and the number of failed rows.

    A place is 1 + part + byte offset * number of parts, or 0 for a line without a row.
    """
    places, n_failed = array("Q", bytes(8)) * (parts[0].n_lines + 1), 0
    for index, part in enumerate(parts):
        offset = n_rows = 0
        with told_as(EdgespecError, f"cannot read {part.name}"), part.path.open("rb") as file:
            for n_rows, text in enumerate(file, start=1):
                end, row = _END.search(text), parsed(text)
                line = int(end[1]) if end and row is not None else 0
                if row is None or not 0 < line < len(places):
                    raise _refusal(part.name, f"its line {n_rows} is not a result of this input")
                if places[line]:
                    other = parts[(places[line] - 1) % len(parts)].name
                    raise _refusal(part.name, f"line {line:,} of the input has another result in {other}")
                places[line] = 1 + index + offset * len(parts)
                offset += len(text)
                n_failed += is_failure(row)
        if n_rows != part.n_rows:
            raise _refusal(part.name, f"it has {n_rows:,} rows, and shard {part.shard} of the input {part.n_rows:,}")
    return places, n_failed


# --- copying ----------------------------------------------------------------------------------------------------------


def _opened(part: _Part) -> BinaryIO:
    with told_as(EdgespecError, f"cannot read {part.name}"):
        return part.path.open("rb")


def _result(part: _Part, file: BinaryIO, offset: int, line: int) -> bytes:
    """Return the result of an input line, at this offset of a part, as one job would have written it."""
    with told_as(EdgespecError, f"cannot read {part.name}"):
        file.seek(offset)
        text = file.readline()
    end = _END.search(text)
    if end is None or int(end[1]) != line:
        raise EdgespecError(f"{part.name} has changed while it was merged", hint="wait until its job has ended")
    return text[: end.start()] + b"}\n"


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
