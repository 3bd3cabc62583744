"""Errors for users: what happened, why, what to do next, and the exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

FLAGS = {
    "-c": "ctx_size",
    "-md": "draft_model",
    "-ngl": "gpu_layers",
    "-ctv": "cache_type_v",
    "--corpus": "corpus",
    "--spec-draft-n-max": "spec_draft_n_max",
    "--spec-tree": "spec_tree",
    "--spec-type": "spec_type",
    "--fast": "exact=False",
    "--raw": "generate()",
}
"""Options that messages of the runtime name, and what they are in Python."""


class EdgespecError(Exception):
    """Base of every error a user may see; `str()` is the whole message. Exit code 1: the generation failed.

    Options of the command line that it names are translated in a note, which Python's tracebacks show.
    """

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint)
        self.what, self.why, self.hint = what, why, hint
        named = dict.fromkeys(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", f"{what} {why} {hint}"))
        translated = [f"{flag} is {FLAGS[flag]}" for flag in named if flag in FLAGS]
        if translated:
            self.add_note(f"  in Python: {', '.join(translated)}")

    def __str__(self) -> str:
        reason = f": {self.why}" if self.why else ""
        return f"{self.what}{reason}" + (f"\n  {self.hint}" if self.hint else "")


@contextmanager
def told_as(kind: type[EdgespecError], what: str, *, hint: str = "") -> Iterator[None]:
    """Within this block an OSError becomes an error of this kind, with the system's words as the reason."""
    try:
        yield
    except OSError as error:
        raise kind(what, why=error.strerror or str(error), hint=hint) from error


class GenerationError(EdgespecError):
    """The native library failed in the middle of an answer."""


class UsageError(EdgespecError):
    """Invalid settings."""

    exit_code = 2


class PromptTooLongError(UsageError):
    """The prompt does not fit into the context."""


class ModelNotFoundError(EdgespecError):
    """No such model file or name."""

    exit_code = 3


class ModelFileError(EdgespecError):
    """The file exists, but is not a model that can be loaded."""

    exit_code = 3


class PairError(EdgespecError):
    """Target and draft model are incompatible."""

    exit_code = 4


class FailedRowsError(EdgespecError):
    """A job has finished, or was stopped, with rows that failed."""

    exit_code = 6


class OutOfMemoryError(EdgespecError):
    """Weights, KV cache or buffers do not fit into the available memory."""

    exit_code = 5
