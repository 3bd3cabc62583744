"""Files that a measurement writes: --json, --csv and --plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgespec.errors import EdgespecError, UsageError
from edgespec.files.paths import check_writable

STDOUT = "-"


def files_of(values: Mapping[str, Any], *kinds: str) -> dict[str, str]:
    """The files to write, by content. Raises UsageError for one that cannot be written, before anything is measured."""
    files = {kind: values[f"{kind}_file"] for kind in kinds if values[f"{kind}_file"]}
    if list(files.values()).count(STDOUT) > 1 or files.get("plot") == STDOUT:
        raise UsageError("only one of --json and --csv can go to stdout", hint="give the other one a file name")
    for kind, name in files.items():
        if kind == "plot":
            from edgespec.bench.plot import check_plot

            check_plot(Path(name))
        if name != STDOUT:
            check_writable(Path(name))
    return files


def write_files(files: Mapping[str, str], writers: Mapping[str, Callable[[str], None]]) -> Iterator[str]:
    """Write each file with the writer of its kind, and report those that failed."""
    for kind, name in sorted(files.items(), key=lambda file: file[1] == STDOUT):  # the reader of stdout may have left
        try:
            writers[kind](name)
        except OSError as error:
            yield f"{name} cannot be written: {error.strerror or error}"
        except EdgespecError as error:
            yield str(error)
