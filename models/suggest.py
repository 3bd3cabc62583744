"""Which models could draft for a target: the files of this machine, and the drafts that the catalogue knows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import EdgespecError
from edgespec.header import Header
from edgespec.models.cache import cached_files, repository_of
from edgespec.models.catalog import Entry, catalogue
from edgespec.models.local import LocalModel
from edgespec.models.names import name_of
from edgespec.models.pair import USUAL_RATIO, Verdict, check_pair
from edgespec.models.quants import models_in
from edgespec.models.vocabulary import Vocabulary

LEAST_RATIO = 3.0  # times a draft has to be smaller to be taken without being asked for


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A draft that may be used, or cannot be, as `spec` names it, and why.

    `is_here` is false for one of the catalogue that would have to be fetched first. Sizes are None where they are
    unknown.
    """

    spec: str
    verdict: Verdict
    why: str
    is_here: bool
    times_smaller: float | None = None
    size_bytes: int | None = None

    @property
    def is_usual(self) -> bool:
        """Whether its size is within the rule of thumb."""
        least, most = USUAL_RATIO
        return least <= (self.times_smaller or 0.0) <= most


def suggestions(target: Header, models: Iterable[LocalModel], entries: Iterable[Entry] = ()) -> list[Suggestion]:
    """The drafts for a target, the best first, those that cannot be used last.

    `target` is as `check_model` gives it. `entries` are drafts for it of the catalogue, as `catalogue_drafts` gives
    them; those that are not here follow what is. Raises ModelFileError if the target can no longer be read.
    """
    vocabulary, itself = Vocabulary.of(target), os.path.realpath(target.path)
    others = [model for model in models if os.path.realpath(model.path) != itself]
    found = sorted((_judged(target, model, vocabulary) for model in others), key=_order)
    usable = [suggestion for suggestion in found if suggestion.verdict != "no"]
    return [*usable, *_to_fetch(entries), *found[len(usable) :]]


def best(found: Iterable[Suggestion]) -> Suggestion | None:
    """The best draft that is here and can be taken without asking: of the same vocabulary, and a good deal smaller."""
    fitting = (each for each in found if each.is_here and each.verdict == "works")
    return next((each for each in fitting if (each.times_smaller or 0.0) >= LEAST_RATIO), None)


def catalogue_drafts(spec: str, path: Path) -> list[Entry]:
    """The drafts that the catalogue has for a target: one named there, from a repository named there, or at least with
    the name of a file of such a repository.

    Raises UsageError for a catalogue with errors.
    """
    entries, repository = catalogue(), repository_of(path)

    def is_owner(entry: Entry) -> bool:
        if repository is not None:
            return entry.repository == repository[0]
        files = entry.repository.lower().rpartition("/")[2].removesuffix("-gguf")
        return entry.name == spec.lower().partition(":")[0] or path.name.lower().startswith(files)

    names = dict.fromkeys(draft for entry in entries.values() if is_owner(entry) for draft in entry.drafts)
    return [entries[draft] for draft in names if draft in entries]


def _judged(target: Header, model: LocalModel, vocabulary: Vocabulary) -> Suggestion:
    spec = name_of(model.path)
    if model.header is None:
        return Suggestion(spec, "no", model.problem, is_here=True, size_bytes=model.size_bytes)
    times_smaller = target.n_params / max(1, model.n_params)
    if times_smaller <= 1:  # whose tokens need not be looked at
        why = f"{'larger than' if times_smaller < 1 else 'as large as'} the target"
        return Suggestion(spec, "no", why, True, times_smaller, model.size_bytes)
    try:
        found = check_pair(target, model.header, vocabulary)
    except EdgespecError as error:  # it went away meanwhile
        return Suggestion(spec, "no", error.why or error.what, is_here=True)
    whys = {"works": found.size, "shared": f"{found.summary}, {found.size}", "no": found.summary.removeprefix("no: ")}
    return Suggestion(spec, found.verdict, whys[found.verdict], True, times_smaller, model.size_bytes)


def _order(suggestion: Suggestion) -> tuple[int, bool, int]:
    rank = ("works", "shared", "no").index(suggestion.verdict)
    return rank, not suggestion.is_usual, suggestion.size_bytes or 0


def _to_fetch(entries: Iterable[Entry]) -> Iterator[Suggestion]:
    for entry in entries:
        if not models_in(list(cached_files(entry.repository))):
            about = entry.about or entry.repository
            yield Suggestion(entry.name, "works", f"{about}: edgespec pull {entry.name}", is_here=False)
