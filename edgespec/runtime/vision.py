"""The images of prompts: the projector of a model is loaded when the first image is to be read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from edgespec.closable import Closable
from edgespec.errors import ImageError, ModelFileError, ModelNotFoundError
from edgespec.gguf_file.header import Header, read_header
from edgespec.llama.context import Context
from edgespec.llama.projector import Picture, Projector
from edgespec.llama.trial import try_projector
from edgespec.models.names.projectors import projectors_of
from edgespec.settings import Image


def projector_file(mmproj: str | None, header: Header, note: Callable[[str], None]) -> Path | None:
    """Return the projector that `LoadSettings.mmproj` means; a choice among several is noted. Raises
    ModelNotFoundError, ModelFileError."""
    if mmproj is None:
        found = projectors_of(header)
        if len(found) > 1:
            others = ", ".join(file.name for file in found[1:])
            note(f"images are read with {found[0].name}; `mmproj` can name another projector: {others}")
        return found[0] if found else None
    if mmproj == "none":
        return None
    path = Path(mmproj).expanduser()
    if not path.is_file():
        raise ModelNotFoundError(f"projector file '{mmproj}' was not found", hint="`mmproj` takes a GGUF file, or none")
    if read_header(path).architecture != "clip":
        raise ModelFileError(f"{path} is not a projector", hint="its name usually begins with mmproj")
    return path


class Vision(Closable):
    """Reads images with the projector `path`; None: every image is refused. Projectors that were `named` are loaded at
    once. Errors call the model `name`."""

    def __init__(self, path: Path | None, context: Context, name: str, *, named: bool) -> None:
        self.path, self._context, self._name = path, context, name
        self._projector: Projector | None = None
        self._damage: ModelFileError | None = None
        self._loading = threading.Lock()
        if path is not None and named:
            self._load(path)

    def close(self) -> None:
        if self._projector is not None:
            self._projector.close()

    def see(self, image: Image) -> Picture:
        """Return an image as a part of a prompt. Raises UsageError, ModelFileError."""
        if self.path is None:
            raise ImageError(
                f"{self._name} cannot see images",
                why="it has no projector (a file mmproj*.gguf in its folder)",
                hint="name its projector with `mmproj=FILE`, or use a model that has one",
            )
        picture = self._load(self.path).read(image.data, image.name)
        together = [cells.n for cells in picture.cells.values() if cells.is_whole]
        if max(together, default=0) > self._context.n_batch:
            raise ImageError(
                f"{image.name} has too many tokens for this context",
                why=f"the model reads its {max(together)} tokens in one pass, which holds {self._context.n_batch}",
                hint="use a smaller context (`ctx_size`), which has larger passes",
            )
        return picture

    def _load(self, path: Path) -> Projector:
        with self._loading:
            if self._damage is not None:  # to find it again would take seconds with each request
                raise ModelFileError(self._damage.what, why=self._damage.why, hint=self._damage.hint)
            if self._projector is None:
                try:
                    try_projector(path, self._context.model.path)
                    self._projector = Projector(path, self._context.model, self._context.threads_batch)
                except ModelFileError as error:
                    self._damage = error
                    raise
            return self._projector
