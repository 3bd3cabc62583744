"""Errors for users: what happened, why, what to do next, and the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Self


class EdgespecError(Exception):
    """Base class of all errors for users; `str()` is the whole message. Exit code 1: the generation failed.

    Messages name settings by their fields, between backticks: `with_names` of core/setting.py.
    """

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint)
        self.what, self.why, self.hint = what, why, hint

    def reworded(self, **words: str) -> Self:
        """Return a copy with another `what`, `why` or `hint`."""
        error = copy(self)
        for name, text in words.items():
            setattr(error, name, text)
        error.args = error.what, error.why, error.hint
        return error

    def __reduce__(self) -> tuple[object, ...]:
        """Let other processes unpickle the error without its constructor, whose parameters are not `args`."""
        return type(self).__new__, (type(self), *self.args), vars(self)

    @property
    def line(self) -> str:
        """The message without the hint."""
        return f"{self.what}: {self.why}" if self.why else self.what

    def __str__(self) -> str:
        return self.line + (f"\n  {self.hint}" if self.hint else "")


@contextmanager
def told_as(kind: type[EdgespecError], what: str, *, hint: str = "") -> Iterator[None]:
    """Turn an OSError within this block into an error of this kind, with the system's message as the reason."""
    try:
        yield
    except OSError as error:
        raise kind(what, why=error.strerror or str(error), hint=hint) from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name that is most similar to an unknown one; "" if none is similar."""
    from difflib import get_close_matches  # which a start does without

    near = get_close_matches(name.lower(), known, n=1)
    return f"did you mean {near[0]}?" if near else ""


class GenerationError(EdgespecError):
    """The native library failed in the middle of an answer.

    Attributes:
        lost_workers: machines that hold layers (`LoadSettings.rpc`) cannot be reached; they may come back.
    """

    lost_workers = False


class LostError(GenerationError):
    """The model cannot be reached, or was lost in the middle of its answers.

    Attributes:
        is_crash: its process has ended, and one of its answers may be the reason.
    """

    is_crash = False


def for_users(error: BaseException) -> EdgespecError:
    """Return the error itself, or an error for users in place of another exception."""
    if isinstance(error, EdgespecError):
        return error
    return GenerationError(f"unexpected {type(error).__name__}", why=str(error))


class UsageError(EdgespecError):
    """Invalid settings. `field` is the setting or the part of a request that is invalid; empty if there is none."""

    exit_code = 2

    def __init__(self, what: str, *, why: str = "", hint: str = "", field: str = "") -> None:
        super().__init__(what, why=why, hint=hint)
        self.field = field


class PromptTooLongError(UsageError):
    """The prompt has `n_tokens`, and the context holds `n_ctx`. Both are None if a server did not say them, and the
    first is None if there were too many characters to count."""

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        hint: str = "",
        field: str = "messages",
        n_tokens: int | None = None,
        n_ctx: int | None = None,
    ) -> None:
        super().__init__(what, why=why, hint=hint, field=field)
        self.n_tokens, self.n_ctx = n_tokens, n_ctx


class ImageError(UsageError):
    """An image cannot be read, or not by this model."""

    def __init__(self, what: str, *, why: str = "", hint: str = "", field: str = "messages") -> None:
        super().__init__(what, why=why, hint=hint, field=field)


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
    """A job finished, or was stopped, with failed rows."""

    exit_code = 6


class OutOfMemoryError(EdgespecError):
    """Weights, KV cache or buffers do not fit into the available memory."""

    exit_code = 5
