"""Which models could draft for a target: the files of this machine, and the drafts that the catalogue knows."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.drafters.translation import LEAST_OVERLAP
from edgespec.errors import EdgespecError
from edgespec.figures import percent
from edgespec.header import Header
from edgespec.models.cache import cached_files, repository_of
from edgespec.models.catalog import Entry, catalogue
from edgespec.models.local import LocalModel
from edgespec.models.names import name_of
from edgespec.models.pair import USUAL_RATIO, PairVerdict, Verdict, check_pair
from edgespec.models.pair_costs import measured_curve
from edgespec.models.quants import models_in
from edgespec.models.vocabulary import Vocabulary

LEAST_RATIO = 3.0  # times a draft has to be smaller to be taken without being asked for
ALPHA = 0.6  # the share of right guesses for which a speedup is predicted


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A draft that may be used, or cannot be, as `spec` names it, and why.

    `is_here` is false for one of the catalogue that would have to be fetched first. Sizes are None where they are
    unknown. `reasons` are all that stands against it or makes it fit in part, as `check_pair` has them.
    """

    spec: str
    verdict: Verdict
    why: str
    is_here: bool
    times_smaller: float | None = None
    size_bytes: int | None = None
    reasons: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The verdict, or that it has to be fetched, in a word."""
        return self.verdict if self.is_here else "fetch"

    @property
    def command(self) -> str:
        """What fetches it."""
        return f"edgespec pull {self.spec}"


def suggestions(target: Header, models: Iterable[LocalModel], entries: Iterable[Entry] = ()) -> list[Suggestion]:
    """The drafts for a target, the best first, those that cannot be used last.

    `target` is as `check_model` gives it. `entries` are drafts for it of the catalogue, as `catalogue_drafts` gives
    them; those that are not here follow what is. Raises ModelFileError if the target can no longer be read.
    """
    vocabulary, itself = Vocabulary.of(target), os.path.realpath(target.path)
    others = [model for model in models if os.path.realpath(model.path) != itself]
    found = [judged(target, vocabulary, model) for model in others]
    return sorted([*found, *to_fetch(entries)], key=place)


def judged(target: Header, vocabulary: Vocabulary, model: LocalModel) -> Suggestion:
    """What one model would be as a draft; `vocabulary` is the target's."""
    spec = name_of(model.path)
    if model.header is None:
        return Suggestion(spec, "no", model.problem, is_here=True, size_bytes=model.size_bytes)
    times_smaller = target.n_params / max(1, model.n_params)
    if times_smaller <= 1:  # whose tokens need not be looked at
        why, _, _ = PairVerdict("no", [], 0.0, times_smaller, 0).size.partition(":")
        return Suggestion(spec, "no", why, True, times_smaller, model.size_bytes)
    try:
        found = check_pair(target, model.header, vocabulary)
        why = _why(found, target.path, model.path)
    except EdgespecError as error:  # it went away meanwhile
        return Suggestion(spec, "no", error.why or error.what, is_here=True)
    return Suggestion(spec, found.verdict, why, True, times_smaller, model.size_bytes, tuple(found.reasons))


def to_fetch(entries: Iterable[Entry]) -> Iterator[Suggestion]:
    """Those of the catalogue's drafts that are not here."""
    for entry in entries:
        if not models_in(list(cached_files(entry.repository))):
            found = Suggestion(entry.name, "works", entry.about or entry.repository, is_here=False)
            yield replace(found, why=f"{found.why}: {found.command}")


def place(suggestion: Suggestion) -> tuple[int, bool, float, int]:
    """What to sort by: the best first, then what would have to be fetched, then what cannot be used.

    Of those that fit as well, those nearest to the rule of thumb come first; one that is nearly as large as the target
    comes after them all.
    """
    rank = {"works": 0, "shared": 1, "no": 3}[suggestion.verdict] if suggestion.is_here else 2
    ratio, (least, most) = suggestion.times_smaller or 1.0, USUAL_RATIO
    n_times_off = max(least / ratio, ratio / most, 1.0)
    return rank, ratio < LEAST_RATIO, n_times_off, suggestion.size_bytes or 0


def best(found: Iterable[Suggestion]) -> Suggestion | None:
    """The best draft that is here and can be taken without asking: of the same vocabulary, and a good deal smaller."""
    fitting = (each for each in found if each.is_here and each.verdict == "works")
    return next((each for each in fitting if (each.times_smaller or 0.0) >= LEAST_RATIO), None)


def instead(found: Collection[Suggestion]) -> str:
    """What can be done where none that is here can draft; nothing where one can."""
    if any(each.is_here and each.verdict != "no" for each in found):
        return ""
    if commands := [each.command for each in found if not each.is_here]:
        return f"no model here can draft for it; '{commands[0]}' fetches one that can"
    without = "it can guess without a draft model (--spec-type suffix)"
    return f"no model here can draft for it, and the catalogue knows none; {without}"


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


def _why(found: PairVerdict, target: Path, draft: Path) -> str:
    """The reason against it, or what is known of its worth."""
    if found.verdict == "no":
        is_strange = found.overlap < LEAST_OVERLAP
        return f"another vocabulary: {percent(found.overlap)} shared" if is_strange else found.reasons[0]
    facts = [found.summary] if found.verdict == "shared" else []
    with suppress(OSError):  # it went away meanwhile
        if (curve := measured_curve(target, draft)) is not None:
            facts.append(f"speedup {curve.best(ALPHA)[1]:.2f}x if {percent(ALPHA)} of guesses are right")
    return ", ".join([*facts, found.size])
