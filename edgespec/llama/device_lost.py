"""Ends the process with one error when a device is lost: llama.cpp would abort, or throw an exception that no Python
code can catch."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from edgespec.errors import GenerationError

GPU_FAILED = "the GPU failed:"
GPU_HINT = (
    "put fewer layers on the GPU (`gpu_layers=N`, or `gpu_layers=0` for none); if it fails again, update its driver"
)
FEWER_LAYERS = (
    "put fewer layers on the GPU (`gpu_layers=N`, of a draft model `gpu_layers_draft=N`; auto: as many as fit)"
)
in_words_of_front: Callable[[str], str] = str
"""How the program that shows a hint names settings: the command line replaces this function."""
# Backends log one of these lines, and then give up. An allocation that fails is logged in other words, and reported.
_LAST_WORDS = re.compile(r"device lost on (?P<device>[^,]+)|(?:CUDA|ROCm|MUSA) error: .+")


def end_if_lost(line: str) -> None:
    """End the process if a line of llama.cpp's log says that a GPU cannot continue."""
    if found := _LAST_WORDS.search(line):
        end(f"{GPU_FAILED} {'the driver lost ' + found['device'] if found['device'] else found[0]}", GPU_HINT)


def end(what: str, hint: str) -> NoReturn:
    """End the process with an error, from any thread and within a call of the native library."""
    with suppress(Exception):
        sys.stdout.flush()
    os.write(2, f"\nedgespec: {what}\n  {in_words_of_front(hint)}\n".encode())
    os._exit(GenerationError.exit_code)
