"""Requantise a GGUF file with llama.cpp's quantiser.

It runs in a child process, because the quantiser cannot be stopped otherwise, and reports progress tensor by tensor.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from edgespec.errors import EdgespecError, ModelFileError, UsageError, told_as
from edgespec.files.paths import free_in
from edgespec.files.unfinished import becoming, check_destination
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.library import api, default_threads, first_complaint, logger
from edgespec.processes.child import Child, Limits, answer, running

_PART = re.compile(r"\[ *(\d+)/ *(\d+)\]")

# The types that need no importance matrix
LEAST_FREE = 1 << 20  # bytes: with less free space, a failed write means a full disk
_NAMES = """F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_M Q4_K_S Q4_1 Q4_0 IQ4_NL IQ4_XS Q3_K_L Q3_K_M Q3_K_S
Q2_K"""
TYPES: dict[str, int] = {
    name: int(getattr(api, f"LLAMA_FTYPE_{'ALL' if name == 'F32' else 'MOSTLY'}_{name}")) for name in _NAMES.split()
}
"""llama.cpp's file types (llama_ftype) by name."""


def quantize(
    source: Path,
    destination: Path,
    type: str,
    *,
    again: bool = False,
    progress: Callable[[float], None] = lambda done: None,
) -> None:
    """Write the model `source`, whose weights are F32, F16 or BF16, as `type` ("Q4_K_M") to `destination`.

    `again` accepts a model that is quantised already, which loses quality twice. K-quants need rows of 256 weights;
    llama.cpp uses a similar type for other rows. `destination` appears when it is complete and replaces an existing
    file. Raises UsageError, ModelNotFoundError, ModelFileError, and EdgespecError if the file cannot be written.
    """
    type = type.upper()
    if type not in TYPES:
        raise UsageError(f"cannot quantise to {type!r}", hint=f"use one of {', '.join(TYPES)}")
    header = check_model(source)
    check_destination(destination, header.files, b"GGUF")
    if not again and (small := sorted(lossy_types(header))):
        raise ModelFileError(
            f"cannot quantise {header.path}",
            why=f"it is quantised already ({', '.join(small)}); quantising twice loses quality twice",
            hint="start from the F16, BF16 or F32 file of the same model",
        )
    with told_as(EdgespecError, f"cannot write {destination}"), becoming(destination) as unfinished:
        status, errors = _run(source, unfinished, type, progress, again=again)
        if status or not unfinished.is_file():
            if free_in(destination.parent) < LEAST_FREE:
                raise EdgespecError(f"cannot write {destination}", why="the disk is full")
            raise ModelFileError(
                f"cannot quantise {source} to {type}",
                why=first_complaint(errors) if errors or status in (0, 1) else f"llama.cpp failed with status {status}",
                hint=f"check the free space in {destination.parent}, the free memory, and write permission",
            )


def _run(
    source: Path, destination: Path, type: str, progress: Callable[[float], None], *, again: bool
) -> tuple[int, Sequence[str]]:
    """Return the status of the quantiser or of its process, and the errors that llama.cpp logged."""

    def heard(done: float) -> Limits:
        progress(done)
        return Limits()

    question: _Question = {"source": str(source), "destination": str(destination), "type": type, "again": again}
    with Child(running("edgespec.llama.quantize"), "quantise models") as child:
        reply = child.ask(json.dumps(question).encode(), Limits(), heard=heard)
    return reply["status"], reply.get("errors", ())


def lossy_types(header: Header) -> frozenset[str]:
    """Return the types of weights that are quantised already."""
    return header.weight_types - {"F32", "F16", "BF16"}


class _Question(TypedDict):
    source: str
    destination: str
    type: str
    again: bool


class _Quantiser(logging.Handler):
    """The child: it reports the progress that llama.cpp logs, and keeps its errors."""

    destination = ""

    def reply(self, question: _Question, report: Callable[[float], None]) -> dict[str, object]:
        """Quantise a file."""
        self.destination, self.report, self.errors = question["destination"], report, list[str]()
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        params = api.llama_model_quantize_default_params()
        params.ftype, params.nthread = TYPES[question["type"]], default_threads()
        params.allow_requantize = question["again"]
        source, destination = os.fsencode(question["source"]), os.fsencode(self.destination)
        status = int(api.llama_model_quantize(source, destination, ctypes.byref(params)))
        return {"status": status, "errors": self.errors}

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            self.errors.append(record.getMessage())
        elif part := _PART.match(record.getMessage()):
            try:
                self.report(int(part[1]) / int(part[2]))
            except OSError:
                self.give_up()

    def give_up(self) -> None:
        """End this process, whose parent is gone, so that nothing needs the file."""
        with suppress(OSError):  # Windows cannot remove an open file
            Path(self.destination).unlink()
        os._exit(1)


if __name__ == "__main__":
    quantiser = _Quantiser()
    answer(quantiser.reply, alone_s=None)
    quantiser.give_up()  # a parent that has the reply ends this process
