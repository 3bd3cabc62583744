"""Messages for the user about how a model runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload


class Notes(Sequence[str]):
    """Messages in the order in which they came. Any thread may add one; one reader takes the new ones."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts = [*texts]
        self._n_taken = 0

    def add(self, text: str) -> None:
        """Add a message, unless it is there already."""
        if text not in self._texts:
            self._texts.append(text)

    def append(self, text: str) -> None:
        """Add a message about an event that can happen again."""
        self._texts.append(text)

    def take(self) -> list[str]:
        """Return the messages that were added since the last call."""
        new = self._texts[self._n_taken :]
        self._n_taken += len(new)
        return new

    def __repr__(self) -> str:
        return repr(self._texts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._texts[index]

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._texts])
