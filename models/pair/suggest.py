"""Possible drafts for a target: the files of this machine, and the catalogue's drafts."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.errors import EdgespecError
from edgespec.gguf_file.head_check import kind_of_head
from edgespec.gguf_file.header import Header
from edgespec.models.hub.cache import repository_of
from edgespec.models.names.catalog import CatalogueModel, catalogue
from edgespec.models.names.local import LocalModel
from edgespec.models.names.model_names import called, name_of
from edgespec.models.names.source import PackageSpec, files_here, packaged_at
from edgespec.models.names.spec import sources
from edgespec.models.pair.check import USUAL_RATIO, Compatibility, PairVerdict, check_pair, overlap_of, relative_size
from edgespec.models.pair.vocabulary import Vocabulary

LEAST_RATIO = 3.0  # times a draft must be smaller to be used without being requested
LEAST_OFFERED = 0.5  # of the target's tokens that a draft must share to be suggested; -md accepts fewer


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A possible draft, as `spec` names it, with its compatibility and the reason.

    Attributes:
        is_here: False for a draft of the catalogue that must be downloaded first.
        times_smaller: The relative size; None if unknown, like `size_bytes`.
        reasons: All obstacles and limits, as in `check_pair`.
        slows_down: True for a draft that is no smaller than the target: it is not suggested, even if compatible.
        kind: The kind of a draft head, such as "eagle3"; empty for a draft model.
    """

    spec: str
    verdict: Compatibility
    why: str
    is_here: bool
    times_smaller: float | None = None
    size_bytes: int | None = None
    reasons: tuple[str, ...] = ()
    slows_down: bool = False
    kind: str = ""

    @property
    def label(self) -> str:
        """The result in a word: works, shared, no, large, or pull for a draft that must be downloaded."""
        if not self.is_here:
            return "pull"
        return "large" if self.slows_down else self.verdict

    @property
    def command(self) -> str:
        """The command that downloads it."""
        return f"edgespec pull {self.spec}"


def suggestions(
    target: Header, models: Iterable[LocalModel], entries: Iterable[CatalogueModel] = ()
) -> list[Suggestion]:
    """Return the drafts for a target, the best first, incompatible ones last.

    `target` is from `check_model`. `entries` are the catalogue's drafts for it, from `catalogue_drafts`; drafts that
    must be downloaded follow the drafts that are here. Raises ModelFileError if the target can no longer be read.
    """
    vocabulary, itself = Vocabulary.of(target), os.path.realpath(target.path)
    others = [model for model in models if os.path.realpath(model.path) != itself]
    found = [assessed(target, vocabulary, model) for model in others]
    return sorted([*found, *to_fetch(entries)], key=place)


def assessed(target: Header, vocabulary: Vocabulary, model: LocalModel) -> Suggestion:
    """Assess one model as a draft; `vocabulary` is the target's."""
    spec = name_of(model.path, model.spec)
    if model.header is None:
        return Suggestion(spec, "no", model.problem, is_here=True, size_bytes=model.size_bytes)
    size, kind = relative_size(target, model.header), kind_of_head(model.header)
    if size.slows_down:  # and its tokens need not be compared
        return Suggestion(spec, "no", str(size), True, size.times_smaller, model.size_bytes, slows_down=True, kind=kind)
    try:
        found = check_pair(target, model.header, vocabulary)
        why = f"{kind} head" if kind and found.verdict == "works" else _why(found)
    except EdgespecError as error:  # it has been deleted meanwhile
        return Suggestion(spec, "no", error.why or error.what, is_here=True)
    verdict: Compatibility = "no" if found.overlap < LEAST_OFFERED else found.verdict
    reasons = tuple(found.reasons)
    return Suggestion(spec, verdict, why, True, size.times_smaller, model.size_bytes, reasons, kind=kind)


def to_fetch(entries: Iterable[CatalogueModel]) -> Iterator[Suggestion]:
    """Yield the catalogue's drafts that are not here."""
    return (found for found in of_catalogue(entries) if not found.is_here)


def of_catalogue(entries: Iterable[CatalogueModel]) -> Iterator[Suggestion]:
    """Yield the catalogue's drafts, unchecked, in its order."""
    for entry in entries:
        about = entry.about or entry.source
        if files := files_here(entry):
            yield Suggestion(name_of(files[0]), "works", about, is_here=True)
        else:
            found = Suggestion(entry.name, "works", about, is_here=False)
            yield replace(found, why=f"{about}: {found.command}")


def place(suggestion: Suggestion) -> tuple[int, bool, float, int]:
    """Return the sort key: the best drafts first, then drafts to download, then incompatible ones.

    Among equally compatible drafts, the relative size nearest to the rule of thumb is first, and drafts that are nearly
    as large as the target are last.
    """
    rank = {"works": 0, "shared": 1, "no": 3}[suggestion.verdict] if suggestion.is_here else 2
    ratio, (least, most) = suggestion.times_smaller or 1.0, USUAL_RATIO
    n_times_off = max(least / ratio, ratio / most, 1.0)
    return rank, ratio < LEAST_RATIO, n_times_off, suggestion.size_bytes or 0


def best(found: Iterable[Suggestion]) -> Suggestion | None:
    """Return the best draft that can be used without a question: here, with the same vocabulary, and much smaller."""
    fitting = (each for each in found if each.is_here and each.verdict == "works")
    return next((each for each in fitting if (each.times_smaller or 0.0) >= LEAST_RATIO), None)


def instead(found: Collection[Suggestion]) -> str:
    """Say what to do if no draft here is compatible; empty if one is."""
    if any(each.is_here and each.verdict != "no" for each in found):
        return ""
    if commands := [each.command for each in found if not each.is_here]:
        return f"no model here can draft for it; '{commands[0]}' downloads one that can"
    without = "speculative decoding also works without a draft model (`spec_type=suffix`)"
    return f"no model here can draft for it, and the catalogue has none; {without}"


def catalogue_drafts(spec: str, path: Path | None) -> list[CatalogueModel]:
    """Return the catalogue's drafts for a target.

    The target is found by its name in the catalogue, by its repository, also under another owner, or by the name of its
    file. `path` is the target's file; None if it is not here. Raises UsageError for a catalogue with errors.
    """
    entries = catalogue()
    source = sources(spec)[0] if path is None else packaged_at(path)
    if isinstance(source, PackageSpec):
        owners = [source.entry]
    else:
        repository = source.repository if source else (repository_of(path) or ("",))[0] if path else ""
        name = called(repository) or (path.name.lower() if path else "")
        owners = [
            each
            for each in entries.values()
            if each.repository
            and (each.name == spec.lower().partition(":")[0] or name.startswith(called(each.repository)))
        ]
    names = dict.fromkeys(draft for owner in owners for draft in owner.drafts)
    return [entries[draft] for draft in names if draft in entries]


def _why(found: PairVerdict) -> str:
    """Return the reason against a draft, or its size."""
    if found.overlap < LEAST_OFFERED:
        return f"{overlap_of(found.overlap)}, too little to pay off"
    if found.verdict == "no":
        return found.reasons[0]
    return f"{found.why}, {found.size}" if found.verdict == "shared" else str(found.size)
