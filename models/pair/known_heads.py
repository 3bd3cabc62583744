"""Find the draft head of a model: in its file, near it, or published for it and not downloaded yet."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from edgespec.errors import EdgespecError, UsageError
from edgespec.gguf_file.head_check import head_mismatch, kind_of_head, mtp_mismatch
from edgespec.gguf_file.header import Header
from edgespec.models.names.catalog import CatalogueModel, catalogue, published_for
from edgespec.models.names.heads import MTP, KnownHead
from edgespec.models.names.local import LocalModel, read_model
from edgespec.models.names.model_names import entry_of
from edgespec.models.names.source import files_here
from edgespec.models.pair.near import accepted_in_training, folders_of_models, models_near, places_near


class KnownHeads:
    """Finds the heads of models among the heads of this machine, and in the catalogue.

    No folder is searched and no header is read again. Only for a head that names its target by a print are 256 rows of
    the model's embeddings read.
    """

    def __init__(self, models: Iterable[LocalModel]) -> None:
        self._heads = {model.path.absolute(): model for model in models if model.is_head and not model.problem}
        self._of_models = folders_of_models()
        self._entries: dict[str, CatalogueModel] = {}
        with suppress(UsageError):
            self._entries = catalogue()

    def of(self, model: LocalModel) -> KnownHead | None:
        """Return the head that a model would draft with, else the best one to download; None if there is none."""
        header = model.header
        if header is None or model.problem or model.is_head or model.is_embedding:
            return None
        if not mtp_mismatch(header):
            return KnownHead(MTP, "in its file")
        return self._near(model, header) or published_for(entry_of(model.path, self._entries), header.architecture)

    def _near(self, model: LocalModel, target: Header) -> KnownHead | None:
        if not self._heads:
            return None
        places = places_near(model.path, self._entries, self._of_models)
        near = [head for file, head in self._heads.items() if places.have(file) and _fits(target, head)]
        best = max(near, key=accepted_in_training, default=None)
        if best is None or best.header is None:
            return None
        return KnownHead(kind_of_head(best.header), "here", best.spec)


def head_of(model: LocalModel) -> KnownHead | None:
    """Return the head of one model, as `KnownHeads` does, with a search of the places near it."""
    return KnownHeads(models_near(model.path, bundled=False)).of(model)


def head_of_entry(entry: CatalogueModel) -> KnownHead | None:
    """Return the head of a catalogue entry: that of its first file here, or a published one."""
    for path in files_here(entry):
        for model in read_model(path, str(path)):
            if not model.problem:
                return head_of(model)
    return published_for(entry)


def _fits(target: Header, head: LocalModel) -> bool:
    with suppress(EdgespecError):  # a file was deleted or damaged meanwhile
        return head.header is not None and not head_mismatch(target, head.header)
    return False
