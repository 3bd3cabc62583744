"""The drafts near a model: in its folder or repository, in a repository that the catalogue names for it, in edgespec's
folder of models, or bundled with edgespec."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.files.optional_files import files_in
from edgespec.files.paths import models_dir
from edgespec.gguf_file.head_check import may_be_head
from edgespec.gguf_file.header import Header
from edgespec.models.hub.cache import repository_folder, repository_of
from edgespec.models.hub.quants import is_mtp_block, is_named_as_draft
from edgespec.models.names.catalog import CatalogueModel, catalogue
from edgespec.models.names.local import LocalModel, read_model
from edgespec.models.names.model_names import entry_of
from edgespec.models.names.source import HEADS
from edgespec.models.pair.suggest import LEAST_RATIO, Suggestion, assessed
from edgespec.models.pair.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class NearDraft:
    """A draft near a model.

    Attributes:
        problem: The reason why it cannot draft for the model; empty if it can.
        accepted: The mean number of accepted tokens of a draft, from the training of a head; 0 if it is unknown.
    """

    path: Path
    found: Suggestion
    problem: str
    accepted: float = 0.0

    @property
    def is_bundled(self) -> bool:
        return self.path.parent == HEADS

    @property
    def is_broken(self) -> bool:
        """True if the file cannot be read."""
        return self.found.times_smaller is None

    @property
    def what(self) -> str:
        """The draft in a few words."""
        return f"draft {'head' if self.found.kind else 'model'} {self.found.spec}"


@dataclass(frozen=True, slots=True)
class Places:
    """The places of drafts near a model: files in the folders of `flat`, and files in and below those of `deep`."""

    flat: frozenset[Path]
    deep: frozenset[Path]

    def have(self, file: Path) -> bool:
        """Return whether a file, by its absolute path, is in one of these folders."""
        return file.parent in self.flat or (bool(self.deep) and not self.deep.isdisjoint(file.parents))


def folders_of_models() -> frozenset[Path]:
    """Return edgespec's own folder of models and its subfolders, whose drafts are near every model."""
    folder = models_dir()
    return frozenset([folder, *(path for path in files_in(folder) if path.is_dir())])


def places_near(target: Path, entries: Mapping[str, CatalogueModel], of_models: frozenset[Path]) -> Places:
    """Return the folders near a model's file, except that of the bundled heads. `of_models` are `folders_of_models`."""
    place, entry = repository_of(target), entry_of(target, entries)
    repositories = [place[0]] if place else []
    repositories += [head.repository for head in entry.heads if head.repository] if entry else []
    return Places(
        of_models | {target.absolute().parent, target.resolve().parent},
        frozenset(repository_folder(name) / "snapshots" for name in repositories),
    )


def models_near(target: Path, *, bundled: bool = True) -> Iterator[LocalModel]:
    """Yield the drafts near a model, and unreadable files with the names of drafts, each once."""
    entries: dict[str, CatalogueModel] = {}
    with suppress(UsageError):
        entries = catalogue()
    places = places_near(target, entries, folders_of_models())
    files = [path for folder in places.flat for path in files_in(folder, "*.gguf")]
    files += [path for folder in places.deep for path in folder.rglob("*.gguf")]
    files += HEADS.glob("*.gguf") if bundled else ()
    seen = {os.path.realpath(target)}
    for path in sorted(files):
        file = os.path.realpath(path)
        is_draft = is_named_as_draft(path.name) and not is_mtp_block(path.name)  # which llama.cpp does not run alone
        if file not in seen and (is_draft or may_be_head(path)):
            seen.add(file)
            yield from read_model(path, str(path))


def drafts_near(target: Header, *, bundled: bool = True) -> list[NearDraft]:
    """Return the drafts near a model, those that can draft for it first, and heads before draft models.

    Of several heads, the one that was accepted most when it was trained is first, if the files say so. Draft models
    must be much smaller than the target. Of the heads that come with edgespec, only those for this target are included,
    and none without `bundled`. Raises ModelFileError if the target can no longer be read.
    """
    models = list(models_near(target.path, bundled=bundled))
    if not models:
        return []
    vocabulary = Vocabulary.of(target)
    drafts = [_near(target, vocabulary, model) for model in models]
    drafts = [draft for draft in drafts if not (draft.is_bundled and draft.problem)]
    return sorted(drafts, key=lambda each: (bool(each.problem), not each.found.kind, each.is_bundled, -each.accepted))


def _near(target: Header, vocabulary: Vocabulary, model: LocalModel) -> NearDraft:
    found = assessed(target, vocabulary, model)
    problem = "" if found.verdict == "works" else found.why
    if not (problem or found.kind) and (found.times_smaller or 0.0) < LEAST_RATIO:
        problem = f"it is {found.why}"
    return NearDraft(model.path, found, problem, accepted_in_training(model))


def accepted_in_training(model: LocalModel) -> float:
    """Return the mean number of accepted tokens of a draft in the training of a head; 0 if the file does not say it."""
    return float(sum(model.header.numbers("edgespec.head.acceptance"))) if model.header else 0.0
