"""Objects with native memory, closed at the end of a `with` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closable:
    """A base class for things with a `close()`, which must be safe to call twice."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
