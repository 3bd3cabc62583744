"""The bytes of token ids, without asking a worker, which may be busy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.closable import Closable

if TYPE_CHECKING:
    from edgespec.llama.model import Model


class Vocabulary(Closable):
    """The tokens of the model at `path`, which is opened without its weights at the first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._model: Model | None = None

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, of a control token its name."""
        return self._opened().token_bytes(token, special=True)

    def control(self, name: str) -> int | None:
        """Return the control token with this name, if there is one."""
        ids = self._opened().tokenize(name, parse_special=True)
        return ids[0] if len(ids) == 1 and self._opened().is_control(ids[0]) else None

    def _opened(self) -> Model:
        if self._model is None:
            from edgespec.llama.model import Model

            self._model = Model.load_vocabulary(self._path)
        return self._model

    def close(self) -> None:
        if self._model is not None:
            self._model.close()
